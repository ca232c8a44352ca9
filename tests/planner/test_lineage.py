"""Where a placement comes from, link by link, and what is said when a link leads nowhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import evenshard
from evenshard import tracking
from evenshard.api.serving import served_code
from evenshard.cli import main
from evenshard.planner.file import save_answer
from evenshard.utils.params import load_params
from evenshard.utils.provenance import Lineage, knows_commit, params_hash
from support.builders import some_tables
from support.http_server import hanging
from support.repository import ROOT, git
from support.tracking_builders import AWAY, empty_mlflow, moved_mlflow, write_costs, write_model

TABLES = some_tables(4)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a loop's files, and placement.json by a model that MLflow has."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        patch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
        patch.setattr("evenshard.tracking.tags._commit", lambda: commit)
        empty_mlflow(folder)
        git(folder, "init", "--quiet")
        shutil.copy(ROOT / "params.yaml", folder)
        git(folder, "add", "params.yaml")
        git(folder, "commit", "--quiet", "--message", "First")
        commit = git(folder, "rev-parse", "HEAD")
        params = load_params(Path("params.yaml"))
        costs = write_costs(folder / "work" / "round_1" / "costs.parquet", Lineage(commit, params_hash(params)))
        model = write_model(folder / "work" / "model", (costs,), commit=f"{commit}-dirty")
        with tracking.stage_run("evaluate", params, {}) as run:
            run.costs([costs], "training")
            run.register(model, served_code(), {})
        place("models:/evenshard-cost/1")
    return folder


@pytest.fixture
def placed(made: Path, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which the test may damage."""
    shutil.copytree(made, workdir, dirs_exist_ok=True)
    moved_mlflow(workdir, made)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{workdir}/mlflow.db")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    return workdir


def place(model: str | Path | None) -> None:
    hardware = "simulated:h200" if model is None else "auto"
    save_answer(evenshard.place(TABLES, 2, 1.0, batch_size=64, model=model, hardware=hardware), "placement.json")


def chain(capsys: pytest.CaptureFixture[str], code: int) -> dict[str, list[tuple[str, str]]]:
    """State and note by link; the command ended with this code."""
    capsys.readouterr()
    assert main(["lineage", "placement.json", "--json"]) == code
    links: dict[str, list[tuple[str, str]]] = {}
    for link in json.loads(capsys.readouterr().out)["links"]:
        links.setdefault(link["what"], []).append((link["state"], link["note"]))
    return links


def broken(links: dict[str, list[tuple[str, str]]]) -> set[str]:
    return {what for what, some in links.items() if any(state == "BROKEN" for state, _ in some)}


def test_every_link_of_a_placement_resolves(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    links = chain(capsys, 0)
    assert not broken(links)
    assert links["model"] == [("ok", "its files are the same")]
    assert links["MLflow model"] == [("ok", "aliases: none")]
    assert links["MLflow run"] == [("ok", "evaluate, FINISHED")]
    assert links["MLflow policy"] == [("ok", "aliases: none")]
    assert links["costs"] == [("ok", "work/round_1/costs.parquet")]
    assert links["settings"] == [("ok", "params.yaml here says the same")]
    assert links["commit of costs"] == links["commit of evaluation"] == [("ok", "git knows it")]
    assert links["commit of model"] == [
        ("unchecked", "git knows it, but tracked files had been changed, and no commit holds them")
    ]
    assert {"hardware", "versions", "libraries"} < links.keys()
    assert main(["lineage", "placement.json"]) == 0
    out = capsys.readouterr().out
    assert "models:/evenshard-cost/1" in out and "simulated: adds up" in out


@pytest.mark.slow
def test_the_placement_names_the_version_behind_an_alias(placed: Path) -> None:
    tracking.set_champion("evenshard-cost", "1")
    place("models:/evenshard-cost@champion")
    model = json.loads(Path("placement.json").read_text())["lineage"]["model"]
    version = tracking.model_version("models:/evenshard-cost/1")
    assert model["source"] == "models:/evenshard-cost/1"
    assert model["mlflow"] == {
        "name": "evenshard-cost",
        "version": "1",
        "model_id": version.model_id,
        "run_id": version.run_id,
        "asked_for": "models:/evenshard-cost@champion",
        "policy": {
            "name": "evenshard-policy",
            "version": "1",
            "model_id": tracking.model_version("models:/evenshard-policy/1").model_id,
        },
    }


def _other_costs() -> None:
    write_costs(Path("work/round_1/costs.parquet"), Lineage("other"))


def _no_version() -> None:
    from mlflow import MlflowClient

    MlflowClient(f"sqlite:///{Path.cwd()}/mlflow.db").delete_model_version("evenshard-cost", "1")


def _no_policy() -> None:
    from mlflow import MlflowClient

    MlflowClient(f"sqlite:///{Path.cwd()}/mlflow.db").delete_model_version("evenshard-policy", "1")


def _no_files() -> None:
    for path in Path("mlruns").rglob("artifacts/model/cost_model"):
        shutil.rmtree(path)


def _no_run() -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{Path.cwd()}/mlflow.db")
    client.delete_run(client.get_model_version("evenshard-cost", "1").run_id)


def _other_files() -> None:
    [path] = Path("mlruns").rglob("artifacts/model/cost_model/trained_on.json")
    path.write_text(path.read_text().replace('"num_measured": 1', '"num_measured": 2'))


def _no_git() -> None:
    shutil.rmtree(".git")
    git(Path(), "init", "--quiet")
    git(Path(), "commit", "--quiet", "--allow-empty", "--message", "Another history")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "links"),
    [
        (_other_costs, {"costs"}),
        (lambda: Path("work/round_1/costs.parquet").unlink(), {"costs"}),
        (_no_version, {"model", "MLflow model"}),
        (_no_policy, {"MLflow policy"}),
        (_no_run, {"MLflow run"}),
        (_no_files, {"model"}),
        (_other_files, {"model"}),
        (_no_git, {"commit of model", "commit of evaluation", "commit of costs"}),
    ],
)
def test_a_link_that_leads_nowhere_is_named(
    placed: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[], None], links: set[str]
) -> None:
    damage()
    assert broken(chain(capsys, 1)) == links


def test_what_is_broken_is_one_line(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _other_costs()
    assert main(["lineage", "placement.json"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("evenshard lineage failed: placement.json: ") and error.count("\n") == 1


@pytest.mark.slow
def test_a_run_is_looked_up_where_its_version_is_gone(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _no_version()
    assert chain(capsys, 1)["MLflow run"] == [("ok", "evaluate, FINISHED")]


def test_of_a_registered_model_no_folder_for_a_while_is_named(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [files] = Path("mlruns").rglob("artifacts/model/cost_model")
    shutil.rmtree(files)
    [(state, note)] = chain(capsys, 1)["model"]
    assert state == "BROKEN" and note.startswith("models:/evenshard-cost/1/cost_model: ") and "/tmp" not in note


def test_an_mlflow_that_is_away_breaks_no_link(
    placed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", AWAY)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    links = chain(capsys, 0)
    for what in ("model", "MLflow model", "MLflow run", "MLflow policy"):
        [(state, note)] = links[what]
        assert state == "unchecked" and AWAY in note
    assert links["costs"] == [("ok", "work/round_1/costs.parquet")]


@pytest.mark.slow
def test_datasets_are_found_in_data_and_in_dvcs_cache(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = Path("work/round_1/costs.parquet")
    Path("data/hardware=h200").mkdir(parents=True)
    costs.rename("data/hardware=h200/costs.parquet")
    assert chain(capsys, 0)["costs"] == [("ok", "data/hardware=h200/costs.parquet")]
    md5 = tracking.model_version("models:/evenshard-cost/1").tags["evenshard.costs_dvc_md5"]
    cached = Path(".dvc/cache/files/md5", md5[:2], md5[2:])
    cached.parent.mkdir(parents=True)
    Path("data/hardware=h200/costs.parquet").rename(cached)
    assert chain(capsys, 0)["costs"] == [("ok", str(cached))]


@pytest.mark.slow
def test_each_dataset_has_the_name_that_dvc_gives_it(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = [write_costs(Path(f"work/round_{n}/costs.parquet"), Lineage(f"round {n}")) for n in (2, 3)]
    model = write_model(Path("work/later"), tuple(costs), seed=1)
    with tracking.stage_run("evaluate", {}, {}) as run:
        run.costs(costs, "training")
        run.register(model, served_code(), {})
    place("models:/evenshard-cost/2")
    for path, md5 in zip(costs, run._tags["evenshard.costs_dvc_md5"].split(","), strict=True):
        cached = Path(".dvc/cache/files/md5", md5[:2], md5[2:])
        cached.parent.mkdir(parents=True, exist_ok=True)
        path.rename(cached)
    assert [state for state, _ in chain(capsys, 1)["costs"]] == ["ok", "ok"]


def test_an_mlflow_that_hangs_is_waited_for_once(
    placed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with hanging() as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
        links = chain(capsys, 0)
    assert len(server.taken) == 1
    notes = [links[what] for what in ("model", "MLflow model", "MLflow run", "MLflow policy")]
    assert all(state == "unchecked" and "timed out" in note for [(state, note)] in notes)


@pytest.mark.slow
def test_a_folder_and_a_device_model_are_checked_too(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place(Path("work/model"))
    links = chain(capsys, 0)
    assert links["model"] == [("ok", "its files are the same")] and "MLflow model" not in links
    write_model(Path("work/model"), seed=3)
    assert broken(chain(capsys, 1)) == {"model"}
    shutil.rmtree("work/model")
    assert chain(capsys, 1)["model"] == [("BROKEN", "there is no such folder any more")]
    place(None)
    links = chain(capsys, 0)
    assert links["model"] == [("ok", "its files are the same")]
    assert not {"commit of model", "costs", "settings"} & links.keys()


def test_bad_input_is_exit_code_2(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lineage", "placement.json"]) == 2
    assert "no such file" in capsys.readouterr().err


def test_git_knows_its_own_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    folder = tmp_path / "repository"
    folder.mkdir()
    assert knows_commit("0" * 40, folder) is None
    git(folder, "init", "--quiet")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "First")
    assert knows_commit(git(folder, "rev-parse", "HEAD"), folder) is True
    assert knows_commit("0" * 40, folder) is False
