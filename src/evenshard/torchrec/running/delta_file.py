"""A delta file: the tables whose parts change ranks between two placements, for a job that moves them while it runs.

``evenshard diff old.json new.json --reshard-delta -o delta.json`` writes it. The model is
given when it is loaded::

    delta = load_delta("delta.json", model)        # of the running DistributedModelParallel
    reshard(model, delta)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from evenshard.base.documents import read_json
from evenshard.base.errors import BadConfig, BadFile, blame_file
from evenshard.base.knobs import check_ranges
from evenshard.base.messages import brief, cut
from evenshard.base.outputs import write_text
from evenshard.base.typed import read_record
from evenshard.placement.memory import STATE_NUMBERS
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import TablePart
from evenshard.placement.sharding import TYPES, type_among
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.diff import diff
from evenshard.planner.request import kept_optimizers
from evenshard.tables.table import SEQUENCE, Table
from evenshard.torchrec.baseline.topology import require_torchrec
from evenshard.torchrec.model.modules import LocatedTable, located_tables, original_collection, sharded_collections
from evenshard.torchrec.model.trainable import ShardedTable, check_trainable, sharded_table, written_type
from evenshard.torchrec.plan.entries import TableEntry, parts_of_entry, table_entry, table_of_parts
from evenshard.torchrec.plan.file import contents_of
from evenshard.torchrec.plan.plans import parameter_sharding, shards_of

if TYPE_CHECKING:
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.types import EmbeddingModuleShardingPlan

    Delta = dict[str, tuple[float, EmbeddingModuleShardingPlan]]
"""What moves, by the path of a collection: MB that go to other ranks, and the new entries of its tables."""

_WHAT = "a delta file"
_REMEDY = "Write it with `evenshard diff old.json new.json --reshard-delta -o`."
RESTART = "save a checkpoint and restart from it with the new plan; docs/running_jobs.md says what loads"


class TableDelta(BaseModel):
    """A table that moves."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    old: TableEntry = Field(description="as it runs, where the plan is evenshard's")
    new: TableEntry
    weight_bytes: int = Field(ge=0, description="bytes of weights that go to another rank")
    state_bytes: int = Field(ge=0, description="bytes of optimizer state that go with them")
    state_is_exact: bool = Field(
        description="false where row-wise Adagrad keeps one number for the columns of a part, and a part is cut"
    )


