"""Verification of a plan of any planner before a job starts; it lists all problems.

::

    found = verify("plan.json", model, ShardingEnv.from_process_group(dist.group.WORLD))
    found.problems, found.checked, found.unchecked

Ranks follow TorchRec's runtime: it cuts the rows of ``table_row_wise`` tables, and of each column part of
``grid_shard`` tables, over the ranks of a node. A plan for other nodes sends lookups to ranks that have other rows.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief, cut
from evenshard.base.units import size_text
from evenshard.placement.memory import OPTIMIZERS
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import COLUMN_STEP, KEY_VALUE, MAX_GPU_COLUMNS, TablePart
from evenshard.placement.placement import list_broken_rules, list_memory_problems
from evenshard.placement.sharding import REPLICATED, REPLICATED_DATA_TYPES, SHARDING_TYPES, TYPES, tiling_problem
from evenshard.placement.task import used_bytes
from evenshard.planner.memory import default_memory_gb
from evenshard.planner.output_order import BY_NAME, order_changes, output_orders
from evenshard.planner.request import PlacementRequest, caps_of
from evenshard.tables.table import Table
from evenshard.torchrec.baseline.topology import (
    DENSE_KERNEL,
    KERNELS_OF_TABLES,
    UNLIMITED_BYTES,
    replica,
    require_torchrec,
)
from evenshard.torchrec.model.fused_optimizers import AllowedReplicas, find_fused_optimizers
from evenshard.torchrec.model.modules import locate_tables
from evenshard.torchrec.model.tables import LEFT_TO_TORCHREC, table_set_of
from evenshard.torchrec.model.trainable import ANY_TYPE, ShardedTable, list_untrainable
from evenshard.torchrec.plan.entries import TableEntry, parts_of_entry, row_blocks, table_of_parts
from evenshard.torchrec.plan.layout import Layout, read_layout
from evenshard.torchrec.plan.plans import match_names, parameter_sharding, plan_orders

if TYPE_CHECKING:
    from torchrec.distributed.types import ShardingEnv, ShardingPlan

    from evenshard.torchrec.plan.plans import Modules

# Data types that FBGEMM's fused kernels train: on CPUs as tried with FBGEMM 1.8, on GPUs except for integers.
TRAINED_DATA_TYPES = {"cpu": ("fp32", "fp16"), "cuda": ("fp32", "fp16", "bf16", "fp8")}
# TorchRec's other kernels that train; evenshard does not place them.
OTHER_KERNELS = (
    "customized_kernel",
    "fused_triton",
    *(f"{home}_virtual_table" for home in ("ssd", "dram", "dram_ssd")),
)


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

        if not world_size:
            raise BadConfig("WORLD_SIZE is not set. Set the environment of the job, such as WORLD_SIZE=16.")
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


def world_size_of_process() -> int:
    """Return the ranks of the process group, or else WORLD_SIZE; 0 without both."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    text = os.environ.get("WORLD_SIZE") or "0"
    if not text.isdecimal():
        raise BadConfig(f"WORLD_SIZE is {brief(text)}. Set the environment of the job, such as WORLD_SIZE=16.")
    return int(text)


@dataclass
class Verification:
    """Problems of a plan, and what was checked."""

    num_tables: int
    problems: list[str] = field(default_factory=list)  # each one line: what is wrong, where, and what to do
    checked: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)  # each with the argument that it needs


