"""Promotion: who becomes the champion, by whom it is refused, and where the alias points afterwards."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from evenshard import tracking
from evenshard.cli import main
from evenshard.loop.decisions.promotion import Decision, ModelComparison, PairedTask, Verdict, compare_models, decide
from evenshard.loop.sharder_comparison import UNKNOWN_NOISE
from evenshard.measure.cost_dataset import load_costs
from evenshard.measure.noise import Noise
from evenshard.tables.files import load_tables
from evenshard.tracking.pyfunc import build_serving_code
from evenshard.tracking.registry import find_newest_version, register_folder
from support.builders import cost_net, policy
from support.convex_builders import NORMALIZER
from support.decision_builders import bad_model, good_model, write_inputs
from support.learned import learned_model
from support.model_builders import save_model
from support.tracking_builders import empty_file, loops, register_model

# MLflow's opinion of the code that serves a model; here warnings are errors.
pytestmark = pytest.mark.filterwarnings("ignore:.*type hint")
BOTH = (tracking.REGISTERED_COST, tracking.REGISTERED_POLICY)
NOISY = Noise(2.0, None, None, num_controls=2, num_runs=1)


def decided(
    candidate: list[float],
    champion: list[float],
    noise: Noise = UNKNOWN_NOISE,
    learned: tuple[int, int] = (100, 100),
    same: int = 0,
    tolerance_pct: float = 1.0,
) -> Decision:
    """The first ``same`` tasks have the same placement."""
    tasks = [
        PairedTask(f"t{n}", one, other, n < same)
        for n, (one, other) in enumerate(zip(candidate, champion, strict=True))
    ]
    return decide(tasks, noise, *learned, tolerance_pct)


FOUR = [39.0, 40.0, 40.0, 41.0]


@pytest.mark.parametrize(
    ("candidate", "champion", "more", "verdict", "promote", "reason"),
    [
        ([9.0, 18.0, 27.0], [11.0, 20.0, 29.0], {}, Verdict.BETTER, True, "10 % faster"),
        ([10.5, 20.6, 30.4], [10.0, 20.0, 30.0], {"learned": (1, 100)}, Verdict.WORSE, False, "slower"),
        # Controls that spread by 2 % on four tasks: 1.96 * sqrt(2 / 4) * 2 % = 2.8 % are noise.
        ([one * 0.99 for one in FOUR], FOUR, {"noise": NOISY}, Verdict.EQUAL, False, "did not learn from fewer"),
        ([one * 0.95 for one in FOUR], FOUR, {"noise": NOISY}, Verdict.BETTER, True, "5 % faster"),
        ([one * 1.05 for one in FOUR], FOUR, {"noise": NOISY}, Verdict.WORSE, False, "above the noise of 2.8 %"),
        # Slower by 2 % on each task: below the noise, and beyond the 1 % that is tolerated.
        ([one * 1.02 for one in FOUR], FOUR, {"noise": NOISY, "learned": (1, 9)}, Verdict.UNCLEAR, False, "Use more"),
        ([10.3, 20.3], [10.0, 20.0], {"noise": NOISY, "learned": (1, 9), "tolerance_pct": 3}, Verdict.EQUAL, True, ""),
        ([10.01, 19.99, 30.0], [10.0, 20.0, 30.0], {"learned": (99, 100)}, Verdict.EQUAL, True, "fewer placements"),
        ([10.01, 19.99, 30.0], [10.0, 20.0, 30.0], {"learned": (100, 100)}, Verdict.EQUAL, False, "did not learn"),
        ([5.0, 25.0, 20.0], [10.0, 20.0, 20.0], {"learned": (1, 100)}, Verdict.UNCLEAR, False, "may be slower"),
        ([5.0], [10.0], {}, Verdict.UNCLEAR, False, "an unknown amount"),
        ([10.0], [10.0], {"noise": NOISY, "learned": (1, 2), "same": 1}, Verdict.EQUAL, True, "fewer placements"),
        ([9.0, 18.0, math.inf], [11.0, 20.0, 30.0], {}, Verdict.BETTER, False, "finds no placement for 1 task"),
        ([10.0, 20.0, 30.0, 40.0], [10.0, 20.0, *[math.inf] * 2], {"same": 2}, Verdict.EQUAL, True, "places 2 tasks"),
        ([11.0, 21.0, 30.0], [10.0, 20.0, math.inf], {}, Verdict.WORSE, False, "slower"),
        ([math.inf, 1.0], [math.inf, math.inf], {}, Verdict.UNCLEAR, False, "no task was placed by both"),
    ],
)
def test_decisions(
    candidate: list[float], champion: list[float], more: dict[str, Any], verdict: Verdict, promote: bool, reason: str
) -> None:
    found = decided(candidate, champion, **more)
    assert (found.verdict, found.promote) == (verdict, promote)
    assert reason in found.reason


def test_numbers_of_a_decision() -> None:
    """Three of four differ by nothing and for sure; the fourth scatters by sqrt(2) * 2 %, a quarter of it counts."""
    found = decided([10.0, 10.0, 10.0, 9.0, math.inf, 5.0], [10.0] * 5 + [math.inf], NOISY, same=3)
    assert found.noise_pct == pytest.approx(1.96 * math.sqrt(2) * 2 / 4)
    assert found.difference_pct.mean == pytest.approx(-2.5) and found.difference_pct.low < -2.5
    assert (found.candidate_ms, found.champion_ms, found.num_common, found.num_same) == (9.75, 10.0, 4, 3)
    assert (found.only_champion, found.only_candidate) == (("t4",), ("t5",))
    assert (found.num_candidate_missed, found.num_champion_missed) == (1, 1)
    same = decided([10.0], [10.0], NOISY, same=1)
    assert (same.difference_pct.low, same.difference_pct.high, same.noise_pct) == (0, 0, 0)


@pytest.fixture
def place(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tables, tasks, and an MLflow that knows no model."""
    empty_file(workdir)
    # MLflow keeps one connection for each URI, and every test has another working directory.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{workdir}/mlflow.db")
    write_inputs(workdir)
    return workdir


