"""``evenshard.place``: one call from tables to an answer, the same as the command's.

Its signature and its docstring declare every knob of a placement; see ``evenshard.planner.options``, which reads them
for a flag or a schema. That must not wait for torch: what is heavy is imported when a placement is asked for.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenshard.utils.signature import checked

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import ParameterConstraints

    from evenshard.planner.near import Near
    from evenshard.planner.optimizers import TableOptimizers
    from evenshard.planner.request import PlacementRequest
    from evenshard.report.answer import PlacementAnswer
    from evenshard.sharders.model import Model
    from evenshard.tables.assumptions import TableSet
    from evenshard.tables.table import Table
    from evenshard.torchrec.model.modules import Collections

VISITS = 3
"""Moments at which a candidate is measured: what disturbs one moment does not decide."""


@checked(Model="evenshard.sharders.model")
def place(
    tables: "str | Path | Sequence[Table] | Sequence[Mapping[str, Any]] | Collections | Any",
    num_devices: int | None = None,
    memory_cap_gb: float | Sequence[float] | None = None,
    *,
    reserved_gb: float | None = None,
    dense_gb: float | None = None,
    training_pipeline: str = "sparse_dist",
    host_memory_gb: float | None = None,
    host_bandwidth_gb_s: float | None = None,
    ssd_gb: float | None = None,
    ssd_bandwidth_gb_s: float | None = None,
    compute_kernels: Sequence[str] = (),
    nodes: int | None = None,
    devices_per_node: int | None = None,
    nodes_per_domain: int = 1,
    intra: str = "",
    inter: str = "",
    cluster: str | Path | None = None,
    hardware: str | None = None,
    model: "str | Path | Model | None" = None,
    batch_size: int = 65_536,
    optimizer: str | None = None,
    dense_optimizer: str = "",
    weight_bits: int | None = None,
    traffic: str | Path | None = None,
    embedding_dim: int | None = None,
    pooling_factors: Mapping[str, float | Sequence[float]] | None = None,
    default_pooling_factor: float = 1.0,
    columns: Mapping[str, str] | None = None,
    constraints: "Mapping[str, ParameterConstraints] | None" = None,
    communication: Sequence[str] = (),
    sharding_types: Sequence[str] = (),
    allow_column_split: bool = False,
    pinned: Mapping[str, int | Sequence[int]] | None = None,
    forbidden: Mapping[str, int | Sequence[int]] | None = None,
    forbidden_devices: Sequence[int] = (),
    together: Sequence[Sequence[str]] = (),
    apart: Sequence[Sequence[str]] = (),
    pinned_nodes: Mapping[str, int | Sequence[int]] | None = None,
    table_types: Mapping[str, str | Sequence[str]] | None = None,
    min_columns: Mapping[str, int] | None = None,
    table_kernels: Mapping[str, str | Sequence[str]] | None = None,
    near: str | Path | None = None,
    max_move_gb: float | None = None,
    num_measured: int = 0,
    compare: Sequence[str] = (),
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> "PlacementAnswer":
    """Decides where embedding tables live: how each is sharded, and which rows and columns are on which device.

    Ctrl-C ends the search with the best placement until then, once there is one; a note of the answer says so.

    Args:
        tables: a table file, the name of a public set, a DLRM batch file or a folder of traffic, here or on S3
            (s3://bucket/tables.parquet); or ``Table``s, a ``pandas.DataFrame`` or a list of dicts with the columns of a
            table file; or TorchRec's ``EmbeddingBagCollection`` or ``EmbeddingCollection``, a model with some, or a
            list of their configurations.
        num_devices: devices; where left out, those of all nodes or of the cluster, else 8.
        memory_cap_gb: memory of a device, GB of 1024**3 bytes; one number, or one for each device. Where left out:
            that of the profile of simulated hardware, what the driver says of cuda, this machine's for all cpu devices
            of a node together.
        reserved_gb: GB of each device kept for everything that is not counted, such as fragmentation; where left out,
            15 % of its memory, which TorchRec's planner keeps too.
        dense_gb: GB that the dense model takes of each device, with its gradients and optimizer state; where left out,
            counted from a model that is given as tables, as Adam trains it, else 0.
        training_pipeline: none, base, sparse_dist or prefetch, after TorchRec's TrainPipelines, which hold the inputs
            of 1, 1, 2 and 3 batches; empty to count weights and optimizer state alone. It changes what is counted of
            memory, and no time: batches overlap in none.
        host_memory_gb: GB of each host's memory that tables may take; where left out, all tables stay in device
            memory.
        host_bandwidth_gb_s: bandwidth of each host's memory, 10**9 bytes per second, which its devices share.
        ssd_gb: GB of each host's SSDs that tables may take, where key_value is named.
        ssd_bandwidth_gb_s: bandwidth of each host's SSDs, likewise.
        compute_kernels: where weights may be kept, by TorchRec's words: fused, fused_uvm_caching, fused_uvm,
            key_value, host; where left out, the first three, as far as there is host memory.
        nodes: hosts; where left out, as many as the devices fill.
        devices_per_node: devices of a host; where left out, all of them, or as many as the link within a host connects.
        nodes_per_domain: hosts whose devices share the link within a host, as where NVLink spans several.
        intra: link within a host, such as nvlink_h100; where left out, that of the hardware.
        inter: link between hosts, such as ib_400g, one for each device; needed for more than one host.
        cluster: YAML file of hosts and links, in place of the arguments above; docs/place.md has its keys.
        hardware: hardware that the answer is for: cpu, cuda, or simulated:<profile>, a device model, which h100 is
            short for; where left out, what the model was trained on, or simulated:h100.
        model: a round's folder such as work/round_3, here or on S3, an MLflow URI such as
            models:/evenshard-cost@champion, or a loaded model; where left out, the device model of simulated hardware.
        batch_size: samples of a training step over all devices together.
        optimizer: optimizer of the tables: sgd, rowwise_adagrad, adagrad, adam, lamb, lars_sgd, partial_rowwise_adam or
            partial_rowwise_lamb. Its state takes memory, and candidates are timed with it; where left out, that of each
            table of a TorchRec model, which trains with sgd unless it says otherwise; for other tables that of the
            costs that a learned model was trained on, else rowwise_adagrad.
        dense_optimizer: optimizer of the dense model, which trains replicas (data_parallel), likewise: only tables of
            the same one are replicated. By naming it you say that learning rate and other settings are the same, too.
            Where left out, tables of a model with fused optimizers of their own are not replicated, unless
            sharding_types or table_types names data_parallel.
        weight_bits: 4, 8, 16 or 32 bits for the weights of all tables; where left out, each table's own.
        traffic: a sample of lookups with the pooling factors and histograms of the tables of a file or public set.
        embedding_dim: dim of all tables, where the tables are a sample of traffic.
        pooling_factors: mean lookups per sample of a table, or of a feature: a number, or a list with one for each
            feature of the table; in place of what its source says, or traffic counts.
        default_pooling_factor: lookups per sample of a table that has no pooling factor; reported as assumed.
        columns: columns of the tables or of the traffic that are called otherwise, each with the column of a table file
            (hash_size=num_rows) or the feature that it is; empty (ts=) to leave it out.
        constraints: TorchRec's, by the tables of a model: they bound types, kernels and widths of parts, and tell
            pooling factors that are named nowhere else; a note names what of them changes nothing.
        communication: data types in which embeddings and their gradients travel (TorchRec: qcomms), such as fp16, or
            fp16 and bf16 for the two ways; fp32 where left out.
        sharding_types: the ways in which tables may be sharded, by TorchRec's words; all of them where left out.
        allow_column_split: short for sharding_types table_wise and column_wise.
        pinned: the device, or devices, that a table may live on.
        forbidden: the device, or devices, that a table may not live on.
        forbidden_devices: devices that no table may live on.
        together: groups of tables that live on one device.
        apart: groups of tables of which a device holds one at most.
        pinned_nodes: the node, or nodes, that a table may live on.
        table_types: the ways in which a table may be sharded, in place of sharding_types.
        min_columns: columns that each part of a table has at least.
        table_kernels: where a table's weights may be kept, in place of compute_kernels.
        near: placement.json of today, or its folder, here or on S3: the answer says what moves from it.
        max_move_gb: GB of weights and optimizer state that may move from near to devices which lack them; where left
            out, any number, and only device names are chosen so that least moves.
        num_measured: candidates to time on the hardware (a simulated one simulates); the fastest is the answer. 0
            trusts the model.
        compare: other sharders to compare with; see ``evenshard.planner.rivals``.
        seed: seed of the search.
        progress: called with the predicted time of every better placement that is found, ms.

    Returns:
        The placement, with its predicted times, how sure they are, and a lower bound. The same arguments give the same.

    Raises:
        BadInput: if an argument cannot be used; the message says what to do.
        InfeasibleTask: if there is no legal placement; the message says what is missing.
    """
    from evenshard.placement.sharding import Communication
    from evenshard.planner.cluster import HostMemory, devices_of
    from evenshard.planner.device_memory import reserve_of
    from evenshard.planner.model import model_of, named_with_hardware
    from evenshard.planner.place import PlaceConfig, place_request
    from evenshard.planner.pricing import measured_parts
    from evenshard.planner.request import PlacementRequest
    from evenshard.planner.rules import Rules
    from evenshard.report.answer import shown
    from evenshard.tables.named_lookups import with_pooling_factors
    from evenshard.utils.params import check_ranges

    check_ranges(batch_size=batch_size, seed=seed)
    reserved_bytes, reserved_share = reserve_of(reserved_gb)
    check_ranges(default_pooling_factor=default_pooling_factor, num_measured=num_measured)
    named, own_hardware = named_with_hardware(model, hardware)
    devices = devices_of(
        num_devices,
        memory_cap_gb,
        own_hardware,
        nodes=nodes,
        devices_per_node=devices_per_node,
        nodes_per_domain=nodes_per_domain,
        intra=intra,
        inter=inter,
        cluster=cluster,
        host=HostMemory(host_memory_gb, host_bandwidth_gb_s, ssd_gb, ssd_bandwidth_gb_s),
    )
    loaded = named or model_of(None, devices.hardware)
    loaded.require_hardware(devices.hardware)
    known = _tables(tables, batch_size, traffic, embedding_dim, weight_bits, default_pooling_factor, columns)
    known = with_pooling_factors(known, pooling_factors)
    optimizers = _optimizers(tables, optimizer, loaded)
    request = PlacementRequest(
        tables=known.tables,
        caps_bytes=devices.caps_bytes,
        batch_size=batch_size,
        reserved_bytes=reserved_bytes,
        optimizer=optimizers.optimizer,
        rules=Rules.of(
            pinned=pinned,
            forbidden=forbidden,
            forbidden_devices=forbidden_devices,
            together=together,
            apart=apart,
            pinned_nodes=pinned_nodes,
            table_types=table_types,
            min_columns=min_columns,
            table_kernels=table_kernels,
        ),
        communication=Communication.of(communication),
        sharding_types=_types(sharding_types, allow_column_split),
        machine=devices.machine,
        hardware=devices.hardware,
        assumptions=(*known.assumptions, *optimizers.assumptions),
        reserved_share=reserved_share,
        dense_bytes=dense_bytes_of(tables, dense_gb),
        training_pipeline=training_pipeline,
        compute_kernels=tuple(compute_kernels),
        dense_optimizer=dense_optimizer,
        table_optimizers=optimizers.of_tables,
    )
    if constraints is not None:
        request, unused = _constrained(request, tables, constraints)
        known = replace(known, notes=(*known.notes, *unused))
    config = PlaceConfig(seed=seed, compare=tuple(compare), num_measured=num_measured)
    close_to = _near(near, max_move_gb)
    origin = str(tables) if isinstance(tables, str | Path) else None
    with measured_parts(request, loaded, VISITS) if num_measured else nullcontext() as measure:
        answer = place_request(request, loaded, config, measure, origin, progress, close_to)
    return shown(replace(answer, notes=(*answer.notes, *devices.notes, *known.notes)))


def _constrained(
    request: "PlacementRequest", tables: Any, constraints: "Mapping[str, ParameterConstraints]"
) -> "tuple[PlacementRequest, tuple[str, ...]]":
    """The request under TorchRec's constraints, and what of these changes nothing."""
    from evenshard.torchrec.planner.constraints import constrained_request
    from evenshard.utils.errors import BadConfig

    if not _is_of_torchrec(tables):
        raise BadConfig(
            "constraints are of the tables of a TorchRec model. For these tables, give table_types, table_kernels, "
            "min_columns and pooling_factors."
        )
    return constrained_request(request, tables, constraints)


def _near(near: str | Path | None, max_move_gb: float | None) -> "Near | None":
    """The earlier answer, and what may move from it."""
    from evenshard.utils.errors import BadConfig
    from evenshard.utils.params import check_ranges

    check_ranges(max_move_gb=max_move_gb)
    if near is None:
        if max_move_gb is not None:
            raise BadConfig(
                f"max_move_gb is {max_move_gb:g}, but no placement is named to stay near to. Name its file with near, "
                "or leave max_move_gb out."
            )
        return None
    from evenshard.planner.near import Near
    from evenshard.torchrec.running.current_placement import load_placement
    from evenshard.utils.s3 import is_address, local
    from evenshard.utils.units import gb_to_bytes

    with local(near, listed=True) if is_address(near) else nullcontext(near) as here:
        old = load_placement(Path(here))
    return Near(old, str(near), None if max_move_gb is None else gb_to_bytes(max_move_gb))


def _types(sharding_types: Sequence[str], allow_column_split: bool) -> tuple[str, ...]:
    """The types that both arguments together allow."""
    from evenshard.placement.sharding import BY_COLUMNS
    from evenshard.utils.errors import BadConfig

    if not allow_column_split:
        return tuple(sharding_types)
    if sharding_types and set(sharding_types) != set(BY_COLUMNS):
        both = ", ".join(BY_COLUMNS)
        raise BadConfig(f"allow_column_split is short for sharding_types {both}. Give one of the two.")
    return BY_COLUMNS


def dense_bytes_of(tables: Any, dense_gb: float | None) -> int:
    """What the dense model takes of each device."""
    from evenshard.utils.params import check_ranges
    from evenshard.utils.units import gb_to_bytes

    check_ranges(dense_gb=dense_gb)
    if dense_gb is not None or not hasattr(tables, "named_parameters"):
        return gb_to_bytes(dense_gb or 0.0)
    from evenshard.torchrec.model.dense_model import dense_bytes

    return dense_bytes(tables)


def _optimizers(tables: Any, optimizer: str | None, model: "Model") -> "TableOptimizers":
    """The optimizers of the tables: those of a model, where nothing else is asked for."""
    from evenshard.placement.optimizer_state import DEFAULT_OPTIMIZER
    from evenshard.planner.optimizers import optimizers_of

    if not _is_of_torchrec(tables):
        known = DEFAULT_OPTIMIZER if model.trained_on is None else model.trained_on.optimizer
        return optimizers_of((), {}, optimizer or known)
    from evenshard.torchrec.model.fused_optimizers import model_optimizers

    return model_optimizers(tables, optimizer)


def _is_of_torchrec(tables: Any) -> bool:
    """Whether tables are a model, collections or configurations of TorchRec's."""
    several = tuple(tables.values()) if isinstance(tables, Mapping) else tables
    return hasattr(tables, "named_parameters") or (
        isinstance(several, Sequence)
        and any(hasattr(one, "named_parameters") or hasattr(one, "num_embeddings") for one in several)
    )


def _tables(
    tables: Any,
    batch_size: int,
    traffic: str | Path | None,
    embedding_dim: int | None,
    weight_bits: int | None,
    default_pooling_factor: float,
    columns: Mapping[str, str] | None,
) -> "TableSet":
    from evenshard.tables.assumptions import TableSet
    from evenshard.tables.sources import completed, tables_from, tables_in_python
    from evenshard.tables.table import Table
    from evenshard.utils.errors import BadConfig
    from evenshard.utils.s3 import is_address, local

    if isinstance(tables, str | Path):
        with local(tables, listed=True) if is_address(tables) else nullcontext(tables) as here:
            return tables_from(here, batch_size, traffic, embedding_dim, weight_bits, default_pooling_factor, columns)
    if embedding_dim is not None:
        raise BadConfig(f"the tables have dims of their own. Leave embedding_dim ({embedding_dim}) out.")
    known = tables_in_python(tables, batch_size, traffic, weight_bits, default_pooling_factor, columns)
    if known is not None:
        return known
    if not isinstance(tables, Sequence) or not all(isinstance(table, Table) for table in tables):
        from evenshard.torchrec.model.tables import table_set_of

        known = table_set_of(tables, default_pooling_factor=default_pooling_factor)
    else:
        known = TableSet.of(tables)
    return completed(replace(known, missed=tuple(columns or ())), batch_size, traffic, weight_bits, columns)
