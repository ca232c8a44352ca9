"""Verification of a plan of any planner before a job starts; it lists all problems.

::

    found = verify("plan.json", model, ShardingEnv.from_process_group(dist.group.WORLD))
    found.problems, found.checked, found.unchecked

Ranks follow TorchRec's runtime: it cuts the rows of ``table_row_wise`` tables, and of each column part of
``grid_shard`` tables, over the ranks of a node. A plan for other nodes sends lookups to ranks that have other rows.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief, cut
from evenshard.base.units import gb_to_bytes, size_text
from evenshard.placement.memory import OPTIMIZERS
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import COLUMN_STEP, KEY_VALUE, MAX_GPU_COLUMNS, TablePart, row_starts
from evenshard.placement.placement import find_broken_limit, list_memory_problems, require_row_wise_means
from evenshard.placement.sharding import REPLICATED, REPLICATED_DATA_TYPES, SHARDING_TYPES, TYPES, tiling_problem
from evenshard.placement.task import used_bytes
from evenshard.planner.memory import default_memory_gb
from evenshard.planner.output_order import BY_NAME, order_changes, output_orders
from evenshard.planner.request import PlacementRequest, caps_of
from evenshard.price.hardware import DEFAULT_HARDWARE
from evenshard.tables.table import Table
from evenshard.torchrec.baseline.topology import (
    DENSE_KERNEL,
    KERNELS_OF_TABLES,
    UNLIMITED_BYTES,
    replica,
    require_torchrec,
)
from evenshard.torchrec.model.fused_optimizers import AllowedReplicas, FusedOptimizer, find_fused_optimizers
from evenshard.torchrec.model.modules import LocatedTable, find_other_tables, locate_tables, qualify_name
from evenshard.torchrec.model.tables import tables_of
from evenshard.torchrec.model.trainable import ANY_TYPE, ShardedTable, list_untrainable
from evenshard.torchrec.plan.entries import TableEntry, parts_of_entry
from evenshard.torchrec.plan.layout import Layout, read_layout
from evenshard.torchrec.plan.plans import parameter_sharding, plan_orders

if TYPE_CHECKING:
    from torchrec.distributed.types import ShardingEnv, ShardingPlan

    from evenshard.torchrec.plan.plans import Modules

# Data types that FBGEMM's fused kernels train: on CPUs as tried with FBGEMM 1.8, on GPUs except for integers.
TRAINED_DATA_TYPES = {"cpu": ("fp32", "fp16"), "cuda": ("fp32", "fp16", "bf16", "fp8")}
# TorchRec's other kernels that train; evenshard does not place them.
OTHER_KERNELS = ("customized_kernel", "fused_triton", *(f"{one}_virtual_table" for one in ("ssd", "dram", "dram_ssd")))
_PLACEMENT = re.compile(r"rank:(\d+)/\w+(?::(\d+))?")


@dataclass(frozen=True)
class Job:
    """Ranks of a job, grouped as TorchRec's runtime groups them."""

    world_size: int  # ranks that share the tables: all, or those of a sharding group of 2D parallelism
    node_size: int  # ranks over which TorchRec cuts the rows of table_row_wise and grid_shard tables
    local_world_size: int = 0  # ranks per host, which number its GPUs; 0 with 2D groups, which number them anew

    @staticmethod
    def of(world_size: int, sharding_group_size: int | None = None, node_group_size: int | None = None) -> Job:
        """Return the job of this environment (LOCAL_WORLD_SIZE, ...); raise BadConfig if groups are impossible."""
        require_torchrec()
        from torchrec.distributed import comm

        local = comm.get_local_size(world_size)
        if sharding_group_size is None:
            try:
                return Job(world_size, comm.get_topology_group_world_size(world_size), local)
            except ValueError as error:
                raise BadConfig(f"{error}. Correct TORCHREC_RESOLVED_POD_SIZE.") from None
        node = node_group_size or local
        if world_size % sharding_group_size or sharding_group_size % node:
            sizes = f"sharding groups of {sharding_group_size} ranks with nodes of {node}"
            raise BadConfig(f"{world_size} ranks cannot form {sizes}. Give sizes that divide each other.")
        return Job(sharding_group_size, node)

    @staticmethod
    def of_env(env: ShardingEnv) -> Job:
        """Return the job of TorchRec's environment, which may be a ``ShardingEnv2D``."""
        whole = getattr(env, "global_world_size", None)
        return Job.of(env.world_size) if whole is None else Job.of(whole, env.world_size, env.node_group_size)


