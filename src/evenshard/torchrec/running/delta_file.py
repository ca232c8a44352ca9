"""Delta file: the tables that a running job reshards to get from one placement to another.

``evenshard diff old.json new.json --reshard-delta -o delta.json`` writes it. Loading it needs the running model::

    delta = load_delta("delta.json", model)        # a DistributedModelParallel
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
from evenshard.planner.request import match_optimizers
from evenshard.tables.table import SEQUENCE, Table
from evenshard.torchrec.baseline.topology import require_torchrec
from evenshard.torchrec.model import trainable
from evenshard.torchrec.model.modules import LocatedTable, find_sharded_collections, locate_tables, original_collection
from evenshard.torchrec.plan.entries import TableEntry, parts_of_entry, table_entry, table_of_parts
from evenshard.torchrec.plan.file import contents_of
from evenshard.torchrec.plan.plans import parameter_sharding, shards_of

if TYPE_CHECKING:
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.types import EmbeddingModuleShardingPlan

    Delta = dict[str, tuple[float, EmbeddingModuleShardingPlan]]
"""For each collection path, the MB that go to other ranks and the new entries of the collection's tables."""

# For messages on files.
_WHAT = "a delta file"
_REMEDY = "Write it with `evenshard diff old.json new.json --reshard-delta -o`."
# Remedy for changes that a running job cannot make.
RESTART = "save a checkpoint and restart from it with the new plan (see docs/running_jobs.md)"


class TableDelta(BaseModel):
    """A table that is resharded."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    old: TableEntry = Field(description="entry of the running plan")
    new: TableEntry
    weight_bytes: int = Field(ge=0, description="weights that move to another rank")
    state_bytes: int = Field(ge=0, description="optimizer state that moves with the weights")
    state_is_exact: bool = Field(
        description="false if a shard whose optimizer state is one value per row is cut by columns"
    )


class DeltaFile(BaseModel):
    """Tables to reshard while the job runs, and tables that differ but cannot be resharded."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1]
    world_size: int = Field(ge=1)
    local_world_size: int = Field(ge=1, description="ranks per node")
    optimizer: str
    weight_bytes: int = Field(ge=0, description="sum over all tables that move")
    state_bytes: int = Field(ge=0, description="sum over all tables that move")
    tables: dict[str, TableDelta]
    left: dict[str, str] = Field(description="tables that cannot move while the job runs, each with the reason")


def reshard_delta(old: PlacementAnswer, new: PlacementAnswer, partial: bool = False) -> DeltaFile:
    """Compute the moves that take a running job from one placement to another.

    Args:
        old: current placement of the job.
        new: target placement; its request names the optimizer.
        partial: True to leave out tables that cannot move while the job runs, and list them in ``left``.

    Raises:
        BadConfig: if machines or optimizers differ; without ``partial``, if a table cannot move. The message lists
            these tables with their reasons.
    """
    machine = new.request.nodes
    was = old.request.nodes
    if (was.num_devices, was.devices_per_node) != (machine.num_devices, machine.devices_per_node):
        raise BadConfig(
            f"the old placement has {was.num_devices} devices ({was.devices_per_node} per node), the new one "
            f"{new.num_devices} ({machine.devices_per_node} per node), but a running job keeps its ranks. To change "
            f"them, {RESTART}."
        )
    kept = match_optimizers(old.request, new.request)
    in_both = {one.name for one in old.request.tables} & {one.name for one in new.request.tables}
    if (other := next((one for one in new.request.tables if one.name in in_both - kept.keys()), None)) is not None:
        before, now = (one.request.optimizer_of(other.name) for one in (old, new))
        raise BadConfig(
            f"table {brief(other.name)} has {before} in the old placement and {now} in the new one, but a running job "
            f"keeps its optimizer. Place the tables again with --optimizer {before}."
        )
    weight_bytes, state_bytes = Counter[str](), Counter[str]()
    difference = diff(old, new)
    for move in difference.moves:
        weight_bytes[move.table] += move.weight_bytes
        state_bytes[move.table] += move.state_bytes
    left = {table.table: f"different shape ({table.what})" for table in difference.changed}
    left |= dict.fromkeys(difference.added, "not in the job")
    left |= dict.fromkeys(difference.removed, "not in the new placement")
    tables = {}
    for at, table in enumerate(new.request.tables):
        name = table.name
        if name in left or old.parts_of_table[name] == new.parts_of_table[name]:
            continue
        if problem := _find_obstacle(old, new, name):
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
            f"{len(left)} of {len(left) + len(tables)} changed tables cannot move while the job runs. "
            f"{'; '.join(group_reasons(left)).capitalize()}. "
            f"Keep them in place (--partial), or {RESTART}."
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


