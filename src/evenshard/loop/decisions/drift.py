"""Drift of today's tables from the tables that a model was trained on.

A table has drifted if it is *outside* a training range, or *rare*: inside the ranges, but similar to almost no training
table. Tables outside are weighted by load (lookups times dim), because tables with few lookups cost little. Rare tables
are not weighted, because tables with a high load are rare in every set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, TextIO

import numpy as np

from evenshard.base.console import plain_console, plain_grid
from evenshard.base.messages import count_text, printable
from evenshard.sharders.training_domain import QUANTILES, SeenRange, TrainingDomain, beyond, mean_reuse
from evenshard.tables.table import Table

# Compared quantities, with their names for users.
QUANTITIES = {
    "num_rows": "rows",
    "embedding_dim": "dim",
    "pooling_factor": "lookups per sample",
    "reuse": "lookups per index",
}
SIMILAR_FACTOR = 1.6  # two tables are similar in a quantity within this factor
RARE_SHARE = 0.005  # a table is rare if fewer than this share of the training tables are similar to it
_WIDTH = 110  # minimum width of the printed table, characters


@dataclass(frozen=True)
class Spread:
    """Smallest, median and largest value of a quantity over tables."""

    low: float
    median: float | None  # None if the model does not store it
    high: float


@dataclass(frozen=True)
class QuantityDrift:
    """The drift of one quantity of the tables."""

    name: str  # num_rows, embedding_dim, pooling_factor, or reuse (mean lookups of a looked-up index in a batch)
    trained_on: Spread | None  # None if the model does not store it
    now: Spread | None  # None if no table has this quantity
    num_outside: int  # tables outside the training range
    outside_load_pct: float  # their share of the load, %
    num_rare: int | None  # tables inside the range with hardly any similar training table; None if unknown


@dataclass(frozen=True)
class Drift:
    """Drift of a set of tables from a model's training data."""

    retrain_due: bool
    reasons: tuple[str, ...]  # reasons to retrain, one clause each
    remarks: tuple[str, ...]  # tolerated differences from the training data, and facts that the model does not store
    num_tables: int
    outside_load_pct: float  # share of the load in tables outside any range, %
    rare_pct: float | None  # share of tables that are rare in any quantity, %; None if unknown
    quantities: tuple[QuantityDrift, ...]


def compute_drift(
    seen: TrainingDomain,
    tables: Sequence[Table],
    batch_size: int,
    num_devices: int | None = None,
    tolerated_pct: float = 5.0,
) -> Drift:
    """Compare today's tables, at least one, with the training data of a model.

    Args:
        batch_size: today's global batch, samples.
        num_devices: number of devices that hold the tables; None if it should not be checked.
        tolerated_pct: tolerated share of the load in tables outside the training ranges, and of rare tables, %.
    """
    loads = np.array([table.pooling_factor * table.embedding_dim for table in tables])
    loads /= max(loads.sum(), 1e-300)  # shares; all tables may have no lookups
    checked = [_check_quantity(name, seen, tables, batch_size, loads) for name in QUANTITIES]
    other_bits = np.array([table.weight_bits not in seen.weight_bits for table in tables])
    outside = np.any([other_bits, *(check.outside for check in checked)], axis=0)
    outside_load_pct = 100 * float(loads[outside].sum())
    rare = [check.rare for check in checked if check.rare is not None]
    rare_pct = 100 * float((np.any(rare, axis=0) & ~outside).mean()) if rare else None

    of_tables, reuse = [*seen.tables_outside(tables)], checked[-1].drift
    if reuse.num_outside and reuse.trained_on is not None:
        low, high = reuse.trained_on.low, reuse.trained_on.high
        have = "1 table has" if reuse.num_outside == 1 else f"{reuse.num_outside:,} tables have"
        of_tables.append(
            f"{have} an index reuse outside the training range of {low:.3g} to {high:.3g} lookups per index"
        )
    reasons = [*seen.batch_outside(batch_size)]
    if num_devices is not None:
        reasons += seen.devices_outside(tables, num_devices)
    remarks = []
    if outside_load_pct > tolerated_pct:
        there = count_text(int(outside.sum()), "table")
        reasons += [f"{outside_load_pct:.0f} % of the load is in {there} outside the training range", *of_tables]
    else:
        remarks += [f"{line} ({outside_load_pct:.1f} % of the load in total)" for line in of_tables]
    if rare_pct is None:
        remarks.append("the model stores only the ranges of its training data, so rare tables are not counted")
    elif rare_pct > tolerated_pct:
        reasons.append(f"{rare_pct:.0f} % of the tables have hardly any similar table in the training data")
    return Drift(
        retrain_due=bool(reasons),
        reasons=tuple(reasons),
        remarks=tuple(remarks),
        num_tables=len(tables),
        outside_load_pct=outside_load_pct,
        rare_pct=rare_pct,
        quantities=tuple(check.drift for check in checked),
    )


