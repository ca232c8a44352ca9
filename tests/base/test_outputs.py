"""A file or a folder is written whole or not at all, and replaces nothing but a former output of the same sort."""

from __future__ import annotations

import errno
import os
import re
import resource
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.outputs import (
    STDOUT,
    File,
    FileOrStdout,
    FilesInside,
    Folder,
    atomic_path,
    check_distinct,
    check_writable,
    scratch_folder,
    write_text,
)
from evenshard.tables.files import save_tables
from evenshard.tables.table import Table

PAIR = Folder("a pair", ("a", "deep/1.b", "deep/2.b", "c"))
MOST_BYTES = 4096


def filled(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


# Atomic writes --------------------------------------------------------------------------------------------------------


def test_nothing_is_seen_before_the_end(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "er" / "a.pt.gz"
    with atomic_path(target) as draft:
        draft.write_text("new")
        assert not target.exists()
        assert draft.parent == target.parent and draft.name.endswith("a.pt.gz")
    assert target.read_text() == "new"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_of_a_failure(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), atomic_path(tmp_path / "file") as draft:
        draft.write_text("half")
        raise error
    with pytest.raises(error), atomic_path(tmp_path / "folder") as draft:
        (draft / "inner").mkdir(parents=True)
        raise error
    with pytest.raises(FileNotFoundError) as nothing_written, atomic_path(tmp_path / "file"):
        pass
    assert str(nothing_written.value) == f"[Errno 2] No such file or directory: '{tmp_path / 'file'}'"
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


def test_a_scratch_folder_goes_with_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_folder() as folder, scratch_folder() as other:
        (folder / "deep").mkdir()
        assert folder.parent == tmp_path and other != folder and other.exists()
    assert list(tmp_path.iterdir()) == []


# What is not replaced -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["thesis.txt", "deep/thesis.txt", ".hidden", "empty/", "link@"])
def test_a_folder_replaces_only_its_own_sort(tmp_path: Path, other: str) -> None:
    target = filled(tmp_path / "mydata", "a", "deep/1.b")
    if other == "empty/":
        (target / "empty").mkdir()
    elif other == "link@":
        (target / "link").symlink_to(tmp_path)
    else:
        filled(target, other)
    before = sorted(target.rglob("*"))
    problem = f"{target}: contains {other.strip('/@')}, which is not part of a pair and would be lost"
    with pytest.raises(BadFile, match=re.escape(problem)), atomic_path(target, PAIR) as draft:
        filled(draft, "a", "deep/1.b")
    assert sorted(target.rglob("*")) == before and list(tmp_path.iterdir()) == [target]


def test_a_folder_of_no_known_sort_replaces_what_it_has_too(tmp_path: Path) -> None:
    target = filled(tmp_path / "download", "one", "deep/two")
    for names, said in ((["one", "deep/two", "three"], ""), (["one", "deep/two"], "contains three")):
        with pytest.raises(BadFile, match=said) if said else nullcontext(), atomic_path(target) as draft:
            filled(draft, *names)
    assert (target / "three").exists()


def test_the_working_directory_and_things_of_another_kind_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (Path("."), tmp_path):
        with pytest.raises(BadFile, match="working directory"):
            PAIR.require(path)
    filled(tmp_path, "file", "folder/kept", "cached")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "cached").chmod(0o444)
    (tmp_path / "link").symlink_to("cached")
    with pytest.raises(BadFile, match="but the output is a folder"), atomic_path(tmp_path / "file") as draft:
        draft.mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        special = "a device, a pipe or a socket"
        for name, said in {"folder": "is a file", "pipe": special, "socket": special, "link": "is read-only"}.items():
            with pytest.raises(BadFile, match=said), atomic_path(tmp_path / name) as draft:
                draft.write_text("new")
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "socket").is_socket()
    assert [(tmp_path / name).read_text() for name in ("file", "folder/kept", "link")] == [
        "file",
        "folder/kept",
        "cached",
    ]
    with atomic_path(tmp_path / "cached") as draft:  # by its own name it is replaced
        draft.write_text("new")
    assert (tmp_path / "link").read_text() == "new"


def test_the_paths_of_an_output() -> None:
    assert File(".json").paths(Path("a.csv")) == (Path("a.csv"), Path("a.json"))
    assert File(".json").paths(Path("a.json")) == File().paths(Path("a.json")) == (Path("a.json"),)
    assert FileOrStdout().paths(STDOUT) == () and FileOrStdout().paths(Path("a")) == (Path("a"),)
    assert FilesInside(("x", "y")).paths(Path("a")) == (Path("a/x"), Path("a/y"))


def test_a_path_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    filled(tmp_path, "file")
    check_writable(File(), tmp_path / "new/deep/file")
    check_writable(FileOrStdout(), STDOUT)
    for output, path in ((File(), tmp_path / "file/inside"), (FilesInside(("x",)), tmp_path / "file")):
        with pytest.raises(BadFile, match="file is not a folder"):
            check_writable(output, path)


@pytest.mark.parametrize(
    ("written", "read", "said"),
    [
        ({"--out": "a", "--report": "b"}, {"tables": "c"}, None),
        ({"--out": "a"}, {"tables": "a"}, r"a is an output \(--out\) and also an input \(tables\)"),
        ({"--out": "folder/kept"}, {"tables": "folder"}, "also an input"),
        ({"--out": "folder/new"}, {"tables": "folder"}, None),
        ({"--out": "a", "--report": "./a"}, {}, "would be written twice, by --out and --report"),
        ({"--out": "new", "--report": "new/b"}, {}, "would be written twice"),
    ],
)
def test_outputs_and_inputs_are_different_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: dict[str, str], read: dict[str, str], said: str | None
) -> None:
    monkeypatch.chdir(filled(tmp_path, "folder/kept"))
    paths = [{name: (Path(path),) for name, path in given.items()} for given in (written, read)]
    if said is None:
        check_distinct(*paths)
    else:
        with pytest.raises(BadConfig, match=said):
            check_distinct(*paths)


# A full disk ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No file may grow beyond some bytes, as if its disk were full then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def save_rows(path: Path) -> None:
    save_tables([Table(f"table {number}", 1000 + number, 16, number / 7) for number in range(200)], path)


WRITERS: dict[str, Callable[[Path], None]] = {
    "tables.parquet": save_rows,
    "tables.yaml": save_rows,
    "text": lambda path: write_text(path, "x" * 2 * MOST_BYTES),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.usefixtures("full")
def test_the_error_of_a_full_disk_names_the_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="File too large") as caught:
        WRITERS[name](tmp_path / name)
    assert str(caught.value) == f"[Errno {errno.EFBIG}] {os.strerror(errno.EFBIG)}: '{tmp_path / name}'"
    assert [one.name for one in tmp_path.iterdir()] == []
