"""The stages as a user types them: what they write, what they say, what they return."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import pytest
import torch
import yaml

from evenshard.base.errors import MeasurementFailed
from evenshard.cli import main
from evenshard.measure.cost_dataset import load_costs
from evenshard.sharders.models import load_model
from evenshard.tables.files import load_tables
from evenshard.tracking import StageRun
from support.convex_builders import predicted_ms
from support.tracking_builders import empty_file

POOL = ["--tables", "t.parquet", "--tasks", "tasks.json"]
GENERATE = ["generate-tables", "--tables-out", "t.parquet", "--tasks-out", "tasks.json"]
BENCHMARK = ["benchmark", *POOL, "--out", "costs.parquet"]
SIMULATED = [*BENCHMARK, "--hardware", "simulated:h200"]
TRAIN = ["train-cost", *POOL, "--costs", "costs.parquet", "--out", "net"]


@pytest.fixture(autouse=True)
def no_mlflow(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Runs untracked unless the test asks for MLflow: opening its database takes seconds."""
    if "tracked" not in request.keywords:
        monkeypatch.setattr("evenshard.tracking.runs._open", lambda *args: StageRun())


def settings(section: str, **values: Any) -> None:
    params = yaml.safe_load(Path("params.yaml").read_text())
    params[section].update(values)
    Path("params.yaml").write_text(yaml.safe_dump(params))


def run_loop() -> None:
    """Both rounds of the small loop, through the command line."""

    def networks(k: int, *names: str) -> list[str]:
        return [word for name in names for word in (f"--{name.replace('_', '-')}", f"r{k}/{name}") if k > 0]

    assert main(GENERATE) == 0
    costs: list[str] = []
    for k in (1, 2):
        costs.append(f"r{k}/costs.parquet")
        at_round = [*POOL, "--round", str(k)]
        previous = networks(k - 1, "cost_net", "policy", "cost_model")
        assert main(["benchmark", *at_round, *previous, "--out", costs[-1], "--metrics", f"r{k}/benchmark.json"]) == 0
        outputs = ["--out", f"r{k}/cost_net", "--model-out", f"r{k}/cost_model", "--metrics", f"r{k}/train_cost.json"]
        assert (
            main(["train-cost", *at_round, "--costs", *costs, *networks(k - 1, "cost_net", "cost_model"), *outputs])
            == 0
        )
        policy = [*networks(k, "cost_net"), *networks(k - 1, "policy")]
        assert main(["train-policy", *at_round, *policy, "--out", f"r{k}/policy"]) == 0
    assert (
        main(
            ["evaluate", *POOL, "--costs", *costs, *networks(2, "cost_net", "policy", "cost_model"), "--out", "reports"]
        )
        == 0
    )


