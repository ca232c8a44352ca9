"""Checks before a cost dataset is published: schema, duplicates, noise, and changes since the last version."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from evenshard.measure.cost_dataset import load_costs
from evenshard.measure.cost_rows import read_rows
from evenshard.measure.costs import OK, MeasuredPlacement
from evenshard.measure.noise import controls_of, drift_pct, noise_of
from evenshard.tables.files import load_tables
from evenshard.tables.table import Table
from evenshard.utils.errors import BadFile

CHANGES = ("hardware", "driver", "versions", "link")


@dataclass(frozen=True)
class Content:
    """What a dataset holds, checked.

    Attributes:
        costs: its files.
        measured: their placements, file by file.
        lineages: commit, parameter hash and version behind each file.
    """

    costs: tuple[Path, ...]
    measured: tuple[tuple[MeasuredPlacement, ...], ...]
    lineages: tuple[Mapping[str, Any], ...]

    @property
    def all(self) -> list[MeasuredPlacement]:
        """The measured placements of all files."""
        return [one for measured in self.measured for one in measured]


def read_content(costs: Sequence[Path], tables: Path) -> Content:
    """Reads and checks all of a dataset.

    Raises:
        BadFile: a file cannot be used, holds nothing, or measurements of another one.
    """
    pool = load_tables(tables)
    measured = tuple(load_costs(path, pool) for path in costs)
    for path, found in zip(costs, measured, strict=True):
        if not found:
            raise BadFile(path, "holds no measurement", "Measure first: evenshard benchmark.")
    _refuse_shared(list(zip(costs, measured, strict=True)))
    return Content(tuple(costs), measured, tuple(read_rows(path).lineage for path in costs))


def refuse_known_elsewhere(content: Content, others: Mapping[Path, Sequence[MeasuredPlacement]]) -> None:
    """Refuses measurements that other collections have: what learns from both would count them twice.

    Args:
        others: measurements by their folder.

    Raises:
        BadFile: if a measurement is in one of them.
    """
    for path, measured in zip(content.costs, content.measured, strict=True):
        for other, known in others.items():
            _refuse_shared([(other, known), (path, measured)])


def _refuse_shared(files: Sequence[tuple[Path, Sequence[MeasuredPlacement]]]) -> None:
    found_in: dict[Hashable, Path] = {}
    for path, measured in files:
        keys = {_measurement(one) for one in measured}
        shared = [key for key in keys if key in found_in]
        if shared:
            problem = f"{len(shared)} of {len(keys)} measurements are in {found_in[shared[0]]} too"
            raise BadFile(path, problem, "Add each measurement once.")
        found_in.update(dict.fromkeys(keys, path))


def _measurement(one: MeasuredPlacement) -> Hashable:
    """Equal for copies of one measurement, whatever it is called."""
    shards = _shards(one)
    return one.provenance.hardware, one.proposed_by, one.measured_at, tuple(shards)


def _shards(one: MeasuredPlacement) -> list[Hashable]:
    """A device's work each: what should cost the same whenever it is measured."""
    return [
        (one.task.batch_size, one.task.num_devices, frozenset(one.task.tables[position] for position in shard))
        for shard in one.placement.shards()
    ]


@dataclass(frozen=True)
class RepeatNoise:
    """How far repeats lie apart, per cent; None where nothing was repeated.

    Attributes:
        within_run_pct: standard deviation of one placement measured again.
        between_run_pct: standard deviation of one placement from file to file, beyond that.
        drift_pct: the largest drift of the controls through a file.
    """

    within_run_pct: float | None
    between_run_pct: float | None
    drift_pct: float | None


def noise_in(content: Content) -> RepeatNoise:
    """What the control placements say."""
    controls = [controls_of(measured) for measured in content.measured]
    noise = noise_of(controls)
    drifts = [drift for one in controls if (drift := drift_pct(one)) is not None]
    return RepeatNoise(noise.within_run_pct, noise.between_run_pct, max(drifts, key=abs, default=None))


@dataclass(frozen=True)
class VersionChange:
    """What is different from the version before.

    Attributes:
        changed: lines such as "driver: 570.1 -> 580.2".
        num_shards: shards that both versions have measured.
        cost_pct: median difference of the new version's times, per cent; above 0 is slower.
        num_measured: placements before and now.
        medians: medians over the tables, before and now, by name.
    """

    changed: tuple[str, ...]
    num_shards: int
    cost_pct: float | None
    num_measured: tuple[int, int]
    medians: Mapping[str, tuple[float, float]]


def changes_since(before: Sequence[MeasuredPlacement], now: Sequence[MeasuredPlacement]) -> VersionChange:
    """Compares two versions; neither must be empty."""
    changed = []
    for name in CHANGES:
        old, new = (", ".join(sorted({getattr(one.provenance, name) for one in side})) for side in (before, now))
        if old != new:
            changed.append(f"{name}: {old} -> {new}")
    old_ms, new_ms = _compute_ms(before), _compute_ms(now)
    ratios = [new_ms[key] / old_ms[key] for key in old_ms.keys() & new_ms.keys() if old_ms[key] > 0]
    return VersionChange(
        changed=tuple(changed),
        num_shards=len(ratios),
        cost_pct=100 * (median(ratios) - 1) if ratios else None,
        num_measured=(len(before), len(now)),
        medians={
            name: (_median_of(before, name), _median_of(now, name))
            for name in ("num_rows", "embedding_dim", "pooling_factor")
        },
    )


def _compute_ms(measured: Iterable[MeasuredPlacement]) -> dict[Hashable, float]:
    """Mean time of the kernels for each shard; what is exchanged depends on the other devices, too."""
    found: dict[Hashable, list[float]] = {}
    for one in measured:
        for shard, device in zip(_shards(one), one.cost.devices, strict=True):
            if device.status == OK and device.compute_ms > 0:
                found.setdefault(shard, []).append(device.compute_ms)
    return {shard: fmean(times) for shard, times in found.items()}


def _median_of(measured: Iterable[MeasuredPlacement], name: str) -> float:
    tables: set[Table] = {table for one in measured for table in one.task.tables}
    return float(median(getattr(table, name) for table in tables))
