"""Cost datasets are checked, published and pulled by real DVC and git, and S3 is real."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evenshard.cli import main
from evenshard.tracking.datasets import Partition, PublishRequest, known, publish, pull
from evenshard.tracking.datasets.pull import published_hashes
from evenshard.tracking.datasets.repository import DatasetFailed, Repository
from evenshard.utils.errors import BadConfig, BadFile
from support.dataset_builders import clone, dvc, git, make_repository, measure
from support.servers import S3

H200 = Partition("simulated-h200", "reference")
TAG = "dataset/simulated-h200/reference"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, s3: S3) -> Path:
    """A repository with one dataset."""
    root = make_repository(tmp_path_factory.mktemp("team") / "repository", f"s3://{s3.bucket}/datasets")
    found = publish(request(root), Repository(root))
    assert found.tag == f"{TAG}/v1" and found.drift is None and found.changed
    return root


@pytest.fixture
def root(published: Path, tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it."""
    for name, value in s3.settings().items():
        monkeypatch.setenv(name, value)
    return shutil.copytree(published, tmp_path / "repository", symlinks=True)


def request(root: Path, partition: Partition = H200, remote: str | None = None, **measuring: object) -> PublishRequest:
    costs, tables = measure(root / "work", **measuring)  # type: ignore[arg-type]
    return PublishRequest((costs,), tables, partition, remote=remote)


def state(root: Path) -> object:
    """Everything a publish may change."""
    data = {str(path): path.read_bytes() for path in (root / "data").rglob("*") if path.is_file()}
    status = git(root, "status", "--porcelain"), git(root, "rev-parse", "HEAD"), git(root, "tag")
    return data, (root / "data.dvc").read_bytes(), status


def test_a_fresh_clone_pulls_without_network(root: Path, tmp_path: Path) -> None:
    fresh = clone(root, tmp_path / "fresh")
    dvc(fresh, "pull")
    folder = fresh / H200.folder
    assert sorted(path.name for path in folder.iterdir()) == ["costs.parquet", "dataset.json", "tables.parquet"]
    about = json.loads((folder / "dataset.json").read_text())
    assert about["simulated"] is True and about["num_measured"] == 9 and about["hardware"] == ["simulated: h200"]
    assert git(fresh, "status", "--porcelain") == ""


def test_the_same_again_changes_nothing(root: Path) -> None:
    wanted, before = request(root), state(root)
    found = publish(wanted, Repository(root))
    assert not found.changed and found.tag is None
    assert state(root) == before


def test_a_new_version_says_what_changed(root: Path) -> None:
    found = publish(request(root, at=5000.0, slower=1.04, driver="580"), Repository(root))
    assert found.tag == f"{TAG}/v2"
    assert found.drift is not None
    assert found.drift.changed == ("driver: none -> 580",)
    assert found.drift.cost_pct == pytest.approx(4.0)
    assert found.drift.num_shards > 5
    assert git(root, "log", "-1", "--format=%s").strip() == "Dataset simulated-h200/reference/v2"
    git(root, "checkout", "--quiet", f"{TAG}/v1")
    dvc(root, "checkout")
    assert json.loads((root / H200.folder / "dataset.json").read_text())["drift"] is None


@pytest.mark.parametrize(
    ("measuring", "why"),
    [
        ({"at": 5000.0, "slower": 1.2}, r"refused: \d+ shards .* now take \+20.0 % time"),
        ({"at": 5000.0, "slower": 0.8}, r"refused: \d+ shards .* now take -20.0 % time"),
        ({"at": 5000.0, "noise": 0.3}, "refused: repeats of one placement spread by"),
    ],
)
def test_drift_and_noise_are_refused(root: Path, measuring: dict[str, float], why: str) -> None:
    wanted, before = request(root, **measuring), state(root)
    with pytest.raises(DatasetFailed, match=why):
        publish(wanted, Repository(root))
    assert state(root) == before


def test_limits_can_be_raised(root: Path) -> None:
    wanted = replace(request(root, at=5000.0, slower=1.2), max_drift_pct=25.0)
    assert publish(wanted, Repository(root)).tag == f"{TAG}/v2"


