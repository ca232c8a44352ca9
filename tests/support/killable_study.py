"""A study in a process of its own, made to be killed: ``python killable_study.py FOLDER JOBS``.

Its units tell FOLDER/began when they begin, with the process that does them; the last ones take long.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.studies.runner import run_units
from benchmarks.studies.units import Result, Store, Unit
from evenshard.base.errors import BadConfig, InfeasibleTask


@dataclass(frozen=True)
class Add(Unit):
    """Adds the sums of other units to a number, and tells that it began."""

    number: int
    others: tuple[Add, ...] = ()
    pause_s: float = 0.0

    @property
    def name(self) -> str:
        return f"unit {self.number}"

    def do(self, store: Store) -> Result:
        with (store.folder / "began").open("a") as file:
            file.write(f"{self.number} {os.getpid()}\n")
        time.sleep(self.pause_s)
        return {"sum": self.number + sum(store.result(other)["sum"] for other in self.others)}


@dataclass(frozen=True)
class Fail(Unit):
    """Fails in one of three ways."""

    way: str

    @property
    def name(self) -> str:
        return f"failing {self.way}"

    def do(self, store: Store) -> Result:
        errors = {"bad": BadConfig("Repair it."), "full": InfeasibleTask("No room."), "bug": ZeroDivisionError("oh")}
        raise errors[self.way]


def chain(pause_s: float = 0.0) -> list[Unit]:
    """Three units at once, one after them, and two more that take long."""
    first = tuple(Add(number) for number in range(3))
    middle = Add(3, first)
    return [*first, middle, Add(4, (middle,), pause_s), Add(5, (middle,), pause_s)]


def began(folder: Path) -> list[tuple[int, int]]:
    """Number and process of the units that began, in order."""
    path = folder / "began"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(number), int(process)) for number, process in map(str.split, lines)]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(exist_ok=True)
    try:
        run_units(chain(pause_s=60.0), target, "commit", int(sys.argv[2]), "killable")
    except KeyboardInterrupt:
        sys.exit(130)