@dataclass
class Verification:
    """Problems of a plan, and what was checked."""

    num_tables: int
    problems: list[str] = field(default_factory=list)  # each one line: what is wrong, where, and what to do
    checked: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)  # each with the argument that it needs


def verify(
    plan: str | Path | ShardingPlan,
    model: Modules | None = None,
    env: ShardingEnv | Job | None = None,
    *,
    against: str | Path | ShardingPlan | None = None,
    memory_cap_gb: float | None = None,
    hardware: str | None = None,
    dense_optimizer: str = "",
    sharders: Sequence[Any] | None = None,
) -> Verification:
    """Check a plan before a job starts, and list all problems.

    Args:
        plan: placement.json, evenshard's or TorchRec's plan as JSON, TorchRec's plan, or the folder of a checkpoint.
        model: the unsharded model, for its tables, data types and optimizers.
        env: TorchRec's environment of the job. Its ranks per node are those of this process (LOCAL_WORLD_SIZE).
        against: another plan, whose order of pooled outputs should be kept, or a checkpoint that should load.
        memory_cap_gb: memory of each device; by default, that of ``hardware``, else of placement.json.
        hardware: hardware of the devices, such as simulated:h100.
        dense_optimizer: optimizer of the dense model, if it has the same settings as the tables' optimizer.
        sharders: module sharders; by default TorchRec's.

    Raises:
        BadFile: if a file cannot be read.
        BadConfig: if the model has no tables, or an argument is invalid.
    """
    tables = None if model is None else _read_model(model, sharders)
    layout = read_layout(plan)
    if dense_optimizer:
        layout = replace(layout, replicas=replace(layout.replicas, dense_optimizer=dense_optimizer))
    cap_gb = default_memory_gb(hardware) if memory_cap_gb is None and hardware is not None else memory_cap_gb
    found = _Check(layout, tables, Job.of_env(env) if env is not None and not isinstance(env, Job) else env)
    found.check(cap_gb)
    if against is None:
        found.says.unchecked.append("order of pooled outputs, and a checkpoint (--against)")
    else:
        found.compare(read_layout(against))
    return found.says


def require_no_problems(
    plan: ShardingPlan, modules: Modules, machine: Nodes, compute_device: str, replicas: AllowedReplicas
) -> None:
    """Raise BadConfig if a plan has problems with the model, or with the job of this process, if it is in one."""
    import torch.distributed as dist

    joined = dist.is_available() and dist.is_initialized()
    world_size = dist.get_world_size() if joined else int(os.environ.get("WORLD_SIZE") or 0)
    # Fewer ranks in the plan are a sharding group of 2D parallelism, whose nodes only its environment knows.
    is_group = world_size > machine.num_devices and not world_size % machine.num_devices
    job = None if not world_size or is_group else Job.of(world_size)
    ranks = machine.num_devices, machine.devices_per_node
    layout = replace(read_layout(plan), compute_device=compute_device, replicas=replicas)
    found = _Check(replace(layout, world_size=ranks[0], local_world_size=ranks[1]), _read_model(modules), job)
    found.check(None)
    if found.says.problems:
        count = len(found.says.problems)
        more = "" if count == 1 else f" ({count - 1} more: `evenshard verify` lists all)"
        raise BadConfig(f"{found.says.problems[0]}{more}")


# Checks of a whole plan -----------------------------------------------------------------------------------------------


class _Model(NamedTuple):
    located: tuple[LocatedTable, ...]
    tables: tuple[Table, ...]
    fused: Mapping[str, FusedOptimizer]
    others: frozenset[str]  # tables of modules that evenshard does not place


def _read_model(model: Modules, sharders: Sequence[Any] | None = None) -> _Model:
    located = locate_tables(model, sharders)
    others = () if isinstance(model, Mapping) else (name for name, _ in find_other_tables(model, sharders))
    return _Model(
        located, tables_of(model, sharders=sharders), find_fused_optimizers(located, sharders), frozenset(others)
    )