@pytest.mark.slow
@pytest.mark.tracked
def test_the_whole_loop(workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    mlflow_uri = f"sqlite:///{empty_file(workdir)}"  # MLflow keeps what a name once meant: another test's mlflow.db
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_uri)
    run_loop()
    metrics = json.loads(Path("reports/metrics.json").read_text())
    assert metrics["hardware"].startswith("cpu: ")
    assert (metrics["num_test_tasks"], metrics["num_infeasible"]) == (3, 0)
    assert [*metrics["sharders"]][-3:] == ["single_cost_greedy", "dreamshard", "evenshard"]
    for standing in metrics["sharders"].values():
        assert standing["ci95_ms"][0] < standing["mean_measured_ms"] < standing["ci95_ms"][1]
    assert metrics["noise"]["num_runs"] == 3 and metrics["noise"]["within_run_pct"] > 0

    # The networks' errors, and the model that a round leaves.
    evaluated = [one for one in load_costs(Path("reports/evaluation_costs.parquet"), load_tables(Path("t.parquet")))
                 if not one.is_control]  # fmt: skip
    model = load_model("r2", "cpu")
    errors = [
        abs(predicted_ms(model.cost_model, one.task, one.placement) / one.cost.max_device_ms - 1) for one in evaluated
    ]
    assert metrics["cost_model"]["median_abs_pct_error"] == pytest.approx(100 * median(errors), abs=1e-3)
    assert 0 < metrics["cost_network"]["median_abs_pct_error"] != metrics["cost_model"]["median_abs_pct_error"]
    assert model.policy is not None and model.trained_on.num_measured == 8
    assert model.trained_on.hardware == metrics["hardware"] and len(model.trained_on.costs_sha256) == 2

    costs = pd.read_parquet("r1/costs.parquet")
    assert len(costs) == (4 + 8) * 2  # placements and repeated controls, one row per device
    assert (costs.fwd_compute_ms + costs.bwd_compute_ms > 0).all() and (costs.all_to_all == "modelled").all()
    assert set(costs.proposed_by) == {"random", "control"}
    assert Counter(pd.read_parquet("r2/costs.parquet").proposed_by) == {"dreamshard": 4, "evenshard": 4, "control": 16}
    benchmarks = [json.loads(Path(f"r{k}/benchmark.json").read_text()) for k in (1, 2)]
    assert [one["num_searched"] for one in benchmarks] == [0, 2]
    printed = capsys.readouterr().out
    assert "single_cost_greedy *" in printed and "report: reports/" in printed

    from mlflow import MlflowClient

    client = MlflowClient(mlflow_uri)
    (experiment,) = [e for e in client.search_experiments() if e.name == "evenshard"]
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = {run.info.run_name: run for run in runs if run is not parent}
    of_rounds = {f"{stage}_{k}" for k in (1, 2) for stage in ("benchmark", "train_cost", "train_policy")}
    assert children.keys() == {"generate_tables", "evaluate"} | of_rounds
    assert {run.data.tags["mlflow.parentRunId"] for run in children.values()} == {parent.info.run_id}
    assert {run.info.status for run in children.values()} == {"FINISHED"}
    expected = metrics["sharders"]["dreamshard"]["mean_measured_ms"]
    assert parent.data.metrics["dreamshard.mean_measured_ms"] == pytest.approx(expected)
    assert "costs.parquet" in [f.path for f in client.list_artifacts(children["benchmark_1"].info.run_id)]


def test_the_same_seed_trains_the_same_networks(workdir: Path) -> None:
    assert main(GENERATE) == main(SIMULATED) == 0
    for name in ("a", "b"):
        outputs = ["--out", f"{name}/cost", "--model-out", f"{name}/model"]
        assert main(["train-cost", *POOL, "--costs", "costs.parquet", *outputs]) == 0
        assert main(["train-policy", *POOL, "--cost-net", f"{name}/cost", "--out", f"{name}/policy"]) == 0
    for net in ("cost", "policy", "model"):
        a, b = (torch.load(f"{name}/{net}/state.pt", weights_only=True) for name in ("a", "b"))
        assert all(torch.equal(a[key], b[key]) for key in a)


def write_recorded_batch(path: Path) -> None:
    """8 tables x 64 samples of 2 lookups each, as facebookresearch/dlrm_datasets stores them."""
    indices = torch.randint(50, (8 * 64 * 2,), generator=torch.Generator().manual_seed(0))
    torch.save((indices, torch.arange(8 * 64 + 1) * 2, torch.full((8, 64), 2)), path)


def test_tables_come_from_a_catalogue_a_file_or_a_recorded_batch_which_is_replayed(workdir: Path) -> None:
    tables = [{"name": f"clicks_{i}", "num_rows": 10 + i, "embedding_dim": 8, "pooling_factor": 1.5} for i in range(12)]
    pd.DataFrame(tables).to_csv("own.csv", index=False)
    assert main([*GENERATE, "--source", "own.csv"]) == 0
    assert len(load_tables(Path("t.parquet"))) == 12
    settings("generate_tables", source="avazu", catalog_embedding_dim=64)
    assert main(GENERATE) == 0
    assert {table.embedding_dim for table in load_tables(Path("t.parquet"))} == {64}
    write_recorded_batch(Path("batch.pt"))
    settings("generate_tables", tables_per_task=4, catalog_embedding_dim=None)
    settings("measure", recorded_batch="batch.pt")
    assert main([*GENERATE, "--source", "batch.pt"]) == 0
    assert {table.pooling_factor for table in load_tables(Path("t.parquet"))} == {2.0}
    assert main(BENCHMARK) == 0


