"""The knobs of a placement, each declared once.

``evenshard.place`` takes each by its own name, or several in a dataclass::

    evenshard.place("tables.yaml", 8, host_memory_gb=400, seed=1)
    evenshard.place("tables.yaml", 8, memory=Memory(host_memory_gb=400), search=Search(seed=1))

From the knobs come the flags of the command and the groups of its help, the keywords of ``EvenshardPlanner`` and of
``evenshard.what_if``, the keys of a pipeline's request, the parameters of a served model, and the schema of
placement.json.
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
    """Devices, the hosts that they are in, and the links between them."""

    num_devices: int | None = knob(
        None,
        "number of devices (default: those of all nodes or of the hosts, else 8)",
        torchrec="Topology.world_size",
        flag="--devices",
    )
    hardware: str | None = knob(
        None,
        "hardware that the answer is for: cpu, cuda, or a device model simulated:<profile>, where h100 is short for "
        "simulated:h100 (default: what the model was trained on, or simulated:h100)",
    )
    nodes: int | None = knob(None, "number of hosts (default: as many as the devices fill)")
    devices_per_node: int | None = knob(
        None,
        "devices of a host (default: all devices, or as many as the link within a host connects)",
        torchrec="Topology.local_world_size",
    )
    nodes_per_domain: int = knob(1, "hosts whose devices share the link within a host, where NVLink spans several")
    intra: str = knob(
        "",
        "link within a host, such as nvlink_h100 (default: that of the hardware)",
        torchrec="Topology.intra_host_bw",
    )
    inter: str = knob(
        "",
        "link between hosts, such as ib_400g, one for each device; needed for more than one host",
        torchrec="Topology.inter_host_bw",
    )
    hosts: str | Path | None = knob(
        None, "YAML file of hosts and links, in place of the arguments above; docs/place.md has its keys"
    )


@dataclass(frozen=True)
class Memory:
    """Memory of devices and hosts, and the part of it that is not for tables."""

    memory_cap_gb: float | Sequence[float] | None = knob(
        None,
        "memory of a device, GB of 1024**3 bytes; one number, or one for each device (default: for simulated hardware "
        "that of the profile, for cuda what the driver says, for all cpu devices of a node together that of this "
        "machine)",
        torchrec="Topology.hbm_cap",
    )
    reserved_gb: float | None = knob(
        None,
        "GB of each device kept for everything that is not counted, such as fragmentation (default: 15 % of its "
        "memory, as TorchRec's planner keeps)",
        torchrec="EmbeddingShardingPlanner.storage_reservation",
    )
    dense_gb: float | None = knob(
        None,
        "GB that the dense model takes of each device, with its gradients and optimizer state (default: counted from a "
        "model that is given as tables, as Adam trains it, else 0)",
    )
    host_memory_gb: float | None = knob(
        None,
        "GB of each host's memory that tables may take (default: none, all tables stay in device memory)",
        torchrec="Topology.ddr_cap",
    )
    host_bandwidth_gb_s: float | None = knob(
        None,
        "bandwidth of each host's memory, 10**9 bytes per second, which its devices share",
        torchrec="Topology.ddr_mem_bw",
    )
    ssd_gb: float | None = knob(
        None, "GB of each host's SSDs that tables may take, if key_value is named", torchrec="Topology.ssd_cap"
    )
    ssd_bandwidth_gb_s: float | None = knob(
        None,
        "bandwidth of each host's SSDs, 10**9 bytes per second, which its devices share",
        torchrec="Topology.ssd_mem_bw",
    )


@dataclass(frozen=True)
class Training:
    """Batch, optimizers and pipeline of a training step."""

    batch_size: int = knob(65_536, "samples of a training step over all devices together")
    optimizer: str | None = knob(
        None,
        "optimizer of the tables: sgd, rowwise_adagrad, adagrad, adam, lamb, lars_sgd, partial_rowwise_adam or "
        "partial_rowwise_lamb. Its state takes memory, and candidates are timed with it (default: that of each table "
        "of a TorchRec model, which is sgd unless the model says otherwise; for other tables that of the costs that a "
        "learned model was trained on, else rowwise_adagrad)",
    )
    dense_optimizer: str = knob(
        "",
        "optimizer of the dense model, which also trains replicas (data_parallel). Only tables with the same optimizer "
        "are replicated; make sure that learning rate and other settings match, too (default: not known, and tables of "
        "a model with fused optimizers of their own are replicated only if sharding_types or table_types names "
        "data_parallel)",
    )
    training_pipeline: str = knob(
        "sparse_dist",
        "none, base, sparse_dist or prefetch, after TorchRec's TrainPipelines, which hold the inputs of 1, 1, 2 and 3 "
        "batches; empty to count weights and optimizer state alone. With none and base the exchange of indices is in "
        "the step; with the others it runs beside the previous step and counts only the time by which it exceeds the "
        "kernels of that step",
    )
    communication: Sequence[str] = knob(
        (),
        "data types in which embeddings and their gradients travel (TorchRec: qcomms), such as fp16, or fp16 and bf16 "
        "for the two directions (default: fp32)",
    )


@dataclass(frozen=True)
class Sharding:
    """Sharding types and compute kernels of all tables."""

    sharding_types: Sequence[str] = knob(
        (),
        "sharding types that tables may have, in TorchRec's words (default: all)",
        torchrec="ParameterConstraints.sharding_types",
    )
    allow_column_split: bool = knob(False, "short for sharding_types table_wise and column_wise")
    compute_kernels: Sequence[str] = knob(
        (),
        "where weights may be kept, in TorchRec's words: fused, fused_uvm_caching, fused_uvm, key_value, host "
        "(default: the first three, as far as there is host memory)",
        torchrec="ParameterConstraints.compute_kernels",
    )
    keep_output_order: bool = knob(
        False,
        "place so that pooled outputs keep their order, for models that take values() of a collection's output or "
        "slice it: the order that near has, else that of the unsharded model, which is that of its tables",
    )
    constraints: "Mapping[str, ParameterConstraints] | None" = knob(
        None,
        "TorchRec's constraints by table of a model: they bound types, kernels and widths of parts, and give pooling "
        "factors that are given nowhere else",
        torchrec="EmbeddingShardingPlanner.constraints",
        flag=None,
    )


@dataclass(frozen=True)
class TableSources:
    """Information about the tables in addition to their file."""

    columns: Mapping[str, str] | None = knob(
        None,
        "columns of the tables or of the traffic with another name, each with the column of a table file "
        "(hash_size=num_rows) or the feature that it is; empty (ts=) to leave it out",
    )
    weight_bits: int | None = knob(
        None, "4, 8, 16 or 32 bits for the weights of all tables (default: each table's own)"
    )
    embedding_dim: int | None = knob(None, "dim of all tables, where the tables are a sample of traffic")
    traffic: str | Path | None = knob(
        None, "a sample of lookups with the pooling factors and histograms of the tables of a file or public set"
    )
    pooling_factors: Mapping[str, float | Sequence[float]] | None = knob(
        None,
        "mean lookups per sample of a table, or of a feature: a number, or a list with one for each feature of the "
        "table; in place of what its source says, or traffic counts",
        torchrec="ParameterConstraints.pooling_factors",
    )
    default_pooling_factor: float = knob(
        1.0, "lookups per sample of a table that has no pooling factor; reported as assumed"
    )


@dataclass(frozen=True)
class TableRules:
    """Rules of single tables, by name, as a user writes them; ``evenshard.planner.rules`` parses them."""

    pinned: Mapping[str, int | Sequence[int]] | None = knob(
        None, "the device, or devices, that a table may live on", flag="--pin"
    )
    forbidden: Mapping[str, int | Sequence[int]] | None = knob(
        None, "the device, or devices, that a table may not live on", flag="--forbid"
    )
    forbidden_devices: Sequence[int] = knob((), "devices that no table may live on", flag="--forbid-device")
    together: Sequence[Sequence[str]] = knob((), "groups of tables that live on one device")
    apart: Sequence[Sequence[str]] = knob((), "groups of tables of which a device holds at most one")
    pinned_nodes: Mapping[str, int | Sequence[int]] | None = knob(
        None, "the node, or nodes, that a table may live on", flag="--pin-node"
    )
    table_types: Mapping[str, str | Sequence[str]] | None = knob(
        None,
        "sharding types that a table may have, in place of sharding_types",
        torchrec="ParameterConstraints.sharding_types",
    )
    min_columns: Mapping[str, int] | None = knob(
        None, "least number of columns of each part of a table", torchrec="ParameterConstraints.min_partition"
    )
    table_kernels: Mapping[str, str | Sequence[str]] | None = knob(
        None,
        "where a table's weights may be kept, in place of compute_kernels",
        torchrec="ParameterConstraints.compute_kernels",
    )


@dataclass(frozen=True)
class Search:
    """Model and length of the search."""

    model: "str | Path | Model | None" = knob(
        None,
        "a round's folder such as work/round_3, here or on S3, an MLflow URI such as models:/evenshard-cost@champion, "
        "or a loaded model (default: the device model of simulated hardware)",
    )
    num_measured: int = knob(
        0,
        "candidates to time on the hardware, or to simulate; the fastest is the answer. 0 trusts the model",
        range=Range(0, 10_000, whole=True),
        flag="--measure",
    )
    compare: Sequence[str] = knob((), "other sharders to compare with; see evenshard.planner.baselines", flag=None)
    seed: int = knob(0, "seed of the search")
    effort: str = knob(
        "normal",
        "quick, normal or long: how much is tried out. With the same request and seed, more effort never gives a worse "
        "answer",
    )


@dataclass(frozen=True)
class InUse:
    """A placement that is in use, and the bytes that may move from it."""

    near: str | Path | None = knob(
        None, "placement.json of today, or its folder, here or on S3: the answer says what moves from it"
    )
    max_move_gb: float | None = knob(
        None,
        "GB of weights and optimizer state that may move from near to devices which lack them (default: any number, "
        "and only the names of devices are chosen so that least moves)",
        range=Range(0, 2**20),
    )


@dataclass(frozen=True)
class Knobs:
    """All knobs of a placement, in groups. Each group has a heading in the help of the command."""

    machine: Machine = group(Machine, "devices, hosts and links")
    memory: Memory = group(Memory, "memory of devices and hosts")
    training: Training = group(Training, "what trains")
    sharding: Sharding = group(Sharding, "how tables may be sharded")
    table_sources: TableSources = group(TableSources, "about the tables")
    table_rules: TableRules = group(TableRules, "rules of tables")
    search: Search = group(Search, "model and search")
    in_use: InUse = group(InUse, "a placement that is in use")

    @staticmethod
    def of(given: Mapping[str, Any], taken: Collection[str] | None = None) -> "Knobs":
        """Collect the knobs that a caller passes, each by name or in its group; None for missing knobs.

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
                raise BadConfig(f"{foreign}, which {of_kind.name} gives, is not taken here. Leave it out.")
            own = [known[one.name] for one in knobs_of(of_kind.kind) if one.name in known]
            alone = {one.name: given[one.name] for one in own if given.get(one.name) is not None}
            if twice := next((name for name in alone if name in in_group), None):
                raise BadConfig(f"{twice} is given twice, by itself and in {of_kind.name}. Leave one of the two out.")
            chosen[of_kind.name] = replace(asked, **alone)
            check_knobs(chosen[of_kind.name])
        return Knobs(**chosen)


