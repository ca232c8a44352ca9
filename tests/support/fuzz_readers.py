"""What reads input of others, each with a good input and a way to spoil it; and what may come of a spoilt one.

A reader gives an answer, or an ``EvenshardError`` of one printable line, in seconds and with little memory.
"""

from __future__ import annotations

import atexit
import gzip
import io
import json
import random
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import yaml

from evenshard.base.errors import EvenshardError
from evenshard.measure.traces.ranks import observe
from support.answer_builders import answer
from support.builders import PROVENANCE, cost, some_tables, table, task
from support.mutations import (
    damaged_bytes,
    mutated_csv,
    mutated_json,
    mutated_lines,
    mutated_parquet,
    mutated_tensors,
    mutated_yaml,
)
from support.repository import ROOT
from support.trace_builders import TraceBuilder, step
from support.tracking_builders import write_costs, write_model
from support.traffic_builders import TRAFFIC, dlrm, jagged, write_parquet

SECONDS = 20
MEMORY = 3 * 2**30
MAX_MESSAGE = 1200
POOL = some_tables(4)


class TooSlow(BaseException):
    """A reader has taken longer than any input is worth."""


@dataclass(frozen=True)
class Reader:
    """What reads one kind of input.

    Attributes:
        file: the name of the input.
        spoil: makes a spoilt input.
        read: reads it; gets its path.
        beside: a folder of which the input is one file; None where it stands alone.
    """

    file: str
    spoil: Callable[[random.Random], bytes]
    read: Callable[[Path], object]
    beside: Callable[[], Path] | None = None


def problem_with(reader: Reader, content: bytes, folder: Path) -> str | None:
    """Says what a reader does with an input that it may not do; None if there is nothing.

    Args:
        folder: empty; the input stays in it where there is a problem.
    """
    if reader.beside is not None:
        shutil.copytree(reader.beside(), folder, dirs_exist_ok=True)
    path = folder / reader.file
    path.write_bytes(content)
    try:
        with bounded(), redirect_stdout(io.StringIO()):
            reader.read(path)
    except EvenshardError as error:
        message = str(error)
        if not message.isprintable():
            return f"not one printable line: {message!r}"
        if len(message) > MAX_MESSAGE:
            return f"a message of {len(message)} characters: {message[:300]!r}"
        scratch = message.replace(str(folder), "")
        if tempfile.gettempdir() in scratch:
            return f"the path of a temporary copy: {message}"
    except (Exception, TooSlow) as error:
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        line = f"{where.tb_frame.f_code.co_filename}:{where.tb_lineno}" if where is not None else "?"
        return f"{type(error).__name__} at {line}: {str(error)[:300]!r}"
    return None


