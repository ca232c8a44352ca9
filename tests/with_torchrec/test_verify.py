"""Plans that are verified before a job: seeded faults are found, and TorchRec's own plans have no problems."""

from __future__ import annotations

import json
import pickle
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import DataType, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from evenshard.base.errors import BadConfig, BadFile
from evenshard.cli import main
from evenshard.placement.nodes import Nodes
from evenshard.placement.sharding import SEQUENCE_TYPES, SHARDING_TYPES
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.file import save_answer
from evenshard.planner.request import PlacementRequest
from evenshard.torchrec import load_plan, save_plan, tables_of, verify
from evenshard.torchrec.plan.entries import table_entry
from evenshard.torchrec.plan.verify import Job
from support.explain_builders import ROOM, answered
from support.torchrec_builders import META, WARNINGS, config, topology
from support.torchrec_training import in_parts

MACHINE = Nodes(4, 2, inter="infiniband_ndr")
OTHERS = {"s_table": "table_wise", "s_columns": "column_wise", "mean": "table_wise", "other": "table_wise"}
TYPES = {**{name: name for name in SHARDING_TYPES}, **OTHERS}
pytestmark = pytest.mark.filterwarnings("ignore:.*(torch.jit.interface|This API).*deprecated:DeprecationWarning")
# No change of the plan.
NONE: Any = len


class Every(nn.Module):
    """A table of each sharding type, sequences, and a mean."""

    def __init__(self, dim: int = 16, **more: Any) -> None:
        super().__init__()
        bags = [config(name, 40, dim if name == "table_wise" else 16, **more) for name in SHARDING_TYPES]
        self.bags = EmbeddingBagCollection(bags, device=META)
        means = [config("mean", 40, 16, pooling=PoolingType.MEAN), config("other", 40, 16)]
        self.means = EmbeddingBagCollection(means, device=META)
        own = [EmbeddingConfig(40, 16, name=name, feature_names=[name]) for name in ("s_table", "s_columns")]
        self.sequences = EmbeddingCollection(own, device=META)


def content(device: str = "cuda", model: nn.Module | None = None, **types: str) -> dict[str, Any]:
    """A plan as TorchRec serializes it."""
    plan: dict[str, Any] = {}
    for table in tables_of(model or Every()):
        way = {**TYPES, **types}[table.name]
        entry = table_entry(in_parts(table, way, MACHINE, 0), table, MACHINE, device, way)
        plan.setdefault(table.module, {})[table.name] = entry.model_dump(mode="json", exclude_defaults=True)
    return {"plan": plan}


def trained(kind: Any = torch.optim.Adagrad) -> nn.Module:
    model = Every()
    apply_optimizer_in_backward(kind, model.bags.parameters(), {"lr": 0.1})
    return model


def shard(way: str, at: int = -1, **fields: Any) -> Any:
    return lambda tables: tables[way]["shards"][at].update(fields)


def entry(way: str, **fields: Any) -> Any:
    return lambda tables: tables[way].update(fields)


def swap(tables: Any) -> None:
    first, second, *_ = tables["row_wise"]["shards"]
    first["shard_offsets"], second["shard_offsets"] = second["shard_offsets"], first["shard_offsets"]


def mix(tables: Any) -> None:
    _, second, _, last = tables["grid_shard"]["shards"]
    second["shard_offsets"], last["shard_offsets"] = last["shard_offsets"], second["shard_offsets"]


def reverse(tables: Any) -> None:
    for key in ("ranks", "shards"):
        tables["row_wise"][key].reverse()


