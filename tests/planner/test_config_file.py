"""A request file: flags and file give the same answer, and wrong values are named."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from evenshard.base.errors import BadInput
from evenshard.cli import main
from evenshard.planner.config_file import config_text, load_config
from evenshard.planner.knobs import place_knobs

TABLES = "name,rows,dim,pooling\na,200000,16,3\nb,9000,8,1\nc,1000000,32,12\n"
FLAGS = [
    *("tables.csv", "--devices", "4", "--hardware", "h100", "--batch-size", "4096", "--effort", "quick"),
    *("--memory-cap-gb", "40", "--pin", "a=1", "--pin", "c=2,3", "--apart", "a,b", "--table-types", "c=table_wise"),
    *("--pooling-factors", "b=2.5", "--communication", "fp16", "--seed", "3"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tables.csv").write_text(TABLES)


def config_of(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    capsys.readouterr()
    assert main(["place", *flags, "--print-config"]) == 0
    return capsys.readouterr().out


def test_a_printed_request_gives_the_same_answer(capsys: pytest.CaptureFixture[str]) -> None:
    Path("request.yaml").write_text(config_of(capsys, *FLAGS))
    assert config_of(capsys, "--config", "request.yaml") == Path("request.yaml").read_text()
    assert main(["place", *FLAGS, "-q", "-o", "flags.json"]) == 0
    assert main(["place", "--config", "request.yaml", "-q", "-o", "file.json"]) == 0
    assert Path("flags.json").read_bytes() == Path("file.json").read_bytes()


def test_flags_take_precedence_even_with_their_default_value_and_rules_are_merged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("request.yaml").write_text("tables: nowhere.csv\nseed: 7\nbatch_size: 64\neffort: long\npinned: {a: 1}\n")
    Path("rules.yaml").write_text("forbidden: {c: 0}\n")
    flags = ["tables.csv", "--config", "request.yaml", "--rules", "rules.yaml", "--seed", "0", "--pin", "b=0"]
    printed = yaml.safe_load(config_of(capsys, *flags, "--batch-size", "65536"))
    rules = {"pinned": {"a": [1], "b": [0]}, "forbidden": {"c": [0]}}
    assert printed == {"tables": "tables.csv", "effort": "long", **rules}


def test_each_knob_of_a_file_comes_back() -> None:
    """Values of every type that a flag takes."""
    values = {
        "memory_cap_gb": 40.0,
        "hosts": "hosts.yaml",
        "columns": {"hash_size": "num_rows"},
        "pooling_factors": {"a": 2.5, "b": [1.0, 2.0]},
        "pinned_nodes": {"a": (0,)},
        "forbidden_devices": (3,),
        "together": (("a", "b"),),
        "min_columns": {"c": 16},
        "table_kernels": {"c": ("fused_uvm",)},
        "allow_column_split": True,
        "model": "models:/evenshard-cost@champion",
    }
    Path("request.yaml").write_text(config_text("tables.csv", values))
    assert load_config(Path("request.yaml")) == ("tables.csv", values)
    table = {"name": "a", "num_rows": 1000, "embedding_dim": 8, "pooling_factor": 2}
    Path("request.yaml").write_text(config_text([table], {"num_devices": 2}))
    assert load_config(Path("request.yaml")) == ([table], {"num_devices": 2})
    assert set(values) < {one.name for one in place_knobs()}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a", "is not a request. Its keys are tables and the arguments"),
        ("devices: 4", "'devices' is unknown (did you mean num_devices?)"),
        ("num_devices: four", "num_devices is 'four', not a whole number"),
        ("pinned: {a: 1.5}", "pinned: a is 1.5, not a whole number"),
        ("tables: {a: 1}", "tables is neither a name nor a list of tables"),
        ("compare: [random]", "'compare' is unknown"),
    ],
)
def test_a_wrong_file_is_one_line(text: str, said: str) -> None:
    Path("request.yaml").write_text(text)
    with pytest.raises(BadInput) as caught:
        load_config(Path("request.yaml"))
    line = str(caught.value)
    assert line.startswith("request.yaml") and said in line and "\n" not in line
