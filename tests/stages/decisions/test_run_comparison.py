"""Comparing loops: which settings differ, what their placements cost, and what of that is noise."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evenshard import tracking
from evenshard.cli import main
from evenshard.stages.decisions.loop_runs import costs_ms
from evenshard.stages.decisions.run_comparison import (
    LoopRun,
    SharderDifference,
    compare,
    equal_below_pct,
    print_comparison,
)
from support.tracking_builders import empty_file

NOISE = {"noise.within_run_pct": 3.0, "noise.between_run_pct": 1.0}
SETTINGS = {"generate_tables.seed": "0", "loop.num_rounds": "3", "train_policy.entropy_weight": "0.001"}


def loop(name: str, evenshard: Sequence[float], random: Sequence[float] = (20.0, 30.0, 40.0), **more: Any) -> LoopRun:
    def by_task(values: Sequence[float]) -> dict[str, float]:
        return {f"test-{number}": value for number, value in enumerate(values)}

    known: dict[str, Any] = {
        "settings": SETTINGS,
        "metrics": {**NOISE, "evenshard.mean_measured_ms": 1.0, "kendall_tau": 0.9},
        "hardware": "cpu: one",
        "costs_ms": {"random": by_task(random), "evenshard": by_task(evenshard)},
    }
    return LoopRun(name, name * 8, **{**known, **more})


BEFORE = loop("a", (10.0, 10.0, 10.0))


def difference(first: LoopRun, other: LoopRun, sharder: str = "evenshard") -> SharderDifference | None:
    row = next(row for row in compare([first, other]).sharders if row.sharder == sharder)
    assert row.against_first[0] is None
    return row.against_first[1]


# The rule ------------------------------------------------------------------------------------------------------------


def test_other_tables_under_the_same_name_are_other_tasks() -> None:
    first, other = (loop(name, (10.0, 10.0, 10.0), tables=name) for name in "ab")
    assert compare([first, other]).remarks == ("b: the file of its tables is another than the first loop's",)
    assert compare([first, loop("c", (10.0, 10.0, 10.0), tables="a")]).remarks == ()
    assert compare([first, BEFORE]).remarks == (), "a loop that does not tell"


def test_only_settings_that_differ_are_shown() -> None:
    other = loop("b", (10.0, 10.0, 10.0), settings={**SETTINGS, "loop.num_rounds": "5", "measure.seed": "1"})
    found = compare([BEFORE, other, BEFORE])
    assert found.settings == {"loop.num_rounds": ("3", "5", "3"), "measure.seed": (None, "1", None)}
    assert found.runs == (("a", "a" * 8), ("b", "b" * 8), ("a", "a" * 8))
    assert found.metrics["kendall_tau"] == (0.9, 0.9, 0.9) and "evenshard.mean_measured_ms" not in found.metrics


def test_the_noise_of_a_machine_does_not_average_out() -> None:
    """1.96 * sqrt(2 * (1 + 9 / n)): 1 % between the runs stays, 3 % within them shrinks with the tasks."""
    assert equal_below_pct(BEFORE, BEFORE, 9) == pytest.approx(1.96 * 2)
    assert equal_below_pct(BEFORE, BEFORE, 10**9) == pytest.approx(1.96 * math.sqrt(2))
    assert math.isnan(equal_below_pct(BEFORE, loop("b", (1.0,), metrics={}), 9))


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        ((10.0, 10.0, 10.0), "equal"),
        ((10.1, 10.1, 10.1), "equal (within the noise)"),
        ((8.0, 8.0, 8.1), "faster"),
        ((12.0, 12.0, 12.1), "slower"),
        ((5.0, 10.0, 12.0), "not separable"),
        ((8.0, 10.0, 15.0), "not separable"),
    ],
)
def test_what_a_difference_means(after: tuple[float, ...], verdict: str) -> None:
    found = difference(BEFORE, loop("b", after))
    assert found is not None and found.verdict == verdict
    assert found.difference_pct.mean == pytest.approx(10 * (sum(after) / 3 - 10))


def test_unknown_noise_is_said() -> None:
    found = difference(BEFORE, loop("b", (8.0, 8.0, 8.1), metrics={}))
    assert found is not None and found.verdict == "faster, if not by noise, which is unknown"


def test_differences_are_paired_over_tasks_that_both_placed() -> None:
    other = loop("b", (math.inf, 8.0, 8.1))
    found = difference(BEFORE, other)
    assert found is not None and found.difference_pct.mean == pytest.approx(-19.5)
    row = compare([BEFORE, other]).sharders[0]
    assert row.num_infeasible == (0, 1) and row.mean_ms == (10.0, pytest.approx(8.05))
    nothing = loop("b", (math.inf,) * 3)
    assert difference(BEFORE, nothing) is None
    assert compare([BEFORE, nothing]).sharders[0].mean_ms == (10.0, None)


def test_sharders_stand_by_their_cost_in_the_first_loop() -> None:
    assert [row.sharder for row in compare([BEFORE, BEFORE]).sharders] == ["evenshard", "random"]
    swapped = loop("b", (30.0, 30.0, 30.0), (1.0, 1.0, 1.0))
    assert [row.sharder for row in compare([swapped, BEFORE]).sharders] == ["random", "evenshard"]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"hardware": "cuda: two"}, "b: evaluated on cuda: two, the first loop on cpu: one"),
        ({"settings": {**SETTINGS, "generate_tables.seed": "1"}}, "tasks are others .*generate_tables.seed"),
        ({"settings": {**SETTINGS, "measure.link": "ethernet"}}, "b: evaluated with measure.link ethernet"),
        ({"costs_ms": {}}, "b: it was not evaluated"),
        ({"costs_ms": {"evenshard": {"test-9": 1.0}}}, "b: its tasks are others"),
    ],
)
def test_loops_that_cannot_be_compared_show_no_difference(changed: Mapping[str, Any], why: str) -> None:
    other = replace(loop("b", (8.0, 8.0, 8.1)), **changed)
    found = compare([BEFORE, other])
    assert len(found.remarks) == 1 and re.search(why, found.remarks[0])
    assert all(one is None for row in found.sharders for one in row.against_first)


def test_costs_of_a_table_of_rows() -> None:
    rows = [
        {"task_id": "t0", "sharder": "random", "max_device_ms": 2.0},
        {"task_id": "t0", "sharder": "random", "max_device_ms": 2.0},
        {"task_id": "t1", "sharder": "random", "max_device_ms": None},
        {"task_id": "t0", "sharder": "evenshard", "max_device_ms": ""},
    ]
    assert costs_ms(rows) == {"random": {"t0": 2.0, "t1": math.inf}, "evenshard": {"t0": math.inf}}


@pytest.mark.parametrize(
    ("hardware", "head"),
    [
        (("cpu: one", "cpu: two"), "mean measured ms per step"),
        (("simulated: h200", ""), "mean simulated ms per step"),
        (("cpu: one", "simulated: h200"), "mean measured or simulated ms per step"),
        (("", ""), "mean ms per step"),
    ],
)
def test_the_table_says_what_kind_of_times_it_holds(hardware: tuple[str, str], head: str) -> None:
    runs = [loop(name, (10.0, 10.0, 10.0), hardware=one) for name, one in zip("ab", hardware, strict=True)]
    file = io.StringIO()
    print_comparison(compare(runs), file)
    assert any(line.split("  ")[0] == head for line in file.getvalue().splitlines())


def test_the_threshold_is_not_called_the_noise_of_a_run() -> None:
    """Two loops whose runs vary by 16 and 18 % are equal below 1.96 * sqrt(16**2 + 18**2) = 47.2 %."""
    runs = [
        loop(name, (10.0, 10.0), metrics={"noise.within_run_pct": 0.0, "noise.between_run_pct": pct})
        for name, pct in (("a", 16.0), ("b", 18.0))
    ]
    file = io.StringIO()
    print_comparison(compare(runs), file)
    text = " ".join(file.getvalue().split())
    assert "Below 47.2 % they are called equal: two loops may lie so far apart by noise alone (95 %)" in text
    assert "varies from run to run by 16.0 %, 18.0 % (standard deviation, loop by loop)" in text
    unknown = io.StringIO()
    print_comparison(compare([BEFORE, loop("b", (9.0, 9.0, 9.0), metrics={})]), unknown)
    assert "The noise is unknown here" in unknown.getvalue()


# The command ---------------------------------------------------------------------------------------------------------


def track_loop(folder: Path, num_rounds: int, costs: Sequence[float]) -> str:
    """The runs of a loop, as its stages log them; returns the id of the parent."""
    params = {"loop": {"num_rounds": num_rounds}, "generate_tables": {"seed": 0}}
    with tracking.stage_run("generate_tables", params, {}):
        pass
    rows = ["task_id,sharder,max_device_ms,hardware"]
    rows += [f"test-{number},evenshard,{cost},simulated: h200" for number, cost in enumerate(costs)]
    (folder / "evaluation.csv").write_text("\n".join(rows) + "\n")
    with tracking.stage_run("evaluate", params, {}) as run:
        run.table("evaluation.json", folder / "evaluation.csv")
        run.metrics({"evenshard.mean_measured_ms": costs[0], **NOISE})
    tracking.log_to_parent({"evenshard.mean_measured_ms": costs[0], **NOISE})
    return tracking.find_runs()[0].run_id


@pytest.mark.slow
def test_loops_in_mlflow(workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{empty_file(workdir)}")
    first = track_loop(workdir, 3, (10.0, 10.0, 10.1))
    second = track_loop(workdir, 5, (8.0, 8.0, 8.1))
    assert main(["compare", first, second[:8]]) == 0
    shown = capsys.readouterr().out
    assert "loop.num_rounds" in shown and "faster" in shown and "-19.9 %" in shown and first[:8] in shown
    assert "seed" not in shown
    assert "mean simulated ms per step" in shown

    assert main(["compare", first, second, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["settings"] == {"loop.num_rounds": ["3", "5"]}
    against = printed["sharders"][0]["against_first"]
    assert against[0] is None and against[1]["verdict"] == "faster"
    assert printed["runs"][0][1] == first and printed["remarks"] == []

    with tracking.stage_run("evaluate", {"loop": {"num_rounds": 5}, "generate_tables": {"seed": 0}}, {}) as run:
        (workdir / "again.csv").write_text((workdir / "evaluation.csv").read_text().replace(",8.", ",12."))
        run.table("evaluation.json", workdir / "again.csv")
    assert main(["compare", first, second]) == 0
    assert "slower" in capsys.readouterr().out, "the last evaluation counts"

    stage = tracking.find_runs([first])[0].children[0]
    with tracking.study_run("promote", {}):
        pass
    [study] = [one for one in tracking.find_runs() if one.name == "promote"]
    for argv, expected in (
        ([first], "one run cannot be compared"),
        ([first, "nobody"], f"({second[:8]}), loop-"),
        ([first, first[:8]], f"{first} and {first[:8]} are the same run"),
        ([first, "promote"], f"promote ({study.run_id}) is not a loop"),
        ([first, stage.run_id], f"{stage.name} is a stage of a loop. Name the loop: {first}"),
    ):
        assert main(["compare", *argv]) == 2
        err = capsys.readouterr().err
        assert expected in err and err.count("\n") == 1


def test_where_no_loop_ran_no_folder_of_a_model_is_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert main(["compare", "one", "two"]) == 2
    err = capsys.readouterr().err
    assert err.endswith(
        "there is no mlflow.db in this folder. Set MLFLOW_TRACKING_URI, or go to the folder of a loop.\n"
    )
    assert not list(tmp_path.iterdir())