# Each: a change of the plan, what else differs, and the problem.
FAULTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "gap": (shard("column_wise", shard_offsets=[0, 12], shard_sizes=[40, 4]), {}, "the columns 0:8, 12:16; each of"),
    "overlap": (shard("column_wise", shard_offsets=[0, 4], shard_sizes=[40, 12]), {}, "the columns 0:8, 4:16; each of"),
    "beyond": (shard("column_wise", shard_sizes=[40, 12]), {}, "the columns 0:8, 8:20; each of its 16"),
    "rows missing": (shard("row_wise", shard_sizes=[9, 16]), {}, "'row_wise' has shards with the rows"),
    "other rows": (shard("table_wise", shard_sizes=[41, 16]), {}, "the rows 0:41; each of its 40"),
    "table missing": (lambda tables: tables.pop("grid_shard"), {}, "'grid_shard' of the model is not in the plan"),
    "table added": (lambda tables: tables.update(x=tables["table_wise"]), {}, "'bags.x' is in the plan, but not in"),
    "rank outside": (entry("table_wise", ranks=[4]), {}, "is on rank 4, but the ranks are 0 to 3"),
    "ranks differ": (entry("table_wise", ranks=[1]), {}, "on the ranks [1], but its shards are on rank:0/cuda:0"),
    "replica missing": (entry("data_parallel", ranks=[0, 1, 2]), {}, "not once on each of 4"),
    "blocks swapped": (swap, {}, "the rows 10:20 on rank:0/cuda:0, but TorchRec looks up 0:10 there"),
    "rank order": (reverse, {}, "the ranks (3, 2, 1, 0), but TorchRec looks up its rows on (0, 1, 2, 3)"),
    "grid mixed": (mix, {}, "is grid_shard, but the ranks (0, 1) have different columns"),
    "wrong type": (entry("grid_shard", sharding_type="table_row_wise"), {}, "shards are cut in another way"),
    "unknown type": (entry("table_wise", sharding_type="diagonal"), {}, "'table_wise' is sharded 'diagonal'"),
    "wrong GPU": (
        shard("table_wise", placement="rank:0/cuda:1"),
        {},
        "is on GPU 1 of rank 0, which has GPU 0 of its host",
    ),
    "two wholes": (entry("column_wise", sharding_type="table_wise"), {}, "is table_wise, but its shards are cut"),
    "node width": (NONE, {"job": Job(4, 4, 4)}, "'table_row_wise' is table_row_wise on the ranks (0, 1), but"),
    "grid width": (
        NONE,
        {"job": Job(4, 1)},
        "'grid_shard' has the rows 0:20 on rank:0/cuda:0, but TorchRec looks up",
    ),
    "columns apart": (NONE, {"job": Job(4, 1)}, "is table_column_wise, but its ranks [0, 1] are on several nodes"),
    "2D group": (NONE, {"job": Job(2, 2)}, "is on rank 3, but the ranks are 0 to 1"),
    "more ranks": (NONE, {"job": Job(8, 2)}, "'row_wise' is row_wise on the ranks (0, 1, 2, 3), but"),
    "quantized": (entry("table_wise", compute_kernel="quant"), {}, "has the kernel 'quant', which does not train"),
    "fused replicas": (entry("data_parallel", compute_kernel="fused"), {}, "its replicas would differ. Use dense"),
    "SSD on CPU": (entry("table_wise", compute_kernel="key_value"), {"device": "cpu"}, "key_value, which needs a GPU"),
    "too wide": (NONE, {"model": lambda: Every(4096)}, "has a shard of 4,096 columns, but FBGEMM trains 2,048"),
    "odd width": (NONE, {"model": lambda: Every(6)}, "has shards of [6] columns, but FBGEMM needs multiples of 4"),
    "INT8": (NONE, {"model": lambda: Every(data_type=DataType.INT8)}, "has int8 weights, which kernel fused does not"),
    "BF16 on CPU": (NONE, {"model": lambda: Every(data_type=DataType.BF16), "device": "cpu"}, "has bf16 weights"),
    "Adam on CPU": (NONE, {"model": lambda: trained(torch.optim.Adam), "device": "cpu"}, "has the optimizer adam, for"),
    "leaves optimizer": (NONE, {"model": trained}, "'data_parallel' is data_parallel: your dense optimizer would"),
    "mean by rows": (NONE, {"mean": "row_wise"}, "TorchRec trains row-wise MEAN correctly only if all tables"),
    "mean grid": (NONE, {"mean": "grid_shard"}, "'mean' is sharded grid_shard, with which TorchRec trains MEAN"),
    "sequence in a node": (NONE, {"s_table": "table_row_wise"}, "of an EmbeddingCollection is sharded table_row_wise"),
    "memory": (NONE, {"cap": 1e-6}, "device 3 needs 3.75 KB, but has 1.05 KB"),
}


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_a_seeded_fault_is_found(tmp_path: Path, fault: str | None) -> None:
    change, given, message = FAULTS[fault] if fault else (NONE, {}, "")
    device, model, path = given.pop("device", "cuda"), given.pop("model", Every)(), tmp_path / "plan.json"
    job, cap_gb = given.pop("job", Job(4, 2, 2)), given.pop("cap", 1.0)
    plan = content(device, model, **given)
    change(plan["plan"]["bags"])
    path.write_text(json.dumps(plan))
    found = verify(path, model, job, memory_cap_gb=cap_gb)
    assert any(message in one for one in found.problems) if fault else not found.problems, found.problems
    assert found.num_tables == sum(map(len, plan["plan"].values())) and len(found.checked) == 5


