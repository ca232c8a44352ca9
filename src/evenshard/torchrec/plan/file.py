"""Files that pass an answer to TorchRec: plans and constraints, as JSON without pickle, which is safe to load.

``evenshard place ... --format torchrec -o plan.json`` writes a plan without the model. Loading it needs the model::

    plan = load_plan("plan.json", model)
    model = DistributedModelParallel(model, plan=plan)

Each entry of ``tables`` has the fields that TorchRec's ``EmbeddingModuleShardingPlan`` serializes.
"""

from __future__ import annotations

import json
import pprint
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenshard.base.documents import read_json
from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.messages import brief
from evenshard.base.outputs import write_text
from evenshard.base.typed import read_record
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import COLUMN_STEP, HOST, TablePart
from evenshard.placement.sharding import COLUMN_WISE, REPLICATED, TABLE_COLUMN_WISE, TYPES, sharding_type, type_among
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.file import load_answer
from evenshard.planner.pricing import reprice_answer
from evenshard.sharders.model import Model
from evenshard.tables.table import Table
from evenshard.torchrec.baseline.topology import DENSE_KERNEL, require_torchrec
from evenshard.torchrec.model.fused_optimizers import AllowedReplicas
from evenshard.torchrec.model.modules import locate_tables
from evenshard.torchrec.model.tables import bags_of
from evenshard.torchrec.plan.entries import (
    PlanFile,
    TableEntry,
    check_local_world_size,
    parts_of_entry,
    prefetches,
    table_entry,
    table_of_parts,
)
from evenshard.torchrec.plan.plans import parts_on_machine, plan_of_parts, warn_of_unsharded_order
from evenshard.torchrec.plan.verify import require_no_problems
from evenshard.torchrec.planner.machine import device_of_process

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import ShardingPlan

    from evenshard.torchrec.plan.plans import Modules

# For messages on files.
_WHAT = "a TorchRec plan"
_REMEDY = "Write it with `evenshard place ... --format torchrec -o`."


def save_plan(
    answer: PlacementAnswer, path: str | Path, local_world_size: int | None = None, compute_device: str = "cuda"
) -> None:
    """Write the plan file atomically; see ``plan_text``."""
    text = plan_text(answer, local_world_size, compute_device)
    write_text(path, text)


def plan_text(answer: PlacementAnswer, local_world_size: int | None = None, compute_device: str = "cuda") -> str:
    """Return the plan as JSON, without TorchRec; devices of the answer become ranks.

    Args:
        local_world_size: ranks per node; by default, that of the answer's machine.
        compute_device: cuda or cpu.

    Raises:
        BadConfig: if the ranks do not fill the nodes, the device type is unknown, or TorchRec lacks a table's kernel.
    """
    nodes = answer.request.nodes
    local_world_size = nodes.devices_per_node if local_world_size is None else local_world_size
    machine = Nodes(nodes.num_devices, check_local_world_size(local_world_size, nodes.num_devices, compute_device))
    parts_of_table = parts_on_machine(answer.parts, answer.request.tables, machine)
    prefetched = prefetches(answer.request.training_pipeline)
    allowed = AllowedReplicas.of(answer.request)
    entries = {}
    for at, table in enumerate(answer.request.tables):
        parts = parts_of_table[table.name]
        own_type = type_among(answer.task.limits_of(at).types, parts, table, machine)
        entries[table.name] = table_entry(parts, table, machine, compute_device, own_type, prefetched)
    plan = PlanFile.model_validate(
        {
            "schema_version": 1,
            "world_size": answer.num_devices,
            "local_world_size": local_world_size,
            "compute_device": compute_device,
            "tables": entries,
            "lineage": dict(answer.lineage),
            "dense_optimizer": allowed.dense_optimizer,
            "replicas_by_name": [
                table.name
                for table in answer.request.tables
                if table.name in allowed.by_name and entries[table.name].sharding_type in REPLICATED
            ],
        }
    )
    return json.dumps(plan.model_dump(mode="json", exclude_defaults=True), indent=1, allow_nan=False) + "\n"