def test_measurements_are_published_once(root: Path, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"9 of 9 measurements are in .*collection=reference too"):
        publish(request(root, Partition("simulated-h200", "copy")), Repository(root))
    costs, tables = measure(tmp_path / "new", at=9000.0)
    shutil.copyfile(costs, tmp_path / "copy.parquet")
    with pytest.raises(BadFile, match="Publish each measurement once"):
        publish(PublishRequest((costs, tmp_path / "copy.parquet"), tables, H200), Repository(root))


def test_hardware_must_fit_and_simulated_costs_are_marked(root: Path) -> None:
    with pytest.raises(BadConfig, match=r"not hardware 'h200'. Publish them with --hardware simulated-h200"):
        publish(request(root, Partition.of("h200", "x")), Repository(root))
    with pytest.raises(BadConfig, match="not hardware 'cpu'"):
        publish(request(root, Partition.of("cpu", "x"), hardware="cuda: NVIDIA H200"), Repository(root))
    Partition.of("H200", "x").require_hardware(["cuda: NVIDIA H200"])
    with pytest.raises(BadConfig, match="not hardware 'simulated-h200'"):
        H200.require_hardware(["cuda: NVIDIA H200"])


def test_a_push_that_fails_leaves_everything_as_it_was(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, before = request(root, at=5000.0, remote="s3"), state(root)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(DatasetFailed, match=r"`dvc push --remote s3 .*` failed"):
        publish(wanted, Repository(root))
    assert state(root) == before
    other = replace(wanted, partition=Partition("simulated-h200", "other"))
    with pytest.raises(DatasetFailed):
        publish(other, Repository(root))
    assert state(root) == before


@pytest.mark.parametrize("fails", ["commit", "tag"])
def test_a_git_that_fails_leaves_everything_as_it_was(root: Path, fails: str) -> None:
    wanted, before = request(root, at=5000.0), state(root)
    blocking = root / (".git/hooks/pre-commit" if fails == "commit" else f".git/refs/tags/{TAG}/v2.lock")
    blocking.parent.mkdir(parents=True, exist_ok=True)
    blocking.write_text("#!/bin/sh\nexit 1\n")
    blocking.chmod(0o755)
    with pytest.raises(DatasetFailed, match=f"`git {fails} .* failed"):
        publish(wanted, Repository(root))
    assert state(root) == before
    blocking.unlink()
    assert publish(wanted, Repository(root)).tag == f"{TAG}/v2"


@pytest.mark.parametrize("remote", ["reference", "s3"])
def test_who_commits_by_hand_is_told_all_that_a_clone_needs(root: Path, tmp_path: Path, remote: str) -> None:
    found = publish(replace(request(root, at=5000.0, remote=remote), commit=False), Repository(root))
    assert found.to_commit == ("data.dvc", "dvcstore")
    git(root, "add", *found.to_commit)
    git(root, "commit", "--quiet", "--message", "by hand")
    fresh = clone(root, tmp_path / "fresh")
    (fresh / ".dvc/config").write_text((fresh / ".dvc/config").read_text().replace("s3://", "s3://nowhere/"))
    assert [one.partition for one in known(Repository(fresh))] == [H200]
    if remote == "reference":
        assert [one.partition for one in pull(Repository(fresh))] == [H200]


def test_dvc_finds_nothing_to_note_after_a_publish(root: Path) -> None:
    """As `dvc exp run` does, which would leave data.dvc changed."""
    publish(request(root, at=5000.0), Repository(root))
    dvc(root, "commit", "--force", "data.dvc")
    assert git(root, "status", "--porcelain") == ""


def test_tasks_must_be_tasks(root: Path) -> None:
    wanted = replace(request(root, at=5000.0), tasks=root / "data.dvc")
    with pytest.raises(BadFile, match=r"data.dvc: "):
        publish(wanted, Repository(root))


def test_pull_overwrites_no_changes(root: Path) -> None:
    costs = root / H200.folder / "costs.parquet"
    costs.unlink()
    costs.write_bytes(b"mine")
    with pytest.raises(DatasetFailed, match=r"not what was published.* dvc checkout --force data/hardware=simulated-h"):
        pull(Repository(root))
    assert costs.read_bytes() == b"mine"
    dvc(root, "checkout", "--force", H200.folder.as_posix())
    assert [one.partition for one in pull(Repository(root))] == [H200]


def test_a_dataset_on_s3_leaves_the_others_within_reach_of_no_network(
    root: Path, tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = Partition("cpu", "runs")
    assert (
        publish(request(root, cpu, "s3", hardware="cpu: some", at=7000.0), Repository(root)).tag
        == "dataset/cpu/runs/v1"
    )
    assert s3.keys("datasets/files/md5")
    fresh = clone(root, tmp_path / "fresh")
    repository = Repository(fresh)
    assert [(one.partition, one.here) for one in known(repository)] == [(cpu, False), (H200, False)]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    assert [one.partition for one in pull(repository, "simulated:h200")] == [H200]
    with pytest.raises(DatasetFailed, match="no remote has data/hardware=cpu"):
        pull(repository, "cpu")
    for name, value in s3.settings().items():
        monkeypatch.setenv(name, value)
    assert [one.partition for one in pull(repository, "cpu")] == [cpu]
    assert (fresh / cpu.folder / "costs.parquet").read_bytes() == (root / "work/costs.parquet").read_bytes()
    # publishing from a clone that has pulled only a part loses nothing of the rest
    shutil.rmtree(fresh / H200.folder)
    publish(request(fresh, cpu, "s3", hardware="cpu: some", at=8000.0), repository)
    assert [one.partition for one in known(repository)] == [cpu, H200]


def test_pull_says_what_there_is(root: Path) -> None:
    with pytest.raises(BadConfig, match=r"no dataset of h200, any collection. It has simulated-h200/reference"):
        pull(Repository(root), "h200")
    with pytest.raises(BadConfig, match=r"no remote 'gone'. It has: reference, s3"):
        pull(Repository(root), remote="gone")


def test_pull_sees_what_is_not_what_was_published(root: Path) -> None:
    costs = root / H200.folder / "costs.parquet"
    content = costs.read_bytes()
    about = root / H200.folder / "dataset.json"
    costs.unlink()
    costs.write_bytes(content)
    text = about.read_text().replace('"costs.parquet": "', '"costs.parquet": "0')
    about.unlink()
    about.write_text(text)
    dvc(root, "add", H200.folder.as_posix())
    dvc(root, "push", H200.folder.as_posix())
    with pytest.raises(BadFile, match=r"costs.parquet: is not what was published"):
        pull(Repository(root))


@pytest.mark.parametrize(
    "content", ["", "[" * 100_000, "[]", "{}", '{"sha256": ["a"]}', '{"sha256": {"costs.parquet": 5}}']
)
def test_a_dataset_that_does_not_say_what_it_holds_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "dataset.json").write_text(content)
    with pytest.raises(BadFile, match=r"dataset\.json: not readable .*Publish the dataset again"):
        published_hashes(tmp_path)


def test_changes_of_others_are_not_published_along(root: Path) -> None:
    wanted = request(root, at=5000.0)
    (root / "data.dvc").write_text((root / "data.dvc").read_text() + "\n")
    with pytest.raises(BadConfig, match=r"data.dvc differs from what is committed.* git checkout data.dvc"):
        publish(wanted, Repository(root))


def test_big_datasets_do_not_travel_with_git(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["evenshard.tracking.datasets.publish"], "MAX_INSIDE_BYTES", 1000)
    with pytest.raises(BadConfig, match=r"travels with git, and this is .* Name another remote"):
        publish(request(root, at=5000.0), Repository(root))


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b"])
def test_names_are_names_of_folders(name: str) -> None:
    with pytest.raises(BadConfig, match="--collection is"):
        Partition.of("h200", name)


def test_the_command(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(root)
    costs, tables = measure(root / "work", at=5000.0)
    flags = ["--tables", str(tables), "--hardware", "simulated:h200", "--collection", "reference"]
    assert main(["dataset", "publish", str(costs), *flags, "--no-commit"]) == 0
    said = capsys.readouterr().out
    assert "shards of the version before timed again: +0.0 %" in said and "git add data.dvc dvcstore &&" in said
    git(root, "add", "data.dvc", "dvcstore")
    git(root, "commit", "--quiet", "--message", "by hand")
    assert main(["dataset", "list"]) == 0
    assert "simulated-h200/reference" in capsys.readouterr().out
    assert main(["dataset", "pull", "--hardware", "h200"]) == 2
    measure(root / "work", at=6000.0, slower=2.0)
    assert main(["dataset", "publish", str(costs), *flags]) == 1
    assert "refused" in capsys.readouterr().err
    costs.write_bytes(b"torn")
    assert main(["dataset", "publish", str(costs), *flags]) == 2
    monkeypatch.chdir(root.parent)
    assert main(["dataset", "list"]) == 2
