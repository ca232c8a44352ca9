"""Plans that are verified before a job: seeded faults are found, and TorchRec's own plans have no problems."""

from __future__ import annotations

import json
import pickle
import random
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
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

MACHINE, CPU = Nodes(4, 2, inter="infiniband_ndr"), {"device": "cpu"}
OTHERS = {"s_table": "table_wise", "s_columns": "column_wise", "mean": "table_wise", "other": "table_wise"}
TYPES = {**{name: name for name in SHARDING_TYPES}, **OTHERS}
pytestmark = pytest.mark.filterwarnings("ignore:.*(torch.jit.interface|This API).*deprecated:DeprecationWarning")


class Every(nn.Module):
    """A table of each sharding type, sequences, and a mean."""

    def __init__(self, dim: int = 16, optimizer: Any = None, **more: Any) -> None:
        super().__init__()
        bags = [config(name, 40, dim if name == "table_wise" else 16, **more) for name in SHARDING_TYPES]
        means = [config("mean", 40, 16, pooling=PoolingType.MEAN), config("other", 40, 16)]
        own = [EmbeddingConfig(40, 16, name=name, feature_names=[name]) for name in ("s_table", "s_columns")]
        self.bags, self.means = (EmbeddingBagCollection(tables, device=META) for tables in (bags, means))
        self.sequences = EmbeddingCollection(own, device=META)
        if optimizer is not None:
            apply_optimizer_in_backward(optimizer, self.bags.parameters(), {"lr": 0.1})


def content(device: str = "cuda", model: nn.Module | None = None, **types: str) -> dict[str, Any]:
    """A plan as TorchRec serializes it."""
    plan: dict[str, Any] = {}
    for table in tables_of(model or Every()):
        way = {**TYPES, **types}[table.name]
        entry = table_entry(in_parts(table, way, MACHINE, 0), table, MACHINE, device, way)
        plan.setdefault(table.module, {})[table.name] = entry.model_dump(mode="json", exclude_defaults=True)
    return {"plan": plan}


def written(path: Path, record: Any) -> Path:
    path.write_text(json.dumps(record))
    return path


def shard(way: str, **fields: Any) -> Any:
    return lambda tables: tables[way]["shards"][-1].update(fields)


def entry(way: str, **fields: Any) -> Any:
    return lambda tables: tables[way].update(fields)


def swap(way: str, first: int, second: int) -> Any:
    """Exchange the offsets of two shards."""

    def change(tables: Any) -> None:
        one, other = (tables[way]["shards"][at] for at in (first, second))
        one["shard_offsets"], other["shard_offsets"] = other["shard_offsets"], one["shard_offsets"]

    return change


