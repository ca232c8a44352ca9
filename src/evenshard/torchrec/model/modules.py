"""Modules of a TorchRec model: tables that evenshard places, tables left to TorchRec, and the dense part.

Tables keep their TorchRec names. If two collections have a table of the same name, the path is prefixed:
``user.ebc.id`` and ``item.ebc.id``. TorchRec's table names cannot contain a dot, so prefixed names never collide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief
from evenshard.tables.table import SEQUENCE
from evenshard.torchrec.baseline.topology import require_torchrec

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.modules.embedding_configs import BaseEmbeddingConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

    Collection: TypeAlias = EmbeddingBagCollection | EmbeddingCollection
    Collections: TypeAlias = nn.Module | Mapping[str, Collection] | Sequence[Collection | BaseEmbeddingConfig]
    import torch

# Remedy for an invalid ``tables`` argument.
TABLES_ARE = "Give a file, a data frame, a list of dicts, Tables or TorchRec's configurations, or a model with tables."


@dataclass(frozen=True)
class LocatedTable:
    """A table of a model, with its collection."""

    name: str  # evenshard's name
    path: str  # of its collection; empty for the model itself
    config: BaseEmbeddingConfig  # with TorchRec's name
    collection: Collection | None = None  # None for a configuration alone

    @property
    def features(self) -> tuple[str, ...]:
        """Return the features that look up the table; as in TorchRec, the table's name by default."""
        return tuple(self.config.feature_names or [self.config.name])

    @property
    def pooling(self) -> str:
        """Return the pooling of lookups: sum, mean or none."""
        from torchrec.modules.embedding_configs import EmbeddingBagConfig

        return self.config.pooling.value.lower() if isinstance(self.config, EmbeddingBagConfig) else SEQUENCE

    @property
    def is_weighted(self) -> bool:
        """Return True if lookups have weights."""
        from torchrec.modules.embedding_modules import EmbeddingBagCollection

        return isinstance(self.collection, EmbeddingBagCollection) and bool(self.collection.is_weighted())

    @property
    def shape(self) -> tuple[int, int]:
        """Return the table's rows and columns."""
        return self.config.num_embeddings, self.config.embedding_dim


def locate_tables(collections: Collections, sharders: Sequence[Any] | None = None) -> tuple[LocatedTable, ...]:
    """Return the tables in TorchRec's order; ``collections`` has any form that ``tables_of`` accepts."""
    found = list(_configs(collections, sharders))
    counts = Counter(config.name for _, config, _ in found)
    located = tuple(
        LocatedTable(qualify_name(path, config.name) if counts[config.name] > 1 else config.name, path, config, home)
        for path, config, home in found
    )
    twice = next((name for name, count in Counter(one.name for one in located).items() if count > 1), None)
    if twice is not None:
        raise BadConfig(f"two tables are called {brief(twice)}. Give the whole model, so that their paths differ.")
    return located


def qualify_name(path: str, name: str) -> str:
    """Prefix a table's name with the path of its collection."""
    return f"{path}.{name}" if path else name


def _configs(
    collections: Collections, sharders: Sequence[Any] | None
) -> Iterator[tuple[str, BaseEmbeddingConfig, Collection | None]]:
    require_torchrec()
    from torch import nn
    from torchrec.modules.embedding_configs import BaseEmbeddingConfig

    if isinstance(collections, nn.Module):
        collections = find_collections(collections, sharders)
    if not isinstance(collections, Mapping | Sequence) or isinstance(collections, str):
        raise BadConfig(f"tables is {brief(collections)}. {TABLES_ARE}")
    if not isinstance(collections, Mapping):
        for one in collections:
            if isinstance(one, BaseEmbeddingConfig):
                yield "", one, None
            elif not isinstance(one, nn.Module):
                raise BadConfig(f"tables contains {brief(one)}. {TABLES_ARE}")
            else:
                yield from (("", config, one) for config in configs_of(one))
        return
    for path, collection in collections.items():
        if not isinstance(path, str) or not isinstance(collection, nn.Module):
            raise BadConfig(f"tables contains {brief(collection)} as {brief(path)}. {TABLES_ARE}")
        yield from ((path, config, collection) for config in configs_of(collection))


def configs_of(collection: Collection) -> Sequence[BaseEmbeddingConfig]:
    """Return the configurations of a collection's tables."""
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    word = "embedding_bag_configs" if isinstance(collection, EmbeddingBagCollection) else "embedding_configs"
    configs: Sequence[BaseEmbeddingConfig] = getattr(collection, word)()
    return configs


def find_collections(model: nn.Module, sharders: Sequence[Any] | None = None) -> dict[str, Collection]:
    """Return the collections of a model, by path, that TorchRec's planner would find with these module sharders.

    A collection with several paths is listed only under the first, as in ``DistributedModelParallel``.
    """
    return {path: module for path, module, _ in _find_sharded_modules(model, sharders) if is_placed(module)}


