"""Which code and which settings made a file: the commit of the working directory and the hash of the parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

import evenshard
from evenshard.base.provenance import RESULT, Lineage, git_commit, params_hash
from support.repository import git


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one commit with one file; no user's git settings apply."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "code.py").write_text("print(1)\n")
    git(folder, "add", "code.py")
    git(folder, "commit", "--quiet", "--message", "First")
    return folder


def commit_all(repository: Path) -> str:
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "All")
    return git(repository, "rev-parse", "HEAD")


def test_the_commit_is_the_one_checked_out_and_dirty_with_changes(repository: Path) -> None:
    first = git_commit(repository)
    assert first == git(repository, "rev-parse", "HEAD") and len(first) == 40
    (repository / "notes.txt").write_text("untracked\n")
    assert git_commit(repository) == first
    (repository / "code.py").write_text("print(2)\n")
    assert git_commit(repository) == f"{first}-dirty"
    git(repository, "add", "code.py")
    assert git_commit(repository) == f"{first}-dirty"
    assert git_commit(repository) != commit_all(repository) == git_commit(repository)


def test_what_is_made_from_the_commit_does_not_make_it_dirty(repository: Path, tmp_path: Path) -> None:
    """Five models are trained one after the other: the first, written over its old files, is no other code."""
    for name in ("one", "two"):
        (repository / name).mkdir()
        (repository / name / "state.pt").write_text("old")
    clean = commit_all(repository)
    (repository / "one" / "state.pt").write_text("new")
    assert git_commit(repository, made=[repository / "one", repository / "new", tmp_path / "elsewhere"]) == clean
    assert git_commit(repository, made=[repository / "two"]) == f"{clean}-dirty"


def test_the_result_of_a_loop_does_not_make_it_dirty_where_it_lies(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (*RESULT, Path("elsewhere/dvc.lock")):
        (repository / path).parent.mkdir(exist_ok=True)
        (repository / path).write_text("old")
    clean = commit_all(repository)
    for path in RESULT[:-1]:
        (repository / path).write_text("new")
    (repository / RESULT[-1]).unlink()  # as DVC does before the stage that writes it
    monkeypatch.chdir(repository)
    assert git_commit() == clean and git_commit(made=()) == f"{clean}-dirty"
    expected = Lineage(git_commit=clean, params_hash=params_hash({"seed": 1}), evenshard_version=evenshard.__version__)
    assert Lineage.current({"seed": 1}) == expected
    (repository / "elsewhere/dvc.lock").write_text("of another loop")
    assert git_commit() == f"{clean}-dirty"


def test_outside_of_git_or_without_git_or_before_the_first_commit_it_is_unknown(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert git_commit(tmp_path) == "unknown"
    assert git_commit(tmp_path / "missing") == "unknown"
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet")
    assert git_commit(empty) == "unknown"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit(repository) == "unknown"


def test_another_value_name_or_order_of_a_list_gives_another_hash() -> None:
    others = [{}, {"a": [1, 2]}, {"a": [2, 1]}, {"a": [1, 3]}, {"b": [1, 2]}, {"a": {"b": 1}}, {"a": None}, {"a": "1"}]
    assert len({params_hash(params) for params in others}) == len(others)
    assert all(len(params_hash(params)) == 64 for params in others)
    assert params_hash({"a": 1, "b": {"c": 2, "d": 3}}) == params_hash({"b": {"d": 3, "c": 2}, "a": 1})