# What goes wrong -----------------------------------------------------------------------------------------------------


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    (said,) = [line for line in error.splitlines() if line.startswith("evenshard")]
    assert "Traceback" not in error
    return said


def cut_short(name: str) -> None:
    Path(name).write_bytes(Path(name).read_bytes()[:-200])


def nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("change", "command", "words"),
    [
        (nothing, [*GENERATE, "--source", "bad.csv"], ["bad.csv", "record 2", "'b'", "num_rows is -5"]),
        (nothing, [*GENERATE, "--source", "criteo_kagle"], ["criteo_kaggle"]),
        (lambda: cut_short("batch.pt"), [*GENERATE, "--source", "batch.pt"], ["batch.pt"]),
        (lambda: settings("generate_tables", source="t.parquet"), GENERATE, ["input (generate_tables.source)"]),
        (lambda: cut_short("t.parquet"), BENCHMARK, ["t.parquet"]),
        (nothing, [*BENCHMARK, "--hardware", "tpu"], ["tpu"]),
        (nothing, [*BENCHMARK, "--hardware", "simulated"], ["simulated:<profile>"]),
        (nothing, [*BENCHMARK, "--hardware", "simulated:none.yaml"], ["none.yaml"]),
        (lambda: settings("benchmark", searched_share=1.5), BENCHMARK, ["benchmark: searched_share is 1.5"]),
        (lambda: settings("train_cost", num_update=3), TRAIN, ["train_cost", "num_update", "num_updates"]),
        (lambda: settings("train_cost", learning_rate="fast"), TRAIN, ["train_cost", "learning_rate"]),
        (lambda: settings("train_cost", convex_updates=0), TRAIN, ["train_cost", "convex_updates is 0"]),
        (nothing, ["train-cost", *POOL, "--costs", "c.parquet", "--params", "no.yaml"], ["no.yaml: no such file"]),
        (nothing, ["train-cost", *POOL, "--costs", "c.parquet"], ["no output is given"]),
        (nothing, [*TRAIN[:3], *TRAIN[5:]], ["the cost network needs tasks"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    workdir: Path, capsys: pytest.CaptureFixture[str], change: Callable[[], None], command: list[str], words: list[str]
) -> None:
    Path("bad.csv").write_text("name,num_rows,embedding_dim,pooling_factor\na,5,4,1\nb,-5,4,1\n")
    write_recorded_batch(Path("batch.pt"))
    assert main(GENERATE) == 0
    before = Path("tasks.json").read_bytes()
    change()
    assert main(command) == 2
    said = one_line(capsys)
    assert all(word in said for word in words), said
    assert Path("tasks.json").read_bytes() == before and not Path("costs.parquet").exists()


def test_more_memory_than_any_device(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings("generate_tables", memory_cap_gb=1e-6)
    assert (main(GENERATE), main(BENCHMARK)) == (0, 2)
    assert "memory_cap_gb" in one_line(capsys)


@pytest.mark.parametrize(
    ("failing", "error", "code", "said"),
    [
        ("one_device.SequentialHardware.measure", MeasurementFailed("FBGEMM failed on [a]"), 1, "FBGEMM failed on [a]"),
        ("fbgemm.ShardKernels.operator", AssertionError(), 1, "AssertionError"),
        ("one_device.SequentialHardware.measure", KeyboardInterrupt(), 130, "evenshard benchmark: interrupted"),
    ],
)
def test_a_failing_kernel_and_ctrl_c_have_codes_of_their_own(
    workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    failing: str, error: BaseException, code: int, said: str,
) -> None:  # fmt: skip
    def fail(*args: object) -> None:
        raise error

    assert main(GENERATE) == 0
    monkeypatch.setattr(f"evenshard.measure.{failing}", fail)
    assert main(BENCHMARK) == code
    assert said in one_line(capsys) and not Path("costs.parquet").exists()


@pytest.mark.slow
def test_help_loads_nothing_heavy() -> None:
    code = "import sys; from evenshard.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "print([m for m in ('torch', 'mlflow', 'pandas', 'matplotlib', 'yaml') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"
