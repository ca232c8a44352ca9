"""The settings (knobs) of a placement, each declared once.

``evenshard.place`` takes each by name, or a dataclass of several::

    evenshard.place("tables.yaml", 8, host_memory_gb=400, seed=1)
    evenshard.place("tables.yaml", 8, memory=Memory(host_memory_gb=400), search=Search(seed=1))

These declarations generate the flags of ``evenshard place`` with their help, the keywords of ``EvenshardPlanner`` and
``evenshard.what_if``, the keys of a pipeline's request, the parameters of a served model, and placement.json's schema.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenshard.base.errors import BadConfig
from evenshard.base.knobs import Group, Knob, Range, changed_knobs, check_knobs, group, groups_of, knob, knobs_of
from evenshard.base.messages import did_you_mean

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import ParameterConstraints

    from evenshard.planner.what_if.option import Prices
    from evenshard.sharders.model import Model


@dataclass(frozen=True)
class Machine:
    """Devices, hosts, and the links between them."""

    num_devices: int | None = knob(
        None,
        "number of devices (default: all devices of the nodes or hosts, else 8)",
        torchrec="Topology.world_size",
        flag="--devices",
    )
    hardware: str | None = knob(
        None,
        "hardware to place for: cpu, cuda, or a simulated GPU such as simulated:h100, h100 for short (default: the "
        "hardware that the model was trained on, else simulated:h100)",
    )
    nodes: int | None = knob(None, "number of hosts (default: as many as the devices need)")
    devices_per_node: int | None = knob(
        None,
        "devices per host (default: all devices, up to the number that the link within a host connects)",
        torchrec="Topology.local_world_size",
    )
    nodes_per_domain: int = knob(
        1, "hosts per domain, whose devices all communicate over the link intra, such as NVLink across hosts"
    )
    intra: str = knob(
        "", "link within a host, such as nvlink_h100 (default: the hardware's own)", torchrec="Topology.intra_host_bw"
    )
    inter: str = knob(
        "",
        "link between hosts, such as ib_400g, one per device; required for more than one host",
        torchrec="Topology.inter_host_bw",
    )
    hosts: str | Path | None = knob(
        None, "YAML file that describes hosts and links, in place of the arguments above; docs/place.md lists its keys"
    )


@dataclass(frozen=True)
class Memory:
    """Memory of devices and hosts, and the part that is reserved for data other than tables."""

    memory_cap_gb: float | Sequence[float] | None = knob(
        None,
        "memory of each device, GB of 1024**3 bytes; one number, or one per device (default: the profile's for "
        "simulated hardware, the driver's for cuda, an equal share of this machine's memory for cpu)",
        torchrec="Topology.hbm_cap",
    )
    reserved_gb: float | None = knob(
        None,
        "GB of each device to keep free for allocations that are not counted, and fragmentation (default: 15 % of the "
        "device's memory, as in TorchRec's planner)",
        torchrec="EmbeddingShardingPlanner.storage_reservation",
    )
    dense_gb: float | None = knob(
        None,
        "GB of each device for the dense model with its gradients and optimizer state (default: computed for Adam if "
        "the tables are a TorchRec model, else 0)",
    )
    host_memory_gb: float | None = knob(
        None,
        "GB of each host's memory available to tables (default: none, all tables stay in device memory)",
        torchrec="Topology.ddr_cap",
    )
    host_bandwidth_gb_s: float | None = knob(
        None,
        "memory bandwidth of each host, shared by its devices, 10**9 bytes per second",
        torchrec="Topology.ddr_mem_bw",
    )
    ssd_gb: float | None = knob(
        None,
        "GB of each host's SSDs available to tables, if compute_kernels or table_kernels includes key_value",
        torchrec="Topology.ssd_cap",
    )
    ssd_bandwidth_gb_s: float | None = knob(
        None,
        "SSD bandwidth of each host, shared by its devices, 10**9 bytes per second",
        torchrec="Topology.ssd_mem_bw",
    )


@dataclass(frozen=True)
class Training:
    """Batch, optimizers and pipeline of a training step."""

    batch_size: int = knob(65_536, "global batch size: samples of a step over all devices")
    optimizer: str | None = knob(
        None,
        "optimizer of the tables: sgd, rowwise_adagrad, adagrad, adam, lamb, lars_sgd, partial_rowwise_adam or "
        "partial_rowwise_lamb. It sets the memory for optimizer state, and candidates are timed with it (default: for "
        "a TorchRec model, each table's own, or sgd if the model names none; for other tables, the optimizer of the "
        "learned model's training data, else rowwise_adagrad)",
    )
    dense_optimizer: str = knob(
        "",
        "optimizer of the dense model, which also updates replicas (data_parallel). Only tables with the same "
        "optimizer are replicated; learning rate and other settings must match, too (default: unknown; tables with a "
        "fused optimizer in the model are then replicated only if sharding_types or table_types names data_parallel)",
    )
    training_pipeline: str = knob(
        "sparse_dist",
        "TorchRec's TrainPipeline: none, base, sparse_dist and prefetch hold the inputs of 1, 1, 2 and 3 batches; "
        "empty counts only weights and optimizer state. With none and base the input dist is part of the step; with "
        "the others it overlaps the previous step, and only the time by which it exceeds that step's kernels counts",
    )
    dense: str | Path | Mapping[str, Any] | None = knob(
        None,
        "dense layers, to predict the whole step: a YAML file, or the key dense of a request with inputs, bottom, "
        "interaction, top, ... (docs/place.md; default: those of a TorchRec model or a public set)",
    )
    dense_ms: float | None = knob(
        None, "time of the dense part of a step, ms, to predict the whole step (default: predicted from dense)"
    )
    communication: Sequence[str] = knob(
        (),
        "data types of embeddings and gradients in communication (TorchRec's qcomms): one such as fp16, or forward "
        "and backward such as fp16 and bf16 (default: fp32)",
    )


@dataclass(frozen=True)
class Sharding:
    """Sharding types and compute kernels of all tables."""

    sharding_types: Sequence[str] = knob(
        (),
        "sharding types allowed for tables, by TorchRec's names (default: all)",
        torchrec="ParameterConstraints.sharding_types",
    )
    allow_column_split: bool = knob(False, "short for sharding_types table_wise and column_wise")
    compute_kernels: Sequence[str] = knob(
        (),
        "compute kernels allowed for tables: fused, fused_uvm_caching, fused_uvm, key_value, host (default: the first "
        "three; fused alone without host memory)",
        torchrec="ParameterConstraints.compute_kernels",
    )
    keep_output_order: bool = knob(
        False,
        "keep the order of pooled outputs, for models that slice values() of a collection's output: the order in the "
        "placement near if given, otherwise the order of the unsharded model's tables",
    )
    constraints: "Mapping[str, ParameterConstraints] | None" = knob(
        None,
        "TorchRec's ParameterConstraints for tables of a model, by name: they limit sharding types, kernels and shard "
        "widths, and set the pooling factors of tables that pooling_factors does not name",
        torchrec="EmbeddingShardingPlanner.constraints",
        flag=None,
    )


@dataclass(frozen=True)
class TableSources:
    """Sources of table properties that complete or replace the values of a table file."""

    columns: Mapping[str, str] | None = knob(
        None,
        "columns to rename, as OLD=NEW: in a table file to evenshard's names (hash_size=num_rows), in traffic to "
        "feature names; an empty new name (ts=) drops the column",
    )
    weight_bits: int | None = knob(None, "bits per weight of all tables: 4, 8, 16 or 32 (default: each table's own)")
    embedding_dim: int | None = knob(
        None, "embedding dimension of all tables, if they come from sizes, a Merlin schema or traffic", alias="--dim"
    )
    traffic: str | Path | None = knob(
        None, "sample of lookups that sets the pooling factors and histograms of tables from a file or public set"
    )
    pooling_factors: Mapping[str, float | Sequence[float]] | None = knob(
        None,
        "mean lookups per sample of a table or feature: one number, or a list with one per feature of the table; "
        "replaces the values of the table file and of traffic",
        torchrec="ParameterConstraints.pooling_factors",
    )
    default_pooling_factor: float = knob(
        1.0, "mean lookups per sample of tables without a pooling factor; reported as an assumption"
    )


@dataclass(frozen=True)
class TableRules:
    """Rules for single tables, by name, as the user writes them; ``evenshard.planner.rules`` parses them."""

    pinned: Mapping[str, int | Sequence[int]] | None = knob(None, "device or devices allowed for a table", flag="--pin")
    forbidden: Mapping[str, int | Sequence[int]] | None = knob(
        None, "device or devices not allowed for a table", flag="--forbid"
    )
    forbidden_devices: Sequence[int] = knob((), "devices not allowed for any table", flag="--forbid-device")
    together: Sequence[Sequence[str]] = knob((), "groups of tables to keep on one device")
    apart: Sequence[Sequence[str]] = knob((), "groups of tables to separate: at most one table of a group per device")
    pinned_nodes: Mapping[str, int | Sequence[int]] | None = knob(
        None, "node or nodes allowed for a table", flag="--pin-node"
    )
    table_types: Mapping[str, str | Sequence[str]] | None = knob(
        None,
        "sharding types allowed for a table, in place of sharding_types",
        torchrec="ParameterConstraints.sharding_types",
    )
    min_columns: Mapping[str, int] | None = knob(
        None, "minimum number of columns per shard of a table", torchrec="ParameterConstraints.min_partition"
    )
    table_kernels: Mapping[str, str | Sequence[str]] | None = knob(
        None,
        "compute kernels allowed for a table, in place of compute_kernels",
        torchrec="ParameterConstraints.compute_kernels",
    )


@dataclass(frozen=True)
class Search:
    """Cost model and effort of the search."""

    model: "str | Path | Model | None" = knob(
        None,
        "cost model: a round's folder such as work/round_3, local or on S3, an MLflow URI such as "
        "models:/evenshard-cost@champion, or a loaded model (default: the device model of the simulated hardware)",
    )
    num_measured: int = knob(
        0,
        "candidates to time on the hardware, or to simulate; the fastest is the answer. 0 relies on the model",
        range=Range(0, 10_000, whole=True),
        flag="--measure",
    )
    compare: Sequence[str] = knob((), "baselines to compare with; see evenshard.planner.baselines", flag=None)
    seed: int = knob(0, "random seed of the search")
    effort: str = knob(
        "normal",
        "search effort: quick, normal or long. With the same request and seed, more effort never gives a worse answer",
    )


@dataclass(frozen=True)
class InUse:
    """The current placement, and the limit on data that may move to other devices."""

    near: str | Path | None = knob(
        None, "current placement: a placement.json or its folder, local or on S3; the answer lists the tables that move"
    )
    max_move_gb: float | None = knob(
        None,
        "GB of weights and optimizer state that may move from near to devices that do not hold them yet (default: no "
        "limit; device ids are assigned so that the least data moves)",
        range=Range(0, 2**20),
    )


@dataclass(frozen=True)
class Knobs:
    """All knobs of a placement, by group; each group has a heading in the command's help."""

    machine: Machine = group(Machine, "devices, hosts and links")
    memory: Memory = group(Memory, "memory of devices and hosts")
    training: Training = group(Training, "training step")
    sharding: Sharding = group(Sharding, "sharding types and compute kernels")
    table_sources: TableSources = group(TableSources, "table sources")
    table_rules: TableRules = group(TableRules, "rules for tables")
    search: Search = group(Search, "model and search")
    in_use: InUse = group(InUse, "current placement")

    @staticmethod
    def of(given: Mapping[str, Any], taken: Collection[str] | None = None) -> "Knobs":
        """Collect the knobs that a caller passes by name or in groups; None means the default.

        Args:
            taken: names of the accepted knobs, if not all are.

        Raises:
            BadConfig: if a knob is given twice, is not accepted, or is out of range.
            TypeError: if a name is unknown, as for Python keywords.
        """
        known = {one.name: one for one in place_knobs() if taken is None or one.name in taken}
        if unknown := next((name for name in given if name not in known and name not in vars(Knobs())), None):
            raise TypeError(f"got an unexpected keyword argument {unknown!r}{_hint(unknown, known.values())}")
        chosen = {}
        for of_kind in groups():
            asked = of_kind.kind() if given.get(of_kind.name) is None else given[of_kind.name]
            in_group = changed_knobs(asked)
            if foreign := next((name for name in in_group if name not in known), None):
                raise BadConfig(f"{foreign} (in {of_kind.name}) is not supported here. Leave it out.")
            own = [known[one.name] for one in knobs_of(of_kind.kind) if one.name in known]
            alone = {one.name: given[one.name] for one in own if given.get(one.name) is not None}
            if twice := next((name for name in alone if name in in_group), None):
                raise BadConfig(f"{twice} is given twice: as an argument and in {of_kind.name}. Give it once.")
            chosen[of_kind.name] = replace(asked, **alone)
            check_knobs(chosen[of_kind.name])
        return Knobs(**chosen)