def test_a_dense_optimizer_that_is_the_same_may_update_replicas(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(content()))
    found = verify(tmp_path / "plan.json", trained(), dense_optimizer="adagrad", hardware="simulated:h100")
    assert not found.problems and found.checked[-1].startswith("memory of devices (weights and optimizer state alone")


# Other plans ----------------------------------------------------------------------------------------------------------


def checkpoint(folder: Path, plan: dict[str, Any], states: dict[str, tuple[int, ...]], *left_out: str) -> Path:
    """The metadata that torch.distributed.checkpoint writes for a plan, with these optimizer states."""

    def stored(size: tuple[int, ...], *chunks: ChunkStorageMetadata) -> TensorStorageMetadata:
        return TensorStorageMetadata(TensorProperties(), torch.Size(size), [*chunks])

    found = {f"optimizer.state.bags.embedding_bags.{key}": stored(size) for key, size in states.items()}
    for path, module in plan["plan"].items():
        for name, one in module.items():
            shards = one.get("shards", ())[: 1 if one["sharding_type"] == "data_parallel" else None]
            chunks = [
                ChunkStorageMetadata(torch.Size(of["shard_offsets"]), torch.Size(of["shard_sizes"])) for of in shards
            ]
            kind = "embeddings" if path == "sequences" else "embedding_bags"
            if name not in left_out:
                found[f"model.{path}.{kind}.{name}.weight"] = stored((40, 16), *chunks)
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(Metadata(found)))
    return folder


@pytest.mark.parametrize(
    ("name", "states", "left_out", "message"),
    [
        ("column_wise", {"column_wise.weight.column_wise.momentum1": (80,)}, "", ""),
        ("column_wise", {"column_wise.weight.column_wise.momentum1": (40, 16)}, "", ""),
        (
            "column_wise",
            {"column_wise.weight.column_wise.momentum1": (40,)},
            "",
            "has 40 values of column_wise.m",
        ),
        (
            "data_parallel",
            {"data_parallel.weight.data_parallel.momentum1": (40,)},
            "",
            "has a fused optimizer in the",
        ),
        ("data_parallel", {"data_parallel.weight.sum": (40, 16), "data_parallel.weight.step": ()}, "", ""),
        ("table_wise", {"table_wise.weight.sum": (40, 16)}, "", "has a dense optimizer in the checkpoint, but a fused"),
        ("row_wise", {}, "row_wise", "is not in the checkpoint (Missing key)"),
    ],
)
def test_a_checkpoint_that_would_not_load(
    tmp_path: Path, name: str, states: dict[str, Any], left_out: str, message: str
) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(content()))
    saved = checkpoint(tmp_path / "saved", content(), states, left_out)
    found = verify(tmp_path / "plan.json", against=saved).problems
    assert not found if not message else found[0].startswith(f"table 'bags.{name}' {message}"), found
    own = verify(saved, Every())
    assert len(own.problems) == bool(left_out) and "rows and columns, against the tables of the model" in own.checked


@pytest.mark.parametrize(("module", "name"), [("os", "system"), ("torch", "load")])
def test_a_checkpoint_runs_no_code(tmp_path: Path, module: str, name: str) -> None:
    (tmp_path / ".metadata").write_bytes(f"c{module}\n{name}\n(S'false'\ntR.".encode())
    with pytest.raises(BadFile, match=rf"is not the metadata of a checkpoint \(it contains {module}.{name}\)"):
        verify(tmp_path)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Metadata({})))
    with pytest.raises(BadFile, match="has no tables of TorchRec"):
        verify(tmp_path)


def placed() -> PlacementAnswer:
    tables = tables_of(Every())
    types = TYPES | {"s_columns": "row_wise"}
    parts = [part for one in tables for part in in_parts(one, types[one.name], MACHINE, 0)]
    return answered(PlacementRequest(tables, (ROOM,) * 4, 16, machine=MACHINE), (), parts=parts)


def overlap(record: Any) -> None:
    record["shards"][2]["columns"] = [0, 8]


