"""The sharded collections of a running ``DistributedModelParallel``, and deltas of their plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenshard.placement.machine import Machine
from evenshard.placement.parts import TablePart
from evenshard.placement.sharding import SHARDING_TYPES, TYPES
from evenshard.planner.torchrec.delta_file import RESTART, DeltaFile, TableDelta, entry_parts, read_delta
from evenshard.planner.torchrec.entries import table_entry, type_among
from evenshard.planner.torchrec.modules import LocatedTable, located_tables
from evenshard.planner.torchrec.plans import parameter_sharding, shards_of
from evenshard.planner.torchrec.trainable import ShardedTable, check_trainable, written_type
from evenshard.sharders.torchrec_planner import require_torchrec
from evenshard.tables.table import SEQUENCE, Table
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief, cut

if TYPE_CHECKING:
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.types import EmbeddingModuleShardingPlan

    from evenshard.planner.torchrec.modules import Collection

    Delta = dict[str, tuple[float, EmbeddingModuleShardingPlan]]
"""What moves, by the path of a collection: MB that go to other ranks, and the new entries of its tables."""


def load_delta(path: str | Path | DeltaFile, model: DistributedModelParallel) -> Delta:
    """A delta for a running model, in the form that ``DistributedModelParallel.reshard`` takes: one entry a collection.

    Args:
        path: path of a file of ``evenshard diff --reshard-delta -o``, or what ``reshard_delta`` returned.
        model: the model as it runs.

    Raises:
        BadFile: if the file cannot be used.
        BadConfig: if the model has other tables or ranks, runs with another plan than the old placement, or TorchRec
            could not train the tables so.
    """
    require_torchrec()
    from torchrec.distributed.types import EmbeddingModuleShardingPlan

    delta = path if isinstance(path, DeltaFile) else read_delta(path)
    world_size = model._env.world_size
    if world_size != delta.world_size:
        raise BadConfig(
            f"the delta is for {delta.world_size} ranks, the job has {world_size}. To change them, {RESTART}."
        )
    machine = Machine(delta.world_size, delta.local_world_size)
    modules = sharded_collections(model)
    located = located_tables({path: unsharded(module) for path, module in modules.items()})
    if missing := set(delta.tables) - {one.name for one in located}:
        raise BadConfig(
            f"the model has no table {cut(', '.join(map(brief, sorted(missing))))}. Place the model's tables."
        )
    result = {}
    for at, module in modules.items():
        of_module = [one for one in located if one.path == at]
        moving = {one.name: delta.tables[one.name] for one in of_module if one.name in delta.tables}
        if not moving:
            continue
        running = _running(module, at, of_module)
        together = {one.name: _sharded(one, running, moving, machine) for one in of_module}
        check_trainable(list(together.values()), machine, model.device.type)
        entries = EmbeddingModuleShardingPlan()
        for one in of_module:
            if one.name in moving:
                before = module.module_sharding_plan[one.config.name].sharding_type
                way = _type(together[one.name], before, list(together.values()))
                entry = table_entry(together[one.name].parts, _table(one), machine, model.device.type, way)
                entries[one.config.name] = parameter_sharding(entry, one.config.data_type)
        moved = sum(one.weight_bytes + one.state_bytes for one in moving.values())
        result[at] = (moved / 2**20, entries)
    return result


def sharded_collections(model: DistributedModelParallel) -> dict[str, Any]:
    """The sharded collections of tables by path, each once."""
    from torchrec.distributed.embedding import ShardedEmbeddingCollection
    from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection

    kinds = (ShardedEmbeddingBagCollection, ShardedEmbeddingCollection)
    return {path: module for path, module in model.module.named_modules() if type(module) in kinds}


def unsharded(module: Any) -> Collection:
    """The collection that a sharded one is of, without weights."""
    import torch
    from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

    meta = torch.device("meta")
    if isinstance(module, ShardedEmbeddingBagCollection):
        return EmbeddingBagCollection(
            tables=module._embedding_bag_configs, is_weighted=module._is_weighted, device=meta
        )
    return EmbeddingCollection(tables=module._embedding_configs, need_indices=module._need_indices, device=meta)


def _running(module: Any, path: str, located: Sequence[LocatedTable]) -> Mapping[str, tuple[TablePart, ...]]:
    """The parts of each table of a collection as they run."""
    from torchrec.distributed.types import ShardingPlan

    tables = [_table(one) for one in located]
    parts = shards_of(ShardingPlan({path: module.module_sharding_plan}), tables)
    return {table.name: tuple(part for part in parts if part.table == table.name) for table in tables}


def _table(located: LocatedTable) -> Table:
    return Table(located.name, located.config.num_embeddings, located.config.embedding_dim, 1.0)


def _sharded(
    located: LocatedTable,
    running: Mapping[str, tuple[TablePart, ...]],
    moving: Mapping[str, TableDelta],
    machine: Machine,
) -> ShardedTable:
    """A table of a collection as it will be sharded."""
    from torchrec.modules.embedding_configs import EmbeddingBagConfig

    name, config = located.name, located.config
    parts = running[name]
    allowed = frozenset(SHARDING_TYPES)
    if name in moving:
        if set(parts) != set(entry_parts(name, moving[name].old)):
            raise BadConfig(
                f"table {brief(name)} does not live where the old placement says. Write the delta from the placement "
                f"that the job runs with."
            )
        parts = entry_parts(name, moving[name].new)
        allowed = frozenset({moving[name].new.sharding_type})
    return ShardedTable(
        name=name,
        pooling=config.pooling.value.lower() if isinstance(config, EmbeddingBagConfig) else SEQUENCE,
        way=type_among(allowed, parts, _table(located), machine),
        allowed=frozenset(SHARDING_TYPES),
        parts=parts,
    )


def _type(table: ShardedTable, running: str, together: Sequence[ShardedTable]) -> str:
    """The type to write: the running one where the table is a case of it, so that its kernel call stays."""
    if table.pooling != SEQUENCE and TYPES[table.way].with_more_columns == running:
        return running
    return written_type(table, together)
