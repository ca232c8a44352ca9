"""Conversion of a TorchRec model's tables to evenshard's ``Table``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief
from evenshard.planner.knobs import TableSources
from evenshard.tables.assumptions import Assumption, TableSet, apply_pooling_factors
from evenshard.tables.records import DATA_TYPE_OF, UNUSED_FIELDS, note_unused_field
from evenshard.tables.table import DATA_TYPES, SEQUENCE, USUAL_DATA_TYPES, Table
from evenshard.torchrec.model.modules import LocatedTable, find_other_tables, locate_tables

if TYPE_CHECKING:
    from evenshard.torchrec.model.modules import Collections

# Default lookups per sample and feature; TorchRec's planner has the same default.
DEFAULT_POOLING_FACTOR: float = TableSources.default_pooling_factor
LEFT_TO_TORCHREC = "module"  # column of assumptions about tables that evenshard does not place
# Fields of TorchRec's configurations that a ``Table`` uses.
USED_FIELDS = ("num_embeddings", "embedding_dim", "name", "data_type", "feature_names", "pooling")
# Name of a further bag of a feature, such as clicks#2; see ``with_bags``.
_REPEATED = re.compile(r"(.+)#\d+", re.DOTALL)


def tables_of(
    collections: Collections,
    pooling_factors: Mapping[str, float | Sequence[float]] | None = None,
    default_pooling_factor: float = DEFAULT_POOLING_FACTOR,
    sharders: Sequence[Any] | None = None,
) -> tuple[Table, ...]:
    """Convert TorchRec's table configurations to tables, with evenshard's default for the reuse of indices.

    Args:
        collections: a model (or one collection), collections by their path in a model, a list of collections, or a list
            of ``EmbeddingBagConfig`` or ``EmbeddingConfig``.
        pooling_factors: mean lookups per sample, by table or by feature; see ``apply_pooling_factors``.
        default_pooling_factor: pooling factor of each feature that ``pooling_factors`` does not name.
        sharders: module sharders, which decide if sequence indices are deduplicated; by default TorchRec's.

    Raises:
        BadConfig: if there are no tables, if a table cannot be placed, or if a pooling factor's name is unknown.
    """
    return table_set_of(collections, pooling_factors, default_pooling_factor, sharders).tables


def table_set_of(
    collections: Collections,
    pooling_factors: Mapping[str, float | Sequence[float]] | None = None,
    default_pooling_factor: float = DEFAULT_POOLING_FACTOR,
    sharders: Sequence[Any] | None = None,
) -> TableSet:
    """Return the tables of ``tables_of``, with the assumptions about them and the settings that are ignored."""
    located = locate_tables(collections, sharders)
    if not located:
        raise BadConfig(
            "the model has no EmbeddingBagCollection or EmbeddingCollection with tables. Give an unsharded model."
        )
    deduplicates = _deduplicates(sharders)
    tables = tuple(_table(one, default_pooling_factor, deduplicates) for one in located)
    which = " that is not named" if pooling_factors else ""
    text = f"{default_pooling_factor:g} for each feature{which}, the default"
    known = TableSet(tables, tuple(Assumption(table.name, "pooling_factor", text) for table in tables))
    known = apply_pooling_factors(known, pooling_factors)
    tables, assumed = known.tables, known.assumptions
    unknown = (*TableSet.of(tables).assumptions, *list_unused_settings(located))
    others = [
        Assumption(name, LEFT_TO_TORCHREC, f"{type(module).__name__}, which is left to TorchRec")
        for name, module in find_other_tables(collections, sharders)
    ]
    return TableSet(tables, (*assumed, *unknown, *others))


def _table(one: LocatedTable, default: float, deduplicates: bool) -> Table:
    config, pooling = one.config, one.pooling
    lookups = (default,) * len(one.features)
    data_type = DATA_TYPE_OF.get(config.data_type.value, config.data_type.value.lower())
    if data_type not in DATA_TYPES:
        raise BadConfig(
            f"table {brief(one.name)}: data_type is {config.data_type.value}. Choose from "
            f"{', '.join((*DATA_TYPES, *map(str.lower, DATA_TYPE_OF)))}."
        )
    table = Table(
        one.name,
        config.num_embeddings,
        config.embedding_dim,
        sum(lookups),
        weight_bits=DATA_TYPES[data_type],
        data_type="" if data_type in USUAL_DATA_TYPES.values() else data_type,
        pooling=pooling,
        is_weighted=one.is_weighted,
        feature_names=() if one.features == (one.name,) else one.features,
        feature_pooling_factors=lookups if len(lookups) > 1 else (),
        is_deduplicated=deduplicates and pooling == SEQUENCE,
        module=one.path,
    )
    if problem := table.problem():
        raise BadConfig(f"table {brief(one.name)}: {problem}. Correct its configuration or its pooling factor.")
    return table


def _deduplicates(sharders: Sequence[Any] | None) -> bool:
    from torchrec.distributed.embedding import EmbeddingCollectionSharder, get_ec_index_dedup

    own = [one for one in sharders or () if isinstance(one, EmbeddingCollectionSharder)]
    return get_ec_index_dedup() or any(getattr(one, "_use_index_dedup", False) for one in own)


# Several bags of a feature -------------------------------------------------------------------------------------------
#
# TorchRec's ``num_poolings`` and ``batch_sizes`` allow them; an evenshard table has one bag per feature and sample. A
# feature with several bags becomes that many features, which share its lookups: clicks, clicks#2, clicks#3. Lookups are
# counted exactly; the number of bags is rounded up. Sequences need only the number of lookups.


def with_bags(table: Table, bags: Sequence[float]) -> Table:
    """Convert a table with the lookups of one bag per feature to one with ``bags`` bags per sample of each feature."""
    if all(number == 1 for number in bags):
        return table
    names, lookups = [], []
    for name, one, number in zip(table.feature_names or (table.name,), table.feature_lookups, bags, strict=True):
        count = 1 if table.is_sequence else max(math.ceil(number), 1)  # sequences have no bags
        names += [name, *(f"{name}#{at}" for at in range(2, count + 1))]
        lookups += [one * number / count] * count
    return replace(
        table,
        pooling_factor=sum(lookups),
        feature_pooling_factors=tuple(lookups) if len(lookups) > 1 else (),
        feature_names=() if names == [table.name] else tuple(names),
    )


def bags_of(table: Table) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the lookups per bag, and the bags per sample, of each feature: the inverse of ``with_bags``."""
    names, lookups, bags = set(table.feature_names), dict[str, float](), dict[str, float]()
    for at, one in enumerate(table.feature_lookups):
        name = table.feature_names[at] if names else str(at)
        repeated = _REPEATED.fullmatch(name)
        if repeated is not None and repeated[1] in names:
            bags[repeated[1]] += 1
        else:
            lookups[name], bags[name] = one, 1.0
    return tuple(lookups.values()), tuple(bags.values())


# Settings without effect ----------------------------------------------------------------------------------------------


def list_unused_settings(located: Sequence[LocatedTable]) -> Iterator[Assumption]:
    """Yield the settings of the tables' configurations that the answer does not use."""
    for one in located:
        for name in list_changed_fields(one.config):
            if name not in USED_FIELDS:
                why = UNUSED_FIELDS.get(name, "unknown to evenshard")
                yield note_unused_field(one.name, name, why)


def list_changed_fields(record: Any) -> dict[str, Any]:
    """Return the fields of a TorchRec dataclass that differ from their defaults, with their values."""
    found = {}
    for one in fields(record):
        value = getattr(record, one.name)
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if value != default and not (one.name == "init_fn" and _is_usual(value)):  # TorchRec fills in init_fn
            found[one.name] = value
    return found


def _is_usual(init_fn: Any) -> bool:
    from torch import nn

    return isinstance(init_fn, partial) and init_fn.func is nn.init.uniform_
