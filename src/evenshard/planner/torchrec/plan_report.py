"""What TorchRec does with a plan once it is found: callbacks, a rating and statistics; here with evenshard's plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evenshard.planner.torchrec.machine import TorchRecMachine
from evenshard.planner.torchrec.planner_arguments import DEFAULT_BATCH_SIZE, PlannerArguments, heuristical
from evenshard.planner.torchrec.sharding_options import estimate, log_statistics, options_of_plan
from evenshard.utils.messages import reason_of

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.planner.types import ShardingOption, Stats, StorageReservation, Topology
    from torchrec.distributed.types import ModuleSharder, ShardingPlan


@dataclass(frozen=True)
class FinishedPlan:
    """A plan after the callbacks.

    Attributes:
        plan: the plan.
        options: the same, as TorchRec's callbacks and statistics know it.
        notes: what there is to say about it, in sentences.
    """

    plan: ShardingPlan
    options: list[ShardingOption]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class PlanReport:
    """How a plan is finished and reported.

    Attributes:
        arguments: TorchRec's, as the planner was given them.
        stats: TorchRec's statistics.
        topology: of the ranks, with all their memory.
        machine: the same, with what is kept of it.
        dense_bytes: memory of the dense model on each rank.
        planner_type: name of the planner's class.
    """

    arguments: PlannerArguments
    stats: Sequence[Stats]
    topology: Topology
    machine: TorchRecMachine
    dense_bytes: int
    planner_type: str

    def finished(
        self,
        plan: ShardingPlan,
        module: nn.Module,
        sharders: Sequence[ModuleSharder[Any]],
        lookups: Mapping[tuple[str, str], Sequence[float]],
        *,
        num_plans: int,
        seconds: float,
    ) -> FinishedPlan:
        """Calls the callbacks with the plan, rates it where a performance model is given, and logs the statistics.

        Args:
            plan: of the model.
            module: the model.
            sharders: of modules.
            lookups: as ``options_of_plan`` takes them.
            num_plans: placements that the search found, each better than the one before.
            seconds: that it took.

        Raises:
            PlannerError: TorchRec's, if the callbacks leave a rank that there is not.
        """
        given, notes = self.arguments, []
        batch_size, constraints = given.batch_size or DEFAULT_BATCH_SIZE, dict(given.constraints or {})
        options = options_of_plan(plan, module, sharders, self.machine.world_size, batch_size, lookups, constraints)
        enumerator, is_estimated = given.enumerator, True
        try:
            enumerator = estimate(options, enumerator, sharders, self.topology, batch_size, constraints)
        except Exception as error:  # of an estimate that only statistics need
            if given.enumerator is not None or given.performance_model is not None:
                raise
            is_estimated = False
            notes.append(f"no statistics were logged: TorchRec's estimates of the plan failed ({reason_of(error)}).")
        if given.performance_model is not None:
            notes.append(
                f"performance_model ({type(given.performance_model).__name__}) rates the plan "
                f"{given.performance_model.rate(plan=options):.4g}; it chose nothing: evenshard's cost model did."
            )
        if given.callbacks:
            options, plan = self._called_back(options)
        if is_estimated and self.stats:
            values = {
                "sharding_plan": plan,
                "topology": self.topology,
                "batch_size": batch_size,
                "storage_reservation": self._reservation(module, sharders),
                "num_proposals": num_plans,
                "num_plans": num_plans,
                "run_time": seconds,
                "best_plan": options,
                "constraints": constraints or None,
                "sharders": list(sharders),
                "enumerator": enumerator,
                "debug": given.debug,
            }
            debug_stats = {"planner_type": self.planner_type, "timeout_seconds": given.timeout_seconds}
            log_statistics(self.stats, values, debug_stats)
        return FinishedPlan(plan, options, tuple(notes))

    def _called_back(self, options: list[ShardingOption]) -> tuple[list[ShardingOption], ShardingPlan]:
        """What the callbacks, one after the other, make of the plan."""
        from torchrec.distributed.planner import planners

        for callback in self.arguments.callbacks or ():
            options = callback(options)
        plan = planners.to_sharding_plan(options, self.topology)
        if hasattr(planners, "validate_rank_assignment"):  # TorchRec 1.8 or newer
            planners.validate_rank_assignment(plan, self.topology)
        return options, plan

    def _reservation(self, module: nn.Module, sharders: Sequence[ModuleSharder[Any]]) -> StorageReservation:
        """The one that was given; or, as TorchRec's statistics show it, what evenshard keeps without one."""
        from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
        from torchrec.distributed.planner.types import PlannerError

        given, machine = self.arguments, self.machine
        if given.storage_reservation is not None:
            return given.storage_reservation
        share = min(1.0, machine.reserved_share + machine.reserved_bytes / max(*machine.caps_bytes, 1))
        kept = heuristical(share, max(self.dense_bytes, 1))
        try:
            kept.reserve(
                topology=self.topology,
                batch_size=given.batch_size or DEFAULT_BATCH_SIZE,
                module=module,
                sharders=list(sharders),
                constraints=None if given.constraints is None else dict(given.constraints),
            )
        except PlannerError:  # its estimate of inputs is 20 times what they take
            return FixedPercentageStorageReservation(share)
        return kept
