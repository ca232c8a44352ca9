"""Cost datasets are checked and added to data/; what the command then advises works with real DVC and git."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evenshard.cli import main
from evenshard.tracking.datasets import AddRequest, Partition, add
from evenshard.utils.errors import BadConfig, BadFile, DatasetRefused
from support.dataset_builders import clone, dvc, git, make_repository, measure

H200 = Partition("simulated-h200", "reference")
FLAGS = ["--hardware", "simulated:h200", "--collection", "reference"]


@pytest.fixture(scope="module")
def with_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one dataset, added and committed as the command advises."""
    root = make_repository(tmp_path_factory.mktemp("team") / "repository")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        costs, tables = measure(root / "work")
        command = [sys.executable, "-m", "evenshard", "dataset", "add", str(costs), "--tables", str(tables), *FLAGS]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        publish(said, root)
    return root


def publish(said: str, root: Path) -> None:
    """Runs the commands that the last lines name."""
    first, second = said.splitlines()[-2:]
    assert first.startswith("next     dvc add data")
    commands = f"{first.removeprefix('next')} && {second}".replace(" dvc ", f" {sys.executable} -m dvc ")
    subprocess.run(commands.replace("add data.dvc", "add data.dvc dvcstore"), shell=True, cwd=root, check=True)


@pytest.fixture
def root(with_one: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(with_one, tmp_path / "repository", symlinks=True)


def request(root: Path, partition: Partition = H200, **measuring: object) -> AddRequest:
    costs, tables = measure(root / "work", **measuring)  # type: ignore[arg-type]
    return AddRequest((costs,), tables, partition)


def state(root: Path) -> dict[str, bytes]:
    """All of data/."""
    return {str(path): path.read_bytes() for path in (root / "data").rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_fresh_clone_pulls_what_was_added(root: Path, tmp_path: Path) -> None:
    fresh = clone(root, tmp_path / "fresh")
    dvc(fresh, "pull")
    folder = fresh / H200.folder
    assert sorted(path.name for path in folder.iterdir()) == ["costs.parquet", "dataset.json", "tables.parquet"]
    about = json.loads((folder / "dataset.json").read_text())
    assert about["simulated"] is True and about["num_measured"] == 9 and about["hardware"] == ["simulated: h200"]
    assert about["drift"] is None and about["sha256"].keys() == {"costs.parquet", "tables.parquet"}


@pytest.mark.slow
def test_the_same_again_changes_nothing(root: Path) -> None:
    wanted, before = request(root), state(root)
    assert not add(wanted, root).changed
    assert state(root) == before


@pytest.mark.slow
def test_a_new_version_says_what_changed(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    costs, tables = measure(root / "work", at=5000.0, slower=1.04, driver="580")
    assert main(["dataset", "add", str(costs), "--tables", str(tables), *FLAGS]) == 0
    said = capsys.readouterr().out
    assert "shards of the version before timed again: +4.0 %" in said and "driver: none -> 580" in said
    publish(said, root)
    assert git(root, "status", "--porcelain") == ""
    assert json.loads((root / H200.folder / "dataset.json").read_text())["drift"]["num_shards"] > 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("measuring", "why"),
    [
        ({"at": 5000.0, "slower": 1.2}, r"refused: \d+ shards .* now take \+20.0 % time"),
        ({"at": 5000.0, "slower": 0.8}, r"refused: \d+ shards .* now take -20.0 % time"),
        ({"at": 5000.0, "optimizer": "adam"}, "the version before is of sgd, this one of adam. Add it as another"),
        ({"at": 5000.0, "noise": 0.3}, "refused: repeats of one placement spread by"),
    ],
)
def test_drift_noise_and_other_optimizers_are_refused(root: Path, measuring: dict[str, Any], why: str) -> None:
    wanted, before = request(root, **measuring), state(root)
    with pytest.raises(DatasetRefused, match=why):
        add(wanted, root)
    assert state(root) == before


@pytest.mark.slow
def test_limits_can_be_raised(root: Path) -> None:
    found = add(replace(request(root, at=5000.0, slower=1.2), max_drift_pct=25.0), root)
    assert found.drift is not None and found.drift.cost_pct == pytest.approx(20.0)


@pytest.mark.slow
def test_measurements_are_added_once(root: Path, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"9 of 9 measurements are in .*collection=reference too"):
        add(request(root, Partition("simulated-h200", "copy")), root)
    costs, tables = measure(tmp_path / "new", at=9000.0)
    shutil.copyfile(costs, tmp_path / "copy.parquet")
    with pytest.raises(BadFile, match="Add each measurement once"):
        add(AddRequest((costs, tmp_path / "copy.parquet"), tables, H200), root)


@pytest.mark.slow
def test_hardware_must_fit_and_simulated_costs_are_marked(root: Path) -> None:
    with pytest.raises(BadConfig, match=r"not hardware 'h200'. Add them with --hardware simulated-h200"):
        add(request(root, Partition.of("h200", "x")), root)
    with pytest.raises(BadConfig, match="not hardware 'cpu'"):
        add(request(root, Partition.of("cpu", "x"), hardware="cuda: NVIDIA H200"), root)
    Partition.of("H200", "x").require_hardware(["cuda: NVIDIA H200"])
    with pytest.raises(BadConfig, match="not hardware 'simulated-h200'"):
        H200.require_hardware(["cuda: NVIDIA H200"])


@pytest.mark.slow
def test_datasets_of_the_same_hardware_must_be_here(root: Path, tmp_path: Path) -> None:
    fresh = clone(root, tmp_path / "fresh")
    with pytest.raises(BadConfig, match=r"not here. Bring them first: dvc pull data/hardware=simulated-h200."):
        add(request(fresh, at=5000.0), fresh)
    cpu = Partition("cpu", "runs")
    assert add(request(fresh, cpu, hardware="cpu: some", at=7000.0), fresh).changed
    dvc(fresh, "add", cpu.folder.as_posix())  # adding to a part of data/ loses nothing of the rest
    assert "nfiles: 6" in (fresh / "data.dvc").read_text()
    dvc(fresh, "pull", (H200.folder.parent).as_posix())
    assert add(request(fresh, at=5000.0), fresh).drift is not None


@pytest.mark.slow
def test_a_list_of_datasets_that_no_remote_gives_is_not_an_empty_one(root: Path, tmp_path: Path) -> None:
    fresh = clone(root, tmp_path / "fresh")
    shutil.rmtree(fresh / "dvcstore")
    with pytest.raises(BadConfig, match=r"dvc pull data"):
        add(request(fresh, at=5000.0), fresh)


@pytest.mark.slow
def test_tasks_must_be_tasks(root: Path) -> None:
    wanted, before = replace(request(root, at=5000.0), tasks=root / "data.dvc"), state(root)
    with pytest.raises(BadFile, match=r"data.dvc: "):
        add(wanted, root)
    assert state(root) == before


@pytest.mark.slow
def test_a_folder_of_something_else_stays(root: Path) -> None:
    (root / H200.folder / "thesis.txt").write_text("mine")
    with pytest.raises(BadFile, match=r"holds thesis.txt, which is not part of a cost dataset"):
        add(request(root, at=5000.0), root)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b"])
def test_names_are_names_of_folders(name: str) -> None:
    with pytest.raises(BadConfig, match="--collection is"):
        Partition.of("h200", name)


@pytest.mark.slow
def test_exit_codes(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(root)
    costs, tables = measure(root / "work", at=6000.0, slower=2.0)
    command = ["dataset", "add", str(costs), "--tables", str(tables), *FLAGS]
    assert main(command) == 1
    assert "refused" in capsys.readouterr().err
    costs.write_bytes(b"torn")
    assert main(command) == 2
    monkeypatch.chdir(root.parent)
    assert main(command) == 2
    assert "there is no .dvc folder" in capsys.readouterr().err