@pytest.mark.parametrize(
    ("change", "given", "message"),
    [
        (len, {}, ""),
        (overlap, {}, "has shards with the columns 0:8, 8:16|0:8; each|in exactly one shard"),
        (lambda record: record["shards"][0].update(devices=[9]), {}, "'table_wise' is on device 9, which is missing"),
        (lambda record: record["shards"][0].update(table="x"), {}, "table 'x' has shards, but is not among the tables"),
        (lambda record: record["shards"][0].update(storage={"kernel": "host"}), {}, "kernel host, which TorchRec does"),
        (
            lambda record: record["request"]["rules"].update(pinned={"table_wise": [2]}),
            {},
            "allowed devices are .2.",
        ),
        (
            lambda record: record["request"]["tables"][0].update(weight_bits=8, data_type="int8"),
            {},
            "'table_wise' has int8 weights",
        ),
        (len, {"env": Job(4, 4, 4)}, "the plan is for 2 ranks per node, but the job has 4"),
        (len, {"env": Job(8, 2, 2)}, "the plan is for 4 ranks, but the job has 8"),
        (len, {"memory_cap_gb": 1e-6}, "device 0 needs"),
        (len, {"memory_cap_gb": 1e-6, "hardware": "simulated:h100"}, "device 0 needs"),
        (len, {"env": Job(4, 2)}, ""),  # 2D groups, whose ranks per host do not matter
    ],
)
def test_a_placement_is_verified_with_its_request(tmp_path: Path, change: Any, given: Any, message: str) -> None:
    save_answer(placed(), tmp_path / "placement.json")
    record = json.loads((tmp_path / "placement.json").read_text())
    change(record)
    (tmp_path / "placement.json").write_text(json.dumps(record))
    found = verify(tmp_path / "placement.json", **given)
    assert any(re.search(message, one) for one in found.problems) if message else not found.problems, found.problems
    assert ("ranks of the job (--job)" in found.unchecked) is ("env" not in given)


def test_the_order_of_outputs_against_another_plan(tmp_path: Path) -> None:
    """Two whole tables on ranks 0 and 1, or on 1 and 0."""
    model = Every()
    for name, first in (("old", 0), ("new", 1)):
        plan = content(model=model, row_wise="table_wise")
        table = plan["plan"]["bags"]["row_wise"]
        table["ranks"], table["shards"][0]["placement"] = [2 - 2 * first], f"rank:{2 - 2 * first}/cuda:0"
        (tmp_path / f"{name}.json").write_text(json.dumps(plan))
    moved = plan["plan"]["bags"]["table_wise"]
    moved["ranks"], moved["shards"][0]["placement"] = [2], "rank:2/cuda:0"
    (tmp_path / "new.json").write_text(json.dumps(plan))
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    (changed,) = verify(new, model, against=old).problems
    assert changed.startswith("The order of the pooled output of bags changes: table_wise row_wise")
    assert not verify(new, model, against=new).problems
    assert "order of pooled outputs (--model)" in verify(new, against=old).unchecked
    save_answer(placed(), tmp_path / "placement.json")
    assert "order of pooled outputs" in verify(tmp_path / "placement.json", against=tmp_path / "placement.json").checked


@pytest.mark.parametrize(
    ("env", "args", "job"),
    [
        ({"LOCAL_WORLD_SIZE": "4"}, (16,), Job(16, 4, 4)),
        ({}, (12,), Job(12, 12, 12)),  # TorchRec assumes 8, which does not divide 12
        ({"LOCAL_WORLD_SIZE": "4", "TORCHREC_RESOLVED_POD_SIZE": "2"}, (16,), Job(16, 8, 4)),
        ({"LOCAL_WORLD_SIZE": "4"}, (16, 8), Job(8, 4)),
        ({"LOCAL_WORLD_SIZE": "4"}, (16, 8, 2), Job(8, 2)),
        ({"LOCAL_WORLD_SIZE": "4"}, (16, 6), "16 ranks cannot form sharding groups of 6"),
        ({"LOCAL_WORLD_SIZE": "4"}, (16, 8, 3), "groups of 8 ranks with nodes of 3"),
        ({"LOCAL_WORLD_SIZE": "4", "TORCHREC_RESOLVED_POD_SIZE": "3"}, (16,), "Correct TORCHREC_RESOLVED_POD_SIZE"),
    ],
)
def test_ranks_are_grouped_as_by_torchrec(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], args: tuple[int, ...], job: Job | str
) -> None:
    for name in ("LOCAL_WORLD_SIZE", "TORCHREC_RESOLVED_POD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    if isinstance(job, Job):
        assert Job.of(*args) == job
    else:
        with pytest.raises(BadConfig, match=job):
            Job.of(*args)


MODEL = """
from support.torchrec_builders import META, config
from torchrec.modules.embedding_modules import EmbeddingBagCollection
def build():
    return EmbeddingBagCollection([config("a", 40, 16)], device=META)
"""


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It exits with 1 for problems, with 2 for what it cannot read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    Path("plan.json").write_text(json.dumps(content()))
    Path("model.py").write_text(MODEL)
    assert main(["verify", "plan.json", "--job"]) == 1
    assert (
        "plan.json: 3 problems in 11 tables\nproblem      table 'bags.row_wise' is on GPU 0 of rank 2"
        in capsys.readouterr().out
    )
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert main(["verify", "plan.json", "--job", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []
    assert main(["verify", "plan.json", "--model", "model.py:build"]) == 1
    assert "table 'a' of the model is not in the plan" in capsys.readouterr().out
    for args, message in (
        (("model.py",), "is not a plan"),
        (("plan.json", "--model", "model.py:other"), "--model is model.py:other: KeyError: 'other'. Name a function"),
        (("plan.json", "--model", "nowhere:build"), "ModuleNotFoundError: No module named 'nowhere'"),
        (("plan.json", "--sharding-group-size", "2"), "2D groups are groups of a job's ranks. Add --job"),
    ):
        assert main(["verify", *args]) == 2 and message in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "x")
    assert main(["verify", "plan.json", "--job"]) == 2 and "WORLD_SIZE is 'x'" in capsys.readouterr().err


def test_a_plan_is_verified_when_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_plan(placed(), tmp_path / "plan.json")
    for ranks in ("0", "4", "8"):  # no job; this job; two sharding groups of 2D parallelism
        monkeypatch.setenv("WORLD_SIZE", ranks)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        assert load_plan(tmp_path / "plan.json", Every())
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(
        BadConfig, match=r"for 2 ranks per node, but the job has 4.* more: `evenshard verify` lists all"
    ):
        load_plan(tmp_path / "plan.json", Every())


# TorchRec's plans -----------------------------------------------------------------------------------------------------


class Random(nn.Module):
    """Sums and sequences of random sizes."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        sizes = [(rng.randrange(64, 20_000), rng.choice((8, 16, 64, 128, 256))) for _ in range(rng.randrange(2, 12))]
        self.bags = EmbeddingBagCollection([config(f"b{at}", *size) for at, size in enumerate(sizes)], device=META)
        names = [f"s{at}" for at in range(rng.randrange(1, 4))]
        own = [EmbeddingConfig(rng.randrange(64, 9_000), 64, name=name, feature_names=[name]) for name in names]
        self.sequences = EmbeddingCollection(own, device=META)


def random_plan(seed: int) -> tuple[ShardingPlan, nn.Module, Job] | None:
    """TorchRec's plan of a random model, machine and constraints; None if it finds no plan."""
    rng = random.Random(seed)
    model, node, nodes, device = Random(rng), rng.choice((2, 4, 8)), rng.choice((1, 2, 4)), rng.choice(("cuda", "cpu"))
    constraints = {}
    for name, types, least in (
        *((f"b{at}", SHARDING_TYPES, rng.choice((8, 32))) for at in range(12)),
        *((f"s{at}", SEQUENCE_TYPES[:3], 32) for at in range(3)),
    ):
        if rng.random() < 0.7 or name[0] == "s":  # shards of sequences have one width
            constraints[name] = ParameterConstraints(sharding_types=rng.sample(types, 3), min_partition=least)
    machine = topology(node * nodes, device, local_world_size=node)
    planner = EmbeddingShardingPlanner(machine, constraints=constraints, stats=[])
    try:
        return planner.plan(model, get_default_sharders()), model, Job(node * nodes, node, node)
    except (RuntimeError, PlannerError):  # no allowed type on this device
        return None


@WARNINGS
@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 600), marks=pytest.mark.nightly)])
def test_torchrecs_own_plans_have_no_problems(seeds: range) -> None:
    found = [one for seed in seeds if (one := random_plan(seed)) is not None]
    assert len(found) >= len(seeds) * 0.85
    assert [problem for plan, model, job in found for problem in verify(plan, model, job).problems] == []
