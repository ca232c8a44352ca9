"""Unit of work of a study, and the JSON file of its result, whose name depends on all of its inputs.

A killed study finds its finished units again. A unit's key covers its own settings, the version of the package, and the
keys of the units that it needs; the git commit is recorded, but not part of the key.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from evenshard.base.errors import BadFile
from evenshard.base.messages import reason_of
from evenshard.base.outputs import write_text
from evenshard.version import __version__

Result = dict[str, Any]


class Unit(ABC):
    """Unit of work of a study, which is done completely or not at all. Subclasses are frozen dataclasses."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the name for progress and errors."""

    @property
    def needs(self) -> tuple[Unit, ...]:
        """Return the units whose results it reads: its fields that are units."""
        needs: list[Unit] = []
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            needs += [part for part in (value if isinstance(value, tuple) else (value,)) if isinstance(part, Unit)]
        return tuple(needs)

    @cached_property
    def key(self) -> str:
        """Return the name of the result: a readable prefix and a hash of all that it depends on."""
        content = [type(self).__name__, __version__]
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            parts = value if isinstance(value, tuple) else (value,)
            content += [one.name, *(part.key if isinstance(part, Unit) else repr(part) for part in parts)]
        digest = hashlib.sha256("\n".join(content).encode()).hexdigest()[:12]
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()) + f"-{digest}"

    @abstractmethod
    def do(self, store: Store) -> Result:
        """Do the work and return the result as JSON."""


@dataclass(frozen=True)
class Record:
    """Content of a unit's file.

    Attributes:
        result: result of the unit.
        commit: commit of the code that did it.
        wall_s: wall time in seconds.
    """

    result: Result
    commit: str
    wall_s: float


class Store:
    """The results in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, unit: Unit) -> bool:
        """Return True if the unit is done."""
        return self._path(unit).exists()

    def record(self, unit: Unit) -> Record:
        """Read the unit's file."""
        path = self._path(unit)
        try:
            content = json.loads(path.read_text())
            return Record(content["result"], content["commit"], content["wall_s"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadFile(
                path, f"not readable as a unit's result ({reason_of(error)})", "Remove it; the study repeats the unit."
            ) from None

    def result(self, unit: Unit) -> Result:
        """Return the result of a finished unit."""
        return self.record(unit).result

    def save(self, unit: Unit, record: Record) -> None:
        """Write the unit's file atomically, and remove its journal."""
        content = {"unit": unit.name, "commit": record.commit, "wall_s": round(record.wall_s, 3)}
        write_text(self._path(unit), json.dumps({**content, "result": record.result}, allow_nan=False) + "\n")
        self.journal(unit).unlink(missing_ok=True)

    def forget(self, unit: Unit) -> None:
        """Remove all files of a unit."""
        self._path(unit).unlink(missing_ok=True)
        self.journal(unit).unlink(missing_ok=True)
        shutil.rmtree(self.models(unit), ignore_errors=True)

    def journal(self, unit: Unit) -> Path:
        """Return the path of the journal, which keeps the measurements of a unit on real hardware until it is done."""
        return self.folder / f"{unit.key}.journal"

    def models(self, unit: Unit) -> Path:
        """Return the folder for the networks that a unit trained."""
        return self.folder / unit.key

    def _path(self, unit: Unit) -> Path:
        return self.folder / f"{unit.key}.json"