def load_plan(
    path: str | Path, modules: Modules, *, local_world_size: int | None = None, compute_device: str | None = None
) -> ShardingPlan:
    """Load a plan for a model, in the form that ``DistributedModelParallel`` takes.

    Logs a warning if the plan changes the order of pooled outputs.

    Args:
        path: a file that ``save_plan`` wrote.
        modules: the model that will be wrapped, or its collections by path. Tables have the names of ``tables_of``.
        local_world_size: ranks per node; by default, that of the file.
        compute_device: cuda or cpu. By default, the device type of the process, if it has a process group or torchrun
            started it; else that of the file.

    Raises:
        BadFile: if the file is missing, incomplete, or contradicts itself.
        BadConfig: if the model has other tables, the plan replicates a table with a fused optimizer without
            permission, TorchRec is not installed, an argument is invalid, or ``verify`` finds problems with the model
            or with the job of this process.
    """
    record, tables, parts = _read(path)
    compute_device = device_of_process(record.compute_device) if compute_device is None else compute_device
    local_world_size = record.local_world_size if local_world_size is None else local_world_size
    machine = Nodes(record.world_size, check_local_world_size(local_world_size, record.world_size, compute_device))
    replicas = AllowedReplicas(record.dense_optimizer, frozenset(record.replicas_by_name))
    types, prefetched = _type_limits(record), _prefetches(record.tables)
    plan = plan_of_parts(parts, tables, modules, machine, compute_device, types, prefetched, replicas)
    require_no_problems(plan, modules, machine, compute_device, replicas)
    warn_of_unsharded_order(plan, locate_tables(modules))
    return plan


def load_plan_parts(path: str | Path) -> tuple[tuple[TablePart, ...], int]:
    """Return the parts and the number of ranks of a plan file, without TorchRec."""
    record, _, parts = _read(path)
    return parts, record.world_size


def _read(path: str | Path) -> tuple[PlanFile, tuple[Table, ...], tuple[TablePart, ...]]:
    record = read_record(PlanFile, read_json(path, _WHAT, _REMEDY), path, _REMEDY)
    try:
        machine = Nodes(record.world_size, record.local_world_size)
        return record, *contents_of(record.tables, machine, record.compute_device)
    except BadConfig as error:
        raise BadFile(path, str(error).rstrip("."), _REMEDY) from None


def contents_of(
    entries: Mapping[str, TableEntry], machine: Nodes, compute_device: str
) -> tuple[tuple[Table, ...], tuple[TablePart, ...]]:
    """Return the tables of plan entries, with sizes but without lookups, and their parts.

    Raises:
        BadConfig: if an entry differs from the one that ``save_plan`` would write.
    """
    tables: list[Table] = []
    found: list[TablePart] = []
    prefetched = _prefetches(entries)
    for name, entry in entries.items():
        parts = parts_of_entry(name, entry)
        table = table_of_parts(name, parts)
        if problem := table.problem():
            raise BadConfig(f"table {brief(name)}: {problem}")
        whole = parts_on_machine(parts, [table], machine)[name]
        own_type = type_among({entry.sharding_type}, whole, table, machine)
        if entry != table_entry(whole, table, machine, compute_device, own_type, prefetched):
            raise BadConfig(f"the ranks, shards and types of table {brief(name)} contradict each other")
        tables.append(table)
        found.extend(whole)
    return tuple(tables), tuple(found)


def _type_limits(record: PlanFile) -> dict[str, frozenset[str]]:
    return {
        name: frozenset({TABLE_COLUMN_WISE})
        for name, entry in record.tables.items()
        if entry.sharding_type == TABLE_COLUMN_WISE
    }


def _prefetches(entries: Mapping[str, TableEntry]) -> bool | None:
    caches = (entry.cache_params for entry in entries.values())
    return next((one.prefetch_pipeline for one in caches if one is not None), None)


# Constraints ----------------------------------------------------------------------------------------------------------
#
# ``ParameterConstraints`` that bring TorchRec's own planner close to an answer. They fix the sharding type, the shard
# width, the kernel and the cache of each table, and set pooling factors. TorchRec still chooses the ranks, and its
# column shards of a table are equally wide.

# Constraints file as a Python module.
_PYTHON = '''"""ParameterConstraints for TorchRec's EmbeddingShardingPlanner, written by `evenshard place`.

    from {module} import constraints

    planner = EmbeddingShardingPlanner(topology=topology, batch_size=batch_size, constraints=constraints)
"""

from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import CacheParams

TABLES = {tables}
constraints = {{}}
for name, fields in TABLES.items():
    cache = fields.pop("cache_params", None)
    cache_params = None if cache is None else CacheParams(algorithm=CacheAlgorithm.LRU, **cache)
    constraints[name] = ParameterConstraints(cache_params=cache_params, **fields)
'''