@dataclass(frozen=True)
class WhatIf:
    """The knobs of ``evenshard.what_if``: machines, prices, and the parts of a step other than embeddings."""

    hardware: Sequence[str] = knob(
        (),
        "kinds of hardware; h100 is short for simulated:h100, a device model (default: what the model was trained on, "
        "or simulated:h100)",
    )
    devices: Sequence[int] = knob((8,), "numbers of devices")
    memory_cap_gb: float | Sequence[float] | None = knob(
        None, "sizes of device memory, GB of 1024**3 bytes, each on every machine (default: that of the hardware)"
    )
    price: "str | Path | Prices | None" = knob(
        None, "prices by the hour, for the cost of samples: a YAML file, or Prices"
    )
    batch_size: int | None = knob(
        None,
        "samples of a step over all devices together, the same on every machine (default: 65,536, unless "
        "batch_per_device is given)",
    )
    batch_per_device: int | None = knob(
        None, "samples of a step on each device, in place of batch_size: more devices take more samples"
    )
    dense_ms: float | Mapping[str, float] = knob(
        0.0, "time of a step without its embeddings; one for all hardware, or one for each"
    )
    dense_batch: int | None = knob(
        None,
        "samples of a device for which dense_ms holds: it is scaled to those of each machine (default: it is taken as "
        "it is)",
    )
    overlap: float = knob(
        0.0,
        "share of the shorter of embeddings and dense_ms that runs beside the longer one, 0 to 1; 0 adds them up",
    )
    max_step_ms: float | None = knob(
        None, "longest step: the cheapest machine that is predicted to keep to it is named too"
    )
    devices_per_node: int | Mapping[str, int] | None = knob(
        None, "devices of a host (default: as many as its link connects, at most 8)"
    )
    nodes_per_domain: int | Mapping[str, int] = knob(1, "hosts whose devices share the link within a host")
    intra: str | Mapping[str, str] = knob("", "link within a host (default: that of the hardware)")
    inter: str | Mapping[str, str] = knob(
        "",
        "link between hosts (default: infiniband_ndr for H100 and later, infiniband_hdr for A100 and V100, "
        "ethernet_25g for others)",
    )
    model: str | Path | Mapping[str, str | Path] | None = knob(
        None, "cost model of each kind of hardware, as for evenshard.place"
    )
    group_sizes: Sequence[int] | str = knob(
        (),
        "devices that share one copy of the tables, with 2D parallelism (TorchRec's DMPCollection); all for every "
        "number that divides the devices (default: all devices share one)",
    )
    sync_every: int = knob(1, "steps from one average over the groups' weights to the next")


