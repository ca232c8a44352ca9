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
    "BadInput",
    "EvenshardError",
    "InUse",
    "InfeasibleTask",
    "Machine",
    "Memory",
    "Placement",
    "PlacementAnswer",
    "Search",
    "Sharding",
    "Table",
    "TablePart",
    "TableRules",
    "TableSources",
    "Training",
    "load_answer",
    "place",
    "save_answer",
    "what_if",
]
POSITIONAL = {"tables": inspect.Parameter.empty, "num_devices": None, "memory_cap_gb": None}
GROUPS = ("machine", "memory", "training", "sharding", "table_sources", "table_rules", "search", "in_use")
KEYWORDS = {
    **dict.fromkeys(GROUPS),
    "batch_size": 65_536,
    "hardware": None,
    "model": None,
    "optimizer": None,
    "dense_optimizer": "",
    "near": None,
    "max_move_gb": None,
    "reserved_gb": None,
    "dense_gb": None,
    "training_pipeline": "sparse_dist",
    "host_memory_gb": None,
    "host_bandwidth_gb_s": None,
    "ssd_gb": None,
    "ssd_bandwidth_gb_s": None,
    "compute_kernels": (),
    "nodes": None,
    "devices_per_node": None,
    "nodes_per_domain": 1,
    "intra": "",
    "inter": "",
    "hosts": None,
    "pinned": None,
    "forbidden": None,
    "forbidden_devices": (),
    "together": (),
    "apart": (),
    "communication": (),
    "sharding_types": (),
    "allow_column_split": False,
    "keep_output_order": False,
    "pinned_nodes": None,
    "table_types": None,
    "min_columns": None,
    "table_kernels": None,
    "traffic": None,
    "embedding_dim": None,
    "weight_bits": None,
    "pooling_factors": None,
    "default_pooling_factor": 1.0,
    "columns": None,
    "constraints": None,
    "compare": (),
    "num_measured": 0,
    "seed": 0,
    "effort": "normal",
    "progress": None,
}
FIELDS = [
    "parts",
    "alone_ms",
    "adds_ms",
    "devices",
    "predicted_ms",
    "model_low_ms",
    "model_high_ms",
    "request",
    "lower_bound_ms",
    "warnings",
    "comparison",
    "measured",
    "lineage",
    "link",
    "notes",
    "device_error",
    "link_error",
    "nearness",
    "measured_ms",
]
PROPERTIES = [
    "assumptions",
    "device_of_table",
    "gap_pct",
    "high_ms",
    "host_memory",
    "low_ms",
    "measured_device_ms",
    "memory",
    "memory_warnings",
    "num_devices",
    "offloaded",
    "part_bytes",
    "part_memory",
    "parts_of_table",
    "parts_on_device",
    "save_report",
    "storage_of_table",
    "summary",
    "task",
    "to_frame",
    "type_of_table",
    "uncertainty_ms",
    "used_bytes",
]
NO_FLAG = {"tables", "compare", "constraints", "progress", *GROUPS}
# By a small request: imports are most of what it waits for.
UNUSED = {"pandas", "pyarrow", "scipy", "matplotlib", "mlflow", "dvc", "torchrec", "fbgemm_gpu", "jinja2"}
HEAVY = {*UNUSED, "torch", "numpy", "pydantic", "rich", "yaml"}
FLAGS = [
    ("--devices 3", "num_devices", 3),
    ("--memory-cap-gb 1,2.5", "memory_cap_gb", (1.0, 2.5)),
    ("--batch-size 7", "batch_size", 7),
    ("--near old.json", "near", Path("old.json")),
    ("--max-move-gb 7.5", "max_move_gb", 7.5),
    ("--hardware cpu", "hardware", "cpu"),
    ("--model work/round_3", "model", "work/round_3"),
    ("--optimizer adam", "optimizer", "adam"),
    ("--dense-optimizer sgd", "dense_optimizer", "sgd"),
    ("--reserved-gb 3.5", "reserved_gb", 3.5),
    ("--dense-gb 2.5", "dense_gb", 2.5),
    ("--training-pipeline prefetch", "training_pipeline", "prefetch"),
    ("--host-memory-gb 512", "host_memory_gb", 512.0),
    ("--host-bandwidth-gb-s 400", "host_bandwidth_gb_s", 400.0),
    ("--ssd-gb 4000", "ssd_gb", 4000.0),
    ("--ssd-bandwidth-gb-s 7.5", "ssd_bandwidth_gb_s", 7.5),
    ("--compute-kernels fused,fused_uvm", "compute_kernels", ("fused", "fused_uvm")),
    ("--nodes 2", "nodes", 2),
    ("--devices-per-node 4", "devices_per_node", 4),
    ("--nodes-per-domain 2", "nodes_per_domain", 2),
    ("--intra h100_nvlink", "intra", "h100_nvlink"),
    ("--inter ib_400g", "inter", "ib_400g"),
    ("--hosts hosts.yaml", "hosts", Path("hosts.yaml")),
    ("--pin a=0,1 --pin b=2", "pinned", {"a": (0, 1), "b": (2,)}),
    ("--forbid a=3", "forbidden", {"a": (3,)}),
    ("--forbid-device 1 --forbid-device 2", "forbidden_devices", (1, 2)),
    ("--together a,b --together c,d", "together", (("a", "b"), ("c", "d"))),
    ("--apart a,b", "apart", (("a", "b"),)),
    ("--communication fp16,bf16", "communication", ("fp16", "bf16")),
    ("--sharding-types table_wise,row_wise", "sharding_types", ("table_wise", "row_wise")),
    ("--allow-column-split", "allow_column_split", True),
    ("--keep-output-order", "keep_output_order", True),
    ("--pin-node a=0,1", "pinned_nodes", {"a": (0, 1)}),
    ("--table-types a=table_wise,row_wise", "table_types", {"a": ("table_wise", "row_wise")}),
    ("--min-columns a=16", "min_columns", {"a": 16}),
    ("--table-kernels a=fused,fused_uvm", "table_kernels", {"a": ("fused", "fused_uvm")}),
    ("--traffic sample", "traffic", Path("sample")),
    ("--embedding-dim 64", "embedding_dim", 64),
    ("--weight-bits 16", "weight_bits", 16),
    ("--default-pooling-factor 2.5", "default_pooling_factor", 2.5),
    ("--pooling-factors a=2.5 --pooling-factors b=1,2", "pooling_factors", {"a": 2.5, "b": [1.0, 2.0]}),
    ("--columns a=num_rows --columns ts=", "columns", {"a": "num_rows", "ts": ""}),
    ("--measure 5", "num_measured", 5),
    ("--seed 9", "seed", 9),
    ("--effort quick", "effort", "quick"),
]
SIGNATURE = inspect.signature(evenshard.place)
REPORTING = """
import json, sys
from evenshard.cli import main
code = 0
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code or 0
print(json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules})]), file=sys.stderr)
"""


