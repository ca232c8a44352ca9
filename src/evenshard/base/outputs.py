"""Outputs: paths that a command may replace, and files and folders that appear whole or not at all.

A command replaces only an earlier output of the same kind: a file takes the place of a file, and a folder the place of
one without files of other names. Devices, pipes and sockets are never replaced. A link stays, and its target is
written.

A draft lies beside its path, as ``.evenshard-1a2b3c4d5e6f.cost_net``, until it is whole and on the disk; then it is
renamed. An older folder is set aside between two renames, as ``.evenshard-7a8b9c0d1e2f-old.cost_net``. A command that
is killed may leave such names behind, and nothing removes them; between the two renames, both folders are there, whole.
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
# Errors of file systems that cannot sync.
_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}
# Errors of a write without space: on the disk, in the quota, or within the largest size of a file.
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Output:
    """The rule of an output path. It is an argument type, too."""

    def __call__(self, text: str) -> Path:
        """Called by argparse."""
        return Path(text)

    def paths(self, path: Path) -> tuple[Path, ...]:
        """Return every path that is written, or replaced as a whole."""
        return (path,)

    def require(self, path: Path) -> None:
        """Raise BadFile for a path with content that must not be replaced."""
        raise NotImplementedError


@dataclass(frozen=True)
class File(Output):
    """One file, perhaps with a second one of the suffix ``beside`` next to it."""

    beside: str | None = None

    def paths(self, path: Path) -> tuple[Path, ...]:
        """The file, and the one beside it."""
        return (path,) if self.beside in (None, path.suffix) else (path, path.with_suffix(self.beside))

    def require(self, path: Path) -> None:
        """See ``Output``."""
        for one in self.paths(path):
            target = follow_links(one)
            mode = _mode(target)
            if mode is None:
                continue
            if stat.S_ISDIR(mode):
                raise BadFile(one, "is a folder, and a file is to be written there", ELSEWHERE)
            if not stat.S_ISREG(mode):
                raise BadFile(one, "is a device, a pipe or a socket, which is never replaced", ELSEWHERE)
            if target != one and not mode & 0o222:  # such as a link into DVC's cache
                raise BadFile(one, f"leads to {target}, which is read-only", "Remove the link, or name another path.")


@dataclass(frozen=True)
class FileOrStdout(File):
    """One file, or standard output, which is called "-"."""

    def paths(self, path: Path) -> tuple[Path, ...]:
        """The file, if it is one."""
        return () if path == STDOUT else super().paths(path)


@dataclass(frozen=True)
class Folder(Output):
    """A folder that is written as a whole, and replaces an older one of its kind (``what``) as a whole."""

    what: str
    names: tuple[str, ...] = ()

    def require(self, path: Path, also: Collection[str] = ()) -> None:
        """See ``Output``.

        Args:
            also: names of files that may stand there, because the new folder has files of these names.
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
    """A folder that gets files, some of known names; its other files stay.

    A repository of loops keeps those of ``in_git`` in git: small text that people compare.
    """

    names: tuple[str, ...] = ()
    in_git: tuple[str, ...] = ()

    def paths(self, path: Path) -> tuple[Path, ...]:
        """The files."""
        return tuple(path / name for name in self.names)

    def require(self, path: Path) -> None:
        """See ``Output``."""
        if (mode := _mode(path)) is not None:
            _require_folder(path, mode)
        for one in self.paths(path):
            File().require(one)


# Beside a network: its training domain.
TRAINED_ON = "trained_on.json"
_NETWORK_FILES = ("config.json", "state.pt", "optimizer.pt", TRAINED_ON)
NETWORK_FOLDER = Folder("a network", _NETWORK_FILES)
MODEL_PARTS = ("cost_model", "cost_net", "policy")
MODEL_FOLDER = Folder("a model", tuple(f"{part}/{name}" for part in MODEL_PARTS for name in _NETWORK_FILES))
ANY_FOLDER = Folder("the new folder")
# The folder of a loop's report, beside its params.yaml.
REPORTS = "reports"
# The hardware that the loop measures on (``evenshard hardware --here``), beside its report.
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
    """Raise BadFile for a path that nothing can be written at."""
    if isinstance(output, FileOrStdout) and path == STDOUT:
        return
    found = path if isinstance(output, FilesInside) else (follow_links(path) if path.is_symlink() else path).parent
    while not found.exists() and found != found.parent:
        found = found.parent  # the missing folders are made when there is something to put into them
    if not found.is_dir():
        raise BadFile(path, f"cannot be written: {found} is not a folder", ELSEWHERE)
    if not os.access(found, os.W_OK | os.X_OK):
        raise BadFile(path, f"cannot be written: nothing may be written into {found}", ELSEWHERE)


def require_apart(written: Mapping[str, tuple[Path, ...]], read: Mapping[str, tuple[Path, ...]]) -> None:
    """Raise BadConfig for a run that would replace one of its inputs, or one of its own outputs.

    Args:
        written: outputs by the user's name for them, such as "--out"; a folder that is replaced as a whole is one path.
        read: inputs by the user's name for them.
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
    """Return the path behind all links, existent or not."""
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
    """Return the paths of all files, links and empty folders below a folder, from the folder on."""
    found = [
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir() or not any(path.iterdir())
    ]
    return sorted(found)


# Whole or not at all --------------------------------------------------------------------------------------------------


@contextmanager
def atomic_path(path: str | PathLike[str], kind: Folder = ANY_FOLDER) -> Iterator[Path]:
    """Give a temporary path to write to; it becomes ``path`` when the block ends well.

    The temporary name lies in the same folder (made if missing) and ends like ``path``, so that writers that choose
    a format by suffix choose the same. If the block raises, whatever was written is removed and an older ``path`` stays
    as it was. The block may also make a folder of the temporary path; it then replaces an older folder as a whole.
    Where ``path`` is a link, what it leads to is written.

    Args:
        kind: kind of the folder that the block makes, if it makes one.

    Raises:
        BadFile: something else stands at ``path`` and would be lost; see the module.
        FileNotFoundError: the block ended well but wrote nothing.
        OSError: the disk is full, or something else failed; the error names ``path``.
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
        if error.filename is not None and Path(error.filename) == draft:  # the user never sees the temporary name
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            with suppress(OSError):
                draft.unlink()


def write_text(path: str | PathLike[str], text: str) -> None:
    """Write a file of UTF-8, whole or not at all."""
    with atomic_path(path) as draft:
        draft.write_text(text, encoding="utf-8")


@contextmanager
def name_full_disk(path: str | PathLike[str], draft: Path | None = None) -> Iterator[None]:
    """Name the file in the error of a write without space, which libraries bury below errors of their own.

    Raises:
        OSError: in place of any error that such an error led to; it names ``path`` in place of its ``draft``.
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
        os.rename(draft, target)  # where nothing stands there, or an empty folder
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
    with suppress(PermissionError):  # a folder that may be written but not read
        _flush(folder)


def _flush(path: Path) -> None:
    """Force content to the disk; else a power cut soon after the rename can leave empty or old content."""
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
    """Give an empty folder in the system's temporary folder (TMPDIR), and remove it at the end of the block."""
    with TemporaryDirectory(prefix="evenshard-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
