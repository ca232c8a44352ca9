"""A delta file: the tables whose parts change their ranks between two placements, for a job that moves them as it runs.

``evenshard diff old.json new.json --reshard-delta -o delta.json`` writes it. Where the tables stand in the model is
said when it is loaded::

    delta = load_delta("delta.json", model)        # of the running DistributedModelParallel
    reshard(model, delta)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from evenshard.placement.optimizer_state import NUMBERS
from evenshard.placement.parts import TablePart
from evenshard.placement.sharding import DATA_PARALLEL
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.diff.diff import diff
from evenshard.planner.file import read_json, validate_record
from evenshard.planner.request import kept_optimizers
from evenshard.planner.torchrec.entries import TableEntry, table_entry, type_among
from evenshard.planner.torchrec.plan_file import PlanFile, plan_contents
from evenshard.sharders.torchrec_planner import part_of_shard
from evenshard.utils.atomic import atomic_path
from evenshard.utils.errors import BadConfig, BadFile
from evenshard.utils.messages import brief, cut
from evenshard.utils.params import check_ranges

_WHAT = "a delta file"
_REMEDY = "Write it with `evenshard diff old.json new.json --reshard-delta -o`."
RESTART = "save a checkpoint and restart from it with the new plan, after `evenshard convert-checkpoint` if need be"


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
    """What moves live between two placements, and what cannot."""

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
    """What has to move for a job to go from one placement to another while it runs.

    Args:
        old: placement that the job runs with.
        new: placement to go to; its request names the optimizer.
        partial: leave tables where they are that cannot be moved live; they are listed in ``left``.

    Raises:
        BadConfig: if the placements are for other machines or optimizers, or, without ``partial``, if a table cannot
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
            state_is_exact=not NUMBERS[kept[name]][0] or not _cuts_a_part(old, new, name),
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
    """Why tables cannot move, with the tables of each reason."""
    tables_of: dict[str, list[str]] = {}
    for name, why in left.items():
        tables_of.setdefault(why, []).append(name)
    return tuple(f"{why}: {cut(', '.join(names))}" for why, names in tables_of.items())


def save_delta(delta: DeltaFile, path: str | Path) -> None:
    """Writes a delta as a whole or not at all."""
    with atomic_path(path) as draft:
        draft.write_text(json.dumps(delta.model_dump(mode="json"), indent=1, allow_nan=False) + "\n")


def read_delta(path: str | Path) -> DeltaFile:
    """Reads what ``save_delta`` wrote.

    Raises:
        BadFile: if the file is missing, torn, or says something impossible.
    """
    record = validate_record(DeltaFile, read_json(path, _WHAT, _REMEDY), path, _WHAT, _REMEDY)
    try:
        check_ranges(num_devices=record.world_size)
        old, new = (
            plan_contents(
                PlanFile(
                    schema_version=1,
                    world_size=record.world_size,
                    local_world_size=record.local_world_size,
                    compute_device="cuda",
                    tables=entries,
                    lineage={},
                )
            )[0]
            for entries in (
                {name: one.old for name, one in record.tables.items()},
                {name: one.new for name, one in record.tables.items()},
            )
        )
    except BadConfig as error:
        raise BadFile(path, str(error).rstrip("."), _REMEDY) from None
    if old != new:
        raise BadFile(path, "a table has another shape before than after", _REMEDY)
    return record


def _not_live(old: PlacementAnswer, new: PlacementAnswer, name: str) -> str | None:
    """Why a table cannot be moved in a running job; None if it can."""
    if DATA_PARALLEL in (old.type_of_table[name], new.type_of_table[name]):
        return "replicated before or after, and the training's own optimizer updates replicas"
    was, now = old.storage_of_table[name], new.storage_of_table[name]
    if not (was.is_on_device and now.is_on_device):
        return "kept outside of device memory before or after"
    return None


def _cuts_a_part(old: PlacementAnswer, new: PlacementAnswer, name: str) -> bool:
    """Whether columns of one part get apart: they have one number for each row together."""
    edges = {edge for part in old.parts_of_table[name] for edge in part.columns}
    return any(edge not in edges for part in new.parts_of_table[name] for edge in part.columns)


def entry_parts(name: str, entry: TableEntry) -> tuple[TablePart, ...]:
    """Where an entry of a table that is no replica puts its parts; ranks without rows are left out."""
    return tuple(
        part_of_shard(name, rank, one.shard_offsets, one.shard_sizes)
        for rank, one in zip(entry.ranks, entry.shards, strict=True)
        if one.shard_sizes[0]
    )