def verify(
    plan: str | Path | ShardingPlan | Layout,
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
    layout = read_layout(plan)
    if dense_optimizer:
        layout = replace(layout, replicas=replace(layout.replicas, dense_optimizer=dense_optimizer))
    cap_gb = default_memory_gb(hardware) if memory_cap_gb is None and hardware is not None else memory_cap_gb
    found = _Check(layout, model, sharders, env if env is None or isinstance(env, Job) else Job.of_env(env))
    found.check(cap_gb)
    if against is None:
        found.says.unchecked.append("order of pooled outputs, and a checkpoint (--against)")
    else:
        found.compare(_Check(read_layout(against), model, sharders, None))
    return found.says


def require_no_problems(
    plan: ShardingPlan, modules: Modules, machine: Nodes, compute_device: str, replicas: AllowedReplicas
) -> None:
    """Raise BadConfig if a plan has problems with the model, or with the job of this process, if it is in one."""
    world_size, ranks = world_size_of_process(), (machine.num_devices, machine.devices_per_node)
    # Fewer ranks in the plan are a sharding group of 2D parallelism, whose nodes only its environment knows.
    is_group = world_size > machine.num_devices and not world_size % machine.num_devices
    job = None if not world_size or is_group else Job.of(world_size)
    layout = Layout(read_layout(plan).entries, *ranks, compute_device, replicas)
    if problems := verify(layout, modules, job).problems:
        more = "" if len(problems) == 1 else f" ({len(problems) - 1} more: `evenshard verify` lists all)"
        raise BadConfig(f"{problems[0]}{more}")


class _Check:
    """A plan with the tables of the model, of placement.json, or else of the plan itself."""

    def __init__(self, layout: Layout, model: Modules | None, sharders: Sequence[Any] | None, job: Job | None) -> None:
        self.layout, self.job, self.request = layout, job, layout.request
        self.machine = layout.machine if job is None else Nodes(job.world_size, job.node_size)
        self.says = Verification(len(layout.entries), [*layout.problems])
        self.located = () if model is None else locate_tables(model, sharders)
        self.fused = find_fused_optimizers(self.located, sharders)
        self.parts = dict[str, tuple[TablePart, ...]]()  # of tables whose shards are right
        self.entries, self.tables = dict(layout.entries), dict[str, Table]()
        if model is not None:
            self._match(model, sharders)
        elif self.request is not None:
            self.tables = {table.name: table for table in self.request.tables}

    def _match(self, model: Modules, sharders: Sequence[Any] | None) -> None:
        found, left = table_set_of(model, sharders=sharders), self.entries
        keys, self.entries = match_names([table.name for table in found.tables], left), {}
        for table in found.tables:
            if table.name in keys:
                self.tables[table.name], self.entries[table.name] = table, left.pop(keys[table.name])
            else:
                self._add(table.name, "of the model is not in the plan. Place it, or each rank trains its own copy.")
        others = {assumption.table for assumption in found.assumptions if assumption.column == LEFT_TO_TORCHREC}
        for name in left:
            if name in others:
                self.says.unchecked.append(f"table {brief(name)}, whose module evenshard does not place")
            else:
                self._add(name, "is in the plan, but not in the model. Remove it.")

    def _add(self, name: str, *problems: str | None) -> None:
        self.says.problems += [f"table {brief(name)} {problem}" for problem in problems if problem is not None]

    def check(self, cap_gb: float | None) -> None:
        """Find the problems of the plan by itself; ``cap_gb`` is the memory of each device, if it is known."""
        says, layout, job, machine = self.says, self.layout, self.job, self.machine
        stated = layout.world_size, layout.local_world_size
        given = stated if job is None else (job.world_size, job.local_world_size)
        for what, own, of_job in zip(("ranks", "ranks per node"), stated, given, strict=True):
            if own and of_job and own != of_job:
                wrong = f"the plan is for {own} {what}, but the job has {of_job}"
                says.problems.append(f"{wrong}. Place the tables again for this job.")
        for name, entry in self.entries.items():
            try:
                if entry.shards or entry.sharding_type not in REPLICATED:
                    parts = parts_of_entry(name, entry)
                    table = self.tables.setdefault(name, table_of_parts(name, parts))
                else:  # TorchRec lists no shards of replicas
                    table = self.tables.setdefault(name, Table(name, 1, COLUMN_STEP, 1.0))
                    parts = (replica(table, entry.ranks or range(machine.num_devices)),)
                if (problem := _shard_problem(entry, parts, table, machine, given[1])) is None:
                    self.parts[name] = parts
                self._add(name, problem)
            except BadConfig as error:
                says.problems.append(str(error))
        whose = "the model" if self.located else "the plan" if self.request is None else "placement.json"
        says.checked.append(f"rows and columns, against the tables of {whose}")
        if layout.states is None:
            groups = f"{machine.num_devices} ranks, {machine.devices_per_node} per node"
            says.checked.append(f"{groups} ({'of the job' if job else 'as in the plan'})")
            self._check_training()
            self._check_memory(cap_gb)
        if job is None:
            says.unchecked.append("ranks of the job (--job)")

    def _check_training(self) -> None:
        says, layout, asked, device = self.says, self.layout, self.layout.request, self.layout.compute_device
        optimizers = {} if asked is None else {name: asked.optimizer_of(name) for name in self.tables}
        optimizers |= {name: fused.word for name, fused in self.fused.items() if fused.is_known}
        dense = {name for name, entry in self.entries.items() if entry.compute_kernel == DENSE_KERNEL}
        says.problems += layout.replicas.list_leaving({name: self.fused[name] for name in self.fused if name in dense})
        for name, entry in self.entries.items():
            if name in self.tables:
                self._add(name, *_kernel_problems(entry, self.tables[name], device, optimizers.get(name, "")))
        says.checked.append(f"kernels and widths on {device}")
        what = "data types, pooling, optimizers"
        if asked is None and not self.located:
            says.unchecked.append(f"{what} (--model)")
            return
        says.checked.append(what)
        broken = list[str]()
        if asked is not None and len(self.parts) == len(asked.tables):
            broken += (f"{problem}. Place it again." for problem in list_broken_rules(asked.task(), self.parts))
        collections = defaultdict[Any, list[ShardedTable]](list)
        for name, parts in self.parts.items():
            table, own_type = self.tables[name], self.entries[name].sharding_type
            collections[table.collection].append(ShardedTable(name, table.pooling, own_type, ANY_TYPE, parts))
        for collection in () if broken else collections.values():  # else they may be among the broken rules
            broken += list_untrainable(collection, self.machine, device)
        says.problems += broken

    def _check_memory(self, cap_gb: float | None) -> None:
        says, num_devices = self.says, self.machine.num_devices
        if self.request is None and self.located and self.tables:
            on_hosts = (UNLIMITED_BYTES,) * self.machine.num_nodes
            self.request = PlacementRequest(
                tables=tuple(self.tables.values()),
                caps_bytes=(0,) * num_devices,
                batch_size=num_devices,
                machine=replace(self.machine, inter="infiniband_ndr", host_bytes=on_hosts, ssd_bytes=on_hosts),
                table_optimizers={name: fused.word for name, fused in self.fused.items() if name in self.tables},
            )
        if self.request is None or (cap_gb is None and self.layout.request is None):
            needs = "--memory-cap-gb or --hardware" if self.located else "--model, and --memory-cap-gb or --hardware"
            says.unchecked.append(f"memory of devices ({needs})")
            return
        if cap_gb is not None:
            self.request = replace(self.request, caps_bytes=caps_of(cap_gb, self.request.num_devices))
        if self.request.num_devices == num_devices:  # else there is a problem of ranks
            task, parts = self.request.task(), [part for own in self.parts.values() for part in own]
            says.problems += list_memory_problems(task, parts)
            what = "of a step" if self.request.training_pipeline else "weights and optimizer state alone"
            most = f"{size_text(max(used_bytes(task, parts)))} of {size_text(max(task.room_bytes))}"
            says.checked.append(f"memory of devices ({what}, at most {most})")

    def compare(self, old: _Check) -> None:
        """Add tables that a checkpoint cannot load, or collections whose outputs another plan has in another order."""
        if (states_of := old.layout.states) is not None:
            keys = match_names([*self.entries], old.entries)
            for name, entry in ((name, self.entries[name]) for name in self.parts):
                saved, states = old.entries.get(keys.get(name, "")), states_of.get(name.rpartition(".")[2], {})
                self._add(name, _checkpoint_problem(entry, self.tables[name], saved, states))
            self.says.checked.append("the checkpoint")
            return
        old.check(None)
        try:
            self.says.problems += (f"{change.text} {BY_NAME}" for change in order_changes(old.orders(), self.orders()))
            self.says.checked.append("order of pooled outputs")
        except BadConfig as error:
            self.says.unchecked.append(f"order of pooled outputs ({error})")

    def orders(self) -> Any:
        """Return the order of pooled outputs by collection; raise BadConfig if it is unknown."""
        if len(self.parts) < len(self.located or self.layout.entries):
            raise BadConfig("a plan has problems")
        if self.layout.world_size and self.request is not None:  # evenshard chooses the types that it writes
            return output_orders(self.request, self.parts)
        if not self.located:
            raise BadConfig("--model")
        from torchrec.distributed.types import ShardingPlan

        plan = defaultdict[str, Any](dict)
        for located in self.located:
            written = parameter_sharding(self.entries[located.name], located.config.data_type)
            plan[located.path][located.config.name] = written
        return plan_orders(ShardingPlan(plan), self.located)


# Checks of a table ----------------------------------------------------------------------------------------------------


def _shard_problem(
    entry: TableEntry, parts: Sequence[TablePart], table: Table, machine: Nodes, local_world_size: int
) -> str | None:
    """Return the first reason that shards do not cover a table, or are not on the ranks that TorchRec uses.

    ``machine`` has nodes of ``Job.node_size`` ranks; ``local_world_size`` ranks per host number the GPUs, 0 if unknown.
    Raise BadConfig if rows are cut into other blocks than TorchRec's.
    """
    if not entry.sharding_type:  # of a checkpoint
        return tiling_problem(parts, table)
    if entry.sharding_type not in TYPES:
        return f"is sharded {brief(entry.sharding_type)}. Choose from {', '.join(SHARDING_TYPES)}."
    kind, everywhere = TYPES[entry.sharding_type], range(machine.num_devices)
    again = f"({machine.devices_per_node} ranks per node). Place the tables again for this job."
    on_ranks = f"the ranks {brief(entry.ranks)}"
    if outside := {*entry.ranks} - {*everywhere}:
        return f"is on rank {max(outside)}, but the ranks are 0 to {machine.num_devices - 1}. Place it again."
    if kind.is_replicated:  # TorchRec reads no placements of replicas
        missing = f"is {kind.name} on {on_ranks}, not once on each of {machine.num_devices}. Place it again."
        return tiling_problem(parts, table) if parts[0].devices == (*everywhere,) else missing
    for rank, shard in zip(entry.ranks, entry.shards, strict=False):
        where, _, device = shard.placement.partition("/")
        if where != f"rank:{rank}":
            placements = cut(", ".join(shard.placement for shard in entry.shards))
            return f"is on {on_ranks}, but its shards are on {placements}. Make a new plan."
        gpu, own = device.partition(":")[2], str(rank % local_world_size) if local_world_size else ""
        if own and gpu not in ("", own):
            host = f"GPU {own} of its host ({local_world_size} ranks per host)"
            return f"is on GPU {gpu} of rank {rank}, which has {host}. Place the tables again for this job."
    if problem := tiling_problem(parts, table):
        return problem
    rows, columns = {part.rows for part in parts}, {part.columns for part in parts}
    if (len(rows) > 1 and not kind.cuts_rows) or (len(columns) > 1 and not kind.cuts_columns):
        return f"is {kind.name}, but its shards are cut in another way. Make a new plan."
    expected = tuple(rank for rank, _, _ in row_blocks(parts, table, machine, kind.name)) if kind.cuts_rows else ()
    if kind.cuts_rows and entry.ranks != expected:
        return f"is {kind.name} on {on_ranks}, but TorchRec looks up its rows on {brief(expected)} {again}"
    if len({rank // kind.home_span(machine) for rank in entry.ranks}) > 1:
        return f"is {kind.name}, but its ranks {brief(entry.ranks)} are on several nodes {again}"
    return None


def _kernel_problems(entry: TableEntry, table: Table, compute_device: str, optimizer: str) -> Iterator[str]:
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
        able = ", ".join(name for name, known in OPTIMIZERS.items() if known.has_cpu_kernels)
        yield f"has the optimizer {optimizer}, for which FBGEMM has no kernel on CPUs. Choose from {able}."


def _checkpoint_problem(
    entry: TableEntry, table: Table, saved: TableEntry | None, states: Mapping[str, Sequence[int]]
) -> str | None:
    """Return the reason that a table's checkpoint does not load under a plan; docs/running_jobs.md has the rules.

    ``saved`` has the table's chunks, ``states`` the shapes of its optimizer states; names of fused states have a dot.
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