def torchrec_constraints(answer: PlacementAnswer) -> dict[str, ParameterConstraints]:
    """Return TorchRec's constraints for an answer, by table name; raise BadConfig if TorchRec lacks a kernel."""
    require_torchrec()
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import CacheParams

    found = {}
    for name, fields in constraint_fields(answer).items():
        cache = fields.pop("cache_params", None)
        cache_params = None if cache is None else CacheParams(algorithm=CacheAlgorithm.LRU, **cache)
        found[name] = ParameterConstraints(cache_params=cache_params, **fields)
    return found


def constraints_text(answer: PlacementAnswer, path: str | Path) -> str:
    """Return the text of a constraints file: a Python module if the path ends in .py, else JSON."""
    fields = constraint_fields(answer)
    if Path(path).suffix == ".py":
        tables = pprint.pformat(fields, width=110, sort_dicts=False)
        return _PYTHON.format(module=Path(path).stem, tables=tables)
    return json.dumps({"schema_version": 1, "tables": fields}, indent=1) + "\n"


def constraint_fields(answer: PlacementAnswer) -> dict[str, dict[str, Any]]:
    """Return the fields of each table's constraints as plain values; raise BadConfig if TorchRec lacks a kernel."""
    machine = answer.request.nodes
    found = {}
    for table in answer.request.tables:
        parts = [part for part in answer.parts if part.table == table.name]
        own_type, storage = sharding_type(parts, table, machine), parts[0].storage
        if storage.kernel == HOST:
            raise BadConfig(f"TorchRec has no kernel {HOST} on GPU ranks. Allow another for table {brief(table.name)}.")
        # On one node, table_column_wise keeps TorchRec from spreading the columns over nodes.
        nodes = {machine.node_of(part.device) for part in parts if len(part.devices) == 1}
        if own_type == COLUMN_WISE and len(nodes) == 1 and machine.num_nodes > 1 and not table.is_sequence:
            own_type = TABLE_COLUMN_WISE
        lookups, bags = bags_of(table)
        fields: dict[str, Any] = {
            "sharding_types": [own_type],
            "compute_kernels": [DENSE_KERNEL if TYPES[own_type].is_replicated else storage.kernel],
            "pooling_factors": list(lookups),
            "is_weighted": table.is_weighted,
        }
        if set(bags) != {1.0}:
            fields["num_poolings"] = list(bags)
        if TYPES[own_type].cuts_columns:
            fields["min_partition"] = _width(table.embedding_dim, len({part.columns for part in parts}))
        if storage.is_cached:
            prefetched = prefetches(answer.request.training_pipeline)
            fields["cache_params"] = {"load_factor": storage.load_factor, "prefetch_pipeline": prefetched}
        found[table.name] = fields
    return found


def _width(columns: int, num_parts: int) -> int:
    """Return the columns of a shard if a table is cut into ``num_parts``, rounded up to a width for FBGEMM."""
    width = -(-columns // num_parts)
    return -(-width // COLUMN_STEP) * COLUMN_STEP


# Placements in use ----------------------------------------------------------------------------------------------------

PLACEMENT, PLAN = "placement.json", "plan.json"  # file names to look for in a folder, in this order


def placement_in_use(path: Path, new: PlacementAnswer, model: Model) -> PlacementAnswer:
    """Load the placement in use as an answer, from placement.json, evenshard's plan file, or a folder with either.

    A plan file has no lookups, so its times are predicted with the lookups of the new answer's tables.

    Raises:
        BadFile: if the file is neither, or its tables or ranks differ from the new answer's.
    """
    if path.is_dir():
        path = next((path / name for name in (PLACEMENT, PLAN) if (path / name).exists()), path / PLACEMENT)
    content = read_json(path, "a placement", "Give placement.json, or evenshard's plan for TorchRec.")
    if "world_size" not in content:
        return load_answer(path)
    parts, world_size = load_plan_parts(path)
    if world_size != new.num_devices:
        problem = f"is a plan for {world_size} ranks, but the new placement has {new.num_devices}"
        raise BadFile(path, problem, "Give the placement.json that was written with the plan.")
    try:
        return reprice_answer(new, parts, model)
    except BadConfig as error:
        problem = f"is a plan for other tables ({str(error).rstrip('.')})"
        raise BadFile(path, problem, "Give the placement.json that was written with the plan.") from None