@dataclass(frozen=True)
class WhatIf:
    """The knobs of ``evenshard.what_if``: machines, prices, and the dense part of a step."""

    hardware: Sequence[str] = knob(
        (),
        "hardware to compare; h100 is short for simulated:h100 (default: the hardware that the model was trained on, "
        "else simulated:h100)",
    )
    devices: Sequence[int] = knob((8,), "numbers of devices to compare")
    memory_cap_gb: float | Sequence[float] | None = knob(
        None, "device memory sizes to compare on every machine, GB of 1024**3 bytes (default: the hardware's own)"
    )
    price: "str | Path | Prices | None" = knob(None, "hourly prices, to compare costs: a YAML file, or Prices")
    batch_size: int | None = knob(
        None, "global batch size, the same on every machine (default: 65,536, unless batch_per_device is given)"
    )
    batch_per_device: int | None = knob(
        None, "batch size per device, in place of batch_size: the global batch grows with the devices"
    )
    dense_ms: float | Mapping[str, float] = knob(
        0.0, "step time without embeddings; one number for all hardware, or one per hardware"
    )
    dense_batch: int | None = knob(
        None,
        "batch size per device for which dense_ms holds, to scale it to each machine (default: dense_ms is not scaled)",
    )
    overlap: float = knob(
        0.0, "overlap of embeddings and dense_ms, as a fraction of the shorter of these times, 0 to 1; 0 adds them up"
    )
    max_step_ms: float | None = knob(
        None, "step time limit: the answer names the cheapest machine that is predicted to stay within it, too"
    )
    devices_per_node: int | Mapping[str, int] | None = knob(
        None, "devices per host (default: as many as its link connects, at most 8)"
    )
    nodes_per_domain: int | Mapping[str, int] = knob(
        1, "hosts per domain, whose devices all communicate over the link intra"
    )
    intra: str | Mapping[str, str] = knob("", "link within a host (default: the hardware's own)")
    inter: str | Mapping[str, str] = knob(
        "",
        "link between hosts (default: infiniband_ndr for H100 and later, infiniband_hdr for A100 and V100, "
        "ethernet_25g for others)",
    )
    model: str | Path | Mapping[str, str | Path] | None = knob(
        None, "cost model of each hardware, as for evenshard.place"
    )
    group_sizes: Sequence[int] | str = knob(
        (),
        "number of devices that share one copy of the tables in 2D parallelism (TorchRec's DMPCollection), or 'all' to "
        "try every divisor of the number of devices (default: all devices share one copy)",
    )
    sync_every: int = knob(1, "number of steps between two syncs, which average the weights over the groups")


