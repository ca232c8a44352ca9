"""Which code and which settings made a file: the commit of the working directory and the hash of the parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_the_commit_is_the_one_checked_out(repository: Path) -> None:
    first = git_commit(repository)
    assert first == git(repository, "rev-parse", "HEAD") and len(first) == 40
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "Second")
    assert git_commit(repository) == git(repository, "rev-parse", "HEAD") != first


def test_a_changed_tracked_file_makes_it_dirty_and_an_untracked_one_does_not(repository: Path) -> None:
    clean = git_commit(repository)
    (repository / "notes.txt").write_text("untracked\n")
    assert git_commit(repository) == clean
    (repository / "code.py").write_text("print(2)\n")
    assert git_commit(repository) == f"{clean}-dirty"
    git(repository, "add", "code.py")
    assert git_commit(repository) == f"{clean}-dirty"
    git(repository, "commit", "--quiet", "--message", "Second")
    assert not git_commit(repository).endswith("-dirty")


def test_what_is_made_from_the_commit_does_not_make_it_dirty(repository: Path, tmp_path: Path) -> None:
    """Five models are trained one after the other: the first, written over its old files, is no other code."""
    for name in ("one", "two"):
        (repository / name).mkdir()
        (repository / name / "state.pt").write_text("old")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "Models")
    clean = git_commit(repository)
    (repository / "one" / "state.pt").write_text("new")
    assert git_commit(repository, made=[repository / "one", repository / "new", tmp_path / "elsewhere"]) == clean
    assert git_commit(repository, made=[repository / "two"]) == f"{clean}-dirty"
    (repository / "code.py").write_text("print(2)\n")
    assert git_commit(repository, made=[repository / "one"]) == f"{clean}-dirty"


def test_the_result_of_a_loop_does_not_make_it_dirty_where_it_lies(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (*RESULT, Path("elsewhere/dvc.lock")):
        (repository / path).parent.mkdir(exist_ok=True)
        (repository / path).write_text("old")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "A result")
    clean = git_commit(repository)
    for path in RESULT:
        (repository / path).write_text("new")
    monkeypatch.chdir(repository)
    assert git_commit() == git_commit(repository) == clean == git(repository, "rev-parse", "HEAD")
    (repository / RESULT[-1]).unlink()  # as DVC does before the stage that writes it
    assert git_commit() == clean
    assert git_commit(made=()) == f"{clean}-dirty"
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


def test_what_runs_here_is_the_working_directory_and_its_parameters(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    assert Lineage.current({"seed": 1}) == Lineage(
        git_commit=git(repository, "rev-parse", "HEAD"),
        params_hash=params_hash({"seed": 1}),
        evenshard_version=evenshard.__version__,
    )


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=30)
@given(data=st.data(), params=st.dictionaries(st.text(), values, max_size=5))
def test_the_hash_does_not_depend_on_the_order_of_the_keys(data: st.DataObject, params: dict[str, object]) -> None:
    def shuffled(value: object) -> object:
        if not isinstance(value, dict):
            return [shuffled(one) for one in value] if isinstance(value, list) else value
        return {key: shuffled(value[key]) for key in data.draw(st.permutations(list(value)))}

    again = shuffled(params)
    assert isinstance(again, dict) and params_hash(again) == params_hash(params)


def test_another_value_name_or_order_of_a_list_gives_another_hash() -> None:
    others = [{}, {"a": [1, 2]}, {"a": [2, 1]}, {"a": [1, 3]}, {"b": [1, 2]}, {"a": {"b": 1}}, {"a": None}, {"a": "1"}]
    assert len({params_hash(params) for params in others}) == len(others)
    assert all(len(params_hash(params)) == 64 for params in others)
