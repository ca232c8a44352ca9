"""Defaults for values that a table lacks: each is stated and reported, never filled in silently."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Assumption:
    """A value that the user's input does not tell.

    Attributes:
        table: its name.
        column: name of the table's column, such as ``num_rows``.
        text: the value used instead, and why.
    """

    table: str
    column: str
    text: str


def assumed_reuse_bins(table_name: str) -> Assumption:
    """The histogram of a table without a count: see ``reuse.feasible_reuse_bins``."""
    return Assumption(table_name, "reuse_bins", "the DLRM 2021 histogram, moved to what rows and lookups allow")


def assumed_weight_bits(table_name: str, weight_bits: int) -> Assumption:
    """The precision of a table whose source states none."""
    return Assumption(table_name, "weight_bits", f"{weight_bits}, the default")