def group_reasons(left: Mapping[str, str]) -> tuple[str, ...]:
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
    """Load a delta file that ``save_delta`` wrote.

    Raises:
        BadFile: if the file is missing, incomplete, or contradicts itself.
    """
    record = read_record(DeltaFile, read_json(path, _WHAT, _REMEDY), path, _REMEDY)
    try:
        check_ranges(num_devices=record.world_size)
        machine = Nodes(record.world_size, record.local_world_size)
        # Tables and their shapes; ``contents_of`` also checks the entries.
        old, new = (
            contents_of({name: getattr(one, which) for name, one in record.tables.items()}, machine, "cuda")[0]
            for which in ("old", "new")
        )
    except BadConfig as error:
        raise BadFile(path, str(error).rstrip("."), _REMEDY) from None
    if old != new:
        raise BadFile(path, "a table has different shapes in the old and the new placement", _REMEDY)
    return record


def _find_obstacle(old: PlacementAnswer, new: PlacementAnswer, name: str) -> str | None:
    if any(TYPES[one.type_of_table[name]].is_replicated for one in (old, new)):
        return "replicated (data_parallel) in the old or new placement, so the dense optimizer updates it"
    was, now = old.storage_of_table[name], new.storage_of_table[name]
    if not (was.is_on_device and now.is_on_device):
        return "outside of device memory in the old or new placement"
    return None


def _cuts_a_part(old: PlacementAnswer, new: PlacementAnswer, name: str) -> bool:
    """Return True if the new placement cuts the columns of an old part, although they share an optimizer state."""
    edges = {edge for part in old.parts_of_table[name] for edge in part.columns}
    return any(edge not in edges for part in new.parts_of_table[name] for edge in part.columns)


# Into a running model -------------------------------------------------------------------------------------------------


def load_delta(path: str | Path | DeltaFile, model: DistributedModelParallel) -> Delta:
    """Load a delta for a running model: an entry per collection, as in ``DistributedModelParallel.reshard``.

    Args:
        path: a file of ``evenshard diff --reshard-delta -o``, or the result of ``reshard_delta``.
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
            f"the delta is for {delta.world_size} ranks, but the job has {world_size}. To change them, {RESTART}."
        )
    machine = Nodes(delta.world_size, delta.local_world_size)
    modules = find_sharded_collections(model)
    located = locate_tables({path: original_collection(module) for path, module in modules.items()})
    if missing := set(delta.tables) - {one.name for one in located}:
        raise BadConfig(
            f"the model has no table {cut(', '.join(map(brief, sorted(missing))))}. Place the tables of this model."
        )
    result = {}
    for at, module in modules.items():
        of_module = [one for one in located if one.path == at]
        moving = {one.name: delta.tables[one.name] for one in of_module if one.name in delta.tables}
        if not moving:
            continue
        running = _read_running_parts(module, at, of_module)
        together = {one.name: _table_after(one, running[one.name], moving.get(one.name), machine) for one in of_module}
        trainable.check_trainable(list(together.values()), machine, model.device.type)
        entries = EmbeddingModuleShardingPlan()
        for one in of_module:
            if one.name in moving:
                before = module.module_sharding_plan[one.config.name].sharding_type
                own, parts = together[one.name], together[one.name].parts
                # The kernel call stays if the running type includes the new one.
                stays = own.pooling != SEQUENCE and TYPES[own.sharding_type].with_more_columns == before
                written = before if stays else trainable.choose_written_type(own, list(together.values()))
                entry = table_entry(parts, table_of_parts(one.name, parts), machine, model.device.type, written)
                entries[one.config.name] = parameter_sharding(entry, one.config.data_type)
        moved = sum(table.weight_bytes + table.state_bytes for table in moving.values())
        result[at] = (moved / 2**20, entries)  # MB
    return result


def _read_running_parts(module: Any, path: str, located: Sequence[LocatedTable]) -> Mapping[str, tuple[TablePart, ...]]:
    from torchrec.distributed.types import ShardingPlan

    tables = [Table(one.name, *one.shape, 1.0) for one in located]
    parts = shards_of(ShardingPlan({path: module.module_sharding_plan}), tables)
    return {table.name: tuple(part for part in parts if part.table == table.name) for table in tables}


def _table_after(
    located: LocatedTable, running: tuple[TablePart, ...], delta: TableDelta | None, machine: Nodes
) -> trainable.ShardedTable:
    if delta is None:
        return trainable.describe_sharded_table(located, running, machine)
    name, new = located.name, delta.new
    if set(running) != set(parts_of_entry(name, delta.old)):
        raise BadConfig(
            f"table {brief(name)} is not on the ranks of the old placement. Write the delta from the placement that "
            f"the job runs with."
        )
    return trainable.describe_sharded_table(located, parts_of_entry(name, new), machine, frozenset({new.sharding_type}))
