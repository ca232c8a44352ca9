"""The tables of a TorchRec model, and their names in evenshard.

A table has its TorchRec name. Where two collections of a model hold tables of the same name, both get the path of
their collection in front: ``user.ebc.id`` and ``item.ebc.id``. A table's name cannot hold a dot in TorchRec, so the
two kinds of names cannot collide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evenshard.planner.options import place_option
from evenshard.sharders.torchrec_planner import require_torchrec
from evenshard.tables.assumptions import Assumption
from evenshard.tables.table import Table
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief

if TYPE_CHECKING:
    from torch import nn
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    Collections = (
        nn.Module | Mapping[str, EmbeddingBagCollection] | Sequence[EmbeddingBagCollection | EmbeddingBagConfig]
    )

DEFAULT_POOLING_FACTOR: float = place_option("default_pooling_factor").default
"""Lookups of a feature per sample where nothing is known; TorchRec's planner assumes the same."""


@dataclass(frozen=True)
class LocatedTable:
    """A table of a model.

    Attributes:
        name: evenshard's.
        path: path of its collection in the model; "" for the model itself.
        config: TorchRec's record of it; its name is TorchRec's.
    """

    name: str
    path: str
    config: EmbeddingBagConfig

    @property
    def features(self) -> tuple[str, ...]:
        """Those that look the table up; TorchRec takes the table's name where none is given."""
        return tuple(self.config.feature_names or [self.config.name])


def tables_of(
    collections: Collections,
    pooling_factors: Mapping[str, float] | None = None,
    default_pooling_factor: float = DEFAULT_POOLING_FACTOR,
) -> tuple[Table, ...]:
    """The tables, with TorchRec's rows, dims and data types (those of 32, 16 and 8 bits).

    The reuse of indices is not counted; evenshard's features then assume a default, as for any table. A table that
    several features look up has all their lookups; that it sends one embedding for each of them is not modelled.

    Args:
        collections: a model (or one ``EmbeddingBagCollection``), collections by their path in a model, a list of
            collections, or a list of ``EmbeddingBagConfig``.
        pooling_factors: mean lookups per sample, by table or by feature. A name of a table means all its features
            together; other names are features, which add up to their table's.
        default_pooling_factor: pooling factor of each feature that is not named.

    Raises:
        BadConfig: if there are no tables, if one cannot be placed, or if a pooling factor's name is unknown.
    """
    located = located_tables(collections)
    if not located:
        raise BadConfig("there is no EmbeddingBagCollection with tables. Give a model before it is sharded.")
    given = dict(pooling_factors or {})
    known = {one.name for one in located} | {feature for one in located for feature in one.features}
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise BadConfig(
            f"pooling_factors names {brief(unknown)}, which is neither a table nor a feature. Correct its name."
        )
    return tuple(_table(one, given, {other.name for other in located}, default_pooling_factor) for one in located)


def _table(one: LocatedTable, given: Mapping[str, float], names: set[str], default: float) -> Table:
    from torchrec.modules.embedding_configs import DATA_TYPE_NUM_BITS

    if one.name in given:
        pooling = given[one.name]
    else:
        meant_for_others = next((name for name in one.features if name in given and name in names), None)
        if meant_for_others is not None:
            raise BadConfig(
                f"pooling_factors names {brief(meant_for_others)}, which is a table, and a feature of table "
                f"{brief(one.name)}. "
                f"Name table {brief(one.name)} too."
            )
        pooling = sum(given.get(feature, default) for feature in one.features)
    config = one.config
    bits = DATA_TYPE_NUM_BITS.get(config.data_type, 0)
    table = Table(one.name, config.num_embeddings, config.embedding_dim, pooling, weight_bits=bits)
    if problem := table.problem():
        hint = f" ({config.data_type})" if "weight_bits" in problem else ""
        raise BadConfig(f"table {brief(one.name)}: {problem}{hint}. Correct its configuration or its pooling factor.")
    return table


def assumed_pooling(
    collections: Collections,
    pooling_factors: Mapping[str, float] | None = None,
    default_pooling_factor: float = DEFAULT_POOLING_FACTOR,
) -> tuple[Assumption, ...]:
    """The tables of which ``tables_of``, with the same arguments, assumes lookups."""
    given = pooling_factors or {}
    text = f"{default_pooling_factor:g} for each feature that is not named, the default"
    return tuple(
        Assumption(one.name, "pooling_factor", text)
        for one in located_tables(collections)
        if one.name not in given and any(feature not in given for feature in one.features)
    )


def located_tables(collections: Collections) -> tuple[LocatedTable, ...]:
    """The tables of ``collections``, as ``tables_of`` takes them, in TorchRec's order.

    Raises:
        BadConfig: if two tables cannot be told apart.
    """
    found = [(path, config) for path, configs in _configs(collections) for config in configs]
    counts = Counter(config.name for _, config in found)
    located = tuple(
        LocatedTable(qualified_name(path, config.name) if counts[config.name] > 1 else config.name, path, config)
        for path, config in found
    )
    twice = next((name for name, count in Counter(one.name for one in located).items() if count > 1), None)
    if twice is not None:
        raise BadConfig(f"two tables are called {brief(twice)}. Give the model itself, so that paths tell them apart.")
    return located


def qualified_name(path: str, name: str) -> str:
    """A table's name with the path of its collection."""
    return f"{path}.{name}" if path else name


def _configs(collections: Collections) -> list[tuple[str, Sequence[EmbeddingBagConfig]]]:
    """Paths and the configurations found there."""
    require_torchrec()
    from torch import nn
    from torchrec.modules.embedding_configs import EmbeddingBagConfig

    if isinstance(collections, nn.Module):
        collections = collections_in(collections)
    if isinstance(collections, Mapping):
        return [(path, collection.embedding_bag_configs()) for path, collection in collections.items()]
    return [("", [one] if isinstance(one, EmbeddingBagConfig) else one.embedding_bag_configs()) for one in collections]


def collections_in(model: nn.Module, sharders: Sequence[Any] | None = None) -> dict[str, EmbeddingBagCollection]:
    """The collections of a model by path, those that TorchRec's planner would find with these module sharders.

    A collection that stands at several paths counts once, at the first, as in ``DistributedModelParallel``.

    Raises:
        BadConfig: if the sharders take another kind of module of the model too (unpooled collections, collections with
            feature processors or managed collisions): evenshard does not place their tables.
    """
    require_torchrec()
    from torchrec.distributed.sharding_plan import get_default_sharders
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    sharder_of_type = {one.module_type: one for one in (get_default_sharders() if sharders is None else sharders)}
    found: dict[str, EmbeddingBagCollection] = {}
    seen: set[int] = set()

    def visit(path: str, module: nn.Module) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        sharder = sharder_of_type.get(type(module))
        if sharder is None:
            for name, child in module.named_children():
                visit(qualified_name(path, name), child)
        elif isinstance(module, EmbeddingBagCollection):
            found[path] = module
        elif sharder.shardable_parameters(module):
            raise BadConfig(
                f"{path or 'the model'} is of type {type(module).__name__}; evenshard places the tables of "
                f"EmbeddingBagCollections only. Leave it out, and its sharder too."
            )

    visit("", model)
    return found
