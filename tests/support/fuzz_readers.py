"""Readers of users' files, each with a good file that ``support.fuzz`` spoils."""

from __future__ import annotations

import atexit
import gzip
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch

from evenshard.base.provenance import Lineage
from evenshard.loop.loop import STAGES
from evenshard.measure.config import MeasureConfig
from evenshard.placement.placement import Placement
from support.answer_builders import answer
from support.builders import PROVENANCE, cost, some_tables, task
from support.explain_builders import answered, asked
from support.learned import LEARNED
from support.repository import ROOT
from support.trace_builders import TraceBuilder, step
from support.tracking_builders import write_costs
from support.traffic_builders import TRAFFIC, dlrm, jagged, write_parquet

POOL, PLACED = some_tables(4), Placement((0, 1, 0, 1), 2)
PROFILES = "src/evenshard/price/profiles"
COPIED = f"params.yaml examples/rules.yaml pipelines/cluster.yaml {PROFILES}/h200.yaml {PROFILES}/l40s.yaml".split()
TEXTS = {
    "request.yaml": "{tables: [{name: a, num_rows: 9, embedding_dim: 8}], num_devices: 2, memory_cap_gb: [40, 64], "
    "hosts: h.yaml, communication: [fp16], pooling_factors: {a: [1, 2.5]}, pinned: {a: 0}, apart: [[a, c]], seed: 1}\n",
    "link.yaml": "{source: measured, latency_us: {value: 3, source: measured}, "
    "bandwidth_gb_s: {value: 30, source: measured}}\n",
    "address": "s3://bucket/a b/ü@x",
    "pipeline.config": 'feature_configs { sequence_feature { sequence_name: "s" sequence_length: 5 features { '
    'id_feature { feature_name: "b" zch { zch_size: 9 } embedding_dim: 4 } } } } model_config { feature_groups { '
    'group_type: WIDE feature_names: "s__b" } } data_config { batch_size: 9 }',
    "schema.pbtxt": r'feature { name: "a" value_count { max: 3 } int_domain { max: 9 is_categorical: true } }',
    "model.json": '{"layers": [{"slot_size_array": [9], "sparse": [{"top": "a", "slot_num": 1, "nnz_per_slot": 2}]}, '
    '{"bottom": "a", "top": "b", "sparse_embedding_hparam": {"embedding_vec_size": 8}}]}',
    "sizes.json": '{"a": [9, 8], "b": {"rows": 5, "dim": 8}}',
}
Read = Callable[[Path], object]


def use(name: str, *arguments: Any) -> Any:
    return resolve_name(f"evenshard.{name}")(*arguments)


def reader(name: str, *arguments: Any) -> Read:
    return lambda path: use(name, path, *arguments)


def _read_tables(path: Path) -> None:
    tables = use("tables.sources:tables_from", path, 1024).tables
    asked_for = use("planner.request:PlacementRequest", tables, (2**36,) * 2, 1024)
    use("search.infeasibility:find_reason", asked_for.task().as_whole)


def _read_device(path: Path) -> None:
    hardware = use("measure.local_hardware:open_hardware", MeasureConfig(f"simulated:{path}"))
    hardware.measure(task(POOL), PLACED)


# By the path of the good file in ``good_files()``.
READERS: dict[str, Read] = {
    **dict.fromkeys(("tables.json", "tables.yaml", "tables.csv", "tables.parquet"), _read_tables),
    **dict.fromkeys(("pipeline.config", "schema.pbtxt", "model.json", "sizes.json"), _read_tables),
    "tasks.json": reader("placement.tasks:load_tasks", POOL),
    "params.yaml": lambda path: [one.settings(use("base.documents:load_params", path), {}) for one in STAGES],
    "request.yaml": reader("planner.config_file:load_config"),
    "rules.yaml": reader("planner.rules:load_rules"),
    **dict.fromkeys(("h200.yaml", "l40s.yaml"), _read_device),
    "link.yaml": lambda path: use("price.link:link", str(path)),
    "cluster.yaml": reader("kubeflow.cluster:load_cluster"),
    "journal.jsonl": reader("measure.journal:Journal"),
    "costs.parquet": reader("measure.cost_dataset:load_costs", POOL),
    "placement.json": reader("planner.file:load_answer"),
    "plan.json": reader("measure.plan:load_measure_plan"),
    "torchrec.json": reader("torchrec:load_plan", {}),
    "delta.json": reader("torchrec.running.delta_file:read_delta"),
    "trace.json": lambda path: use("measure.traces.ranks:observe", [path]),
    "address": lambda path: use("base.s3:Address.of", path.read_text(errors="surrogateescape")),
    **dict.fromkeys(("batch.pt", "batch.pt.gz"), reader("tables.dlrm_batch:read_dlrm_batch")),
    **dict.fromkeys(("traffic.pt", "traffic/part-0.parquet"), reader("tables.traffic:tables_from_traffic", 2, None, 8)),
    **dict.fromkeys(
        [f"model/{part}/{name}" for part in ("cost_model", "cost_net") for name in ("config.json", "state.pt")],
        lambda path: use("sharders.models:load_model", path.parents[1]),
    ),
}


@cache
def good_files() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="evenshard-fuzz-"))
    atexit.register(shutil.rmtree, folder)
    shutil.copytree(LEARNED, folder / "model")
    for name in COPIED:
        shutil.copy(ROOT / name, folder)
    made = use("tables.generator:generate_tables", use("tables.generator:GeneratorConfig", 4), 1024, 0)
    for suffix in ("parquet", "json", "csv", "yaml"):
        use("tables.files:save_tables", made, folder / f"tables.{suffix}")
    split = use("placement.tasks:TaskSplit", (task(POOL[:3]),), (task(POOL[1:], 4, task_id="other"),))
    use("placement.tasks:save_tasks", split, folder / "tasks.json")
    write_costs(folder / "costs.parquet", Lineage())
    use("planner.file:save_answer", answer(), folder / "placement.json")
    use("torchrec:save_plan", answer(), folder / "torchrec.json")
    jobs = [use("measure.campaign:Job", "m1", task(POOL), PLACED.parts(POOL), 1, "random", "")]
    use("measure.plan:save_measure_plan", jobs, MeasureConfig("simulated:h200"), folder / "plan.json")
    origin = use("measure.journal:Origin", PROVENANCE, {"num_batches": 2, "recorded_batch": None})
    with use("measure.journal:Journal", folder / "journal.jsonl") as journal:
        journal.append(use("measure.journal:Visit", "job", 0, cost(1.0, 2.0), 1.5e9, origin))
    write_parquet(folder / "traffic", TRAFFIC)
    torch.save(list(dlrm(TRAFFIC)), folder / "batch.pt")
    torch.save(jagged(TRAFFIC), folder / "traffic.pt")
    (folder / "batch.pt.gz").write_bytes(gzip.compress((folder / "batch.pt").read_bytes(), mtime=0))
    request, trace = asked({"a": 5.0, "b": 3.0}, 2, optimizer="rowwise_adagrad"), TraceBuilder()
    placed = answered(request, (0, 1)), answered(request, (1, 0, 1), {"a": (4,)})
    delta = use("torchrec.running.delta_file:reshard_delta", *placed)
    step(trace, 5, 0, 100, 200)
    made_texts = {"delta.json": delta.model_dump_json(), "trace.json": json.dumps(trace.document())}
    for name, text in (TEXTS | made_texts).items():
        (folder / name).write_text(text)
    return folder
