"""Drift as text for the terminal: the verdict, why, and each quantity."""

from __future__ import annotations

from typing import TextIO

from evenshard.stages.decisions.drift import Drift, QuantityDrift, Spread
from evenshard.utils.console import plain_console, plain_grid
from evenshard.utils.messages import printable

_WIDTH = 110
"""Of the table, at least."""
NAMES = {
    "num_rows": "rows",
    "embedding_dim": "dim",
    "pooling_factor": "lookups per sample",
    "reuse": "reuse of an index",
}


def print_drift(drift: Drift, model: str, file: TextIO | None = None) -> None:
    """Prints it.

    Args:
        model: the model that the tables are compared with.
        file: output; None for stdout. Colours go to terminals only.
    """
    console = plain_console(file, _WIDTH)
    count = "The table is" if drift.num_tables == 1 else f"The {drift.num_tables:,} tables are"
    if drift.retrain_due:
        console.print(
            f"Retrain: {printable(model)} does not cover what it is asked for.", style="bold red", soft_wrap=True
        )
    else:
        console.print(f"{count} covered by {printable(model)}.", style="bold green", soft_wrap=True)
    for reason in drift.reasons:
        console.print(f"- {printable(reason)}.", soft_wrap=True)
    for remark in drift.remarks:
        console.print(f"Note: {printable(remark)}.", style="dim", soft_wrap=True)
    grid = plain_grid()
    grid.add_column("")
    for head in ("trained on", "now", "outside", "of the load", "rare"):
        grid.add_column(head, justify="right")
    for one in drift.quantities:
        grid.add_row(NAMES[one.name], *_cells(one))
    console.print(grid)


def _cells(one: QuantityDrift) -> tuple[str, ...]:
    return (
        _spread(one.trained_on),
        _spread(one.now),
        "-" if one.trained_on is None else f"{one.num_outside:,}",
        "-" if one.trained_on is None else f"{one.outside_load_pct:.1f} %",
        "-" if one.num_rare is None else f"{one.num_rare:,}",
    )


def _spread(spread: Spread | None) -> str:
    """Smallest, middle and largest."""
    if spread is None:
        return "unknown"
    middle = "" if spread.median is None else f" .. {_number(spread.median)}"
    return f"{_number(spread.low)}{middle} .. {_number(spread.high)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.3g}"