def packages_after(folder: Path, *arguments: str) -> set[str]:
    """Top-level packages that a command of evenshard, which must succeed, has imported."""
    done = subprocess.run(
        [sys.executable, "-c", REPORTING, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    code, packages = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    return set(packages)


def test_the_public_names() -> None:
    assert evenshard.__all__ == sorted([*NAMES, "__version__"])
    assert set(NAMES) <= set(dir(evenshard))
    for name in NAMES:
        assert getattr(evenshard, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'plaice'"):
        evenshard.plaice  # noqa: B018


def test_what_place_takes() -> None:
    parameters = SIGNATURE.parameters
    kinds: dict[Any, dict[str, Any]] = {}
    for name, parameter in parameters.items():
        kinds.setdefault(parameter.kind, {})[name] = parameter.default
    assert kinds.pop(inspect.Parameter.POSITIONAL_OR_KEYWORD) == POSITIONAL
    keywords = kinds.pop(inspect.Parameter.KEYWORD_ONLY)
    assert {name: keywords[name] for name in KEYWORDS} == KEYWORDS and not kinds, "new ones break nobody's code"


def test_what_an_answer_knows() -> None:
    answer = evenshard.PlacementAnswer
    assert [field.name for field in dataclasses.fields(answer)] == FIELDS
    own = {name for one in answer.mro() for name in vars(one) if not name.startswith("_")} - set(FIELDS)
    assert sorted(own) == PROPERTIES


def test_the_errors_of_users_are_one_family() -> None:
    for error in (evenshard.BadInput, evenshard.InfeasibleTask):
        assert issubclass(error, evenshard.EvenshardError)


@pytest.mark.slow
def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    for command in (["--help"], ["place", "--help"], ["--version"]):
        assert not packages_after(tmp_path, *command) & HEAVY


def called(monkeypatch: pytest.MonkeyPatch, *flags: str) -> dict[str, Any]:
    """What the command hands to ``place``, by the names of its parameters."""

    found: dict[str, Any] = {}

    @functools.wraps(evenshard.place)
    def record(*args: Any, **more: Any) -> None:
        bound = SIGNATURE.bind(*args, **more)
        bound.apply_defaults()
        found.update(bound.arguments)
        raise evenshard.BadInput("that is enough")

    monkeypatch.setattr("evenshard.cli.place.place", record)
    assert main(["place", "tables.yaml", *flags]) == 2
    return found


@pytest.mark.slow
def test_a_simulated_device_is_placed_for_without_torch(tmp_path: Path) -> None:
    """The command as a whole: tables, search, comparison, output and file."""
    script = (
        "import sys\n"
        "for module in ('torch', 'scipy', 'pandas', 'mlflow', 'matplotlib'): sys.modules[module] = None\n"
        "from evenshard.cli import main\n"
        "sys.exit(main(['place', 'criteo_kaggle', '--devices', '2', '--measure', '1', '-o', 'placement.json']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ", simulated (" in done.stdout and (tmp_path / "placement.json").exists()


def test_the_command_has_the_defaults_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    found = called(monkeypatch)
    assert found.pop("tables") == "tables.yaml"
    assert found.pop("compare") == HEURISTICS  # for the summary
    assert found.pop("constraints") is None  # of a model in Python
    assert found.pop("progress") is None  # stderr is not a terminal
    assert {found.pop(name) for name in GROUPS} == {None}
    expected = {name: one.default for name, one in SIGNATURE.parameters.items() if name not in NO_FLAG}
    assert {name: value or None for name, value in found.items()} == {
        name: value or None for name, value in expected.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "parameter", "value"), FLAGS)
def test_every_flag_is_a_parameter(monkeypatch: pytest.MonkeyPatch, flags: str, parameter: str, value: Any) -> None:
    without, found = called(monkeypatch), called(monkeypatch, *flags.split())
    assert found.pop(parameter) == value
    without.pop(parameter)
    assert found == without


def test_the_flags_are_those_of_the_parameters() -> None:
    assert {parameter for _, parameter, _ in FLAGS} | NO_FLAG == {*POSITIONAL, *KEYWORDS}


@pytest.mark.slow
@pytest.mark.full_search  # as the command's, which is another process
def test_the_command_and_python_give_the_same_file(tmp_path: Path) -> None:
    devices = "--devices 4 --memory-cap-gb 40,64,64,64 --reserved-gb 2"
    more = "--optimizer rowwise_adagrad --pin C1=0 --apart C20,C21 --allow-column-split -o placement.json"
    command = ["place", "mlperf_dlrm_v2", *devices.split(), *more.split()]
    assert not packages_after(tmp_path, *command) & UNUSED
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