class _QuantityCheck(NamedTuple):
    drift: QuantityDrift
    outside: np.ndarray
    rare: np.ndarray | None


def _check_quantity(
    name: str, seen: TrainingDomain, tables: Sequence[Table], batch_size: int, loads: np.ndarray
) -> _QuantityCheck:
    values = [_value(name, table, batch_size) for table in tables]
    known = [value for value in values if value is not None]
    quantiles: tuple[float, ...] = getattr(seen, f"{name}_quantiles")
    of_quantiles = (quantiles[0], quantiles[-1]) if quantiles else None
    seen_range: SeenRange | None = getattr(seen, name, of_quantiles)
    outside = np.array(
        [value is not None and seen_range is not None and beyond(value, seen_range) != 0 for value in values]
    )
    rare = None
    if quantiles:
        rare = (
            np.array([value is not None and _share_like(value, quantiles) < RARE_SHARE for value in values]) & ~outside
        )
    middle = quantiles[QUANTILES.index(0.5)] if quantiles else None
    drift = QuantityDrift(
        name=name,
        trained_on=None if seen_range is None else Spread(seen_range[0], middle, seen_range[1]),
        now=Spread(min(known), median(known), max(known)) if known else None,
        num_outside=int(outside.sum()),
        outside_load_pct=100 * float(loads[outside].sum()),
        num_rare=None if rare is None else int(rare.sum()),
    )
    return _QuantityCheck(drift, outside, rare)


def _value(name: str, table: Table, batch_size: int) -> float | None:
    """Return a quantity of a table; None if the table lacks it, or has no lookups."""
    if name in ("pooling_factor", "reuse") and not table.pooling_factor:
        return None
    return mean_reuse(table, batch_size) if name == "reuse" else float(getattr(table, name))


def _share_like(value: float, quantiles: Sequence[float]) -> float:
    """Return the share of training tables within ``SIMILAR_FACTOR`` of a value, interpolated between quantiles."""
    logs = np.log(np.maximum(quantiles, 1e-9))  # a quantity may be 0
    ends = np.log(max(value, 1e-9)) + np.log(SIMILAR_FACTOR) * np.array([-1.0, 1.0])
    return _share_below(ends[1], logs, "right") - _share_below(ends[0], logs, "left")


def _share_below(log_value: float, logs: np.ndarray, side: str) -> float:
    """Return the share of training tables below a value, excluding ("left") or including ("right") equal tables."""
    at = int(np.searchsorted(logs, log_value, side=side))  # type: ignore[call-overload]
    if at == 0:
        return 0.0
    if at == len(logs):
        return 1.0
    low, high = logs[at - 1], logs[at]
    part = (log_value - low) / (high - low) if high > low else 0.0
    return QUANTILES[at - 1] + part * (QUANTILES[at] - QUANTILES[at - 1])


def print_drift(drift: Drift, model: str, file: TextIO | None = None) -> None:
    """Print the drift from the training data of ``model``, in colour only on a terminal."""
    console = plain_console(file, _WIDTH)
    count = "The table is" if drift.num_tables == 1 else f"The {drift.num_tables:,} tables are"
    covered = f"{count} covered by {printable(model)}."
    due = f"Retrain: {printable(model)} does not cover this request."
    text, style = (due, "bold red") if drift.retrain_due else (covered, "bold green")
    console.print(text, style=style, soft_wrap=True)
    for reason in drift.reasons:
        console.print(f"- {printable(reason)}.", soft_wrap=True)
    for remark in drift.remarks:
        console.print(f"Note: {printable(remark)}.", style="dim", soft_wrap=True)
    grid = plain_grid()
    grid.add_column("")
    for head in ("trained on", "now", "outside", "of the load", "rare"):
        grid.add_column(head, justify="right")
    for quantity in drift.quantities:
        grid.add_row(QUANTITIES[quantity.name], *_cells(quantity))
    console.print(grid)


def _cells(quantity: QuantityDrift) -> tuple[str, ...]:
    return (
        _spread(quantity.trained_on),
        _spread(quantity.now),
        "-" if quantity.trained_on is None else f"{quantity.num_outside:,}",
        "-" if quantity.trained_on is None else f"{quantity.outside_load_pct:.1f} %",
        "-" if quantity.num_rare is None else f"{quantity.num_rare:,}",
    )


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "unknown"
    middle = "" if spread.median is None else f" .. {_number(spread.median)}"
    return f"{_number(spread.low)}{middle} .. {_number(spread.high)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.3g}"