def groups() -> tuple[Group, ...]:
    """Return the groups of knobs, in the order of the help."""
    return groups_of(Knobs)


def place_knobs() -> tuple[Knob, ...]:
    """Return the knobs of ``evenshard.place``, one group after the other."""
    return tuple(one for of_kind in groups() for one in knobs_of(of_kind.kind))


def place_knob(name: str) -> Knob:
    """Return a knob of ``evenshard.place``."""
    return next(one for one in place_knobs() if one.name == name)


def group_knobs(knobs: Iterable[Knob]) -> tuple[Knob, ...]:
    """Return, for each group of these knobs, the argument that takes the group as a dataclass, such as ``memory``."""
    names = {one.name for one in knobs}
    return tuple(
        Knob(one.name, one.kind | None, None, f"several of the arguments above, as a {one.kind.__name__}")
        for one in groups()
        if not names.isdisjoint(of_group.name for of_group in knobs_of(one.kind))
    )


# Knobs of ``evenshard.place`` that ``what_if`` lacks: they describe a single machine or a single answer.
_OF_ONE_MACHINE = {
    *("num_devices", "nodes", "hosts", "constraints"),
    *("pinned", "forbidden", "forbidden_devices", "pinned_nodes"),
    *("near", "max_move_gb", "num_measured", "compare"),
}


def shared_knobs() -> tuple[Knob, ...]:
    """Return the knobs of ``evenshard.place`` that apply to all machines of ``what_if``."""
    own = {one.name for one in knobs_of(WhatIf)}
    return tuple(one for one in place_knobs() if one.name not in _OF_ONE_MACHINE and one.name not in own)


def knob_field(name: str, default: Any = None) -> Any:
    """Declare a dataclass field with the help, range and flag of a knob of ``evenshard.place``."""
    one = place_knob(name)
    value = one.default if default is None else default
    return knob(value, one.help, torchrec=one.torchrec, range=one.range, flag=one.flag)


def _hint(unknown: str, known: Iterable[Knob]) -> str:
    known = tuple(known)
    spelled = [one.name for one in known if one.torchrec.rpartition(".")[2] == unknown]
    if spelled:
        return f". Use {' or '.join(spelled)} for TorchRec's {unknown}"
    meant = did_you_mean(unknown, (one.name for one in known))
    return f".{meant}" if meant else ""
