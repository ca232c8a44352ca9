"""The commands as a user types them: what they write, what they say, what they return."""

from __future__ import annotations

import json
import os
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
from evenshard.planner.file import load_answer
from evenshard.sharders.models import load_model
from evenshard.tables.files import load_tables
from evenshard.tracking import StageRun
from support.convex_builders import predicted_ms
from support.tracking_builders import empty_file

POOL = ["--tables", "t.parquet", "--tasks", "tasks.json"]
GENERATE = ["generate-tables", "--tables-out", "t.parquet", "--tasks-out", "tasks.json"]
LEARNED = ["--costs", "reports/evaluation_costs.parquet", "--cost-net", "n", "--policy", "p"]
BENCHMARK = ["benchmark", *POOL, "--out", "costs.parquet"]


@pytest.fixture(autouse=True)
def no_mlflow(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Runs untracked unless the test asks for MLflow: opening its database takes seconds."""
    if "tracked" not in request.keywords:
        monkeypatch.setattr("evenshard.tracking.runs._open", lambda *args: StageRun())


def settings(change: Callable[[dict[str, Any]], None]) -> None:
    params = yaml.safe_load(Path("params.yaml").read_text())
    change(params)
    Path("params.yaml").write_text(yaml.safe_dump(params))


def run_loop(folder: Path) -> None:
    """Both rounds of the small loop, through the command line."""

    def networks(k: int, *names: str) -> list[str]:
        return [word for name in names for word in (f"--{name.replace('_', '-')}", f"r{k}/{name}") if k > 0]

    assert main(GENERATE) == 0
    for k in (1, 2):
        costs = [f"r{number}/costs.parquet" for number in range(1, k + 1)]
        at_round = [*POOL, "--round", str(k)]
        previous = networks(k - 1, "cost_net", "policy", "cost_model")
        metrics = ["--metrics", f"r{k}/benchmark.json"]
        assert main(["benchmark", *at_round, *previous, "--out", f"r{k}/costs.parquet", *metrics]) == 0
        previous = networks(k - 1, "cost_net", "cost_model")
        outputs = ["--out", f"r{k}/cost_net", "--model-out", f"r{k}/cost_model"]
        metrics = ["--metrics", f"r{k}/train_cost.json"]
        assert main(["train-cost", *at_round, "--costs", *costs, *previous, *outputs, *metrics]) == 0
        policy = [*networks(k, "cost_net"), *networks(k - 1, "policy")]
        assert main(["train-policy", *at_round, *policy, "--out", f"r{k}/policy"]) == 0
    last = networks(2, "cost_net", "policy", "cost_model")
    assert main(["evaluate", *POOL, "--costs", *costs, *last, "--out", "reports"]) == 0


@pytest.mark.tracked
def test_the_whole_loop(workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    mlflow_uri = f"sqlite:///{empty_file(workdir)}"  # MLflow keeps what a name once meant: another test's mlflow.db
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_uri)
    run_loop(workdir)
    metrics = json.loads(Path("reports/metrics.json").read_text())
    assert metrics["hardware"].startswith("cpu: ")
    assert metrics["num_test_tasks"] == 3
    assert metrics["num_infeasible"] == 0
    assert list(metrics["sharders"]) == [
        "random",
        "size_greedy",
        "dim_greedy",
        "lookup_greedy",
        "size_lookup_greedy",
        "single_cost_greedy",
        "dreamshard",
        "evenshard",
    ]
    summary = json.loads(Path("reports/summary.json").read_text())
    assert sorted(summary) == ["dreamshard_ms", "evenshard_ms", "heuristic_ms", "noise_pct"]  # all that DVC shows
    best = min(name for name, one in metrics["sharders"].items() if one["verdict"] == "the best heuristic")
    for key, name in (("heuristic", best), ("evenshard", "evenshard"), ("dreamshard", "dreamshard")):
        assert summary[f"{key}_ms"] == metrics["sharders"][name]["mean_measured_ms"]
    for standing in metrics["sharders"].values():
        assert standing["ci95_ms"][0] < standing["mean_measured_ms"] < standing["ci95_ms"][1]
    for network in ("cost_network", "cost_model"):
        assert metrics[network]["median_abs_pct_error"] > 0
    evaluated = [one for one in load_costs(Path("reports/evaluation_costs.parquet"), load_tables(Path("t.parquet")))
                 if not one.is_control]  # fmt: skip
    model = load_model("r2", "cpu")  # a round leaves what `evenshard place` takes
    errors = [
        abs(predicted_ms(model.cost_model, one.task, one.placement) / one.cost.max_device_ms - 1) for one in evaluated
    ]
    assert metrics["cost_model"]["median_abs_pct_error"] == pytest.approx(100 * median(errors), abs=1e-3)
    assert metrics["cost_model"] != metrics["cost_network"]

    costs = pd.read_parquet("r1/costs.parquet")
    assert len(costs) == (4 + 8) * 2  # placements and repeated controls, one row per device
    assert (costs.fwd_compute_ms + costs.bwd_compute_ms > 0).all()
    assert (costs.all_to_all == "modelled").all()
    assert set(costs.proposed_by) == {"random", "control"}
    assert Counter(pd.read_parquet("r2/costs.parquet").proposed_by) == {"dreamshard": 4, "evenshard": 4, "control": 16}
    assert model.policy is not None
    assert model.trained_on.num_measured == 8 and model.trained_on.hardware == metrics["hardware"]
    assert len(model.trained_on.costs_sha256) == 2
    assert metrics["noise"]["num_runs"] == 3 and metrics["noise"]["within_run_pct"] > 0
    evaluation = pd.read_csv("reports/evaluation.csv")
    assert len(evaluation) == 3 * 8 * 2  # tasks x sharders x devices
    steps = evaluation.groupby(["task_id", "sharder"])
    parts = ["fwd_compute_ms", "fwd_all_to_all_ms", "bwd_all_to_all_ms", "bwd_compute_ms"]
    slowest = evaluation[parts].sum(axis=1).groupby([evaluation.task_id, evaluation.sharder]).max()
    pd.testing.assert_series_equal(steps.max_device_ms.first(), slowest, check_names=False)
    for picture in ("device_costs", "predicted_vs_measured", "cost_per_round"):
        assert Path(f"reports/{picture}.png").read_bytes().startswith(b"\x89PNG")
    benchmark = json.loads(Path("r1/benchmark.json").read_text())
    assert 0 < benchmark["kernel_share_of_wall_time"] < 1
    assert [json.loads(Path(f"r{k}/benchmark.json").read_text())["num_searched"] for k in (1, 2)] == [0, 2]
    trained = json.loads(Path("r2/train_cost.json").read_text())
    assert trained["num_placements"] == 8 and trained["cost_model_held_out_pct_error"] > 0
    printed = capsys.readouterr().out
    assert "single_cost_greedy *" in printed and "privileged" in printed
    assert "report: reports/" in printed

    from mlflow import MlflowClient

    client = MlflowClient(mlflow_uri)
    (experiment,) = [e for e in client.search_experiments() if e.name == "evenshard"]
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = {run.info.run_name: run for run in runs if run is not parent}
    assert children.keys() == {
        "generate_tables",
        *(f"{stage}_{k}" for k in (1, 2) for stage in ("benchmark", "train_cost", "train_policy")),
        "evaluate",
    }
    assert {run.data.tags["mlflow.parentRunId"] for run in children.values()} == {parent.info.run_id}
    assert {run.info.status for run in children.values()} == {"FINISHED"}
    for k in ("1", "2"):
        fit, policy = (children[f"{stage}_{k}"].data.tags for stage in ("train_cost", "train_policy"))
        for name in ("hardware", "versions", "costs_sha256", "tables_sha256", "git_commit", "params_hash", "libraries"):
            assert policy[f"evenshard.{name}"] == fit[f"evenshard.{name}"], "a policy learns what its cost network has"
    assert len(client.get_metric_history(children["benchmark_2"].info.run_id, "measured_ms_per_placement")) == 4
    assert children["train_cost_2"].data.params["num_updates"] == "5"
    assert len(client.get_metric_history(children["train_cost_1"].info.run_id, "loss_per_update")) == 5
    assert parent.data.metrics["dreamshard.mean_measured_ms"] == pytest.approx(
        metrics["sharders"]["dreamshard"]["mean_measured_ms"]
    )
    assert parent.data.metrics["cost_model.kendall_tau"] == pytest.approx(metrics["cost_model"]["kendall_tau"])
    assert "cost_model" in [f.path for f in client.list_artifacts(children["train_cost_2"].info.run_id)]
    assert "costs.parquet" in [f.path for f in client.list_artifacts(children["benchmark_1"].info.run_id)]


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ([*GENERATE[:-1], "file/tasks.json"], "file/tasks.json"),
        (["benchmark", *POOL, "--out", "file/costs.parquet"], "file/costs.parquet"),
        (["place", "criteo_kaggle", "--report", "file/deep/page.html"], "file/deep/page.html"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_work(
    workdir: Path, capsys: pytest.CaptureFixture[str], words: list[str], path: str
) -> None:
    Path("file").touch()
    before = sorted(workdir.iterdir())
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{path}: cannot be written: file is not a folder" in line
    assert sorted(workdir.iterdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["train-cost", *POOL, "--costs", "c.parquet", "--out", "mydata"],
            "mydata: contains thesis.txt, which is not part of a",
        ),
        (["train-cost", *POOL, "--costs", "c.parquet", "--out", "n", "--model-out", "mydata"], "mydata: contains "),
        (
            ["train-policy", *POOL, "--cost-net", "n", "--out", "mydata"],
            "mydata: contains thesis.txt, which is not part of a",
        ),
        (["train-policy", *POOL, "--cost-net", "n", "--out", "t.parquet"], "t.parquet: is not a folder"),
        (["train-policy", *POOL, "--cost-net", "n", "--out", "."], ".: is the working directory"),
        (["evaluate", *POOL, *LEARNED, "--out", "t.parquet"], "t.parquet is not a folder"),
        (["evaluate", *POOL, *LEARNED, "--out", "odd"], "odd/table.txt: is a folder"),
        (["promote", "--out", "t.parquet"], "t.parquet is not a folder"),
        (["pipeline", "run", "--out", "t.parquet"], "t.parquet is not a folder"),
        (["pipeline", "compile", "-o", "mydata"], "mydata: is a folder"),
        (["place", "t.json", "-o", "mydata"], "mydata: is a folder"),
        (["place", "t.json", "-o", "pipe"], "pipe: is a device, a pipe or a socket"),
        (["place", "t.json", "-o", "/dev/null"], "/dev/null: is a device"),
        (["place", "t.json", "-o", "cached"], "kept.json, which is read-only"),
        (["place", "t.json", "-o", "t.json"], "t.json is an output (-o/--out) and also an input (TABLES)"),
        (["place", "t.json", "-o", "mydata/../t.json"], "mydata/../t.json is an output (-o/--out)"),
        (["place", "t.json", "-o", "soft"], "soft is an output (-o/--out) and also an input (TABLES)"),
        (["place", "mydata", "--report", "mydata/thesis.txt"], "also an input (TABLES)"),
        (["place", "t.json", "--rules", "t.parquet", "-o", "t.parquet"], "also an input (--rules)"),
        (["place", "t.json", "--model", "half", "-o", "half/policy/x"], "also an input (--model)"),
        (["place", "t.json", "-o", "p.json", "--report", "mydata/../p.json"], "twice, by -o/--out and --report"),
        (["drift", "--tables", "t.json", "--against", "half", "-o", "t.json"], "also an input (--tables)"),
        (
            ["generate-tables", "--source", "t.json", "--tables-out", "t.json", "--tasks-out", "k"],
            "also an input (--source)",
        ),
        (["generate-tables", "--tables-out", "k", "--tasks-out", "k"], "twice, by --tables-out and --tasks-out"),
        (["generate-tables", "--tables-out", "k", "--tasks-out", "k/x"], "twice, by --tables-out and --tasks-out"),
        (["merge-costs", "a.parquet", "t.parquet", "--out", "t.parquet"], "also an input (COSTS)"),
        (["benchmark", *POOL, "--out", "c", "--metrics", "c"], "twice, by --metrics and --out"),
        (["benchmark", *POOL, "--out", "c", "--journal", "c"], "twice, by --journal and --out"),
        (["benchmark", *POOL, "--out", "c", "--plan-out", "t.parquet"], "--plan-out) and also an input (--tables)"),
        (["train-policy", *POOL, "--cost-net", "n", "--out", "m", "--metrics", "m/x"], "twice, by --metrics and --out"),
        (["train-policy", *POOL, "--cost-net", "n", "--out", "n"], "also an input (--cost-net)"),
        (["evaluate", *POOL, *LEARNED, "--out", "r", "--metrics", "r/metrics.json"], "twice, by --metrics and --out"),
        (
            ["evaluate", *POOL, *LEARNED, "--out", "reports"],
            "is an output (--out) and also an input (--costs)",
        ),
        (["promote", "--tables", "mydata/promotion.json", "--out", "mydata"], "also an input (--tables)"),
        (["calibrate-link", "--out", "params.yaml"], "also an input (--params)"),
        (["calibrate-link", "--hardware", "simulated:t.json", "--out", "t.json"], "also an input (--hardware)"),
        (["calibrate-device", "--tables", "t", "--costs", "c", "--profile", "t.json", "--out", "t.json"], "--profile"),
        (["pipeline", "compile", "--set", "tables=t.json", "-o", "t.json"], "also an input (--set)"),
    ],
)
def test_only_former_outputs_are_replaced(
    workdir: Path, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    for name in (
        "mydata/thesis.txt",
        "half/policy/x",
        "t.json",
        "t.parquet",
        "kept.json",
        LEARNED[1],
    ):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)
    Path("results.md").mkdir()
    Path("odd/table.txt").mkdir(parents=True)
    os.mkfifo("pipe")
    Path("soft").symlink_to("t.json")
    Path("cached").symlink_to("kept.json")
    Path("kept.json").chmod(0o444)
    before = {path: path.lstat().st_ino for path in workdir.rglob("*")}
    assert main(words) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith(f"evenshard {words[0]}: ") and reason in line and printed.out == ""
    assert {path: path.lstat().st_ino for path in workdir.rglob("*")} == before


def test_tables_are_not_written_over_the_source_that_the_settings_name(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(GENERATE) == 0
    settings(lambda params: params["generate_tables"].update(source="t.parquet"))
    assert main(GENERATE) == 2
    assert "t.parquet is an output (tables) and also an input (generate_tables.source)" in capsys.readouterr().err


def test_through_a_link_its_target_is_written(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("disk").mkdir()
    Path("own.csv").write_text("name,num_rows,embedding_dim,pooling_factor\na,1000,16,1\nb,2000,16,1\n")
    place = ["place", "own.csv", "--devices", "2", "--sharding-types", "table_wise", "-o"]
    for link, target in (("p.json", "disk/p.json"), ("new.json", "disk/deep/new.json")):
        Path(link).symlink_to(target)
        assert main([*place, link]) == 0
        assert Path(link).is_symlink() and load_answer(Path(target)).num_devices == 2
    assert main([*place, "p.json"]) == 0
    assert Path("p.json").is_symlink()


def test_the_same_seed_trains_the_same_networks(workdir: Path) -> None:
    assert main(GENERATE) == 0
    assert main(BENCHMARK) == 0
    for name in ("a", "b"):
        outputs = ["--out", f"{name}/cost", "--model-out", f"{name}/model"]
        assert main(["train-cost", *POOL, "--costs", "costs.parquet", *outputs]) == 0
        assert main(["train-policy", *POOL, "--cost-net", f"{name}/cost", "--out", f"{name}/policy"]) == 0
    for net in ("cost", "policy", "model"):
        a, b = (torch.load(f"{name}/{net}/state.pt", weights_only=True) for name in ("a", "b"))
        assert all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize(
    ("source", "num_tables"), [("criteo_kaggle", 26), ("nvidia_tiny", 55), ("own.yaml", 12), ("own.csv", 12)]
)
def test_tables_come_from_a_catalogue_or_the_users_file(workdir: Path, source: str, num_tables: int) -> None:
    tables = [{"name": f"clicks_{i}", "num_rows": 10 + i, "embedding_dim": 8, "pooling_factor": 1.5} for i in range(12)]
    Path("own.yaml").write_text(yaml.safe_dump({"tables": tables}))
    pd.DataFrame(tables).to_csv("own.csv", index=False)
    assert main([*GENERATE, "--source", source]) == 0
    assert len(load_tables(Path("t.parquet"))) == num_tables


def test_a_catalogue_takes_the_dim_that_the_settings_name(workdir: Path) -> None:
    settings(lambda p: p["generate_tables"].update(source="avazu", catalog_embedding_dim=64))
    assert main(GENERATE) == 0
    assert {table.embedding_dim for table in load_tables(Path("t.parquet"))} == {64}


def write_recorded_batch(path: Path) -> None:
    """8 tables x 64 samples of 2 lookups each, as facebookresearch/dlrm_datasets stores them."""
    indices = torch.randint(50, (8 * 64 * 2,), generator=torch.Generator().manual_seed(0))
    lengths = torch.full((8, 64), 2)
    offsets = torch.arange(8 * 64 + 1) * 2
    torch.save((indices, offsets, lengths), path)


def test_a_recorded_batch_is_replayed(workdir: Path) -> None:
    write_recorded_batch(Path("batch.pt"))
    settings(lambda p: (p["generate_tables"].update(tables_per_task=4), p["measure"].update(recorded_batch="batch.pt")))
    assert main([*GENERATE, "--source", "batch.pt"]) == 0
    assert {table.pooling_factor for table in load_tables(Path("t.parquet"))} == {2.0}
    assert main(BENCHMARK) == 0


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    said = [line for line in error.splitlines() if line.startswith("evenshard")]
    assert len(said) == 1 and "Traceback" not in error, error
    return said[0]


BAD_TABLES = {
    "missing column": "name,num_rows,embedding_dim\na,5,4\n",
    "negative rows": "name,num_rows,embedding_dim,pooling_factor\na,5,4,1\nb,-5,4,1\n",
    "nan pooling": "name,num_rows,embedding_dim,pooling_factor\na,5,4,1\nb,5,4,nan\n",
}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("missing column", ["bad.csv", "pooling_factor"]),
        ("negative rows", ["bad.csv", "2", "b", "num_rows", "-5"]),
        ("nan pooling", ["bad.csv", "2", "b", "pooling_factor", "nan"]),
    ],
)
def test_a_bad_table_file_is_named_with_row_and_remedy(
    workdir: Path, capsys: pytest.CaptureFixture[str], fault: str, words: list[str]
) -> None:
    Path("bad.csv").write_text(BAD_TABLES[fault])
    assert main([*GENERATE, "--source", "bad.csv"]) == 2
    said = one_line(capsys)
    assert all(word in said for word in words), said
    assert not Path("t.parquet").exists() and not Path("tasks.json").exists()


def test_unknown_catalogue(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GENERATE, "--source", "criteo_kagle"]) == 2
    assert "criteo_kaggle" in one_line(capsys)


@pytest.mark.parametrize("name", ["t.parquet", "batch.pt"])
def test_truncated_files(workdir: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    write_recorded_batch(Path("batch.pt"))
    assert main(GENERATE) == 0
    Path(name).write_bytes(Path(name).read_bytes()[:-200])
    command = BENCHMARK if name == "t.parquet" else [*GENERATE, "--source", name]
    assert main(command) == 2
    assert name in one_line(capsys)
    assert not Path("costs.parquet").exists()


def test_more_memory_than_any_device(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings(lambda p: p["generate_tables"].update(memory_cap_gb=1e-6))
    assert main(GENERATE) == 0
    assert main(BENCHMARK) == 2
    assert "memory_cap_gb" in one_line(capsys)
    assert not Path("costs.parquet").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p["train_cost"].update(num_update=3), ["train_cost", "num_update", "num_updates"]),
        (lambda p: p["train_cost"].update(learning_rate="fast"), ["train_cost", "learning_rate"]),
        (lambda p: p["train_cost"].update(num_updates=0), ["train_cost", "num_updates is 0"]),
        (lambda p: p["train_cost"].update(convex_updates=0), ["train_cost", "convex_updates is 0"]),
        (lambda p: p.pop("generate_tables"), ["generate_tables", "source"]),
    ],
)
def test_bad_settings(
    workdir: Path, capsys: pytest.CaptureFixture[str], change: Callable[[dict[str, Any]], None], words: list[str]
) -> None:
    settings(change)
    command = GENERATE if "source" in words else ["train-cost", *POOL, "--costs", "c.parquet", "--out", "net"]
    assert main(command) == 2
    said = one_line(capsys)
    assert all(word in said for word in words), said


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_is_a_part(workdir: Path, capsys: pytest.CaptureFixture[str], share: float) -> None:
    settings(lambda p: p["benchmark"].update(searched_share=share))
    assert main(BENCHMARK) == 2
    assert f"benchmark: searched_share is {share}" in one_line(capsys)


@pytest.mark.parametrize("argv", [["--hardware", "tpu"], ["--hardware", "cuda"]])
def test_hardware_that_is_not_there(workdir: Path, capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    if argv[1] == "cuda" and torch.cuda.is_available():
        pytest.skip("a GPU is here")
    assert main(GENERATE) == 0
    assert main([*BENCHMARK, *argv]) == 2
    assert argv[1] in one_line(capsys)


def test_a_failing_kernel_exits_1(
    workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise MeasurementFailed("FBGEMM failed on the shard [a]")

    assert main(GENERATE) == 0
    monkeypatch.setattr("evenshard.measure.one_device.SequentialHardware.measure", fail)
    assert main(BENCHMARK) == 1
    assert "FBGEMM failed" in one_line(capsys)
    assert not Path("costs.parquet").exists()


def test_a_kernel_that_fails_without_a_word_is_named(
    workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise AssertionError

    assert main(GENERATE) == 0
    monkeypatch.setattr("evenshard.measure.fbgemm.ShardKernels._load", fail)
    assert main(BENCHMARK) == 1
    assert "AssertionError" in one_line(capsys)


def test_missing_and_unknown_flags_take_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["benchmark"], ["evaluate", "--nonsense"], ["no-such-command"]):
        with pytest.raises(SystemExit) as left:
            main(argv)
        assert left.value.code == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("name", ["generate-tables", "benchmark", "train-cost", "train-policy", "evaluate"])
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert "--params" in text and len(text) > 500


def test_help_loads_nothing_heavy() -> None:
    code = "import sys; from evenshard.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "print([m for m in ('torch', 'mlflow', 'pandas', 'matplotlib', 'yaml') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


@pytest.mark.tracked
def test_a_stage_goes_on_when_mlflow_is_away(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert main(GENERATE) == 0
    assert Path("tasks.json").exists()
    assert "MLflow cannot be reached" in caplog.text