def champion() -> str:
    found = tracking.champion()
    return "" if found is None else found.uri


def report() -> dict[str, object]:
    content = json.loads(Path("work/promotion/promotion.json").read_text())
    assert isinstance(content, dict)
    return content


@pytest.mark.slow
def test_from_the_first_champion_to_a_regression(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad one is the first; a good one replaces it; the bad one does not come back, whatever it says of itself."""
    write_inputs(place, tables_per_task=30)  # on few tables no model is much faster
    register_folder(bad_model(place / "bad"), build_serving_code())
    assert main(["promote"]) == main(["promote"]) == 0
    assert champion() == "models:/evenshard-cost/1"
    shown = capsys.readouterr().out
    assert "there was no champion" in shown and "already the champion" in shown

    assert main(["promote", "--candidate", str(good_model(place / "good"))]) == 0
    shown = capsys.readouterr().out
    assert "is promoted" in shown and "% faster" in shown and "All times are simulated on simulated: h200." in shown
    assert champion() == "models:/evenshard-cost/2"
    assert report()["outcome"] == "promoted" and report()["champion"] == "models:/evenshard-cost/1"
    pool = load_tables(Path("work/tables.parquet"))
    measured = load_costs(Path("work/promotion/promotion_costs.parquet"), pool)
    assert {one.proposed_by for one in measured} == {"candidate", "champion", "control"}
    assert not Path("work/promotion/.promotion.journal").exists()

    register_folder(bad_model(place / "bad_again", num_measured=1, seed=1), build_serving_code())
    assert main(["promote", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["outcome"] == "refused" and printed["decision"]["verdict"] == "worse"
    assert printed["candidate"] == "models:/evenshard-cost/3" and printed["champion_now"] == champion()
    assert champion() == "models:/evenshard-cost/2"

    assert main(["promote", "--candidate", "models:/evenshard-cost/2"]) == 0
    runs = [one.run.data for one in loops() if one.run.info.run_name == "promote"]
    outcomes = [run.tags["evenshard.promotion"] for run in runs]
    assert outcomes == ["already the champion", "refused", "promoted", "already the champion", "promoted"]
    assert all("evenshard.params_hash" in run.tags for run in runs)


@pytest.mark.slow
def test_as_good_with_less_measuring_wins_and_the_way_back_is_refused(place: Path) -> None:
    write_inputs(place, num_test_tasks=2)
    for number in (1000, 500):
        register_folder(good_model(place / f"{number}", num_measured=number), build_serving_code())
        assert main(["promote"]) == 0
    assert champion() == "models:/evenshard-cost/2"
    decision = report()["decision"]
    assert isinstance(decision, dict) and decision["verdict"] == "equal" and decision["num_same"] == 2
    measured = load_costs(Path("work/promotion/promotion_costs.parquet"), load_tables(Path("work/tables.parquet")))
    assert {one.proposed_by for one in measured} == {"candidate", "control"}, "one placement is measured once"
    assert main(["promote", "--candidate", "models:/evenshard-cost/1"]) == 1
    assert main(["promote", "--candidate", str(place / "500")]) == 1
    assert report()["reason"] == "its files are identical to the champion's" and report()["decision"] is None
    assert champion() == "models:/evenshard-cost/2"


@pytest.mark.slow
@pytest.mark.parametrize("registered", ["no", "without a run", "of a run"])
def test_the_policy_of_the_same_run_becomes_champion_too(place: Path, registered: str) -> None:
    """Of several versions that of the candidate's run; a folder that a run has registered is no new version."""
    from mlflow import MlflowClient

    model, client, folder, run_id = learned_model(), MlflowClient(), place / "both", None
    save_model(folder, model.cost_model, model.trained_on, (cost_net(), policy(), NORMALIZER))
    if registered == "without a run":
        register_folder(folder, build_serving_code())
        assert tracking.champion(tracking.REGISTERED_POLICY) is None
    if registered == "of a run":
        experiment = client.create_experiment("evenshard")
        run_id, later = (client.create_run(experiment).info.run_id for _ in range(2))
        for run in (run_id, later):
            for name in BOTH:
                register_model(folder, build_serving_code(), {}, run_id=run, name=name)
    assert main(["promote", "--candidate", str(folder) if registered == "no" else "models:/evenshard-cost/1"]) == 0
    for name in BOTH:
        crowned = tracking.champion(name)
        assert crowned is not None and crowned.version == "1" and (run_id is None or crowned.run_id == run_id)
        assert len(client.search_model_versions(f"name = '{name}'")) == (2 if registered == "of a run" else 1)


@pytest.mark.slow
def test_whose_alias_was_moved_in_the_meantime_is_left_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_inputs(place, tables_per_task=30)
    for number, folder in enumerate((bad_model(place / "one"), bad_model(place / "two", seed=1))):
        assert register_folder(folder, build_serving_code())[0].version == str(number + 1)
    tracking.set_champion(tracking.REGISTERED_COST, "1")

    def then_another_candidate_wins(*args: Any, **kwargs: Any) -> ModelComparison:
        found = compare_models(*args, **kwargs)
        tracking.set_champion(tracking.REGISTERED_COST, "2")
        return found

    monkeypatch.setattr("evenshard.loop.decisions.promote.compare_models", then_another_candidate_wins)
    assert main(["promote", "--candidate", str(good_model(place / "good"))]) == 1
    assert champion() == "models:/evenshard-cost/2"
    assert "became models:/evenshard-cost/2 during the comparison" in str(report()["reason"])
    newest = find_newest_version()
    assert newest is not None and newest.version == "2", "a folder that has not won is not registered"


@pytest.mark.slow
def test_bad_input_is_one_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good_model(place / "good")
    for argv, expected in (
        ([], "MLflow has no version of evenshard-cost yet"),
        (["--candidate", "nowhere"], "nowhere: no such folder"),
        (["--candidate", "simulated:h200"], "is a device model"),
        (["--candidate", "good", "--hardware", "cpu"], "good: this model was trained on simulated: h200, not on cpu"),
    ):
        assert main(["promote", *argv]) == 2
        assert expected in capsys.readouterr().err
    register_folder(bad_model(place / "bad"), build_serving_code())
    tracking.set_champion(tracking.REGISTERED_COST, "1")
    write_inputs(place, memory_cap_gb=0.0001)
    assert main(["promote", "--candidate", "good"]) == 2
    assert "no held-out task fits its devices" in capsys.readouterr().err
    assert champion() == "models:/evenshard-cost/1"
