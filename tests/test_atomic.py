"""A file or a folder is written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evenshard.atomic import atomic_path


def test_atomic_path_shows_nothing_before_the_end(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "er" / "a.pt.gz"
    with atomic_path(target) as draft:
        draft.write_text("new")
        assert not target.exists()
        assert draft.parent == target.parent and draft.name.endswith("a.pt.gz")
    assert target.read_text() == "new"
    assert list(target.parent.iterdir()) == [target]


def test_what_cannot_be_written_is_named_by_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as caught, atomic_path(tmp_path / "folder") as draft:
        draft.write_text("new")
    assert str(caught.value) == f"[Errno 21] Is a directory: '{tmp_path / 'folder'}'"
    with pytest.raises(FileNotFoundError) as nothing_written, atomic_path(tmp_path / "file"):
        pass
    assert str(nothing_written.value) == f"[Errno 2] No such file or directory: '{tmp_path / 'file'}'"
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_atomic_path_removes_files_and_folders_on_failure(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), atomic_path(tmp_path / "file") as draft:
        draft.write_text("half")
        raise error
    with pytest.raises(error), atomic_path(tmp_path / "folder") as draft:
        (draft / "inner").mkdir(parents=True)
        raise error
    assert list(tmp_path.iterdir()) == []


def test_atomic_path_replaces_a_folder_as_a_whole(tmp_path: Path) -> None:
    target = tmp_path / "model"
    for name in ("old", "new"):
        with atomic_path(target) as draft:
            draft.mkdir()
            (draft / name).write_text(name)
    assert [entry.name for entry in target.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [target]


def test_atomic_path_keeps_the_old_folder_if_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "old").write_text("old")
    rename = os.replace
    calls: list[Path] = []

    def second_fails(source: Path, destination: Path) -> None:
        calls.append(source)
        if len(calls) == 2:
            raise OSError("disk gone")
        rename(source, destination)

    monkeypatch.setattr(os, "replace", second_fails)
    with pytest.raises(OSError, match="disk gone"), atomic_path(target) as draft:
        draft.mkdir()
    assert (target / "old").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_atomic_path_replaces_a_file_by_a_folder_but_never_a_folder_by_a_file(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.write_text("a file")
    with atomic_path(target) as draft:
        draft.mkdir()
        (draft / "kept").write_text("kept")
    with pytest.raises(IsADirectoryError), atomic_path(target) as draft:
        draft.write_text("a file")
    assert (target / "kept").read_text() == "kept"
    assert list(tmp_path.iterdir()) == [target]


def test_atomic_path_wants_something_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "file"):
        pass
