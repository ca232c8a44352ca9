"""A file or a folder is written whole or not at all, and replaces nothing but a former output of the same sort."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from evenshard.base.errors import BadFile
from evenshard.base.outputs import Folder, atomic_path

PAIR = Folder("a pair", ("a", "deep/1.b", "deep/2.b", "c"))


def filled(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_atomic_path_shows_nothing_before_the_end(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "er" / "a.pt.gz"
    with atomic_path(target) as draft:
        draft.write_text("new")
        assert not target.exists()
        assert draft.parent == target.parent and draft.name.endswith("a.pt.gz")
    assert target.read_text() == "new"
    assert list(target.parent.iterdir()) == [target]


def test_what_cannot_be_written_is_named_by_its_own_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as nothing_written, atomic_path(tmp_path / "file"):
        pass
    assert str(nothing_written.value) == f"[Errno 2] No such file or directory: '{tmp_path / 'file'}'"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_atomic_path_removes_files_and_folders_on_failure(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), atomic_path(tmp_path / "file") as draft:
        draft.write_text("half")
        raise error
    with pytest.raises(error), atomic_path(tmp_path / "folder") as draft:
        (draft / "inner").mkdir(parents=True)
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    target = tmp_path / "pair"
    for names in (("a", "deep/1.b", "c"), ("a", "deep/2.b")):
        with atomic_path(target, PAIR) as draft:
            filled(draft, *names)
    assert {path.relative_to(target).as_posix() for path in target.rglob("*.*")} == {"deep/2.b"}
    assert not (target / "c").exists() and list(tmp_path.iterdir()) == [target]


def test_the_old_folder_stays_if_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = filled(tmp_path / "model", "old")
    rename = os.rename

    def fails_into_place(source: Path, destination: Path) -> None:
        if destination == target and "-old" not in source.name and os.listdir(source) == ["old"]:
            raise OSError(39, "disk gone")
        rename(source, destination)

    monkeypatch.setattr(os, "rename", fails_into_place)
    with pytest.raises(OSError, match="disk gone"), atomic_path(target) as draft:
        filled(draft, "old").joinpath("old").write_text("new")
    assert (target / "old").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["a", "deep/1.b", "thesis.txt"], "contains thesis.txt, which is not part of a pair and would be lost"),
        (["a", "deep/1.b", "deep/thesis.txt"], "contains deep/thesis.txt"),
        (["a", "deep/1.b/thesis.txt"], "contains deep/1.b/thesis.txt"),
        (["a/thesis.txt", "deep/1.b"], "contains a/thesis.txt"),
        (["a", "deep/1.b", ".hidden"], "contains .hidden"),
    ],
)
def test_a_folder_replaces_only_its_own_sort(tmp_path: Path, names: list[str], reason: str) -> None:
    target = filled(tmp_path / "mydata", *names)
    before = sorted(target.rglob("*"))
    with pytest.raises(BadFile, match=reason) as caught, atomic_path(target, PAIR) as draft:
        filled(draft, "a", "deep/1.b")
    assert str(caught.value).startswith(f"{target}: ")
    assert sorted(target.rglob("*")) == before and list(tmp_path.iterdir()) == [target]


def test_empty_folders_and_links_in_a_folder_count(tmp_path: Path) -> None:
    target = filled(tmp_path / "mydata", "a", "deep/1.b")
    (target / "more" / "empty").mkdir(parents=True)
    with pytest.raises(BadFile, match="contains more/empty, "):
        PAIR.require(target)
    (target / "more" / "empty").rmdir()
    (target / "more").rmdir()
    (target / "link").symlink_to(tmp_path)
    with pytest.raises(BadFile, match="contains link"):
        PAIR.require(target)


def test_an_empty_folder_is_replaced_but_not_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for path in (Path("."), tmp_path / "empty"):
        with pytest.raises(BadFile, match="working directory"):
            PAIR.require(path)
    monkeypatch.chdir(tmp_path)
    with atomic_path(tmp_path / "empty", PAIR) as draft:
        filled(draft, "a", "deep/1.b")
    assert (tmp_path / "empty" / "a").exists()


def test_a_folder_of_no_known_sort_replaces_what_it_has_too(tmp_path: Path) -> None:
    target = filled(tmp_path / "download", "one", "deep/two")
    with atomic_path(target) as draft:
        filled(draft, "one", "deep/two", "three")
    with pytest.raises(BadFile, match="contains three"), atomic_path(target) as draft:
        filled(draft, "one", "deep/two")
    assert (target / "three").exists()


def test_a_file_never_replaces_a_folder_nor_a_folder_a_file(tmp_path: Path) -> None:
    filled(tmp_path, "file", "folder/kept")
    with pytest.raises(BadFile, match="but the output is a folder"), atomic_path(tmp_path / "file") as draft:
        draft.mkdir()
    with pytest.raises(BadFile, match="but the output is a file"), atomic_path(tmp_path / "folder") as draft:
        draft.write_text("a file")
    assert (tmp_path / "folder" / "kept").exists() and (tmp_path / "file").read_text() == "file"
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}


def test_pipes_and_sockets_stay(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for name in ("pipe", "socket"):
            with pytest.raises(BadFile, match="a device, a pipe or a socket"), atomic_path(tmp_path / name) as draft:
                draft.write_text("new")
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "socket").is_socket()


def test_through_a_link_its_target_is_written_and_the_link_stays(tmp_path: Path) -> None:
    disk = filled(tmp_path / "disk", "file", "folder/a", "folder/deep/1.b")
    for name in ("file", "folder", "new"):
        (tmp_path / name).symlink_to(Path("disk") / name)
    for name in ("file", "new"):
        with atomic_path(tmp_path / name) as draft:
            assert draft.parent == disk
            draft.write_text("written")
        assert (disk / name).read_text() == "written"
    with atomic_path(tmp_path / "folder", PAIR) as draft:
        filled(draft, "a", "deep/2.b")
    assert (disk / "folder" / "deep" / "2.b").exists()
    assert all((tmp_path / name).is_symlink() for name in ("file", "folder", "new"))
    assert {path.name for path in disk.iterdir()} == {"file", "folder", "new"}


def test_a_link_to_a_read_only_file_is_left_alone(tmp_path: Path) -> None:
    (filled(tmp_path, "cached") / "cached").chmod(0o444)
    (tmp_path / "link").symlink_to("cached")
    with pytest.raises(BadFile, match="which is read-only"), atomic_path(tmp_path / "link") as draft:
        draft.write_text("new")
    with atomic_path(tmp_path / "cached") as draft:  # by its own name it is replaced, as ever
        draft.write_text("new")
    assert (tmp_path / "link").read_text() == "new"


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    with atomic_path(tmp_path / "folder") as draft:
        filled(draft, "a", "deep/b")
    assert synced == [draft / "deep" / "b", draft / "deep", draft / "a", draft, tmp_path]
    synced.clear()
    with atomic_path(tmp_path / "file") as draft:
        draft.write_text("new")
    assert synced == [draft, tmp_path]
