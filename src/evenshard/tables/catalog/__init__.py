"""Public table sets, one data file each; the file says where its numbers come from.

Two forms of data file:

- one column per table: ``num_rows`` by column, ``hotness`` (lookups per sample, 1 where left out), one
  ``embedding_dim``. It is not published how often such a batch repeats an index: the reuse histogram is the
  stated default.
- groups of equal tables, each with its own dim; their indices follow a power law with ``power_law_alpha``, which gives
  the reuse histogram. A shared group has one table for all hotnesses of its list, any other group one table for each.
"""

from __future__ import annotations

import difflib
import json
from importlib import resources
from typing import Any

from evenshard.tables.reuse import feasible_reuse_bins, power_law_reuse_bins
from evenshard.tables.table import Table
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief, cut
from evenshard.utils.params import check_ranges

_SUFFIX = ".json"


def catalog_names() -> tuple[str, ...]:
    """Names of the public table sets, in alphabetical order."""
    files = (entry.name for entry in resources.files(__package__).iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in files if name.endswith(_SUFFIX)))


def load_catalog(name: str, batch_size: int, embedding_dim: int | None = None) -> tuple[Table, ...]:
    """The tables of a public set.

    Args:
        name: one of ``catalog_names()``.
        batch_size: samples per batch of the reuse histograms.
        embedding_dim: the dim of every table; None keeps the one that the data file states.

    Raises:
        BadConfig: an unknown name, an impossible number, or a dim for a set that publishes its own dim for each table.
    """
    check_ranges(batch_size=batch_size)
    if embedding_dim is not None:
        check_ranges(embedding_dim=embedding_dim)
    content = _read(name)
    if "groups" not in content:
        return _columns(content, batch_size, embedding_dim)
    if embedding_dim is not None:
        raise BadConfig(f"{name} publishes an embedding dim for each table. Leave embedding_dim ({embedding_dim}) out.")
    return _groups(content, batch_size)


def _read(name: str) -> dict[str, Any]:
    known = catalog_names()
    if name not in known:
        closest = difflib.get_close_matches(cut(name), known, n=len(known), cutoff=0.0)
        raise BadConfig(f"There is no table set {brief(name)} in the catalogue. Choose one of: {', '.join(closest)}.")
    text = resources.files(__package__).joinpath(name + _SUFFIX).read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def _columns(content: dict[str, Any], batch_size: int, embedding_dim: int | None) -> tuple[Table, ...]:
    rows_of: dict[str, int] = content["num_rows"]
    hotness: list[int] = content.get("hotness", [1] * len(rows_of))
    dim = embedding_dim or int(content["embedding_dim"])
    return tuple(
        Table(column, rows, dim, float(lookups), feasible_reuse_bins(rows, lookups * batch_size))
        for (column, rows), lookups in zip(rows_of.items(), hotness, strict=True)
    )


def _groups(content: dict[str, Any], batch_size: int) -> tuple[Table, ...]:
    alpha = float(content["power_law_alpha"])
    tables: list[Table] = []
    for group in content["groups"]:
        rows, dim = int(group["num_rows"]), int(group["embedding_dim"])
        for pooling in [sum(group["hotness"])] if group["shared"] else group["hotness"]:
            bins = power_law_reuse_bins(rows, pooling * batch_size, alpha)
            for _ in range(group["count"]):
                tables.append(Table(f"t{len(tables):03d}", rows, dim, float(pooling), bins))
    return tuple(tables)
