"""Output paths: rules for what a command may replace, and atomic writes of files and folders.

A command may replace a file with a file, and a folder with a folder of the same kind, if no other file would be lost.
Devices, pipes and sockets are never replaced. If the path is a link, the link stays and its target is replaced.

Content is first written and synced to a draft next to the path, such as ``.evenshard-1a2b3c4d5e6f.cost_net``. An older
folder is renamed to ``.evenshard-7a8b9c0d1e2f-old.cost_net``, the draft is renamed to the path, and the older folder is
removed. A killed command may leave files with these names, but the old or the new content is always complete.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory

from evenshard.base.errors import BadConfig, BadFile

OTHER_PATH = "Name another path."
STDOUT = Path("-")
_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}  # errors of fsync on file systems that do not support it
# Errors of a write without space: a full disk, an exceeded quota, or a file above the maximum size.
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Output:
    """Rule for an output path: what it may replace. An instance is also the ``type`` of an argparse argument."""

    def __call__(self, text: str) -> Path:
        """Convert an argument to a path."""
        return Path(text)

    def paths(self, path: Path) -> tuple[Path, ...]:
        """Return the files and folders that the command writes."""
        return (path,)

    def require(self, path: Path) -> None:
        """Raise BadFile if the path has content that must not be replaced."""
        raise NotImplementedError


@dataclass(frozen=True)
class File(Output):
    """Rule for one file, and optionally for a second file next to it with the suffix ``beside``."""

    beside: str | None = None

    def paths(self, path: Path) -> tuple[Path, ...]:
        """Return the file, and the second file if there is one."""
        return (path,) if self.beside in (None, path.suffix) else (path, path.with_suffix(self.beside))

    def require(self, path: Path) -> None:
        """Raise BadFile if one of the files must not be replaced."""
        for file in self.paths(path):
            target = follow_links(file)
            mode = _mode(target)
            if mode is None:
                continue
            if stat.S_ISDIR(mode):
                raise BadFile(file, "is a folder, but the output is a file", OTHER_PATH)
            if not stat.S_ISREG(mode):
                raise BadFile(file, "is a device, a pipe or a socket, which is never replaced", OTHER_PATH)
            if target != file and not mode & 0o222:  # no write permission, for example a link into DVC's cache
                raise BadFile(file, f"links to {target}, which is read-only", "Remove the link, or name another path.")


@dataclass(frozen=True)
class FileOrStdout(File):
    """Rule for one file, or for standard output if the path is "-"."""

    def paths(self, path: Path) -> tuple[Path, ...]:
        """Return the file, unless it is standard output."""
        return () if path == STDOUT else super().paths(path)


@dataclass(frozen=True)
class Folder(Output):
    """Rule for a folder that is written as a whole and may replace an older folder of the same kind (``what``)."""

    what: str
    names: tuple[str, ...] = ()

    def require(self, path: Path, also: Collection[str] = ()) -> None:
        """Raise BadFile if the path has content that must not be replaced, such as files of another kind.

        Args:
            also: names of further files that may be replaced, because the new folder contains them, too.
        """
        target = follow_links(path)
        mode = _mode(target)
        if mode is None:
            return
        _require_folder(path, mode)
        if target == Path.cwd():
            raise BadFile(path, "is the working directory, which is never replaced", OTHER_PATH)
        other = next((name for name in names_below(target) if name not in self.names and name not in also), None)
        if other is not None:
            problem = f"contains {other}, which is not part of {self.what} and would be lost"
            raise BadFile(path, problem, "Name another folder, or move this one away.")


@dataclass(frozen=True)
class FilesInside(Output):
    """Rule for some files in a folder, whose other files are kept.

    ``in_git`` lists the files that belong in git, because they are small and readable.
    """

    names: tuple[str, ...] = ()
    in_git: tuple[str, ...] = ()

    def paths(self, path: Path) -> tuple[Path, ...]:
        """Return the paths of the files in the folder."""
        return tuple(path / name for name in self.names)

    def require(self, path: Path) -> None:
        """Raise BadFile if one of the files must not be replaced."""
        if (mode := _mode(path)) is not None:
            _require_folder(path, mode)
        for file in self.paths(path):
            File().require(file)


# File with the training domain of a network, in the network's folder.
DOMAIN_FILE = "trained_on.json"
_NETWORK_FILES = ("config.json", "state.pt", "optimizer.pt", DOMAIN_FILE)
NETWORK_FOLDER = Folder("a network", _NETWORK_FILES)
MODEL_PARTS = ("cost_model", "cost_net", "policy")
MODEL_FOLDER = Folder("a model", tuple(f"{part}/{name}" for part in MODEL_PARTS for name in _NETWORK_FILES))
ANY_FOLDER = Folder("the new folder")
REPORTS = "reports"  # folder of a loop's report, next to its params.yaml
# Hardware that the loop measures on (``evenshard hardware --here``), next to its report.
HARDWARE_FILE = f"{REPORTS}/hardware.json"
_DATA_OF_PLOTS = ("sharders.csv", "predicted_vs_measured.csv", "cost_per_round.json")
_PLOTS = ("predicted_vs_measured.png", "cost_per_round.png", "device_costs.png")
_IN_GIT = ("summary.json", "metrics.json", "table.txt", *_DATA_OF_PLOTS)
REPORT = FilesInside((*_IN_GIT, "evaluation.csv", "evaluation_costs.parquet", *_PLOTS), _IN_GIT)
PROMOTION = FilesInside(("promotion.json", "promotion_costs.parquet"))


def check_writable(output: Output, path: Path) -> None:
    """Raise BadFile if the path's folder does not exist and cannot be created, or is not writable."""
    if isinstance(output, FileOrStdout) and path == STDOUT:
        return
    found = path if isinstance(output, FilesInside) else (follow_links(path) if path.is_symlink() else path).parent
    while not found.exists() and found != found.parent:
        found = found.parent  # missing folders are created later
    if not found.is_dir():
        raise BadFile(path, f"cannot be written: {found} is not a folder", OTHER_PATH)
    if not os.access(found, os.W_OK | os.X_OK):
        raise BadFile(path, f"cannot be written: you have no write permission for {found}", OTHER_PATH)