@contextmanager
def bounded() -> Iterator[None]:
    """A block ends after some seconds, and gets no more than some gigabytes."""

    def stop(*_: Any) -> None:
        raise TooSlow(f"longer than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, hard))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


# Good inputs ----------------------------------------------------------------------------------------------------------


@cache
def _made() -> Path:
    """A folder with one good input of each kind that takes writing."""
    from evenshard.base.provenance import Lineage
    from evenshard.measure.campaign import Job
    from evenshard.measure.config import MeasureConfig
    from evenshard.measure.journal import Journal, Origin, Visit
    from evenshard.measure.plan import save_measure_plan
    from evenshard.placement.placement import Placement
    from evenshard.placement.tasks import TaskSplit, save_tasks
    from evenshard.planner.file import save_answer
    from evenshard.tables.files import save_tables
    from evenshard.tables.generator import GeneratorConfig, generate_tables

    folder = Path(tempfile.mkdtemp(prefix="evenshard-fuzz-"))
    atexit.register(shutil.rmtree, folder)
    save_tables(generate_tables(GeneratorConfig(4), 1024, 0), folder / "tables.parquet")
    save_tables(generate_tables(GeneratorConfig(4), 1024, 0), folder / "tables.json")
    save_tables(generate_tables(GeneratorConfig(4), 1024, 0), folder / "tables.csv")
    save_tasks(TaskSplit((task(POOL[:3]),), (task(POOL[1:], 4, task_id="other"),)), folder / "tasks.json")
    write_costs(folder / "costs.parquet", Lineage())
    write_model(folder / "model")
    save_answer(answer(), folder / "placement.json")
    job = Job("m1", task(POOL), Placement((0, 1, 0, 1), 2).parts(POOL), 1, "random", "")
    save_measure_plan([job], MeasureConfig("simulated:h200"), folder / "plan.json")
    with Journal(folder / "journal.jsonl") as journal:
        for number in range(3):
            origin = Origin(PROVENANCE, {"num_batches": 2, "recorded_batch": None})
            journal.append(Visit("job", number, cost(1.0, 2.0), 1.5e9, origin))
    write_parquet(folder / "traffic", TRAFFIC)
    return folder


def _json(name: str) -> Any:
    return json.loads((_made() / name).read_text())


def _yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def _parquet(name: str, rng: random.Random) -> bytes:
    return mutated_parquet((_made() / name).read_bytes(), rng)


def _csv_rows() -> list[list[str]]:
    import csv

    with (_made() / "tables.csv").open(newline="") as file:
        return list(csv.reader(file))


def _section(name: str, rng: random.Random) -> bytes:
    """params.yaml with a change in one section."""
    whole = yaml.safe_load((ROOT / "params.yaml").read_text())
    changed = mutated_yaml({name: whole[name]}, rng)
    return changed + yaml.safe_dump({key: value for key, value in whole.items() if key != name}).encode()


def _spoilt_gzip(content: Any, rng: random.Random) -> bytes:
    out = gzip.compress(mutated_tensors(content, rng), mtime=0)
    return damaged_bytes(out, rng) if rng.random() < 0.3 else out


def _torchrec_plan() -> Any:
    from evenshard.torchrec import save_plan

    path = _made() / "torchrec.json"
    if not path.exists():
        save_plan(answer(), path)
    return json.loads(path.read_text())


def _state(part: str) -> Any:
    return torch.load(_made() / "model" / part / "state.pt", weights_only=True)


ADDRESSES = ["s3://bucket/folder/name.parquet", "s3://b/k", "s3://bucket/a b/ü@x"]
RULES = {"pinned": {"a": 0, "b": [0, 1]}, "forbidden": {"a": 1}, "forbidden_devices": [1], "together": [["a", "b"]],
         "apart": [["a", "c"]]}  # fmt: skip
REQUEST = {"tables": [{"name": "a", "num_rows": 9, "embedding_dim": 8}], "num_devices": 2, "memory_cap_gb": [40, 64],
           "hosts": "hosts.yaml", "communication": ["fp16"], "pooling_factors": {"a": [1, 2.5]}, "seed": 1,
           **RULES}  # fmt: skip
LINK = {"latency_us": {"value": 30.0, "source": "measured"}, "bandwidth_gb_s": {"value": 3.1, "source": "measured"},
        "source": "measured"}  # fmt: skip

# Readers --------------------------------------------------------------------------------------------------------------


def _read_tables(path: Path) -> None:
    from evenshard.planner.request import PlacementRequest, caps_of
    from evenshard.search.infeasibility import find_reason
    from evenshard.tables.sources import tables_from

    found = tables_from(path, 1024)
    find_reason(PlacementRequest(found.tables, caps_of(64, 2), 1024, optimizer="adam").task().as_whole)


def _read_tasks(path: Path) -> None:
    from evenshard.placement.tasks import load_tasks
    from evenshard.search.infeasibility import find_reason

    split = load_tasks(path, POOL)
    for one in (*split.train, *split.test):
        find_reason(one.as_whole)


def _read_params(path: Path) -> None:
    from evenshard.base.documents import load_params
    from evenshard.base.provenance import params_hash
    from evenshard.base.typed import section
    from evenshard.loop.loop import STAGES, LoopConfig
    from evenshard.measure.config import MeasureConfig

    kinds = {"loop": LoopConfig, "measure": MeasureConfig, **{stage.name: stage.config for stage in STAGES}}
    params = load_params(path)
    for name, kind in kinds.items():
        section(params, name, kind)
    params_hash(params)


def _read_config(path: Path) -> None:
    from evenshard.planner.config_file import config_text, load_config

    tables, arguments = load_config(path)
    config_text(tables, arguments)


def _read_rules(path: Path) -> None:
    from evenshard.planner.request import PlacementRequest
    from evenshard.planner.rules import load_rules

    PlacementRequest(tuple(map(table, "abc")), (10**9,) * 2, 64, rules=load_rules(path)).task()


def _read_profile(path: Path) -> None:
    from evenshard.measure.config import MeasureConfig
    from evenshard.measure.local_hardware import open_hardware
    from evenshard.placement.placement import Placement

    hardware = open_hardware(MeasureConfig(f"simulated:{path}"))
    hardware.measure(task(POOL), Placement((0, 1, 0, 1), 2))


def _read_link(path: Path) -> None:
    from evenshard.price.collectives import all_to_all_ms
    from evenshard.price.link import link

    all_to_all_ms(link(str(path)), [3, 1], 1000)


def _read_cluster(path: Path) -> None:
    from evenshard.kubeflow.cluster import load_cluster

    load_cluster(path)


def _read_journal(path: Path) -> None:
    from evenshard.measure.journal import Journal
    from evenshard.price.costs import combine_visits

    with Journal(path) as journal:
        visits = [visit for number in range(3) if (visit := journal.find("job", number)) is not None]
    if visits:
        combine_visits([visit.cost for visit in visits[:1]])


def _read_costs(path: Path) -> None:
    from evenshard.measure.cost_dataset import load_costs
    from evenshard.measure.cost_rows import read_lineage
    from evenshard.measure.describe import describe

    load_costs(path, POOL)
    read_lineage(path)
    describe([path])


def _read_placement(path: Path) -> None:
    from evenshard.planner.file import json_text, load_answer
    from evenshard.report.answer import print_answer

    found = load_answer(path)
    json_text(found)
    print_answer(found)


def _read_plan(path: Path) -> None:
    from evenshard.measure.plan import load_measure_plan

    load_measure_plan(path)


@cache
def _delta() -> Any:
    from evenshard.torchrec.running.delta_file import reshard_delta
    from support.explain_builders import answered, asked

    request = asked({"a": 5.0, "b": 3.0}, 2, optimizer="rowwise_adagrad")
    delta = reshard_delta(answered(request, (0, 1)), answered(request, (1, 0, 1), {"a": (4,)}))
    return delta.model_dump(mode="json")


def _read_delta(path: Path) -> None:
    from evenshard.torchrec.running.delta_file import read_delta

    read_delta(path)


def _read_torchrec_plan(path: Path) -> None:
    from evenshard.base.errors import BadConfig
    from evenshard.torchrec import load_plan

    try:
        load_plan(path, {})
    except BadConfig as error:  # this model has none of the tables
        if "in the model's collections" not in str(error):
            raise


def _read_model(path: Path) -> None:
    from evenshard.sharders.checkpoint import load_network
    from evenshard.sharders.dreamshard.sharder import DreamShardCostNet
    from evenshard.sharders.models import load_model

    folder = path.parent.parent
    model = load_model(folder)
    model.cost_model.represent(POOL, 64)
    model.trained_on.outside(task(POOL))
    load_network(folder / "cost_net", DreamShardCostNet)


def _read_address(path: Path) -> None:
    from evenshard.base.s3 import Address

    str(Address.of(path.read_text(errors="surrogateescape")).below("x"))


def _read_batch(path: Path) -> None:
    from evenshard.tables.dlrm_batch import read_dlrm_batch

    read_dlrm_batch(path)


def _read_traffic(path: Path) -> None:
    from evenshard.tables.traffic import tables_from_traffic

    tables_from_traffic(path, 2, embedding_dim=8)


def _model_reader(part: str, name: str, spoil: Callable[[random.Random], bytes]) -> Reader:
    return Reader(f"{part}/{name}", spoil, _read_model, lambda: _made() / "model")


def _model_json(part: str, name: str, rng: random.Random) -> bytes:
    return mutated_json(_json(f"model/{part}/{name}"), rng)


SECTIONS = ("loop", "generate_tables", "measure", "benchmark", "train_cost", "train_policy", "evaluate")


def _trace() -> Any:
    trace = TraceBuilder()
    step(trace, 5, 0, 100, 200)
    return trace.document()


READERS: dict[str, Reader] = {
    "tables.json": Reader("t.json", lambda rng: mutated_json(_json("tables.json"), rng), _read_tables),
    "tables.yaml": Reader("t.yaml", lambda rng: mutated_yaml(_json("tables.json"), rng), _read_tables),
    "tables.csv": Reader("t.csv", lambda rng: mutated_csv(_csv_rows(), rng), _read_tables),
    "tables.parquet": Reader("t.parquet", partial(_parquet, "tables.parquet"), _read_tables),
    "tasks.json": Reader("tasks.json", lambda rng: mutated_json(_json("tasks.json"), rng), _read_tasks),
    **{f"params.yaml {name}": Reader("params.yaml", partial(_section, name), _read_params) for name in SECTIONS},
    "request": Reader("request.yaml", lambda rng: mutated_yaml(REQUEST, rng), _read_config),
    "rules": Reader("rules.yaml", lambda rng: mutated_yaml(RULES, rng), _read_rules),
    "device profile": Reader(
        "device.yaml", lambda rng: mutated_yaml(_yaml("src/evenshard/price/profiles/h200.yaml"), rng), _read_profile
    ),
    "data sheet": Reader(
        "sheet.yaml", lambda rng: mutated_yaml(_yaml("src/evenshard/price/profiles/l40s.yaml"), rng), _read_profile
    ),
    "link profile": Reader("link.yaml", lambda rng: mutated_yaml(LINK, rng), _read_link),
    "cluster.yaml": Reader(
        "cluster.yaml", lambda rng: mutated_yaml(_yaml("pipelines/cluster.yaml"), rng), _read_cluster
    ),
    "journal": Reader(
        "j.jsonl",
        lambda rng: mutated_lines(
            [json.loads(one) for one in (_made() / "journal.jsonl").read_text().splitlines()], rng
        ),
        _read_journal,
    ),
    "costs.parquet": Reader("costs.parquet", partial(_parquet, "costs.parquet"), _read_costs),
    "placement.json": Reader("p.json", lambda rng: mutated_json(_json("placement.json"), rng), _read_placement),
    "plan": Reader("plan.json", lambda rng: mutated_json(_json("plan.json"), rng), _read_plan),
    "torchrec plan": Reader("plan.json", lambda rng: mutated_json(_torchrec_plan(), rng), _read_torchrec_plan),
    "delta": Reader("delta.json", lambda rng: mutated_json(_delta(), rng), _read_delta),
    "model config": _model_reader("cost_model", "config.json", partial(_model_json, "cost_model", "config.json")),
    "model trained_on": _model_reader(
        "cost_model", "trained_on.json", partial(_model_json, "cost_model", "trained_on.json")
    ),
    "model state": _model_reader("cost_model", "state.pt", lambda rng: mutated_tensors(_state("cost_model"), rng)),
    "network config": _model_reader("cost_net", "config.json", partial(_model_json, "cost_net", "config.json")),
    "network state": _model_reader("cost_net", "state.pt", lambda rng: mutated_tensors(_state("cost_net"), rng)),
    "trace": Reader("trace.json", lambda rng: mutated_json(_trace(), rng), lambda path: observe([path])),
    "address": Reader("address", lambda rng: damaged_bytes(rng.choice(ADDRESSES).encode(), rng), _read_address),
    "batch.pt": Reader("b.pt", lambda rng: mutated_tensors(list(dlrm(TRAFFIC)), rng), _read_batch),
    "batch.pt.gz": Reader("b.pt.gz", lambda rng: _spoilt_gzip(list(dlrm(TRAFFIC)), rng), _read_batch),
    "traffic.parquet": Reader("t.parquet", partial(_parquet, "traffic/part-0.parquet"), _read_traffic),
    "traffic.pt": Reader("t.pt", lambda rng: mutated_tensors(jagged(TRAFFIC), rng), _read_traffic),
    "traffic.pt.gz": Reader("t.pt.gz", lambda rng: _spoilt_gzip(jagged(TRAFFIC), rng), _read_traffic),
}


def spoilt(name: str, seed: int, number: int) -> bytes:
    """The input of this number; always the same."""
    return READERS[name].spoil(random.Random(f"{seed} {name} {number}"))
