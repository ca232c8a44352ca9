"""The tables of a TorchRec model as evenshard's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evenshard.planner.options import place_option
from evenshard.planner.torchrec.config_fields import unused_settings
from evenshard.planner.torchrec.modules import LocatedTable, located_tables, other_tables_in
from evenshard.tables.assumptions import Assumption, TableSet
from evenshard.tables.named_lookups import with_pooling_factors
from evenshard.tables.table import DATA_TYPES, SEQUENCE, USUAL_DATA_TYPES, Table
from evenshard.tables.torchrec_configs import DATA_TYPE_OF
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief

if TYPE_CHECKING:
    from evenshard.planner.torchrec.modules import Collections

DEFAULT_POOLING_FACTOR: float = place_option("default_pooling_factor").default
"""Lookups of a feature per sample where nothing is known; TorchRec's planner assumes the same."""
LEFT_TO_TORCHREC = "module"
"""Column of the assumptions that name the tables which evenshard does not place."""


def tables_of(
    collections: Collections,
    pooling_factors: Mapping[str, float | Sequence[float]] | None = None,
    default_pooling_factor: float = DEFAULT_POOLING_FACTOR,
    sharders: Sequence[Any] | None = None,
) -> tuple[Table, ...]:
    """The tables as TorchRec's configurations describe them.

    The reuse of indices is not counted; evenshard's features then assume a default, as for any table.

    Args:
        collections: a model (or one collection), collections by their path in a model, a list of collections, or a list
            of ``EmbeddingBagConfig`` or ``EmbeddingConfig``.
        pooling_factors: mean lookups per sample, by table or by feature; see ``with_pooling_factors``.
        default_pooling_factor: pooling factor of each feature that is not named.
        sharders: sharders of modules, which say whether sequences are deduplicated; TorchRec's default ones where left
            out.

    Raises:
        BadConfig: if there are no tables, if one cannot be placed, or if a pooling factor's name is unknown.
    """
    return table_set_of(collections, pooling_factors, default_pooling_factor, sharders).tables


def table_set_of(
    collections: Collections,
    pooling_factors: Mapping[str, float | Sequence[float]] | None = None,
    default_pooling_factor: float = DEFAULT_POOLING_FACTOR,
    sharders: Sequence[Any] | None = None,
) -> TableSet:
    """As ``tables_of``, with what is assumed about the tables and what their configurations say in vain."""
    located = located_tables(collections, sharders)
    if not located:
        raise BadConfig(
            "there is no EmbeddingBagCollection or EmbeddingCollection with tables. Give a model before it is sharded."
        )
    deduplicates = _deduplicates(sharders)
    tables = tuple(_table(one, default_pooling_factor, deduplicates) for one in located)
    which = " that is not named" if pooling_factors else ""
    text = f"{default_pooling_factor:g} for each feature{which}, the default"
    known = TableSet(tables, tuple(Assumption(table.name, "pooling_factor", text) for table in tables))
    known = with_pooling_factors(known, pooling_factors)
    tables, assumed = known.tables, known.assumptions
    unknown = (*TableSet.of(tables).assumptions, *unused_settings(located))
    return TableSet(tables, (*assumed, *unknown, *_left_to_torchrec(collections, sharders)))


def _left_to_torchrec(collections: Collections, sharders: Sequence[Any] | None) -> Iterator[Assumption]:
    """The tables of a model that are not placed."""
    from torch import nn

    if isinstance(collections, nn.Module):
        for name, module in other_tables_in(collections, sharders):
            yield Assumption(name, LEFT_TO_TORCHREC, f"{type(module).__name__}, which is left to TorchRec")


def _table(one: LocatedTable, default: float, deduplicates: bool) -> Table:
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    config = one.config
    lookups = (default,) * len(one.features)
    data_type = DATA_TYPE_OF.get(config.data_type.value, config.data_type.value.lower())
    if data_type not in DATA_TYPES:
        raise BadConfig(
            f"table {brief(one.name)}: data_type is {config.data_type.value}, not one of "
            f"{', '.join((*DATA_TYPES, *map(str.lower, DATA_TYPE_OF)))}. Correct its configuration."
        )
    pooling = config.pooling.value.lower() if isinstance(config, EmbeddingBagConfig) else SEQUENCE
    bag = one.collection if isinstance(one.collection, EmbeddingBagCollection) else None
    table = Table(
        one.name,
        config.num_embeddings,
        config.embedding_dim,
        sum(lookups),
        weight_bits=DATA_TYPES[data_type],
        data_type="" if data_type in USUAL_DATA_TYPES.values() else data_type,
        pooling=pooling,
        is_weighted=bag is not None and bag.is_weighted(),
        feature_names=() if one.features == (one.name,) else one.features,
        feature_pooling_factors=lookups if len(lookups) > 1 else (),
        is_deduplicated=deduplicates and pooling == SEQUENCE,
        module=one.path,
    )
    if problem := table.problem():
        raise BadConfig(f"table {brief(one.name)}: {problem}. Correct its configuration or its pooling factor.")
    return table


def _deduplicates(sharders: Sequence[Any] | None) -> bool:
    """Whether sequences send each distinct index of a device's samples once."""
    from torchrec.distributed.embedding import EmbeddingCollectionSharder, get_ec_index_dedup

    own = [one for one in sharders or () if isinstance(one, EmbeddingCollectionSharder)]
    return get_ec_index_dedup() or any(getattr(one, "_use_index_dedup", False) for one in own)