class _Check:
    """A plan with the tables of the model, of placement.json, or else of the plan itself."""

    def __init__(self, layout: Layout, model: _Model | None, job: Job | None) -> None:
        self.layout, self.model, self.job, self.machine = layout, model, job, layout.machine
        if job is not None:
            self.machine = replace(self.machine, num_devices=job.world_size, devices_per_node=job.node_size)
        self.says = Verification(len(layout.entries), [*layout.problems])
        self.entries, self.tables = dict(layout.entries), dict[str, Table]()
        self.parts = dict[str, tuple[TablePart, ...]]()  # of tables whose shards are right
        self.request = layout.request
        if model is not None:
            self._match(model)
            return
        self.tables = {} if layout.request is None else {table.name: table for table in layout.request.tables}
        for name in self.entries.keys() - self.tables.keys():
            shards = self.entries[name].shards  # TorchRec lists none of a replica
            ends = [tuple(map(add, shard.shard_offsets, shard.shard_sizes)) for shard in shards] or [(1, COLUMN_STEP)]
            num_rows, columns = map(max, zip(*ends, strict=True))
            self.tables[name] = Table(name, num_rows, columns, 1.0)

    def _match(self, model: _Model) -> None:
        left, alike = self.entries, _by_last_name(self.entries)
        self.entries = {}
        for one, table in zip(model.located, model.tables, strict=True):
            names = (qualify_name(one.path, one.config.name), one.name, alike.get(one.config.name, ""))
            key = next((name for name in names if name in left), None)
            if key is None:
                self._add(one.name, "of the model is not in the plan. Place it, or each rank trains its own copy.")
            else:
                self.tables[table.name], self.entries[table.name] = table, left.pop(key)
        for name in left:
            if name in model.others:
                self.says.unchecked.append(f"table {brief(name)}, whose module evenshard does not place")
            else:
                self._add(name, "is in the plan, but not in the model. Remove it.")

    def _add(self, name: str, *problems: str | None) -> None:
        self.says.problems += [f"table {brief(name)} {problem}" for problem in problems if problem is not None]

    def check(self, cap_gb: float | None) -> None:
        """Find the problems of the plan by itself; ``cap_gb`` is the memory of each device, if it is known."""
        says, layout, job = self.says, self.layout, self.job
        local, stated = layout.local_world_size, (layout.world_size, layout.local_world_size)
        if job is not None:
            local = job.local_world_size
            for what, own, of_job in zip(("ranks", "ranks per node"), stated, (job.world_size, local), strict=True):
                if own and of_job and own != of_job:
                    text = (
                        f"the plan is for {own} {what}, but the job has {of_job}. Place the tables again for this job."
                    )
                    says.problems.append(text)
        for name, entry in self.entries.items():
            try:
                table = self.tables[name]
                replicated = (replica(table, range(self.machine.num_devices)),)
                parts = replicated if entry.sharding_type in REPLICATED else parts_of_entry(name, entry)
                if (problem := shard_problem(entry, parts, table, self.machine, local)) is None:
                    self.parts[name] = parts
                self._add(name, problem)
            except BadConfig as error:
                says.problems.append(str(error))
        whose = "the model" if self.model else "the plan" if self.request is None else "placement.json"
        says.checked.append(f"rows and columns, against the tables of {whose}")
        if layout.states is None:
            groups = f"{self.machine.num_devices} ranks, {self.machine.devices_per_node} per node"
            says.checked.append(f"{groups} ({'of the job' if job else 'as in the plan'})")
            self._check_training()
            self._check_memory(cap_gb)
        if job is None:
            says.unchecked.append("ranks of the job (--job)")

    def _check_training(self) -> None:
        says, layout, asked, device = self.says, self.layout, self.layout.request, self.layout.compute_device
        optimizers = {} if asked is None else {name: asked.optimizer_of(name) for name in self.tables}
        if self.model is not None:
            optimizers = {name: one.word for name, one in self.model.fused.items() if one.is_known}
            dense = {name for name, entry in self.entries.items() if entry.compute_kernel == DENSE_KERNEL}
            fused = {name: one for name, one in self.model.fused.items() if name in dense}
            says.problems += layout.replicas.list_leaving(fused)
        for name, entry in self.entries.items():
            self._add(name, *kernel_problems(entry, self.tables[name], device, optimizers.get(name, "")))
        says.checked.append(f"kernels and widths on {device}")
        known = self.model is not None or asked is not None
        (says.checked if known else says.unchecked).append(
            "data types, pooling, optimizers" + " (--model)" * (not known)
        )
        count = len(says.problems)
        if asked is not None and len(self.parts) == len(asked.tables):
            task = require_row_wise_means(asked.task(), self.parts)
            broken = (find_broken_limit(task, at, self.parts[one.name]) for at, one in enumerate(asked.tables))
            says.problems += [f"{problem}. Place it again." for problem in broken if problem is not None]
        collections = defaultdict[Any, list[ShardedTable]](list)
        for name, parts in self.parts.items():
            table = self.tables[name]
            own = ShardedTable(name, table.pooling, self.entries[name].sharding_type, ANY_TYPE, parts)
            collections[table.collection].append(own)
        for collection in collections.values() if known and len(says.problems) == count else ():  # else among them
            says.problems += list_untrainable(collection, self.machine, device)

    def _check_memory(self, cap_gb: float | None) -> None:
        says = self.says
        if self.request is None and self.model is not None and self.tables:
            on_hosts = (UNLIMITED_BYTES,) * self.machine.num_nodes
            self.request = PlacementRequest(
                tables=tuple(self.tables.values()),
                caps_bytes=(gb_to_bytes(cap_gb or 0.0),) * self.machine.num_devices,
                batch_size=self.machine.num_devices,
                machine=replace(self.machine, inter="infiniband_ndr", host_bytes=on_hosts, ssd_bytes=on_hosts),
                hardware="cpu" if self.layout.compute_device == "cpu" else DEFAULT_HARDWARE,
                table_optimizers={name: one.word for name, one in self.model.fused.items() if name in self.tables},
            )
        elif self.request is not None and cap_gb is not None:
            self.request = replace(self.request, caps_bytes=caps_of(cap_gb, self.request.num_devices))
        asked = self.request
        if asked is None or (cap_gb is None and self.layout.request is None):
            needs = "--memory-cap-gb or --hardware" if self.model else "--model, and --memory-cap-gb or --hardware"
            says.unchecked.append(f"memory of devices ({needs})")
        elif asked.num_devices == self.machine.num_devices:  # else there is a problem of ranks
            task, parts = asked.task(), [part for own in self.parts.values() for part in own]
            used = used_bytes(task, parts)
            says.problems += list_memory_problems(task, parts, used)
            what = "of a step" if asked.training_pipeline else "weights and optimizer state alone"
            most = f"{size_text(max(used))} of {size_text(max(task.room_bytes))}"
            says.checked.append(f"memory of devices ({what}, at most {most})")

    def compare(self, other: Layout) -> None:
        """Add tables that a checkpoint cannot load, or collections whose outputs another plan has in another order."""
        old = _Check(other, self.model, None)
        if other.states is not None:
            alike = _by_last_name(old.entries)  # keys of a checkpoint begin with those of the saved dict
            for name, entry in self.entries.items():
                last = name.rpartition(".")[2]
                saved, states = old.entries.get(name, old.entries.get(alike.get(last, ""))), other.states.get(last, {})
                self._add(name, checkpoint_problem(entry, self.tables[name], saved, states))
            self.says.checked.append("the checkpoint")
            return
        old.check(None)
        try:
            self.says.problems += (f"{one.text} {BY_NAME}" for one in order_changes(old.orders(), self.orders()))
            self.says.checked.append("order of pooled outputs")
        except BadConfig as error:
            self.says.unchecked.append(f"order of pooled outputs ({error})")

    def orders(self) -> Any:
        """Return the order of pooled outputs by collection; raise BadConfig if it is unknown."""
        if len(self.parts) < len(self.layout.entries if self.model is None else self.model.located):
            raise BadConfig("a plan has problems")
        if self.layout.world_size and self.request is not None:  # evenshard chooses the types that it writes
            return output_orders(self.request, self.parts)
        if self.model is None:
            raise BadConfig("--model")
        from torchrec.distributed.types import ShardingPlan

        plan = defaultdict[str, Any](dict)
        for one in self.model.located:
            plan[one.path][one.config.name] = parameter_sharding(self.entries[one.name], one.config.data_type)
        return plan_orders(ShardingPlan(plan), self.model.located)