def find_other_modules(model: nn.Module, sharders: Sequence[Any] | None = None) -> dict[str, nn.Module]:
    """Return the modules, by path, that these sharders shard and that evenshard leaves to TorchRec.

    Examples are collections with feature processors, managed collisions, or virtual tables.
    """
    return {path: module for path, module, _ in _find_sharded_modules(model, sharders) if not is_placed(module)}


def find_other_tables(model: Collections, sharders: Sequence[Any] | None = None) -> Iterator[tuple[str, nn.Module]]:
    """Yield the path-prefixed name and the module of each table of a model that evenshard leaves to TorchRec."""
    from torch import nn

    if not isinstance(model, nn.Module):
        return
    for path, module, names in _find_sharded_modules(model, sharders):
        if not is_placed(module):
            yield from ((qualify_name(path, name), module) for name in names)


def is_placed(module: nn.Module) -> bool:
    """Return True if evenshard places a module. It does not place virtual tables, which have their own kernels."""
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

    if not isinstance(module, EmbeddingBagCollection | EmbeddingCollection):
        return False
    return not any(getattr(config, "use_virtual_table", False) for config in configs_of(module))


def _find_sharded_modules(model: nn.Module, sharders: Sequence[Any] | None) -> Iterator[tuple[str, Any, list[str]]]:
    """Yield path, module and table names of each module that the sharders shard, parents first, without duplicates."""
    require_torchrec()
    from torchrec.distributed.sharding_plan import get_default_sharders

    sharder_of_type = {one.module_type: one for one in (get_default_sharders() if sharders is None else sharders)}
    seen: set[int] = set()  # a module may be at several paths

    def visit(path: str, module: nn.Module) -> Iterator[tuple[str, Any, list[str]]]:
        if id(module) in seen:
            return
        seen.add(id(module))
        sharder = sharder_of_type.get(type(module))
        if sharder is None:
            for name, child in module.named_children():
                yield from visit(qualify_name(path, name), child)
        elif names := list(sharder.shardable_parameters(module)):
            yield path, module, names

    return visit("", model)


# Running models -------------------------------------------------------------------------------------------------------


def find_sharded_collections(model: DistributedModelParallel) -> dict[str, Any]:
    """Return the sharded collections of tables by path, without duplicates."""
    from torchrec.distributed.embedding import ShardedEmbeddingCollection
    from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection

    kinds = (ShardedEmbeddingBagCollection, ShardedEmbeddingCollection)
    return {path: module for path, module in model.module.named_modules() if type(module) in kinds}


def original_collection(module: Any) -> Collection:
    """Rebuild the unsharded collection of a sharded one, without weights."""
    import torch
    from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

    meta = torch.device("meta")
    if isinstance(module, ShardedEmbeddingBagCollection):
        return EmbeddingBagCollection(
            tables=module._embedding_bag_configs, is_weighted=module._is_weighted, device=meta
        )
    return EmbeddingCollection(tables=module._embedding_configs, need_indices=module._need_indices, device=meta)


# State values per parameter element of each dense optimizer.
STATES = {"sgd": 0, "momentum": 1, "adagrad": 1, "adam": 2}


def dense_bytes(model: nn.Module, optimizer: str = "adam", sharders: Sequence[Any] | None = None) -> int:
    """Return the memory of the dense model on a rank: parameters, gradients, optimizer state, and buffers.

    ``DistributedModelParallel`` trains the dense model with ``DistributedDataParallel``, whose buckets hold the
    gradients, so gradients count once. Optimizer states have the data types of the parameters. Activations and
    temporary values of an update are not counted. In the third step, which rebuilds the buckets, gradients exist
    twice, unless they are set to None before the forward pass, as in TorchRec's pipelines.

    The model must not be sharded yet, and may be on the meta device; ``optimizer`` is one of ``STATES``. Tables of all
    modules that the sharders shard are left out.
    """
    if optimizer not in STATES:
        raise BadConfig(f"optimizer is {brief(optimizer)}. Choose from {', '.join(STATES)}.")
    kept = trained = 0
    for tensor in _dense_tensors(model, sharders):
        size = tensor.numel() * tensor.element_size()
        kept += size
        trained += size if tensor.requires_grad else 0
    return kept + (1 + STATES[optimizer]) * trained  # one gradient per trained value


def _dense_tensors(model: nn.Module, sharders: Sequence[Any] | None) -> Iterator[torch.Tensor]:
    """Yield the parameters and buffers outside of table modules, without duplicates."""
    sharded = (*find_collections(model, sharders).values(), *find_other_modules(model, sharders).values())
    seen = {id(tensor) for module in sharded for tensor in (*module.parameters(), *module.buffers())}
    for tensor in (*model.parameters(), *model.buffers()):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor
