"""Several bags of a feature per sample, as TorchRec's ``num_poolings`` and ``batch_sizes`` make them, and back.

A table of evenshard's has one bag per feature and sample. A feature with more is listed as so many features, which
share its lookups: clicks, clicks#2, clicks#3. Every lookup counts; of bags, a part of one counts as one. A sequence
has an output per lookup, so that its lookups alone say all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from evenshard.tables.table import Table

_REPEATED = re.compile(r"(.+)#\d+", re.DOTALL)


def with_bags(table: Table, bags: Sequence[float]) -> Table:
    """The table, looked up in so many bags of each feature.

    Args:
        table: with the lookups of one bag of each feature.
        bags: of each feature, per sample; finite.
    """
    if all(number == 1 for number in bags):
        return table
    names, lookups = [], []
    for name, one, number in zip(table.feature_names or (table.name,), table.feature_lookups, bags, strict=True):
        count = 1 if table.is_sequence else max(math.ceil(number), 1)
        names += [name, *(f"{name}#{at}" for at in range(2, count + 1))]
        lookups += [one * number / count] * count
    return replace(
        table,
        pooling_factor=sum(lookups),
        feature_pooling_factors=tuple(lookups) if len(lookups) > 1 else (),
        feature_names=() if names == [table.name] else tuple(names),
    )


def bags_of(table: Table) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of each feature: the lookups of a bag, and the bags per sample. The other way round of ``with_bags``."""
    names, lookups, bags = set(table.feature_names), dict[str, float](), dict[str, float]()
    for at, one in enumerate(table.feature_lookups):
        name = table.feature_names[at] if names else str(at)
        repeated = _REPEATED.fullmatch(name)
        if repeated is not None and repeated[1] in names:
            bags[repeated[1]] += 1
        else:
            lookups[name], bags[name] = one, 1.0
    return tuple(lookups.values()), tuple(bags.values())
