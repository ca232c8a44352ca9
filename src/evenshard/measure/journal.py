"""The journal of a campaign: an append-only file of JSON lines that keeps every finished measurement.

It has two kinds of lines. An *origin* line has the hardware and settings of the measurements after it. A *visit* line
is one finished measurement of one job; it is written and flushed at once, so a kill loses no finished measurement.
When the file is opened, all complete lines are read. An incomplete last line, left by a kill, is removed with a
warning. A complete line with impossible values is an error, and the file is not changed.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evenshard.base.documents import load_json
from evenshard.base.errors import BadFile, MeasurementFailed
from evenshard.base.messages import brief, reason_of
from evenshard.base.outputs import name_full_disk
from evenshard.base.typed import record_of
from evenshard.price.costs import OK, OUT_OF_MEMORY, DeviceCost, PlacementCost, Provenance, moment_problem

JOURNAL_VERSION = 1
FSYNC_EVERY_S = 1.0  # seconds of measurements that a power cut may lose
_BEGINNING = b'{"journal": '  # first bytes of an origin line, which begins every journal
log = logging.getLogger(__name__)


def journal_beside(output: Path) -> Path:
    """Return the default path of the journal for an output file."""
    return output.with_name(f".{output.name}.journal")


def is_journal(path: Path) -> bool:
    """Return True if a file starts like a journal."""
    with path.open("rb") as file:
        return file.read(len(_BEGINNING)) == _BEGINNING


@dataclass(frozen=True)
class Origin:
    """Hardware and settings of a measurement."""

    provenance: Provenance
    settings: dict[str, Any]  # values of the settings in ``campaign.MEANING``, by name


@dataclass(frozen=True)
class Visit:
    """One finished measurement of a job.

    Raises:
        MeasurementFailed: if a number is impossible, for example after a clock error.
    """

    job: str  # key of the job (see ``Job.key``)
    number: int  # pass, 0 for the first
    cost: PlacementCost
    measured_at: float  # end of the visit, seconds since 1970 UTC
    origin: Origin

    def __post_init__(self) -> None:
        if self.number < 0:
            raise MeasurementFailed(f"visit number is {self.number}, below 0")
        if problem := moment_problem("measured_at", self.measured_at):
            raise MeasurementFailed(problem)


class Journal:
    """The measurements of a campaign on disk, as a context manager that closes the file."""

    def __init__(self, path: Path, read_only: bool = False) -> None:
        """Read the file, remove an incomplete last line, and open it for appending; with ``read_only``, only read it.

        Raises:
            BadFile: if a complete line cannot be read, the file is not a journal or has another version, or another
                process is writing it.
        """
        self.path = path
        self._visits: dict[tuple[str, int], list[Visit]] = {}
        self._origin: Origin | None = None
        if not read_only:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("rb" if read_only else "a+b")
        try:
            if read_only:
                self._read()
            else:
                self._lock()
                self._file.truncate(self._read())
        except BaseException:
            self._file.close()
            raise
        self._synced = time.monotonic()

    def __len__(self) -> int:
        """Return the number of measurements."""
        return len(self.visits())

    def find(self, job: str, number: int, origin: Origin | None = None) -> Visit | None:
        """Return the latest measurement of a job in pass ``number``, of ``origin`` if given; None if there is none."""
        visits = self._visits.get((job, number), [])
        return next((visit for visit in reversed(visits) if origin is None or visit.origin == origin), None)

    def visits(self) -> list[Visit]:
        """Return all measurements."""
        return [visit for visits in self._visits.values() for visit in visits]

    def append(self, visit: Visit) -> None:
        """Write one finished measurement; it is kept even if the process is killed after this call."""
        if visit.origin != self._origin:
            self._write({"journal": JOURNAL_VERSION, "origin": asdict(visit.origin)})
            self._origin = visit.origin
        # A shard that did not fit has only a status, because JSON has no infinity.
        devices = [asdict(one) if one.status == OK else {"status": one.status} for one in visit.cost.devices]
        record = {"job": visit.job, "visit": visit.number, "measured_at": visit.measured_at}
        self._write({**record, "all_to_all": visit.cost.all_to_all, "devices": devices})
        self._visits.setdefault((visit.job, visit.number), []).append(visit)

    def add_all(self, other: Journal) -> None:
        """Append the measurements of another journal that this journal lacks."""
        for visit in other.visits():
            if self.find(visit.job, visit.number, visit.origin) is None:
                self.append(visit)

    def close(self) -> None:
        """Flush to disk and close."""
        if not self._file.closed:
            with name_full_disk(self.path):
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, record: dict[str, Any]) -> None:
        with name_full_disk(self.path):
            self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
            self._file.flush()
        # Lines given to the operating system survive a kill, but not a power cut. Syncing each line would slow down
        # short measurements, so a power cut may lose the last second.
        if time.monotonic() - self._synced > FSYNC_EVERY_S:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def _lock(self) -> None:
        """Lock the file against a second writer; the lock ends with the process."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadFile(self.path, "another process is writing it", "Wait for it, or name another journal.") from None
        except OSError as error:
            log.warning(
                "%s: the file system has no locks (%s); do not write to it from two processes", self.path, error
            )

    def _read(self) -> int:
        """Parse the complete lines and return their total size in bytes."""
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        if not whole and not (content.startswith(_BEGINNING) or _BEGINNING.startswith(content)):
            raise BadFile(self.path, "is not a journal", "Name another file.")  # do not drop all of it as torn
        if whole < len(content):
            log.warning("%s: dropped the incomplete last line; its visit is measured again", self.path)
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            self._parse_line(line, number)
        return whole

    def _parse_line(self, line: bytes, number: int) -> None:
        try:
            record = load_json(line)
            if isinstance(record, dict) and "origin" in record:
                self._origin = _origin(record)
            else:
                visit = _visit(record, self._origin)
                self._visits.setdefault((visit.job, visit.number), []).append(visit)
        except (ValueError, MeasurementFailed) as error:
            problem = f"is not a journal line ({reason_of(error)})"
            raise BadFile(self.path, problem, _remedy(line), f"line {number}") from None


@dataclass(frozen=True)
class _OriginLine:
    journal: int
    origin: Origin


@dataclass(frozen=True)
class _VisitLine:
    job: str
    visit: int
    measured_at: float
    all_to_all: str
    devices: tuple[Any, ...]


def _remedy(line: bytes) -> str:
    """Return the remedy for a damaged line; lines with hardware and settings must stay, as later lines need them."""
    if b'"origin"' in line:
        return "Repair the line, which all measurements after it need, or name another journal."
    return "Repair the line, remove it (its visit is then measured again), or name another journal."


def _origin(record: dict[str, Any]) -> Origin:
    version = record.get("journal")
    if version != JOURNAL_VERSION:
        raise ValueError(f"journal version is {brief(version)}, but this evenshard reads {JOURNAL_VERSION}")
    return record_of(_OriginLine, record).origin


def _visit(record: Any, origin: Origin | None) -> Visit:
    if origin is None:
        raise ValueError("there is no origin line before this visit")
    line = record_of(_VisitLine, record)
    cost = PlacementCost(tuple(map(_decode_device, line.devices)), line.all_to_all)
    return Visit(line.job, line.visit, cost, line.measured_at, origin)


def _decode_device(record: Any) -> DeviceCost:
    return DeviceCost.out_of_memory() if record == {"status": OUT_OF_MEMORY} else record_of(DeviceCost, record)