def check_distinct(written: Mapping[str, tuple[Path, ...]], read: Mapping[str, tuple[Path, ...]]) -> None:
    """Raise BadConfig if a run would overwrite one of its inputs, or write two outputs to the same path.

    Args:
        written: outputs by flag, such as "--out"; a folder that is replaced as a whole counts as one path.
        read: inputs by flag.
    """
    outputs = [(name, path) for name, paths in written.items() for path in paths]
    for number, (name, path) in enumerate(outputs):
        for other, source in ((other, source) for other, sources in read.items() for source in sources):
            if follow_links(path) == follow_links(source) or _is_part(path, source):
                raise BadConfig(f"{path} is an output ({name}) and also an input ({other}). {OTHER_PATH}")
        for other, second in outputs[:number]:
            real, other_real = follow_links(path), follow_links(second)
            if real.is_relative_to(other_real) or other_real.is_relative_to(real):
                raise BadConfig(f"{path} would be written twice, by {other} and {name}. {OTHER_PATH}")


def follow_links(path: Path) -> Path:
    """Resolve all links of a path, whether or not the target exists."""
    return Path(os.path.realpath(path))


def _is_part(path: Path, folder: Path) -> bool:
    return os.path.isdir(folder) and os.path.exists(path) and follow_links(path).is_relative_to(follow_links(folder))


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _require_folder(path: Path, mode: int) -> None:
    if not stat.S_ISDIR(mode):
        raise BadFile(path, "is not a folder, but the output is a folder", OTHER_PATH)


def names_below(folder: Path) -> list[str]:
    """Return the paths of all files, links and empty folders below a folder, relative to it."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir() or not any(path.iterdir())
    )


# Atomic writes --------------------------------------------------------------------------------------------------------


@contextmanager
def atomic_path(path: str | PathLike[str], kind: Folder = ANY_FOLDER) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it to ``path`` when the block succeeds.

    The temporary path is in the same folder, which is created if missing, and has the same suffix, because some writers
    choose the format by suffix. If the block raises, the temporary content is removed and ``path`` stays unchanged. The
    block may create a folder at the temporary path, which then replaces an older folder as a whole.

    Args:
        kind: kind of the folder, if the block creates one.

    Raises:
        BadFile: ``path`` has content that must not be replaced; see the module.
        FileNotFoundError: the block succeeded but wrote nothing.
        OSError: the disk is full or a write failed; the error names ``path``.
    """
    target = follow_links(Path(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft_path(target)
    try:
        with name_full_disk(path, draft):
            yield draft
            if draft.is_dir():
                kind.require(Path(path), frozenset(names_below(draft)))
                _flush_folder(draft)
                _replace_folder(draft, target)
            else:
                File().require(Path(path))
                _flush(draft)
                os.replace(draft, target)
            _flush_names(target.parent)
    except OSError as error:
        if error.filename is not None and Path(error.filename) == draft:  # hide the temporary name from the user
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            with suppress(OSError):
                draft.unlink()


def write_text(path: str | PathLike[str], text: str) -> None:
    """Write a UTF-8 file atomically."""
    with atomic_path(path) as draft:
        draft.write_text(text, encoding="utf-8")


@contextmanager
def name_full_disk(path: str | PathLike[str], draft: Path | None = None) -> Iterator[None]:
    """Convert an error in the block to an OSError that names ``path``, if a full disk caused it.

    The causes of an error are searched, because libraries raise errors of their own. An error about the temporary file
    ``draft`` names ``path`` too.
    """
    try:
        yield
    except Exception as error:
        chain: list[BaseException] = [error]
        while below := chain[-1].__cause__ or chain[-1].__context__:
            chain.append(below)
        full = next((link for link in chain if isinstance(link, OSError) and link.errno in _NO_SPACE), None)
        if full is None:
            raise
        named = full.filename
        if named is None or (draft is not None and Path(named).is_relative_to(draft)):
            named = str(path)
        raise OSError(full.errno, os.strerror(full.errno or 0), named) from error


def _draft_path(target: Path, mark: str = "") -> Path:
    # 12 random hex digits, so that concurrent commands do not choose the same name.
    return target.with_name(f".evenshard-{secrets.token_hex(6)}{mark}.{target.name}")


def _replace_folder(draft: Path, target: Path) -> None:
    try:
        os.rename(draft, target)  # works if there is nothing or an empty folder
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    old = _draft_path(target, "-old")
    os.rename(target, old)
    try:
        os.rename(draft, target)
    except BaseException:
        os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _flush_folder(folder: Path) -> None:
    for where, _, files in os.walk(folder, topdown=False):
        for name in files:
            if not os.path.islink(os.path.join(where, name)):
                _flush(Path(where, name))
        _flush_names(Path(where))


def _flush_names(folder: Path) -> None:
    with suppress(PermissionError):  # the folder may be writable but not readable
        _flush(folder)


def _flush(path: Path) -> None:
    """Sync content to disk, because a power cut soon after the rename could leave empty or old content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield an empty folder in the system's temporary folder (TMPDIR), and remove it after the block."""
    with TemporaryDirectory(prefix="evenshard-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