# Each: a change of the tables in ``bags`` or None, what else differs, and the problem.
FAULTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "none": (None, {}, ""),
    "gap": (shard("column_wise", shard_offsets=[0, 12], shard_sizes=[40, 4]), {}, "the columns 0:8, 12:16; each of"),
    "overlap": (shard("column_wise", shard_offsets=[0, 4], shard_sizes=[40, 12]), {}, "the columns 0:8, 4:16; each of"),
    "rows missing": (shard("row_wise", shard_sizes=[9, 16]), {}, "'row_wise' has shards with the rows"),
    "other rows": (shard("table_wise", shard_sizes=[41, 16]), {}, "the rows 0:41; each of its 40"),
    "table missing": (lambda tables: tables.pop("grid_shard"), {}, "'grid_shard' of the model is not in the plan"),
    "table added": (lambda tables: tables.update(x=tables["table_wise"]), {}, "'bags.x' is in the plan, but not in"),
    "rank outside": (entry("table_wise", ranks=[4]), {}, "is on rank 4, but the ranks are 0 to 3"),
    "ranks differ": (entry("table_wise", ranks=[1]), {}, "on the ranks (1,), but its shards are on rank:0/cuda:0"),
    "shard missing": (entry("table_wise", shards=[]), {}, "has 1 ranks for 0 shards"),
    "replica missing": (entry("data_parallel", ranks=[0, 1, 2], shards=[]), {}, "not once on each of 4"),
    "replica cut": (lambda tables: [one.update(shard_sizes=[9, 16]) for one in tables["data_parallel"]["shards"]],
                    {}, "'data_parallel' has shards with the rows 0:9"),
    "blocks swapped": (swap("row_wise", 0, 1), {}, "blocks of 10 rows on the ranks 0 to 3 in order"),
    "rank order": (lambda tables: [tables["row_wise"][key].reverse() for key in ("ranks", "shards")],
                   {}, "ranks (3, 2, 1, 0), but TorchRec looks up its rows on (0, 1, 2, 3)"),
    "grid mixed": (swap("grid_shard", 1, 3), {}, "'grid_shard' has rows 0:20 on rank 0. TorchRec"),
    "wrong type": (entry("grid_shard", sharding_type="table_row_wise"), {}, "shards are cut in another way"),
    "unknown type": (entry("table_wise", sharding_type="diagonal"), {}, "'table_wise' is sharded 'diagonal'"),
    "wrong GPU": (shard("table_wise", placement="rank:0/cuda:1"), {}, "is on GPU 1 of rank 0, which has GPU 0 of its"),
    "node width": (None, {"job": Job(4, 4, 4)}, "rows 0:20 on rank 0, 20:40 on rank 1. TorchRec needs blocks of 10"),
    "grid width": (None, {"job": Job(4, 1)}, "'grid_shard' has rows 0:20 on rank 0, 20:40 on rank 1. TorchRec needs"),
    "columns apart": (None, {"job": Job(4, 1)}, "is table_column_wise, but its ranks (0, 1) are on several nodes"),
    "2D group": (None, {"job": Job(2, 2)}, "is on rank 3, but the ranks are 0 to 1"),
    "more ranks": (None, {"job": Job(8, 2)}, "needs blocks of 5 rows on the ranks 0 to 7 in order (2 ranks per node)"),
    "quantized": (entry("table_wise", compute_kernel="quant"), {}, "has the kernel 'quant', which does not train"),
    "fused replicas": (entry("data_parallel", compute_kernel="fused"), {}, "its replicas would differ. Use dense"),
    "SSD on CPU": (entry("table_wise", compute_kernel="key_value"), CPU, "key_value, which needs a GPU"),
    "too wide": (None, {"model": {"dim": 4096}}, "has a shard of 4,096 columns, but FBGEMM trains 2,048"),
    "odd width": (None, {"model": {"dim": 6}}, "has shards of [6] columns, but FBGEMM needs multiples of 4"),
    "INT8": (None, {"model": {"data_type": DataType.INT8}}, "has int8 weights, which kernel fused does not"),
    "BF16 on CPU": (None, {"model": {"data_type": DataType.BF16}, **CPU}, "has bf16 weights"),
    "Adam on CPU": (None, {"model": {"optimizer": torch.optim.Adam}, **CPU}, "has the optimizer adam, for"),
    "leaves optimizer": (None, {"model": {"optimizer": torch.optim.Adagrad}}, "is data_parallel: your dense optimizer"),
    "mean by rows": (None, {"types": {"mean": "row_wise"}}, "TorchRec trains row-wise MEAN correctly only if all"),
    "mean grid": (None, {"types": {"mean": "grid_shard"}}, "is sharded grid_shard, with which TorchRec trains MEAN"),
    "sequence in a node": (None, {"types": {"s_table": "table_row_wise"}}, "of an EmbeddingCollection is sharded"),
    "memory": (None, {"cap": 1e-6}, "device 3 needs 3.75 KB, but has 1.05 KB"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_found(tmp_path: Path, fault: str) -> None:
    change, given, message = FAULTS[fault]
    model = Every(**given.get("model", {}))
    plan = content(given.get("device", "cuda"), model, **given.get("types", {}))
    if change is not None:
        change(plan["plan"]["bags"])
    path = written(tmp_path / "plan.json", plan)
    found = verify(path, model, given.get("job", Job(4, 2, 2)), memory_cap_gb=given.get("cap", 1.0))
    assert any(message in problem for problem in found.problems) if message else not found.problems, found.problems
    assert found.num_tables == sum(map(len, plan["plan"].values())) and len(found.checked) == 5


# Other plans ----------------------------------------------------------------------------------------------------------


def stored(size: tuple[int, ...], shards: Sequence[Mapping[str, Any]] = ()) -> TensorStorageMetadata:
    chunks = [
        ChunkStorageMetadata(*(torch.Size(one[f"shard_{key}"]) for key in ("offsets", "sizes"))) for one in shards
    ]
    return TensorStorageMetadata(TensorProperties(), torch.Size(size), chunks)


MOMENTUM, SUM = "{0}.weight.{0}.momentum1", "{0}.weight.sum"


@pytest.mark.parametrize(
    ("name", "state", "shape", "message"),
    [
        ("column_wise", MOMENTUM, (80,), ""),
        ("column_wise", MOMENTUM, (40, 16), ""),
        ("column_wise", MOMENTUM, (40,), "has 40 values of column_wise.m"),
        ("data_parallel", MOMENTUM, (40,), "has a fused optimizer in the"),
        ("data_parallel", SUM, (40, 16), ""),
        ("data_parallel", "{0}.weight.step", (), ""),
        ("table_wise", SUM, (40, 16), "has a dense optimizer in the checkpoint, but a fused"),
        ("row_wise", "", (), "is not in the checkpoint (Missing key)"),
    ],
)
def test_a_checkpoint_that_would_not_load(
    tmp_path: Path, name: str, state: str, shape: tuple[int, ...], message: str
) -> None:
    path = written(tmp_path / "plan.json", content())
    saved = {f"optimizer.state.bags.embedding_bags.{state.format(name)}": stored(shape)} if state else {}
    for at, module in content()["plan"].items():
        kind = "embeddings" if at == "sequences" else "embedding_bags"
        for table in module if state else module.keys() - {name}:
            shards = module[table]["shards"][: 1 if table == "data_parallel" else None]
            saved[f"model.{at}.{kind}.{table}.weight"] = stored((40, 16), shards)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Metadata(saved)))
    found = verify(path, against=tmp_path).problems
    assert not found if not message else found[0].startswith(f"table 'bags.{name}' {message}"), found
    own = verify(tmp_path, Every())
    assert len(own.problems) == (not state) and "rows and columns, against the tables of the model" in own.checked


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (b"cos\nsystem\n(S'false'\ntR.", r"is not the metadata of a checkpoint \(it contains os.system\)"),
        (b"ctorch\nload\n(S'false'\ntR.", r"is not the metadata of a checkpoint \(it contains torch.load\)"),
        (pickle.dumps(Metadata({})), "has no tables of TorchRec"),
    ],
)
def test_a_checkpoint_runs_no_code(tmp_path: Path, metadata: bytes, message: str) -> None:
    (tmp_path / ".metadata").write_bytes(metadata)
    with pytest.raises(BadFile, match=message):
        verify(tmp_path)


