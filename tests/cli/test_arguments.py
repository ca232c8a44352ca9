"""Flags: how values are read, and which outputs are refused before the work begins."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from evenshard.base.knobs import Knob, Range
from evenshard.cli import main
from evenshard.cli.arguments import OneLineParser, add_flag, at_least, flag_values, join_rules
from evenshard.planner.file import load_answer
from evenshard.planner.rules import Rules
from support.learned import LEARNED

POOL = ["--tables", "t.parquet", "--tasks", "tasks.json"]
BENCHMARK = ["benchmark", *POOL, "--out", "c"]
TRAIN_POLICY = ["train-policy", *POOL, "--cost-net", "n", "--out"]
EVALUATE = [
    "evaluate",
    *POOL,
    "--costs",
    "reports/evaluation_costs.parquet",
    "--cost-net",
    "n",
    "--policy",
    "p",
    "--out",
]
REPLACED = {
    "mydata: contains thesis.txt, which is not part of a": [*TRAIN_POLICY, "mydata"],
    "t.parquet: is not a folder": [*TRAIN_POLICY, "t.parquet"],
    ".: is the working directory": [*TRAIN_POLICY, "."],
    "t.parquet is not a folder": [*EVALUATE, "t.parquet"],
    "odd/table.txt: is a folder": [*EVALUATE, "odd"],
    "mydata: is a folder": ["place", "t.json", "-o", "mydata"],
    "pipe: is a device, a pipe or a socket": ["place", "t.json", "-o", "pipe"],
    "kept.json, which is read-only": ["place", "t.json", "-o", "cached"],
    "t.json is an output (-o/--out) and also an input (TABLES)": ["place", "t.json", "-o", "mydata/../t.json"],
    "soft is an output (-o/--out) and also an input (TABLES)": ["place", "t.json", "-o", "soft"],
    "also an input (--rules)": ["place", "t.json", "--rules", "t.parquet", "-o", "t.parquet"],
    "also an input (--model)": ["place", "t.json", "--model", "half", "-o", "half/policy/x"],
    "twice, by -o/--out and --report": ["place", "t.json", "-o", "p.json", "--report", "mydata/../p.json"],
    "twice, by --tables-out and --tasks-out": ["generate-tables", "--tables-out", "k", "--tasks-out", "k/x"],
    "also an input (--source)": ["generate-tables", "--source", "k", "--tables-out", "k", "--tasks-out", "l"],
    "also an input (COSTS)": ["merge-costs", "a.parquet", "t.parquet", "--out", "t.parquet"],
    "twice, by --journal and --out": [*BENCHMARK, "--journal", "c"],
    "--plan-out) and also an input (--tables)": [*BENCHMARK, "--plan-out", "t.parquet"],
    "also an input (--cost-net)": [*TRAIN_POLICY, "n"],
    "twice, by --metrics and --out": [*EVALUATE, "r", "--metrics", "r/metrics.json"],
    "also an input (--costs)": [*EVALUATE, "reports"],
    "also an input (--tables)": ["promote", "--tables", "mydata/promotion.json", "--out", "mydata"],
    "also an input (--params)": ["calibrate-link", "--out", "params.yaml"],
    "also an input (--hardware)": ["calibrate-link", "--hardware", "simulated:t.json", "--out", "t.json"],
    "also an input (--set)": ["pipeline", "compile", "--set", "tables=t.json", "-o", "t.json"],
    "file/x.json: cannot be written: file is not a folder": ["place", "t.json", "-o", "file/x.json"],
}


@pytest.mark.parametrize("reason", REPLACED)
def test_only_former_outputs_are_replaced(workdir: Path, capsys: pytest.CaptureFixture[str], reason: str) -> None:
    for name in (
        "mydata/thesis.txt",
        "half/policy/x",
        "t.json",
        "t.parquet",
        "kept.json",
        "reports/evaluation_costs.parquet",
    ):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)
    Path("file").touch()
    Path("odd/table.txt").mkdir(parents=True)
    os.mkfifo("pipe")
    Path("soft").symlink_to("t.json")
    Path("cached").symlink_to("kept.json")
    Path("kept.json").chmod(0o444)
    before = {path: path.lstat().st_ino for path in workdir.rglob("*")}
    words = REPLACED[reason]
    assert main(words) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith(f"evenshard {words[0]}: ") and reason in line and printed.out == ""
    assert {path: path.lstat().st_ino for path in workdir.rglob("*")} == before


def test_through_a_link_its_target_is_written(workdir: Path) -> None:
    Path("disk").mkdir()
    Path("own.csv").write_text("name,num_rows,embedding_dim,pooling_factor\na,1000,16,1\nb,2000,16,1\n")
    Path("p.json").symlink_to("disk/deep/new.json")
    for _ in ("new", "again"):
        assert main(["place", "own.csv", "--devices", "2", "--sharding-types", "table_wise", "-o", "p.json"]) == 0
        assert Path("p.json").is_symlink() and load_answer(Path("disk/deep/new.json")).num_devices == 2


def read(kind: Any, *values: str, limits: Range | None = None) -> Any:
    """The value of a flag of this type that is given once for each value."""
    parser = OneLineParser(prog="test")
    setting = Knob("setting", kind, None, "what", range=limits)
    add_flag(parser, setting)
    return flag_values(parser.parse_args([word for value in values for word in ("--setting", value)]), [setting])


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (int, ("3",), 3),
        (float, ("1e3",), 1000.0),
        (Path, ("a/b",), Path("a/b")),
        (float | Sequence[float], ("2.5",), 2.5),
        (float | Sequence[float], ("2.5,3",), (2.5, 3.0)),
        (Sequence[str], ("a,b",), ("a", "b")),
        (Mapping[str, int], ("a=b=3", "c=4"), ({"a=b": 3}, {"c": 4})),
        (Mapping[str, int | Sequence[int]], ("a=3,4",), ({"a": [3, 4]},)),
        (Mapping[str, float | Sequence[float]], ("a=1", "b=2,3"), {"a": 1.0, "b": [2.0, 3.0]}),
        (Mapping[str, str], ("theirs=ours,x=", "ours=theirs"), {"theirs": "ours", "x": "", "ours": "theirs"}),
        (Mapping[str, str], ("one, two=ours",), {"one, two": "ours"}),
        (Sequence[Sequence[str]], ("a,b", "c"), ([["a", "b"]], [["c"]])),
    ],
)
def test_values_have_the_type_of_their_setting(kind: Any, values: tuple[str, ...], expected: Any) -> None:
    assert read(kind, *values) == {"setting": expected}


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (int, "3.5", "'3.5' is not a whole number."),
        (float, "x", "'x' is not a number."),
        (int, "9", "--setting is 9, not a whole number from 1 to 8. Try test --help."),
        (Mapping[str, int], "=3", "'=3' is not TABLE=N."),
        (Mapping[str, str], "ours", "'ours' is not THEIRS=OURS."),
    ],
)
def test_wrong_values_take_one_line(capsys: pytest.CaptureFixture[str], kind: Any, value: str, said: str) -> None:
    with pytest.raises(SystemExit) as left:
        read(kind, value, limits=Range(1, 8, whole=True) if kind is int else None)
    printed = capsys.readouterr().err
    assert left.value.code == 2 and said in printed and printed.count("\n") == 1


def test_at_least_includes_its_limit() -> None:
    assert at_least(2)("2") == 2 and at_least(0.5, float)("0.5") == 0.5
    for text in ("1", "nan"):
        with pytest.raises(Exception, match=f"is {text}, below 2"):
            at_least(2, float)(text)


def test_rules_of_flags_add_to_those_of_files() -> None:
    values = {"pinned": [{"a": 0}, {"b": 1}], "other": 3}
    found = join_rules(values, Rules.of(pinned={"c": 2}), Rules.of(apart=[["a", "b"]]))
    assert found["other"] == 3 and found["pinned"] == Rules.of(pinned={"a": 0, "b": 1, "c": 2}).pinned
    assert found["apart"] == Rules.of(apart=[["a", "b"]]).apart


def test_drift_reads_columns_of_others(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("theirs.csv").write_text("feature,cardinality,dim,pooling,owner\na,200000,16,3,x\nb,9000,8,1,x\n")
    command = ["drift", "--tables", "theirs.csv", "--against", str(LEARNED), "--json"]
    assert main(command) == 2
    assert "column 'name' is missing" in capsys.readouterr().err
    assert main([*command, "--columns", "feature=name", "--columns", "cardinality=rows"]) in (0, 3)
    printed = capsys.readouterr()
    assert printed.err == "evenshard drift: theirs.csv: 1 column is not used: 'owner'.\n"
    assert json.loads(printed.out)["model"]["source"] == str(LEARNED)