class DeltaFile(BaseModel):
    """Tables that move live between two placements, and tables that cannot."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1]
    world_size: int = Field(ge=1)
    local_world_size: int = Field(ge=1, description="ranks of a node")
    optimizer: str
    weight_bytes: int = Field(ge=0, description="of all tables that move")
    state_bytes: int = Field(ge=0, description="of all tables that move")
    tables: dict[str, TableDelta]
    left: dict[str, str] = Field(description="tables that differ and cannot move while the job runs: why")


def reshard_delta(old: PlacementAnswer, new: PlacementAnswer, partial: bool = False) -> DeltaFile:
    """Compute the moves that take a running job from one placement to another.

    Args:
        old: current placement of the job.
        new: target placement; its request names the optimizer.
        partial: do not move tables that cannot be moved live; they are listed in ``left``.

    Raises:
        BadConfig: if machines or optimizers differ, or, without ``partial``, if a table cannot
            be moved live: the message names all of them and why.
    """
    machine = new.request.nodes
    was = old.request.nodes
    if (was.num_devices, was.devices_per_node) != (machine.num_devices, machine.devices_per_node):
        raise BadConfig(
            f"the old placement is of {was.num_devices} devices, {was.devices_per_node} of a node, the "
            f"new one of {new.num_devices}, {machine.devices_per_node} of a node: a job keeps its ranks while it "
            f"runs. To change them, {RESTART}."
        )
    kept = kept_optimizers(old.request, new.request)
    in_both = {one.name for one in old.request.tables} & {one.name for one in new.request.tables}
    if (other := next((one for one in new.request.tables if one.name in in_both - kept.keys()), None)) is not None:
        before, now = (one.request.optimizer_of(other.name) for one in (old, new))
        raise BadConfig(
            f"table {brief(other.name)} has {before} in the old placement, {now} in the new one: a job keeps its "
            f"optimizer. Place the tables again with --optimizer {before}."
        )
    weight_bytes, state_bytes = Counter[str](), Counter[str]()
    difference = diff(old, new)
    for move in difference.moves:
        weight_bytes[move.table] += move.weight_bytes
        state_bytes[move.table] += move.state_bytes
    left = {one.table: f"another shape ({one.what})" for one in difference.changed}
    left |= dict.fromkeys(difference.added, "not in the job")
    left |= dict.fromkeys(difference.removed, "not in the new placement")
    tables = {}
    for at, table in enumerate(new.request.tables):
        name = table.name
        if name in left or old.parts_of_table[name] == new.parts_of_table[name]:
            continue
        if problem := _not_live(old, new, name):
            left[name] = problem
            continue
        entries = [
            table_entry(
                parts := one.parts_of_table[name],
                table,
                machine,
                "cuda",
                type_among(new.task.limits_of(at).types, parts, table, machine),
            )
            for one in (old, new)
        ]
        tables[name] = TableDelta(
            old=entries[0],
            new=entries[1],
            weight_bytes=weight_bytes[name],
            state_bytes=state_bytes[name],
            state_is_exact=not STATE_NUMBERS[kept[name]][0] or not _cuts_a_part(old, new, name),
        )
    if left and not partial:
        raise BadConfig(
            f"{len(left)} of {len(left) + len(tables)} tables that differ cannot move while the job runs. "
            f"{'; '.join(reasons_of(left)).capitalize()}. "
            f"Leave them where they are (--partial), or {RESTART}."
        )
    return DeltaFile(
        schema_version=1,
        world_size=machine.num_devices,
        local_world_size=machine.devices_per_node,
        optimizer=new.request.optimizer,
        weight_bytes=sum(one.weight_bytes for one in tables.values()),
        state_bytes=sum(one.state_bytes for one in tables.values()),
        tables=tables,
        left=left,
    )


def reasons_of(left: Mapping[str, str]) -> tuple[str, ...]:
    """Return the reasons why tables cannot move, each with its tables."""
    tables_of: dict[str, list[str]] = {}
    for name, why in left.items():
        tables_of.setdefault(why, []).append(name)
    return tuple(f"{why}: {cut(', '.join(names))}" for why, names in tables_of.items())


def save_delta(delta: DeltaFile, path: str | Path) -> None:
    """Write a delta file atomically."""
    record = delta.model_dump(mode="json", exclude_defaults=True)
    write_text(path, json.dumps(record, indent=1, allow_nan=False) + "\n")


@blame_file
def read_delta(path: str | Path) -> DeltaFile:
    """Load a delta file of ``save_delta``.

    Raises:
        BadFile: if the file is missing, incomplete, or contradicts itself.
    """
    record = read_record(DeltaFile, read_json(path, _WHAT, _REMEDY), path, _REMEDY)
    try:
        check_ranges(num_devices=record.world_size)
        machine = Nodes(record.world_size, record.local_world_size)
        old, new = (
            contents_of({name: getattr(one, which) for name, one in record.tables.items()}, machine, "cuda")[0]
            for which in ("old", "new")
        )
    except BadConfig as error:
        raise BadFile(path, str(error).rstrip("."), _REMEDY) from None
    if old != new:
        raise BadFile(path, "a table has another shape before than after", _REMEDY)
    return record


def _not_live(old: PlacementAnswer, new: PlacementAnswer, name: str) -> str | None:
    if any(TYPES[one.type_of_table[name]].is_replicated for one in (old, new)):
        return "replicated before or after, and the training's own optimizer updates replicas"
    was, now = old.storage_of_table[name], new.storage_of_table[name]
    if not (was.is_on_device and now.is_on_device):
        return "kept outside of device memory before or after"
    return None


def _cuts_a_part(old: PlacementAnswer, new: PlacementAnswer, name: str) -> bool:
    """Return True if the change separates columns of a part whose row-wise state is shared by them."""
    edges = {edge for part in old.parts_of_table[name] for edge in part.columns}
    return any(edge not in edges for part in new.parts_of_table[name] for edge in part.columns)


# Into a running model -------------------------------------------------------------------------------------------------


def load_delta(path: str | Path | DeltaFile, model: DistributedModelParallel) -> Delta:
    """Load a delta for a running model, in the form of ``DistributedModelParallel.reshard``: an entry per collection.

    Args:
        path: path of a file of ``evenshard diff --reshard-delta -o``, or the result of ``reshard_delta``.
        model: the running model.

    Raises:
        BadFile: if the file cannot be used.
        BadConfig: if the model has other tables or ranks, does not run with the old placement, or TorchRec
            cannot train the new placement.
    """
    require_torchrec()
    from torchrec.distributed.types import EmbeddingModuleShardingPlan

    delta = path if isinstance(path, DeltaFile) else read_delta(path)
    world_size = model._env.world_size
    if world_size != delta.world_size:
        raise BadConfig(
            f"the delta is for {delta.world_size} ranks, the job has {world_size}. To change them, {RESTART}."
        )
    machine = Nodes(delta.world_size, delta.local_world_size)
    modules = sharded_collections(model)
    located = located_tables({path: original_collection(module) for path, module in modules.items()})
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
        running = _parts_now(module, at, of_module)
        together = {one.name: _table_after(one, running, moving, machine) for one in of_module}
        check_trainable(list(together.values()), machine, model.device.type)
        entries = EmbeddingModuleShardingPlan()
        for one in of_module:
            if one.name in moving:
                before = module.module_sharding_plan[one.config.name].sharding_type
                way = _type(together[one.name], before, list(together.values()))
                parts = together[one.name].parts
                entry = table_entry(parts, table_of_parts(one.name, parts), machine, model.device.type, way)
                entries[one.config.name] = parameter_sharding(entry, one.config.data_type)
        moved = sum(one.weight_bytes + one.state_bytes for one in moving.values())
        result[at] = (moved / 2**20, entries)
    return result


def _parts_now(module: Any, path: str, located: Sequence[LocatedTable]) -> Mapping[str, tuple[TablePart, ...]]:
    from torchrec.distributed.types import ShardingPlan

    tables = [Table(one.name, *one.shape, 1.0) for one in located]
    parts = shards_of(ShardingPlan({path: module.module_sharding_plan}), tables)
    return {table.name: tuple(part for part in parts if part.table == table.name) for table in tables}


def _table_after(
    located: LocatedTable,
    running: Mapping[str, tuple[TablePart, ...]],
    moving: Mapping[str, TableDelta],
    machine: Nodes,
) -> ShardedTable:
    name = located.name
    if name not in moving:
        return sharded_table(located, running[name], machine)
    if set(running[name]) != set(parts_of_entry(name, moving[name].old)):
        raise BadConfig(
            f"table {brief(name)} does not live where the old placement says. Write the delta from the placement "
            f"that the job runs with."
        )
    new = moving[name].new
    return sharded_table(located, parts_of_entry(name, new), machine, frozenset({new.sharding_type}))


def _type(table: ShardedTable, running: str, together: Sequence[ShardedTable]) -> str:
    """Return the type to write: the running type if it covers the table's, so that the kernel call stays the same."""
    if table.pooling != SEQUENCE and TYPES[table.way].with_more_columns == running:
        return running
    return written_type(table, together)