def placed() -> PlacementAnswer:
    tables, types = tables_of(Every()), TYPES | {"s_columns": "row_wise"}
    parts = [part for table in tables for part in in_parts(table, types[table.name], MACHINE, 0)]
    return answered(PlacementRequest(tables, (ROOM,) * 4, 16, machine=MACHINE), (), parts=parts)


INT8 = {"weight_bits": 8, "data_type": "int8"}


@pytest.mark.parametrize(
    ("change", "given", "message"),
    [
        (None, {}, ""),
        (
            lambda shards, _: shards[2].update(columns=[0, 8]),
            {},
            "the columns 0:8, 8:16|0:8; each|in exactly one shard",
        ),
        (
            lambda shards, _: shards[0].update(devices=[9]),
            {},
            "'table_wise' is on device 9, but the devices are 0 to 3",
        ),
        (lambda shards, _: shards[0].update(table="x"), {}, "table 'x' has shards, but is not among the tables"),
        (lambda shards, _: shards[0].update(storage={"kernel": "host"}), {}, "kernel host, which TorchRec does"),
        (lambda _, request: request["rules"].update(pinned={"mean": [2]}), {}, "allowed devices are .2."),
        (lambda _, request: request["rules"].update(apart=[["mean", "other"]]), {}, "'?mean, other'? share a device"),
        (lambda _, request: request["tables"][0].update(INT8), {}, "'table_wise' has int8 weights"),
        (None, {"env": Job(4, 4, 4)}, "the plan is for 2 ranks per node, but the job has 4"),
        (None, {"env": Job(8, 2, 2)}, "the plan is for 4 ranks, but the job has 8"),
        (None, {"memory_cap_gb": 1e-6}, "device 0 needs"),
        (None, {"memory_cap_gb": 1e-6, "hardware": "simulated:h100"}, "device 0 needs"),
        (None, {"env": Job(4, 2)}, ""),  # 2D groups, whose ranks per host do not matter
    ],
)
def test_a_placement_is_verified_with_its_request(tmp_path: Path, change: Any, given: Any, message: str) -> None:
    save_answer(placed(), tmp_path / "placement.json")
    record = json.loads((tmp_path / "placement.json").read_text())
    if change is not None:
        change(record["shards"], record["request"])
    found = verify(written(tmp_path / "placement.json", record), **given)
    assert any(re.search(message, one) for one in found.problems) if message else not found.problems, found.problems
    assert ("ranks of the job (--job)" in found.unchecked) is ("env" not in given)


def test_the_order_of_outputs_against_another_plan(tmp_path: Path) -> None:
    """Two whole tables on ranks 0 and 2, or on 2 and 0."""
    model = Every(optimizer=torch.optim.Adagrad)
    plans = []
    for moved in ("row_wise", "table_wise"):
        plan = content(model=model, row_wise="table_wise")
        for name in ("row_wise", "table_wise"):
            rank = 2 if name == moved else 0
            plan["plan"]["bags"][name]["ranks"] = [rank]
            plan["plan"]["bags"][name]["shards"][0]["placement"] = f"rank:{rank}/cuda:0"
        plans.append(written(tmp_path / f"{moved}.json", plan))
    old, new = plans
    (changed,) = verify(new, model, against=old, dense_optimizer="adagrad").problems
    assert changed.startswith("The order of the pooled output of bags changes: table_wise row_wise")
    same = verify(new, model, against=new, dense_optimizer="adagrad", hardware="simulated:h100")
    assert not same.problems and same.checked[-2].startswith("memory of devices (weights and optimizer state alone")
    assert "order of pooled outputs (--model)" in verify(new, against=old).unchecked
    save_answer(placed(), tmp_path / "placement.json")
    assert "order of pooled outputs" in verify(tmp_path / "placement.json", against=tmp_path / "placement.json").checked


@pytest.mark.parametrize(
    ("local", "pod", "args", "job"),
    [
        ("4", "", (16,), Job(16, 4, 4)),
        ("", "", (12,), Job(12, 12, 12)),  # TorchRec assumes 8, which does not divide 12
        ("4", "2", (16,), Job(16, 8, 4)),
        ("4", "", (16, 8), Job(8, 4)),
        ("4", "", (16, 8, 2), Job(8, 2)),
        ("4", "", (16, 6), "16 ranks cannot form sharding groups of 6"),
        ("4", "", (16, 8, 3), "groups of 8 ranks with nodes of 3"),
        ("4", "3", (16,), "Correct TORCHREC_RESOLVED_POD_SIZE"),
        ("4", "", (0,), "WORLD_SIZE is not set"),
    ],
)
def test_ranks_are_grouped_as_by_torchrec(
    monkeypatch: pytest.MonkeyPatch, local: str, pod: str, args: tuple[int, ...], job: Any
) -> None:
    for name, value in (("LOCAL_WORLD_SIZE", local), ("TORCHREC_RESOLVED_POD_SIZE", pod)):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    with pytest.raises(BadConfig, match=job) if isinstance(job, str) else nullcontext():
        assert Job.of(*args) == job


