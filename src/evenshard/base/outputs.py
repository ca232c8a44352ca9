"""Outputs: paths that a command may replace, and atomic writes of files and folders.

A command replaces only an earlier output of the same kind: a file replaces a file, and a folder replaces a folder
without files of other names. Devices, pipes and sockets are never replaced. A link is kept, and its target is written.

A draft next to its path, ``.evenshard-1a2b3c4d5e6f.cost_net``, is written and synced to disk; then it is renamed. An
older folder is set aside between two renames, as ``.evenshard-7a8b9c0d1e2f-old.cost_net``. A command that is killed may
leave these drafts behind, and nothing removes them; between the two renames, both folders are complete.
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

ELSEWHERE = "Name another path."
STDOUT = Path("-")
# Errors of file systems without sync.
_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}
# Errors of a write without space: a full disk, an exceeded quota, or a file beyond the maximum size.
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Output:
    """Rule for an output path; also usable as an argument type."""

    def __call__(self, text: str) -> Path:
        """Convert an argument to a path."""
        return Path(text)

    def paths(self, path: Path) -> tuple[Path, ...]:
        """Return every path that is written, or replaced as a whole."""
        return (path,)

    def require(self, path: Path) -> None:
        """Raise BadFile for a path with content that must not be replaced."""
        raise NotImplementedError


@dataclass(frozen=True)
class File(Output):
    """One file, optionally with a second one next to it that has the suffix ``beside``."""

    beside: str | None = None

    def paths(self, path: Path) -> tuple[Path, ...]:
        """Return the file, and the second one next to it."""
        return (path,) if self.beside in (None, path.suffix) else (path, path.with_suffix(self.beside))

    def require(self, path: Path) -> None:
        """Check the path; see ``Output``."""
        for one in self.paths(path):
            target = follow_links(one)
            mode = _mode(target)
            if mode is None:
                continue
            if stat.S_ISDIR(mode):
                raise BadFile(one, "is a folder, and a file is to be written there", ELSEWHERE)
            if not stat.S_ISREG(mode):
                raise BadFile(one, "is a device, a pipe or a socket, which is never replaced", ELSEWHERE)
            if target != one and not mode & 0o222:  # for example a link into DVC's cache
                raise BadFile(one, f"leads to {target}, which is read-only", "Remove the link, or name another path.")


@dataclass(frozen=True)
class FileOrStdout(File):
    """One file, or "-" for standard output."""

    def paths(self, path: Path) -> tuple[Path, ...]:
        """Return the file, unless it is standard output."""
        return () if path == STDOUT else super().paths(path)


@dataclass(frozen=True)
class Folder(Output):
    """A folder that is written as a whole, and replaces an older folder of its kind (``what``)."""

    what: str
    names: tuple[str, ...] = ()

    def require(self, path: Path, also: Collection[str] = ()) -> None:
        """Check the path; see ``Output``.

        Args:
            also: names of files that may exist there, because the new folder also has them.
        """
        target = follow_links(path)
        mode = _mode(target)
        if mode is None:
            return
        _require_folder(path, mode)
        if target == Path.cwd():
            raise BadFile(path, "is the working directory, which is never replaced", ELSEWHERE)
        other = next((name for name in names_below(target) if name not in self.names and name not in also), None)
        if other is not None:
            problem = f"holds {other}, which is not part of {self.what} and would be lost"
            raise BadFile(path, problem, "Name another folder, or move this one away.")


@dataclass(frozen=True)
class FilesInside(Output):
    """A folder in which some files are written; its other files are kept.

    A repository of loops tracks the files of ``in_git`` in git: small texts that people compare.
    """

    names: tuple[str, ...] = ()
    in_git: tuple[str, ...] = ()

    def paths(self, path: Path) -> tuple[Path, ...]:
        """Return the files."""
        return tuple(path / name for name in self.names)

    def require(self, path: Path) -> None:
        """Check the path; see ``Output``."""
        if (mode := _mode(path)) is not None:
            _require_folder(path, mode)
        for one in self.paths(path):
            File().require(one)


# Training domain next to a network.
TRAINED_ON = "trained_on.json"
_NETWORK_FILES = ("config.json", "state.pt", "optimizer.pt", TRAINED_ON)
NETWORK_FOLDER = Folder("a network", _NETWORK_FILES)
MODEL_PARTS = ("cost_model", "cost_net", "policy")
MODEL_FOLDER = Folder("a model", tuple(f"{part}/{name}" for part in MODEL_PARTS for name in _NETWORK_FILES))
ANY_FOLDER = Folder("the new folder")
# Folder of a loop's report, next to its params.yaml.
REPORTS = "reports"
# Hardware that the loop measures on (``evenshard hardware --here``), next to its report.
HARDWARE_FILE = f"{REPORTS}/hardware.json"
_IN_GIT = (
    "summary.json",
    "metrics.json",
    "table.txt",
    "sharders.csv",
    "predicted_vs_measured.csv",
    "cost_per_round.json",
)
REPORT = FilesInside(
    (
        *_IN_GIT,
        "evaluation.csv",
        "evaluation_costs.parquet",
        "predicted_vs_measured.png",
        "cost_per_round.png",
        "device_costs.png",
    ),
    _IN_GIT,
)
PROMOTION = FilesInside(("promotion.json", "promotion_costs.parquet"))


def require_place(output: Output, path: Path) -> None:
    """Raise BadFile if the path cannot be written."""
    if isinstance(output, FileOrStdout) and path == STDOUT:
        return
    found = path if isinstance(output, FilesInside) else (follow_links(path) if path.is_symlink() else path).parent
    while not found.exists() and found != found.parent:
        found = found.parent  # missing folders are created when there is content for them
    if not found.is_dir():
        raise BadFile(path, f"cannot be written: {found} is not a folder", ELSEWHERE)
    if not os.access(found, os.W_OK | os.X_OK):
        raise BadFile(path, f"cannot be written: nothing may be written into {found}", ELSEWHERE)


def require_apart(written: Mapping[str, tuple[Path, ...]], read: Mapping[str, tuple[Path, ...]]) -> None:
    """Raise BadConfig for a run that would replace one of its inputs, or one of its own outputs.

    Args:
        written: outputs by flag, such as "--out"; a folder that is replaced as a whole is one path.
        read: inputs by flag.
    """
    outputs = [(name, path) for name, paths in written.items() for path in paths]
    for number, (name, path) in enumerate(outputs):
        for other, source in ((other, source) for other, sources in read.items() for source in sources):
            if follow_links(path) == follow_links(source) or _is_part(path, source):
                raise BadConfig(f"{path} is to be written ({name}), and is what {other} reads. {ELSEWHERE}")
        for other, second in outputs[:number]:
            real, other_real = follow_links(path), follow_links(second)
            if real.is_relative_to(other_real) or other_real.is_relative_to(real):
                raise BadConfig(f"{path} would be written twice, by {other} and {name}. {ELSEWHERE}")


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
        raise BadFile(path, "is not a folder, and a folder is to be written there", ELSEWHERE)


def names_below(folder: Path) -> list[str]:
    """Return the paths of all files, links and empty folders below a folder, relative to it."""
    found = [
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir() or not any(path.iterdir())
    ]
    return sorted(found)


# Whole or not at all --------------------------------------------------------------------------------------------------


@contextmanager
def atomic_path(path: str | PathLike[str], kind: Folder = ANY_FOLDER) -> Iterator[Path]:
    """Yield a temporary path to write to; it becomes ``path`` when the block succeeds.

    The temporary path is in the same folder (created if missing) and has the suffix of ``path``, so that writers choose
    the same format. If the block raises, all written content is removed and an existing ``path`` stays unchanged. The
    block may also create a folder at the temporary path; it then replaces an older folder as a whole. If ``path`` is a
    link, its target is written.

    Args:
        kind: kind of the folder, if the block creates one.

    Raises:
        BadFile: other content exists at ``path`` and would be lost; see the module.
        FileNotFoundError: the block succeeded but wrote nothing.
        OSError: the disk is full, or a write failed; the error names ``path``.
    """
    target = follow_links(Path(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = _beside(target)
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
    """Name the file in the error of a full disk, which libraries hide below their own errors.

    Raises:
        OSError: replaces any error that a full disk caused; it names ``path`` in place of its ``draft``.
    """
    try:
        yield
    except Exception as error:
        chain: list[BaseException] = [error]
        while below := chain[-1].__cause__ or chain[-1].__context__:
            chain.append(below)
        full = next((one for one in chain if isinstance(one, OSError) and one.errno in _NO_SPACE), None)
        if full is None:
            raise
        named = full.filename
        if named is None or (draft is not None and Path(named).is_relative_to(draft)):
            named = str(path)
        raise OSError(full.errno, os.strerror(full.errno or 0), named) from error


def _beside(target: Path, mark: str = "") -> Path:
    return target.with_name(f".evenshard-{secrets.token_hex(6)}{mark}.{target.name}")


def _replace_folder(draft: Path, target: Path) -> None:
    try:
        os.rename(draft, target)  # if nothing or an empty folder is there
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    old = _beside(target, "-old")
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
    """Sync content to disk, or a power cut soon after the rename could leave empty or old content."""
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
