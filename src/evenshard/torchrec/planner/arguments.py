"""Arguments of TorchRec's own planner, and its plan of the modules that evenshard does not place."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from evenshard.base.errors import BadConfig, InfeasibleTask
from evenshard.base.knobs import Knob, Range
from evenshard.base.messages import brief, cut
from evenshard.base.units import gb_text, size_text
from evenshard.planner.knobs import place_knobs
from evenshard.torchrec.baseline.topology import planner_error
from evenshard.torchrec.model.modules import qualify_name
from evenshard.torchrec.planner.machine import TorchRecMachine, of_nodes, with_memory

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.planner import EmbeddingShardingPlanner, types
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

log = logging.getLogger(__name__)

_IDLE = ("proposer", "partitioner", "performance_model")  # arguments that only TorchRec's own planner uses
DEFAULT_BATCH_SIZE = 512  # samples per rank; TorchRec's planner has the same default


# Knobs of ``evenshard.place`` that the planner lacks, because the model and TorchRec's arguments determine them.
OF_MODEL_AND_TOPOLOGY = {
    *("num_devices", "nodes", "devices_per_node", "nodes_per_domain", "hosts", "batch_size", "communication"),
    *("columns", "weight_bits", "embedding_dim", "traffic", "constraints"),
    *("num_measured", "compare", "near", "max_move_gb"),
}
# Help of knobs whose meaning or default differs from ``evenshard.place``.
OWN_MEANINGS = {
    "memory_cap_gb": "memory of each rank, GB of 1024**3 bytes; one number, or one per rank (default: that of the "
    "topology. Without a topology, a GPU rank has the memory of this machine's GPU, else of the named hardware, else "
    "TorchRec's 32 GB with a warning; a CPU rank has its share of this machine's memory)",
    "host_memory_gb": "GB of each node's memory available to tables (default: that of the topology's ranks. Without a "
    "topology: 85 % of this machine's memory if it has a GPU, else TorchRec's 128 GB per rank with a warning if tables "
    "are stored there)",
    "ssd_gb": "GB of each node's SSDs available to tables (default: those of the topology's ranks. Without a topology: "
    "TorchRec's 2 TB per rank, with a warning if tables are stored there)",
    "pooling_factors": "pooling factors by table or feature, as in tables_of; if constraints set num_poolings, "
    "lookups per pooling",
    "inter": "link between nodes, see `evenshard hardware` (default: the topology's bandwidth, with a warning if that "
    "is TorchRec's constant)",
    "hardware": "hardware to place for; h200 is short for simulated:h200 (default: the model's, else this process's "
    "GPU, else simulated:h100)",
}
# Knobs for which None also means the default, because callers pass None for arguments of TorchRec's planner.
MAY_BE_NONE = {"sharding_types", "allow_column_split", "intra", "inter"}


def planner_knobs() -> tuple[Knob, ...]:
    """Return the knobs of ``evenshard.place`` that ``EvenshardPlanner`` accepts, with help texts for the planner."""
    return tuple(
        replace(
            one,
            type=one.type | None if one.name in MAY_BE_NONE else one.type,
            help=OWN_MEANINGS.get(one.name, one.help),
        )
        for one in place_knobs()
        if one.name not in OF_MODEL_AND_TOPOLOGY
    )


@dataclass(frozen=True)
class PlannerArguments:
    """The arguments of TorchRec's ``EmbeddingShardingPlanner``, with the same names and order; None if omitted."""

    topology: types.Topology | None = None
    batch_size: int = DEFAULT_BATCH_SIZE
    enumerator: types.Enumerator | None = None
    storage_reservation: types.StorageReservation | None = None
    proposer: types.Proposer | list[types.Proposer] | None = None
    partitioner: types.Partitioner | None = None
    performance_model: types.PerfModel | None = None
    stats: list[types.Stats] | None = None
    constraints: Mapping[str, types.ParameterConstraints] | None = None
    debug: bool = True
    callbacks: Sequence[Callable[[list[types.ShardingOption]], list[types.ShardingOption]]] | None = None
    timeout_seconds: float | None = None
    plan_loader: types.PlanLoader | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)  # arguments of newer TorchRec releases

    def __post_init__(self) -> None:
        """Log the arguments that evenshard does not use; raise BadConfig for an invalid argument."""
        if self.topology is not None and not hasattr(self.topology, "world_size"):
            raise BadConfig(
                f"topology is a {type(self.topology).__name__}. Give TorchRec's Topology, or sharder=... for a sharder."
            )
        if self.timeout_seconds is not None and self.timeout_seconds <= 0:
            raise BadConfig(f"timeout_seconds is {brief(self.timeout_seconds)}. Give a number above 0, or None.")
        idle = [name for name in _IDLE if getattr(self, name) is not None]
        if idle or self.unknown:
            log.debug("evenshard does not use these arguments: %s", ", ".join((*idle, *self.unknown)))

    @property
    def constraints_by_table(self) -> dict[str, types.ParameterConstraints]:
        """Return TorchRec's constraints; empty if there are none."""
        return dict(self.constraints or {})

    def planner(self, **others: Any) -> EmbeddingShardingPlanner:
        """Build TorchRec's planner with these arguments; keyword arguments take precedence."""
        from torchrec.distributed.planner import EmbeddingShardingPlanner

        own = replace(self, **others)
        given = {name: value for name, value in vars(own).items() if value is not None} | dict(self.unknown)
        del given["unknown"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # TorchRec's default reservation
            return EmbeddingShardingPlanner(**given)

    def apply_reservation(
        self,
        machine: TorchRecMachine,
        topology: types.Topology,
        module: nn.Module,
        sharders: Sequence[ModuleSharder[Any]],
        *,
        keeps_host: bool,
    ) -> TorchRecMachine:
        """Return the machine with the memory that the storage reservation leaves for tables.

        With ``keeps_host``, the reservation does not reduce host memory.

        Raises:
            PlannerError: TorchRec's, if the reservation leaves nothing.
        """
        assert self.storage_reservation is not None
        left = self.storage_reservation.reserve(
            topology=topology,
            batch_size=self.batch_size,
            module=module,
            sharders=list(sharders),
            constraints=self.constraints_by_table or None,
        )
        on_cpu = machine.compute_device == "cpu"
        left_bytes = [one.storage.ddr if on_cpu else one.storage.hbm for one in left.devices]
        if max(left_bytes) <= 0:
            has, kind = gb_text(max(machine.caps_bytes)), type(self.storage_reservation).__name__
            asked = getattr(self.storage_reservation, "_hbm_reserved_bytes", 0)  # of FixedAbsoluteStorageReservation
            keeps = f"{gb_text(asked)} of the {has} per device" if asked else f"all {has} of a device"
            error = InfeasibleTask(
                f"storage_reservation ({kind}) reserves {keeps}: no memory is left for tables.",
                "Reserve less, or raise memory_cap_gb.",
            )
            raise planner_error(error, "INSUFFICIENT_STORAGE")
        rooms = [max(room, 0) for room in left_bytes]
        kept = {cap - room for cap, room in zip(machine.caps_bytes, rooms, strict=True)}
        if not keeps_host and not on_cpu:
            ddrs = [max(one.storage.ddr, 0) for one in left.devices]
            host_bytes = of_nodes(ddrs, machine.nodes.devices_per_node, None)
            machine = replace(machine, nodes=replace(machine.nodes, host_bytes=host_bytes))
        if len(kept) == 1 and min(kept) >= 0:
            return replace(machine, reserved_bytes=kept.pop(), reserved_share=0.0)
        # Different reserves per rank count as smaller devices.
        return replace(machine, caps_bytes=tuple(rooms), reserved_bytes=0, reserved_share=0.0)


def reservation_of(given: types.StorageReservation | None, percentage: float | None) -> types.StorageReservation | None:
    """Return the given storage reservation, or TorchRec's heuristic with a percentage, but not both."""
    if percentage is None:
        return given
    if given is not None:
        raise BadConfig(
            "storage_reservation and heuristical_storage_reservation_percentage are both given. Give one of the two."
        )
    return heuristical(percentage)


def heuristical(percentage: float, dense_bytes: int | None = None) -> types.StorageReservation:
    """Return a ``HeuristicalStorageReservation``; without ``dense_bytes``, TorchRec estimates the dense model."""
    from torchrec.distributed.planner.storage_reservations import HeuristicalStorageReservation

    if problem := Range(0, 1).problem(percentage):
        raise BadConfig(f"heuristical_storage_reservation_percentage {problem}. Correct it.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return HeuristicalStorageReservation(percentage=percentage, dense_tensor_estimate=dense_bytes)


# Modules that evenshard does not place --------------------------------------------------------------------------------


def plan_other_modules(
    modules: Mapping[str, nn.Module],
    sharders: Sequence[ModuleSharder[Any]] | None,
    machine: TorchRecMachine,
    left_bytes: Sequence[int],
    left_host_bytes: Sequence[int],
    topology: types.Topology,
    arguments: PlannerArguments,
) -> ShardingPlan:
    """Return TorchRec's plan of these modules (by path), which uses only the memory left on each rank and node.

    Raises:
        PlannerError: if TorchRec finds no plan.
        BadConfig: if TorchRec cannot plan the modules.
    """
    from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
    from torchrec.distributed.planner.types import PlannerError
    from torchrec.distributed.sharding_plan import get_default_sharders

    host_bytes = [of_node // machine.nodes.devices_per_node for of_node in left_host_bytes]
    planner = arguments.planner(
        topology=with_memory(topology, left_bytes, host_bytes),
        enumerator=None,
        storage_reservation=FixedPercentageStorageReservation(0.0),  # ``left_bytes`` already excludes the reserve
        stats=[],  # statistics are logged for the whole plan
        constraints=arguments.constraints_by_table or None,
        debug=False,
        callbacks=None,
        plan_loader=None,
    )
    names = cut(", ".join(path or "the model" for path in modules))
    try:
        return planner.plan(_alone(modules), list(get_default_sharders() if sharders is None else sharders))
    except PlannerError as error:
        raise PlannerError(
            f"TorchRec's planner found no plan for {names}, which evenshard does not place, in the "
            f"{size_text(min(left_bytes))} to {size_text(max(left_bytes))} left per rank. "
            f"Raise memory_cap_gb or the number of ranks, or relax the constraints of their tables.",
            error.error_type,
        ) from error
    except (ValueError, RuntimeError) as error:  # for example, managed collisions with fewer buckets than ranks
        raise BadConfig(f"TorchRec's planner cannot plan {names}: {error}") from error


def _alone(modules: Mapping[str, nn.Module]) -> nn.Module:
    """Return a model that contains only these modules, at their paths."""
    from torch import nn

    if "" in modules:
        return modules[""]
    parents: dict[str, nn.Module] = {"": nn.Module()}
    for path, module in modules.items():
        above, *names = "", *path.split(".")
        for name in names[:-1]:
            below = qualify_name(above, name)
            if below not in parents:
                parents[below] = nn.Module()
                parents[above].add_module(name, parents[below])
            above = below
        parents[above].add_module(names[-1], module)
    return parents[""]
