"""Training domain of a model: the ranges and origin of its training data, and checks of tasks against the ranges."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from evenshard.base.documents import load_json, sha256_of
from evenshard.base.errors import blame_folder
from evenshard.base.messages import UNKNOWN, cut
from evenshard.base.outputs import write_text
from evenshard.base.typed import record_of
from evenshard.base.units import number_text
from evenshard.placement.memory import SGD, optimizer_problem
from evenshard.placement.task import ShardingTask, distinct_tables
from evenshard.price.costs import MeasuredPlacement, optimizer_of
from evenshard.price.evidence import DeviceError, widest
from evenshard.tables.reuse import mean_counts
from evenshard.tables.table import WEIGHT_BITS, Table
from evenshard.version import __version__

SeenRange = tuple[float, float]
TABLE_SLACK = 1.25  # tolerance beyond a range of tables or the batch
DEVICE_SLACK = 2.0  # tolerance for tables and dims on a device, which the model adds up by design
# Upper limit of the factors by which a task may exceed the training range.
MOST_FACTOR = 1000.0
# Probabilities of the quantiles in ``TrainingDomain``.
QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_REMEDY = "Train the model again."


@dataclass(frozen=True)
class TrainingDomain:
    """Training domain of a model: the range of each quantity in its training data, and the origin of the data."""

    # Origin of the measurements (``costs.Provenance``).
    hardware: str
    link: str
    versions: str
    num_measured: int  # measured placements, including shards measured alone
    batch_size: SeenRange  # global batch, samples
    # Ranges over tables.
    num_rows: SeenRange
    embedding_dim: SeenRange
    pooling_factor: SeenRange
    # Ranges over measured placements.
    tables_per_placement: SeenRange
    num_devices: SeenRange
    # Ranges over devices with tables.
    tables_per_device: SeenRange
    dims_per_device: SeenRange
    weight_bits: tuple[int, ...]  # all values in the training data
    # Code that ran the training.
    git_commit: str = UNKNOWN
    evenshard_version: str = __version__
    costs_sha256: tuple[str, ...] = ()  # hash of each file of measured costs; empty if there is none
    # Quantiles over the distinct tables, at ``QUANTILES``; empty if unknown.
    num_rows_quantiles: tuple[float, ...] = ()
    embedding_dim_quantiles: tuple[float, ...] = ()
    pooling_factor_quantiles: tuple[float, ...] = ()
    # Likewise of the mean lookups per distinct index in a batch; also empty if no table has a histogram.
    reuse_quantiles: tuple[float, ...] = ()
    # Largest error of the simulated devices relative to real devices; None for real hardware.
    device_error: DeviceError | None = None
    timed_apart: bool = True  # True if forward and backward compute of any device were timed separately
    optimizer: str = SGD  # optimizer of the measured backward passes

    @staticmethod
    def of(
        measured: Sequence[MeasuredPlacement], git_commit: str = UNKNOWN, costs: Sequence[Path] = ()
    ) -> TrainingDomain:
        """Return the domain of measured placements, which must not be empty.

        Args:
            git_commit: commit of the code (``Lineage.git_commit``).
            costs: the files of the measurements, if any.

        Raises:
            BadInput: if the measurements use several optimizers.
        """
        # Includes tables on devices that ran out of memory, because a search still predicts them.
        tables = distinct_tables([one.task for one in measured])
        counted = dict.fromkeys((table, one.task.batch_size) for one in measured for table in one.task.tables)
        reuse = [found for table, batch_size in counted if (found := mean_reuse(table, batch_size)) is not None]
        shards = [shard for one in measured for shard in one.shards if shard]
        return TrainingDomain(
            hardware=_join_values(one.provenance.hardware for one in measured),
            link=_join_values(one.provenance.link for one in measured),
            versions=_join_values(one.provenance.versions for one in measured),
            num_measured=len(measured),
            batch_size=_range(one.task.batch_size for one in measured),
            num_rows=_range(table.num_rows for table in tables),
            embedding_dim=_range(table.embedding_dim for table in tables),
            pooling_factor=_range(table.pooling_factor for table in tables),
            tables_per_placement=_range(len(one.task.tables) for one in measured),
            num_devices=_range(one.task.num_devices for one in measured),
            tables_per_device=_range(len(shard) for shard in shards),
            dims_per_device=_range(sum(table.embedding_dim for table in shard) for shard in shards),
            weight_bits=tuple(sorted({table.weight_bits for table in tables})),
            git_commit=git_commit,
            costs_sha256=tuple(sha256_of(path) for path in costs),
            num_rows_quantiles=_quantiles([table.num_rows for table in tables]),
            embedding_dim_quantiles=_quantiles([table.embedding_dim for table in tables]),
            pooling_factor_quantiles=_quantiles([table.pooling_factor for table in tables]),
            reuse_quantiles=_quantiles(reuse),
            device_error=widest(*(one.provenance.device_error for one in measured)),
            timed_apart=any(cost.fwd_compute_ms is not None for one in measured for cost in one.cost.devices),
            optimizer=optimizer_of(measured),
        )

    def problem(self) -> str | None:
        """Return the reason that the domain is invalid; None if it is valid."""
        for name in _RANGES:
            low, high = getattr(self, name)
            if not 0 <= low <= high < math.inf:
                return f"the range of {name} is {low:g} to {high:g}"
        for name in _QUANTILES:
            values = getattr(self, name)
            if len(values) not in (0, len(QUANTILES)) or not all(0 <= value < math.inf for value in values):
                return f"{name} is not {len(QUANTILES)} finite numbers"
        if self.device_error is not None and (problem := self.device_error.problem()):
            return f"device_error.{problem}"
        if problem := optimizer_problem(self.optimizer):
            return problem
        if unknown := [bits for bits in self.weight_bits if bits not in WEIGHT_BITS]:
            return f"weight_bits has {unknown[0]}, not one of {WEIGHT_BITS}"
        return None if self.weight_bits else "weight_bits is empty"

    def outside(self, task: ShardingTask) -> tuple[str, ...]:
        """Describe, in one line per quantity, where a task lies outside the training range; empty if it is inside.

        A value counts as outside only if it exceeds a range by more than a tolerance. Tables and dims per device depend
        on the placement, so their mean over devices is checked.
        """
        return (
            *self.batch_outside(task.batch_size),
            *self.tables_outside(task.tables),
            *self.devices_outside(task.tables, task.num_devices),
            *self.missing_measurements(task.num_devices),
        )

    def batch_outside(self, batch_size: int) -> list[str]:
        """Return the lines of ``outside`` about the global batch (samples)."""
        where, (low, high) = beyond(batch_size, self.batch_size), self.batch_size
        if not where:
            return []
        limit = f"larger than the {high:,.0f}" if where > 0 else f"smaller than the {low:,.0f}"
        return [f"the global batch of {batch_size:,} samples is {limit} the model was trained on"]

    def tables_outside(self, tables: Sequence[Table]) -> list[str]:
        """Return the lines of ``outside`` about the tables."""
        # A table without lookups costs nothing and needs no training data.
        read = [table for table in tables if table.pooling_factor > 0]
        found = [
            *_beyond(tables, self.num_rows, lambda table: table.num_rows, "more rows", "fewer rows"),
            *_beyond(tables, self.embedding_dim, lambda table: table.embedding_dim, "a larger dim", "a smaller dim"),
            *_beyond(read, self.pooling_factor, lambda table: table.pooling_factor, "more lookups", "fewer lookups"),
        ]
        unseen = [table for table in tables if table.weight_bits not in self.weight_bits]
        if unseen:
            seen = " or ".join(str(bits) for bits in self.weight_bits)
            bits = " or ".join(str(one) for one in sorted({table.weight_bits for table in unseen}))
            first = cut(unseen[0].name)
            found.append(f"{_count(unseen)} weights of {bits} bits, the model was trained on {seen} (first: {first})")
        return found

    def devices_outside(self, tables: Sequence[Table], num_devices: int) -> list[str]:
        """Return the lines of ``outside`` about the number of devices and the load per device."""
        mean_tables, mean_dims = _loads(tables, num_devices)
        found = []
        slack_of_devices = math.inf if self.num_devices == (1, 1) else TABLE_SLACK  # see ``missing_measurements``
        for value, (_, high), slack, what in (
            (float(num_devices), self.num_devices, slack_of_devices, "{0:,.0f} devices are more"),
            (mean_tables, self.tables_per_device, DEVICE_SLACK, "{0:,.0f} tables per device on average are far more"),
            (mean_dims, self.dims_per_device, DEVICE_SLACK, "{0:,.0f} dims per device on average are far more"),
        ):
            if value > high * slack:
                found.append(f"{what.format(value)} than the {high:,.0f} the model was trained on")
        return found

    def table_factor(self, table: Table) -> float:
        """Return the factor by which a table exceeds the training range, the product over its quantities; 1 inside.

        With twice the largest number of rows and half the smallest dim, the factor is 4.
        """
        nearest_bits = min(abs(math.log(table.weight_bits / bits)) for bits in self.weight_bits)
        factor = math.exp(nearest_bits) * _factor(table.num_rows, self.num_rows)
        factor *= _factor(table.embedding_dim, self.embedding_dim) * _factor(table.pooling_factor, self.pooling_factor)
        return min(factor, MOST_FACTOR)

    def load_factor(self, tables: Sequence[Table], num_devices: int, batch_size: int) -> float:
        """Return the factor by which the batch and the mean load per device exceed the training range; 1 inside."""
        factor = _factor(batch_size, self.batch_size)
        for value, (_, high) in zip(
            _loads(tables, num_devices), (self.tables_per_device, self.dims_per_device), strict=True
        ):
            factor *= value / high if value > high * DEVICE_SLACK else 1.0
        return min(factor, MOST_FACTOR)

    def exchange_factor(self, num_devices: int) -> float:
        """Return the factor by which the number of devices exceeds the training range of communication; 1 inside."""
        return max(1.0, num_devices / self.num_devices[1]) if num_devices > self.num_devices[1] * TABLE_SLACK else 1.0

    def missing_measurements(self, num_devices: int) -> list[str]:
        """Return the lines of ``outside`` about times that were not measured: forward alone, or communication."""
        found = []
        if not self.timed_apart:
            found.append("only the sum of forward and backward was measured, so the split is assumed")
        if num_devices > 1 and self.num_devices == (1, 1):
            found.append("communication was not measured, so it is modelled")
        return found

    def save(self, path: Path) -> None:
        """Write JSON atomically."""
        write_text(path, json.dumps(asdict(self), indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> TrainingDomain:
        """Read a file that ``save`` wrote.

        Raises:
            BadFile: if it is missing, incomplete, or not a training domain.
        """
        with blame_folder(path, "description of training data", _REMEDY):
            content = load_json(path.read_bytes())
            found = record_of(TrainingDomain, content)
            missing = {field.name for field in fields(TrainingDomain)} - {*content}
            if missing:  # a default would describe this version, not the training
                raise ValueError(f"missing: {', '.join(sorted(missing))}")
            if problem := found.problem():
                raise ValueError(problem)
            return found


_QUANTILES = ("num_rows_quantiles", "embedding_dim_quantiles", "pooling_factor_quantiles", "reuse_quantiles")
_RANGES = tuple(field.name for field in fields(TrainingDomain) if field.type == "SeenRange")


def mean_reuse(table: Table, batch_size: int) -> float | None:
    """Return the mean lookups per distinct index in a batch; None if the table has no reuse histogram."""
    if table.reuse_bins is None:
        return None
    bins, lookups = np.array([table.reuse_bins]), np.array([table.pooling_factor * batch_size])
    return float(mean_counts(bins / bins.sum(), lookups)[0])


def beyond(value: float, seen: SeenRange) -> int:
    """Return 1 above the range, -1 below it, 0 inside or within the tolerance (``TABLE_SLACK``)."""
    low, high = seen
    return 1 if value > high * TABLE_SLACK else -1 if value * TABLE_SLACK < low else 0


def _factor(value: float, seen: SeenRange) -> float:
    """Return the factor by which a value is beyond a range; 1 inside or within the tolerance."""
    low, high = seen
    where = beyond(value, seen)
    if where > 0:
        return value / high if high > 0 else MOST_FACTOR
    return low / value if where < 0 and value > 0 else 1.0


def _loads(tables: Sequence[Table], num_devices: int) -> tuple[float, float]:
    """Return the mean number of tables and of dims per device."""
    return len(tables) / num_devices, sum(table.embedding_dim for table in tables) / num_devices


def _beyond(tables: Sequence[Table], seen: SeenRange, of: Callable[[Table], float], more: str, fewer: str) -> list[str]:
    lines = []
    for where, word, limit, extreme in ((1, more, seen[1], "largest"), (-1, fewer, seen[0], "smallest")):
        if found := [table for table in tables if beyond(of(table), seen) == where]:
            last = max(found, key=lambda table: where * of(table))
            than = f"{word} than the {number_text(limit)} the model was trained on"
            lines.append(f"{_count(found)} {than} ({extreme}: {cut(last.name)}, {number_text(of(last))})")
    return lines


def _count(tables: Sequence[Table]) -> str:
    return "1 table has" if len(tables) == 1 else f"{len(tables):,} tables have"


def _quantiles(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(np.quantile(values, QUANTILES, method="inverted_cdf").tolist()) if values else ()


def _range(values: Iterable[float]) -> SeenRange:
    listed = list(values)
    return min(listed), max(listed)


def _join_values(values: Iterable[str]) -> str:
    return "; ".join(sorted(set(values)))