MODEL = """
from support.torchrec_builders import META, config
from torchrec.modules.embedding_modules import EmbeddingBagCollection
build = lambda: EmbeddingBagCollection([config("a", 40, 16)], device=META)
"""


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It exits with 1 for problems, with 2 for what it cannot read."""
    monkeypatch.chdir(tmp_path)
    written(Path("plan.json"), content())
    Path("model.py").write_text(MODEL)
    for args, world_size, node, code, message in (
        ("plan.json --job", "4", "4", 1, "3 problems in 11 tables\nproblem      table 'bags.row_wise' is on GPU 0"),
        ("plan.json --job --json", "4", "2", 0, '"problems": []'),
        ("plan.json --model model.py:build", "4", "2", 1, "table 'a' of the model is not in the plan"),
        ("model.py", "4", "2", 2, "is not a plan"),
        ("plan.json --model model.py:other", "4", "2", 2, "model.py:other: KeyError: 'other'. Name a function"),
        ("plan.json --model nowhere:build", "4", "2", 2, "ImportError: No module named nowhere"),
        ("plan.json --sharding-group-size 2", "4", "2", 2, "2D groups are groups of a job's ranks. Add --job"),
        ("plan.json --job", "x", "2", 2, "WORLD_SIZE is 'x'"),
    ):
        monkeypatch.setenv("WORLD_SIZE", world_size)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", node)
        assert main(["verify", *args.split()]) == code and message in "".join(capsys.readouterr())


def test_a_plan_is_verified_when_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_plan(placed(), tmp_path / "plan.json")
    for ranks in ("0", "4", "8"):  # no job; this job; two sharding groups of 2D parallelism
        monkeypatch.setenv("WORLD_SIZE", ranks)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        assert load_plan(tmp_path / "plan.json", Every())
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    problem = r"for 2 ranks per node, but the job has 4.* more: `evenshard verify` lists all"
    with pytest.raises(BadConfig, match=problem):
        load_plan(tmp_path / "plan.json", Every())


# TorchRec's plans -----------------------------------------------------------------------------------------------------


def random_plan(seed: int) -> tuple[ShardingPlan, nn.Module, Job] | None:
    """TorchRec's plan of sums and sequences, a machine and constraints; None if no type is allowed on this device."""
    rng = random.Random(seed)
    bags = [config(f"b{at}", rng.randrange(64, 20_000), 8 << rng.randrange(6)) for at in range(rng.randrange(2, 12))]
    own = [
        EmbeddingConfig(rng.randrange(64, 9_000), 64, name=f"s{at}", feature_names=[f"s{at}"])
        for at in range(rng.randrange(1, 4))
    ]
    collections = {"bags": EmbeddingBagCollection(bags, device=META), "own": EmbeddingCollection(own, device=META)}
    model, node, nodes, device = nn.ModuleDict(collections), *map(rng.choice, ((2, 4, 8), (1, 2, 4), ("cuda", "cpu")))
    constraints, widths = {}, rng.choice((8, 32))
    for table in (*bags, *own):
        is_bag = table.name in {one.name for one in bags}
        if rng.random() < 0.7 or not is_bag:  # shards of sequences have one width
            types = rng.sample(SHARDING_TYPES if is_bag else SEQUENCE_TYPES[:3], 3)
            constraints[table.name] = ParameterConstraints(sharding_types=types, min_partition=widths if is_bag else 32)
    machine = topology(node * nodes, device, local_world_size=node)
    planner = EmbeddingShardingPlanner(machine, constraints=constraints, stats=[])
    try:
        return planner.plan(model, get_default_sharders()), model, Job(node * nodes, node, node)
    except (RuntimeError, PlannerError):
        return None


@WARNINGS
@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 600), marks=pytest.mark.nightly)])
def test_torchrecs_own_plans_have_no_problems(seeds: range) -> None:
    found = [one for seed in seeds if (one := random_plan(seed)) is not None]
    assert len(found) >= len(seeds) * 0.85
    assert [problem for plan, model, job in found for problem in verify(plan, model, job).problems] == []