def _by_last_name(names: Collection[str]) -> dict[str, str]:
    """Map the last part of each name to the name, unless several names end with it."""
    ends = [name.rpartition(".")[2] for name in names]
    counts = Counter(ends)
    return {end: name for end, name in zip(ends, names, strict=True) if counts[end] == 1}


# Checks of a table ----------------------------------------------------------------------------------------------------


def shard_problem(
    entry: TableEntry, parts: Sequence[TablePart], table: Table, machine: Nodes, local_world_size: int = 0
) -> str | None:
    """Return the first reason that shards do not cover a table, or are not on the ranks that TorchRec uses.

    Args:
        parts: the entry's parts, without empty ones.
        machine: ranks; its nodes are the ranks over which TorchRec cuts rows (``Job.node_size``).
        local_world_size: ranks per host, which number its GPUs; 0 if unknown.
    """
    if not entry.sharding_type:  # of a checkpoint
        return tiling_problem(parts, table)
    if entry.sharding_type not in TYPES:
        return f"is sharded {brief(entry.sharding_type)}. Choose from {', '.join(SHARDING_TYPES)}."
    kind, ranks, shards, everywhere = (
        TYPES[entry.sharding_type],
        [*entry.ranks],
        entry.shards,
        range(machine.num_devices),
    )
    if outside := {*ranks} - {*everywhere}:
        return f"is on rank {max(outside)}, but the ranks are 0 to {machine.num_devices - 1}. Place it again."
    if kind.is_replicated:
        if sorted(ranks or everywhere) == [*everywhere]:
            return None
        return f"is {kind.name} on the ranks {brief(ranks)}, not once on each of {machine.num_devices}. Place it again."
    placed = [_rank_and_gpu(shard.placement) for shard in shards]
    if not ranks or [rank for rank, _ in placed] != ranks:
        where = cut(", ".join(shard.placement for shard in shards) or "none")
        return f"is on the ranks {brief(ranks)}, but its shards are on {where}. Make a new plan."
    wrong = ((rank, gpu) for rank, gpu in placed if local_world_size and gpu not in (None, rank % local_world_size))
    for rank, gpu in wrong:
        own = f"GPU {rank % local_world_size} of its host ({local_world_size} ranks per host)"
        return f"is on GPU {gpu} of rank {rank}, which has {own}. Place the tables again for this job."
    if problem := tiling_problem(parts, table):
        return problem
    of_type = (kind.cuts_rows, table.num_rows), (kind.cuts_columns, table.embedding_dim)
    if any(
        not cuts and shard.shard_sizes[axis] != size for axis, (cuts, size) in enumerate(of_type) for shard in shards
    ):
        return f"is {kind.name}, but its shards are cut in another way. Make a new plan."
    if kind.cuts_rows:
        return _rows_problem(entry, table, machine)
    if len({rank // kind.home_span(machine) for rank in ranks}) > 1:
        nodes = f"several nodes ({machine.devices_per_node} ranks per node)"
        return f"is {kind.name}, but its ranks {brief(ranks)} are on {nodes}. Place the tables again for this job."
    return None


@lru_cache(maxsize=65_536)
def _rank_and_gpu(placement: str) -> tuple[int, int | None]:
    """Return the rank, and its GPU if there is one, of a placement such as rank:3/cuda:1; -1 if there is no rank."""
    found = _PLACEMENT.fullmatch(placement)
    return (-1, None) if found is None else (int(found[1]), int(found[2]) if found[2] else None)


def _rows_problem(entry: TableEntry, table: Table, machine: Nodes) -> str | None:
    kind, span = TYPES[entry.sharding_type], TYPES[entry.sharding_type].span(machine)
    block = row_starts(table.num_rows, span).step
    for first in range(0, len(entry.ranks), span):
        ranks, shards = entry.ranks[first : first + span], entry.shards[first : first + span]
        expected = tuple(kind.row_devices(machine, ranks[0]))
        if len({shard.shard_offsets[1] for shard in shards}) > 1:
            return f"is {kind.name}, but the ranks {brief(ranks)} have different columns. Make a new plan."
        if ranks != expected:
            return (
                f"is {kind.name} on the ranks {brief(ranks)}, but TorchRec looks up its rows on {brief(expected)} "
                f"({machine.devices_per_node} ranks per node). Place the tables again for this job."
            )
        for start, shard in zip(range(0, span * block, block), shards, strict=True):
            rows = max(min(block, table.num_rows - start), 0)
            if shard.shard_sizes[0] != rows or (rows and shard.shard_offsets[0] != start):
                held = f"{shard.shard_offsets[0]}:{shard.shard_offsets[0] + shard.shard_sizes[0]}"
                return (
                    f"has the rows {held} on {shard.placement}, but TorchRec looks up {start}:{start + rows} there. "
                    f"Cut it into blocks of {block} rows."
                )
    return None


def kernel_problems(entry: TableEntry, table: Table, compute_device: str, optimizer: str) -> Iterator[str]:
    """Yield the reasons that TorchRec, FBGEMM or the device cannot train a table; ``optimizer`` is "" if unknown."""
    kernel, widths = entry.compute_kernel, [shard.shard_sizes[1] for shard in entry.shards]
    if kernel not in (*KERNELS_OF_TABLES, DENSE_KERNEL, *OTHER_KERNELS):
        yield f"has the kernel {brief(kernel)}, which does not train. Choose from {', '.join(KERNELS_OF_TABLES)}."
    if entry.sharding_type in REPLICATED and kernel != DENSE_KERNEL:
        yield f"is {entry.sharding_type} with kernel {kernel}: its replicas would differ. Use {DENSE_KERNEL}."
    if kernel == KEY_VALUE and compute_device == "cpu":
        yield f"has kernel {kernel}, which needs a GPU. Use {KERNELS_OF_TABLES[0]}."
    types = REPLICATED_DATA_TYPES if kernel == DENSE_KERNEL else TRAINED_DATA_TYPES[compute_device]
    if table.dtype not in types:
        yield f"has {table.dtype} weights, which kernel {kernel} does not train on {compute_device}. Use {types[0]}."
    if kernel not in KERNELS_OF_TABLES:
        return
    if compute_device == "cuda" and max(widths, default=0) > MAX_GPU_COLUMNS:
        yield f"has a shard of {max(widths):,} columns, but FBGEMM trains {MAX_GPU_COLUMNS:,} on a GPU. Cut it."
    if any(width % COLUMN_STEP for width in widths):
        yield f"has shards of {brief(widths)} columns, but FBGEMM needs multiples of {COLUMN_STEP}. Change the widths."
    if compute_device == "cpu" and optimizer and not OPTIMIZERS[optimizer].has_cpu_kernels:
        able = ", ".join(name for name, one in OPTIMIZERS.items() if one.has_cpu_kernels)
        yield f"has the optimizer {optimizer}, for which FBGEMM has no kernel on CPUs. Choose from {able}."


def checkpoint_problem(
    entry: TableEntry, table: Table, saved: TableEntry | None, states: Mapping[str, Sequence[int]]
) -> str | None:
    """Return the reason that a table's checkpoint does not load under a plan; docs/running_jobs.md has the rules.

    Args:
        saved: the table's chunks in the checkpoint.
        states: shapes of the table's optimizer states in the checkpoint; names of fused states contain a dot.
    """
    if saved is None:
        return "is not in the checkpoint (Missing key). Leave it out of the state to load."
    if problem := tiling_problem(parts_of_entry(table.name, saved), table):
        return f"of the checkpoint {problem}"
    is_dense = entry.compute_kernel == DENSE_KERNEL
    if any(("." in name) == is_dense for name in states):
        now, before = ("dense", "fused") if is_dense else ("fused", "dense")
        return (
            f"has a {before} optimizer in the checkpoint, but a {now} one in the plan (Missing key). Load it without "
            f"optimizer state (DefaultLoadPlanner(allow_partial_load=True)), or keep its kernel."
        )
    values = table.num_rows * len({shard.shard_offsets[1] for shard in entry.shards})
    for name, shape in states.items():
        if len(shape) == 1 and "." in name and table.num_rows <= shape[0] != values:
            return (
                f"has {shape[0]:,} values of {name} in the checkpoint, but {values:,} in the plan, one per row and "
                f"column shard (Size mismatch). Load it under the old plan, then move the tables (reshard)."
            )
    return None
