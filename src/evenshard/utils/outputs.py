"""The rule of what a command may replace: only an earlier output of the same kind.

A file takes the place of a file. A folder that is written as a whole takes the place of an empty one, or of one that
holds what this kind of folder holds and nothing else. Devices, pipes and sockets are never replaced; a link stays, and
what it leads to is written.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NoReturn

from evenshard.utils.errors import BadConfig, BadFile

ELSEWHERE = "Name another path."
STDOUT = Path("-")
MAX_LINKS = 40  # as many as Linux follows


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
        always: names of the files in each; "*" stands for any part of a name.
        sometimes: names of files that only some have.
    """

    what: str
    always: tuple[str, ...]
    sometimes: tuple[str, ...] = ()

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
        if target.samefile(Path()) or target.is_mount():
            raise BadFile(path, "is the working directory or a mount point, which is never replaced", ELSEWHERE)
        missing = set(self.always)
        for name in names_below(target):
            fitting = {pattern for pattern in (*self.always, *self.sometimes) if _fits(name, pattern)}
            if not fitting and name not in also:
                self._refuse(path, f"holds {name}, which is not part of {self.what} and would be lost")
            missing -= fitting
        if missing and any(target.iterdir()):
            self._refuse(path, f"lacks {min(missing)}, so it is not {self.what} that evenshard wrote")

    def _refuse(self, path: Path, problem: str) -> NoReturn:
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


_CONFIG, _STATE, _OTHERS = "config.json", "state.pt", ("optimizer.pt", "trained_on.json")
NETWORK_FOLDER = Folder("a network", (_CONFIG, _STATE), _OTHERS)
MODEL_PARTS = ("cost_model", "cost_net", "policy")
MODEL_FOLDER = Folder(
    "a model",
    (f"cost_model/{_CONFIG}", f"cost_model/{_STATE}"),
    tuple(f"{part}/{name}" for part in MODEL_PARTS for name in (_CONFIG, _STATE, *_OTHERS)),
)
ANY_FOLDER = Folder("what takes its place", ())
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
    found = path if isinstance(output, FilesInside) else follow_links(path).parent
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
            if _same(path, source) or _is_part(path, source):
                raise BadConfig(f"{path} is to be written ({name}), and is what {other} reads. {ELSEWHERE}")
        for other, second in outputs[:number]:
            real, other_real = _real(path), _real(second)
            if real.is_relative_to(other_real) or other_real.is_relative_to(real):
                raise BadConfig(f"{path} would be written twice, by {other} and {name}. {ELSEWHERE}")


def follow_links(path: Path) -> Path:
    """Where a path leads: what stands behind a link or behind several, whether it exists or not.

    Raises:
        BadFile: if links lead in a circle, or to an open file of a process, as /dev/stdout does.
    """
    target = path
    for _ in range(MAX_LINKS):
        if not target.is_symlink():
            return target
        if _real(target.parent).is_relative_to("/proc"):
            raise BadFile(path, "is an open file of a process, not a path to write to", ELSEWHERE)
        target = target.parent / target.readlink()
    raise BadFile(path, "is a link that leads in a circle", ELSEWHERE)


def _same(path: Path, source: Path) -> bool:
    try:
        return path.samefile(source)
    except OSError:  # one of them is not there
        return _real(path) == _real(source)


def _is_part(path: Path, folder: Path) -> bool:
    return os.path.isdir(folder) and os.path.exists(path) and _real(path).is_relative_to(_real(folder))


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _require_folder(path: Path, mode: int) -> None:
    if not stat.S_ISDIR(mode):
        raise BadFile(path, "is not a folder, and a folder is to be written there", ELSEWHERE)


def names_below(folder: Path) -> Iterator[str]:
    """Paths of all files and empty folders below a folder, from the folder on."""

    def give_up(error: OSError) -> NoReturn:
        raise error

    for where, folders, files in os.walk(folder, onerror=give_up):
        inside = Path(where).relative_to(folder)
        links = [name for name in folders if Path(where, name).is_symlink()]  # which are not walked into
        if inside.parts and not folders and not files:
            yield f"{inside.as_posix()}/"
        for name in sorted((*files, *links)):
            yield (inside / name).as_posix()


def _fits(name: str, pattern: str) -> bool:
    parts, patterns = name.split("/"), pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))
