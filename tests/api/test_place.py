"""What users build on: the public names, what ``place`` takes and gives, and that the command answers the same.

A failure here means that a user's code may break: put it into the changelog, then change the test.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import evenshard
from evenshard.cli import main
from evenshard.planner.file import json_text
from evenshard.sharders.catalog import HEURISTICS

NAMES = [
    "BadInput", "EvenshardError", "InUse", "InfeasibleTask", "Machine", "Memory", "Placement", "PlacementAnswer",
    "Search", "Sharding", "Table", "TablePart", "TableRules", "TableSources", "Training", "load_answer", "place",
    "save_answer", "what_if",
]  # fmt: skip
GROUPS = ("machine", "memory", "training", "sharding", "table_sources", "table_rules", "search", "in_use")
# Keywords of ``place``: the default, and a flag with the value that it gives.
KEYWORDS: dict[str, tuple[Any, str, Any]] = {
    "batch_size": (65_536, "--batch-size 7", 7),
    "hardware": (None, "--hardware cpu", "cpu"),
    "model": (None, "--model work/round_3", "work/round_3"),
    "optimizer": (None, "--optimizer adam", "adam"),
    "dense_optimizer": ("", "--dense-optimizer sgd", "sgd"),
    "dense": (None, "--dense dense.yaml", Path("dense.yaml")),
    "dense_ms": (None, "--dense-ms 2.5", 2.5),
    "near": (None, "--near old.json", Path("old.json")),
    "max_move_gb": (None, "--max-move-gb 7.5", 7.5),
    "reserved_gb": (None, "--reserved-gb 3.5", 3.5),
    "dense_gb": (None, "--dense-gb 2.5", 2.5),
    "training_pipeline": ("sparse_dist", "--training-pipeline prefetch", "prefetch"),
    "host_memory_gb": (None, "--host-memory-gb 512", 512.0),
    "host_bandwidth_gb_s": (None, "--host-bandwidth-gb-s 400", 400.0),
    "ssd_gb": (None, "--ssd-gb 4000", 4000.0),
    "ssd_bandwidth_gb_s": (None, "--ssd-bandwidth-gb-s 8.5", 8.5),
    "compute_kernels": ((), "--compute-kernels fused,fused_uvm", ("fused", "fused_uvm")),
    "nodes": (None, "--nodes 2", 2),
    "devices_per_node": (None, "--devices-per-node 4", 4),
    "nodes_per_domain": (1, "--nodes-per-domain 3", 3),
    "intra": ("", "--intra h100_nvlink", "h100_nvlink"),
    "inter": ("", "--inter ib_400g", "ib_400g"),
    "hosts": (None, "--hosts hosts.yaml", Path("hosts.yaml")),
    "pinned": (None, "--pin a=0,1 --pin b=2", {"a": (0, 1), "b": (2,)}),
    "forbidden": (None, "--forbid a=3", {"a": (3,)}),
    "forbidden_devices": ((), "--forbid-device 1 --forbid-device 2", (1, 2)),
    "together": ((), "--together a,b --together c,d", (("a", "b"), ("c", "d"))),
    "apart": ((), "--apart a,b", (("a", "b"),)),
    "communication": ((), "--communication fp16,bf16", ("fp16", "bf16")),
    "sharding_types": ((), "--sharding-types table_wise,row_wise", ("table_wise", "row_wise")),
    "allow_column_split": (False, "--allow-column-split", True),
    "keep_output_order": (False, "--keep-output-order", True),
    "pinned_nodes": (None, "--pin-node a=5,6", {"a": (5, 6)}),
    "table_types": (None, "--table-types a=column_wise", {"a": ("column_wise",)}),
    "min_columns": (None, "--min-columns a=16", {"a": 16}),
    "table_kernels": (None, "--table-kernels a=fused_uvm", {"a": ("fused_uvm",)}),
    "traffic": (None, "--traffic sample", Path("sample")),
    "embedding_dim": (None, "--embedding-dim 64", 64),
    "weight_bits": (None, "--weight-bits 16", 16),
    "pooling_factors": (None, "--pooling-factors a=2.5 --pooling-factors b=1,2", {"a": 2.5, "b": [1.0, 2.0]}),
    "default_pooling_factor": (1.0, "--default-pooling-factor 1.5", 1.5),
    "columns": (None, "--columns a=num_rows --columns ts=", {"a": "num_rows", "ts": ""}),
    "num_measured": (0, "--measure 5", 5),
    "seed": (0, "--seed 9", 9),
    "effort": ("normal", "--effort quick", "quick"),
}
# Of Python alone.
NO_FLAG = {**dict.fromkeys((*GROUPS, "constraints", "progress")), "compare": ()}
FIELDS = [
    "parts", "alone_ms", "adds_ms", "devices", "predicted_ms", "model_low_ms", "model_high_ms", "request",
    "lower_bound_ms", "warnings", "comparison", "measured", "lineage", "link", "notes", "device_error",
    "link_error", "nearness", "measured_ms",
]  # fmt: skip
PROPERTIES = [
    "assumptions", "device_of_table", "gap_pct", "high_ms", "host_memory", "low_ms", "measured_device_ms", "memory",
    "memory_warnings", "num_devices", "offloaded", "part_bytes", "part_memory", "parts_of_table", "parts_on_device",
    "replicated_values", "save_report", "step", "step_on", "storage_of_table", "summary", "task", "to_frame",
    "type_of_table", "uncertainty_ms", "used_bytes",
]  # fmt: skip
# By a small request: imports are most of what it waits for.
UNUSED = {"pandas", "pyarrow", "scipy", "matplotlib", "mlflow", "dvc", "torch", "torchrec", "fbgemm_gpu", "jinja2"}
HEAVY = {*UNUSED, "numpy", "pydantic", "rich", "yaml"}
REPORTING = """
import json, sys
from evenshard.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code or 0
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})), file=sys.stderr)
sys.exit(code)
"""


def test_the_public_names() -> None:
    assert evenshard.__all__ == sorted([*NAMES, "__version__"]) and set(NAMES) <= set(dir(evenshard))
    for name in NAMES:
        assert getattr(evenshard, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'plaice'"):
        evenshard.plaice  # noqa: B018
    assert issubclass(evenshard.BadInput, evenshard.EvenshardError)
    assert issubclass(evenshard.InfeasibleTask, evenshard.EvenshardError)


def test_what_place_takes() -> None:
    kinds: dict[Any, dict[str, Any]] = {}
    for name, parameter in inspect.signature(evenshard.place).parameters.items():
        kinds.setdefault(parameter.kind, {})[name] = parameter.default
    positional = {"tables": inspect.Parameter.empty, "num_devices": None, "memory_cap_gb": None}
    assert kinds.pop(inspect.Parameter.POSITIONAL_OR_KEYWORD) == positional
    expected = {name: default for name, (default, *_) in KEYWORDS.items()} | NO_FLAG
    assert kinds == {inspect.Parameter.KEYWORD_ONLY: expected}, "a new one needs a line above"


def test_what_an_answer_knows() -> None:
    answer = evenshard.PlacementAnswer
    assert [field.name for field in dataclasses.fields(answer)] == FIELDS
    own = {name for one in answer.mro() for name in vars(one) if not name.startswith("_")} - set(FIELDS)
    assert sorted(own) == PROPERTIES


# The command ----------------------------------------------------------------------------------------------------------


def called(monkeypatch: pytest.MonkeyPatch, *flags: str) -> dict[str, Any]:
    """What the command hands to ``place``, by the names of its parameters."""
    found: dict[str, Any] = {}
    signature = inspect.signature(evenshard.place)

    @functools.wraps(evenshard.place)
    def record(*args: Any, **more: Any) -> None:
        bound = signature.bind(*args, **more)
        bound.apply_defaults()
        found.update(bound.arguments)
        raise evenshard.BadInput("that is enough")

    monkeypatch.setattr("evenshard.cli.place.place", record)
    assert main(["place", "tables.yaml", *flags]) == 2
    return found


def test_the_command_has_the_defaults_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {name: default for name, (default, *_) in KEYWORDS.items()} | NO_FLAG
    expected |= {"tables": "tables.yaml", "num_devices": None, "memory_cap_gb": None, "compare": HEURISTICS}
    found = called(monkeypatch)
    assert {name: value or None for name, value in found.items()} == {
        name: value or None for name, value in expected.items()
    }


def test_every_flag_is_a_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [word for _, flags, _ in KEYWORDS.values() for word in flags.split()]
    found = called(monkeypatch, *words, "--devices", "3", "--memory-cap-gb", "1,2.5")
    expected = {"num_devices": 3, "memory_cap_gb": (1.0, 2.5)} | {name: value for name, (*_, value) in KEYWORDS.items()}
    assert {name: found[name] for name in expected} == expected


def packages_after(folder: Path, *arguments: str) -> set[str]:
    """Top-level packages that a command of evenshard, which must succeed, has imported."""
    words = [sys.executable, "-c", REPORTING, *arguments]
    done = subprocess.run(words, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.slow
def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    assert not packages_after(tmp_path, "place", "--help") & HEAVY
    assert not packages_after(tmp_path, "--version") & HEAVY


@pytest.mark.slow
@pytest.mark.full_search  # as the command's, which is another process
def test_the_command_and_python_give_the_same_file_without_torch(tmp_path: Path) -> None:
    devices = "--devices 4 --memory-cap-gb 40,64,64,64 --reserved-gb 2"
    more = "--optimizer rowwise_adagrad --pin C1=0 --apart C20,C21 --allow-column-split -o placement.json"
    assert not packages_after(tmp_path, "place", "mlperf_dlrm_v2", *devices.split(), *more.split()) & UNUSED
    answer = evenshard.place(
        "mlperf_dlrm_v2",
        4,
        [40, 64, 64, 64],
        reserved_gb=2,
        optimizer="rowwise_adagrad",
        pinned={"C1": 0},
        apart=[["C20", "C21"]],
        allow_column_split=True,
        compare=HEURISTICS,
    )
    assert json_text(answer) == (tmp_path / "placement.json").read_text()
