"""TorchRec's callbacks and statistics, applied to evenshard's plan."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn
from torchrec.distributed.planner import planners, types
from torchrec.distributed.planner.constants import POOLING_FACTOR
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator, get_partition_by_type
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.types import ModuleSharder, ParameterSharding, ShardingPlan

from evenshard.base.messages import reason_of
from evenshard.placement.sharding import REPLICATED
from evenshard.report.answer import PlacementAnswer
from evenshard.torchrec.planner.arguments import PlannerArguments, heuristical
from evenshard.torchrec.planner.machine import TorchRecMachine

log = logging.getLogger(__name__)


@dataclass
class ModelPlan:
    """A plan of a model, completed step by step."""

    plan: ShardingPlan
    answer: PlacementAnswer | None = None  # None if a sharder placed the tables, or there are none
    notes: tuple[str, ...] = ()  # notes that do not come from the search, one line each
    options: list[types.ShardingOption] = field(default_factory=list)  # the plan in this form
    num_found: int = 1  # placements that the search found, each better than the previous
    # Pooling factors of each feature, by (module path, table name).
    lookups: Mapping[tuple[str, str], Sequence[float]] = field(default_factory=dict)

    def say(self, note: str) -> None:
        """Log a note, and append it to the notes and to the answer, if there is one."""
        log.warning("%s", note)
        self.notes = (*self.notes, note)
        if self.answer is not None:
            self.answer = replace(self.answer, notes=(*self.answer.notes, note))


@dataclass(frozen=True)
class PlanReport:
    """Final steps of planning: callbacks and statistics."""

    arguments: PlannerArguments
    topology: types.Topology  # with all memory
    machine: TorchRecMachine  # with the reserve
    dense_bytes: int  # of each rank
    planner_type: str  # name of the planner's class
    module: nn.Module
    sharders: list[ModuleSharder[Any]]

    def finish(self, result: ModelPlan, seconds: float) -> bool:
        """Run the callbacks, log the statistics, and return True if callbacks changed the plan.

        Sets the options and plan of ``result`` to those of the callbacks. ``seconds`` is the time of the search.

        Raises:
            PlannerError: TorchRec's, if the callbacks return a rank that does not exist.
        """
        given, plan = self.arguments, result.plan
        options, enumerator = self._options(result), None
        try:
            enumerator = self._fill_estimates(options)
        except Exception as error:  # from an estimate that only statistics need
            if given.enumerator is not None:
                raise
            result.say(f"statistics were not logged: TorchRec's estimates of the plan failed ({reason_of(error)}).")
        if given.callbacks:
            for callback in given.callbacks:
                options = callback(options)
            result.plan = planners.to_sharding_plan(options, self.topology)
            planners.validate_rank_assignment(result.plan, self.topology)
        result.options = options
        if enumerator is not None and given.stats:
            values = {
                "sharding_plan": result.plan,
                "topology": self.topology,
                "batch_size": given.batch_size,
                "storage_reservation": self._reservation(),
                "num_proposals": result.num_found,
                "num_plans": result.num_found,
                "run_time": seconds,
                "best_plan": options,
                "constraints": given.constraints_by_table or None,
                "sharders": self.sharders,
                "enumerator": enumerator,
                "debug": given.debug,
                "debug_stats": types.PlanDebugStats(self.planner_type, given.timeout_seconds),
            }
            for one in given.stats:
                one.log(**values)
        return bool(result.plan != plan)

    def _reservation(self) -> types.StorageReservation:
        """Return the given storage reservation, or evenshard's reserve as a reservation for TorchRec's statistics."""
        given, machine = self.arguments, self.machine
        if given.storage_reservation is not None:
            return given.storage_reservation
        share = min(1.0, machine.reserved_share + machine.reserved_bytes / max(*machine.caps_bytes, 1))
        kept = heuristical(share, max(self.dense_bytes, 1))
        try:
            kept.reserve(
                topology=self.topology,
                batch_size=given.batch_size,
                module=self.module,
                sharders=self.sharders,
                constraints=given.constraints_by_table or None,
            )
        except types.PlannerError:  # TorchRec estimates inputs at 20 times their real size
            return FixedPercentageStorageReservation(share)
        return kept

    def _options(self, result: ModelPlan) -> list[types.ShardingOption]:
        """Return the plan as ``ShardingOption``s, without times and memory."""
        sharder_of = {one.module_type: one for one in self.sharders}
        found = []
        constraints, world_size = self.arguments.constraints_by_table, self.machine.nodes.num_devices
        for path, entries in result.plan.plan.items():
            holder = self.module.get_submodule(path)
            weights = sharder_of[type(holder)].shardable_parameters(holder)
            for name, entry in entries.items():
                own = constraints.get(name)
                assumed = [POOLING_FACTOR] if own is None else own.pooling_factors
                found.append(
                    types.ShardingOption(
                        name=name,
                        tensor=weights[name],
                        module=(path, holder),
                        input_lengths=list(result.lookups.get((path, name), assumed)),
                        batch_size=self.arguments.batch_size,
                        sharding_type=entry.sharding_type,
                        partition_by=get_partition_by_type(entry.sharding_type),
                        compute_kernel=entry.compute_kernel,
                        shards=_shards(entry, weights[name].shape, world_size),
                        cache_params=entry.cache_params,
                        enforce_hbm=entry.enforce_hbm,
                        stochastic_rounding=entry.stochastic_rounding,
                        bounds_check_mode=entry.bounds_check_mode,
                        feature_names=None if own is None else own.feature_names,
                        output_dtype=entry.output_dtype,
                        key_value_params=entry.key_value_params,
                    )
                )
        return found

    def _fill_estimates(self, options: list[types.ShardingOption]) -> types.Enumerator:
        """Fill in TorchRec's estimates of time and memory, and return the enumerator that made them."""
        given = self.arguments
        enumerator = given.enumerator
        if enumerator is None:
            enumerator = EmbeddingEnumerator(self.topology, given.batch_size, constraints=given.constraints_by_table)
            enumerator.enumerate(nn.Module(), self.sharders)  # an empty model, only to register the sharders
        enumerator.populate_estimates(options)
        return enumerator


def _shards(entry: ParameterSharding, shape: Sequence[int], world_size: int) -> list[types.Shard]:
    """Return the shards of a table; each replica is a shard of the whole table."""
    if entry.sharding_type in REPLICATED:
        return [types.Shard(size=list(shape), offset=[0] * len(shape), rank=rank) for rank in range(world_size)]
    return [
        types.Shard(size=list(one.shard_sizes), offset=list(one.shard_offsets), rank=one.placement.rank())
        for one in entry.sharding_spec.shards
    ]