def groups() -> tuple[Group, ...]:
    """Return the groups of knobs, in the order of the help."""
    return groups_of(Knobs)


def place_knobs() -> tuple[Knob, ...]:
    """Return the knobs of ``evenshard.place``, by group."""
    return tuple(one for of_kind in groups() for one in knobs_of(of_kind.kind))


def place_knob(name: str) -> Knob:
    """Return a knob of ``evenshard.place``."""
    return next(one for one in place_knobs() if one.name == name)


def group_knobs(knobs: Iterable[Knob]) -> tuple[Knob, ...]:
    """Return the keyword names that take a whole group, for a function with these knobs."""
    names = {one.name for one in knobs}
    return tuple(
        Knob(one.name, one.kind | None, None, f"several of the knobs above, as one {one.kind.__name__}")
        for one in groups()
        if not names.isdisjoint(of_group.name for of_group in knobs_of(one.kind))
    )


# Knobs of ``evenshard.place`` for a single machine or a single answer.
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
    """Declare a dataclass field as a knob of a placement, with its default."""
    one = place_knob(name)
    value = one.default if default is None else default
    return knob(value, one.help, torchrec=one.torchrec, range=one.range, flag=one.flag)


def _hint(unknown: str, known: Iterable[Knob]) -> str:
    known = tuple(known)
    spelled = [one.name for one in known if one.torchrec.rpartition(".")[2] == unknown]
    if spelled:
        return f". TorchRec's {unknown} is {' or '.join(spelled)} here"
    meant = did_you_mean(unknown, (one.name for one in known))
    return f".{meant}" if meant else ""
