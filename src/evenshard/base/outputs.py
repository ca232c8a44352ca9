"""The rule of what a command may replace: only an earlier output of the same kind.

A file takes the place of a file. A folder that is written as a whole takes the place of one without files of other
names. Devices, pipes and sockets are never replaced. A link stays, and its target is written.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from evenshard.base.errors import BadConfig, BadFile

ELSEWHERE = "Name another path."
STDOUT = Path("-")


class Output:
    """What is written to a path. It is an argument type, too."""

    def __call__(self, text: str) -> Path:
        """Called by argparse."""
        return Path(text)

    def paths(self, path: Path) -> tuple[Path, ...]:
        """Everything that is written, or replaced as a whole."""
        return (path,)

    def require(self, path: Path) -> None:
        """Raises BadFile where something stands at the path that must not be replaced."""
        raise NotImplementedError


@dataclass(frozen=True)
class File(Output):
    """One file.

    Attributes:
        beside: suffix of a second file that is written beside it.
    """

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
    """A folder that is written as a whole, and replaces an older one of its sort as a whole.

    Attributes:
        what: kind of the folder, such as "a network".
        names: names of its files.
    """

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
    """A folder that gets files; what else lies in there stays.

    Attributes:
        names: names of the files that are known beforehand.
        in_git: those of them that a repository of loops keeps in git: small text that people compare.
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
    """Raises BadFile where nothing can be written at the path."""
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
    """Raises BadConfig where one run would replace what it reads, or what it has just written.

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
