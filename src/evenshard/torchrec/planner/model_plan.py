"""Steps of ``EvenshardPlanner`` for a model, from the placement request to the finished plan."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torchrec.distributed.planner.types import Topology
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from evenshard.base.errors import EvenshardError, InfeasibleTask
from evenshard.base.messages import cut, reason_of
from evenshard.base.units import gb_to_bytes, pct_text, size_text
from evenshard.placement.parts import TablePart, whole_part
from evenshard.placement.placement import check_placement
from evenshard.placement.task import part_bytes, used_bytes, used_host_bytes
from evenshard.planner.baselines import MOST_SHARDS
from evenshard.planner.knobs import Knobs
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.planner.request import PlacementRequest
from evenshard.price.hardware import HardwareName
from evenshard.report.answer import make_displayable
from evenshard.report.step_facts import EMBEDDING_WORK, warning_texts
from evenshard.report.table_facts import assumed_lookups_texts
from evenshard.sharders.catalog import Sharder
from evenshard.torchrec.baseline.sharder import TorchRecPlanner
from evenshard.torchrec.baseline.topology import DEFAULT_SETTING, Bandwidths, planner_error
from evenshard.torchrec.model.modules import dense_bytes, find_collections, find_other_modules, qualify_name
from evenshard.torchrec.plan.plans import sharding_plan
from evenshard.torchrec.plan.prices import choose_model, predicted
from evenshard.torchrec.planner.arguments import PlannerArguments, plan_other_modules
from evenshard.torchrec.planner.constraints import carry_over
from evenshard.torchrec.planner.machine import TorchRecMachine
from evenshard.torchrec.planner.model_request import request_of
from evenshard.torchrec.planner.report import ModelPlan, PlanReport

log = logging.getLogger(__name__)

# Seconds for TorchRec's default plan, and their largest fraction of ``timeout_seconds``; the plan is only an additional
# starting point of the search.
DEFAULT_PLAN_S, DEFAULT_PLAN_SHARE = 5, 0.2


@dataclass(frozen=True)
class ModelPlanner:
    """Planner of models with TorchRec's arguments and evenshard's knobs; see ``EvenshardPlanner``."""

    arguments: PlannerArguments
    knobs: Knobs  # for all ranks together, with the links of the topology
    sharder: Sharder | None
    machine: TorchRecMachine  # without the storage reservation of ``arguments``
    topology: Topology
    planner_type: str  # name of the planner's class, for statistics

    def plan(self, module: nn.Module, sharders: list[ModuleSharder[Any]]) -> ModelPlan:
        """Plan the model, including tables that TorchRec places; run callbacks and log statistics.

        Raises:
            PlannerError: TorchRec's, if the tables do not fit.
            BadInput: if a table cannot be placed, or there is no cost model.
        """
        given, machine, topology, memory = self.arguments, self.machine, self.topology, self.knobs.memory
        started, result = time.monotonic(), ModelPlan(ShardingPlan({}))
        dense = gb_to_bytes(memory.dense_gb or 0.0)
        if given.storage_reservation is not None:
            keeps_host = memory.host_memory_gb is not None
            machine = given.apply_reservation(machine, topology, module, sharders, keeps_host=keeps_host)
        elif memory.dense_gb is None:
            dense = dense_bytes(module, sharders=sharders)
        left_bytes = [room - dense for room in machine.rooms_bytes]
        left_host_bytes = list(machine.nodes.host_bytes)
        constraints = given.constraints_by_table
        if collections := find_collections(module, sharders):
            _check_dense(machine, dense)
            is_whole = self.sharder is not None
            asked = request_of(module, sharders, machine, dense, constraints, self.knobs, is_whole, given.enumerator)
            result.lookups = asked.lookups
            request, parts = self._place(asked.request, asked.notes, result)
            result.plan = sharding_plan(
                parts if result.answer is None else result.answer,
                request.tables,
                collections,
                request.num_devices,
                compute_device=machine.compute_device,
                local_world_size=machine.nodes.devices_per_node,
            )
            for (path, name), written in asked.written_as.items():
                result.plan.plan[path][name].sharding_type = written
            for note in carry_over(result.plan, constraints):
                result.say(note)
            task = request.task()
            # TorchRec's planner gets the memory that evenshard's tables leave.
            left_bytes = _less(request.rooms_bytes, used_bytes(task, parts))
            if machine.nodes.host_bytes and task.machine.host_bytes:
                left_host_bytes = _less(machine.nodes.host_bytes, used_host_bytes(task, parts))
        if others := find_other_modules(module, sharders):
            theirs = plan_other_modules(others, sharders, machine, left_bytes, left_host_bytes, topology, given)
            result.plan.plan.update(theirs.plan)
            result.say(_note_torchrec_tables(theirs))
        if not result.plan.plan:
            return result
        report = PlanReport(given, topology, machine, dense, self.planner_type, module, sharders)
        if report.finish(result, time.monotonic() - started):
            self._say_changed(result)
        return result

    def _place(
        self, request: PlacementRequest, notes: Sequence[str], result: ModelPlan
    ) -> tuple[PlacementRequest, Sequence[TablePart]]:
        try:
            parts = self._parts(request, result)
        except InfeasibleTask as error:
            # The memory for samples, which TorchRec's 15 % reserve covers, reduces the reserve.
            left = request.reserved_share - request.sample_memory.total / max(*request.caps_bytes, 1)
            least = replace(request, reserved_share=max(left, 0.0))
            try:
                if least == request:
                    raise
                parts = self._parts(least, result)
            except InfeasibleTask:
                kind = "STRICT_CONSTRAINTS" if _fits_total_memory(least) else "INSUFFICIENT_STORAGE"
                # The remedy is the note on assumed memory, if there is one.
                raise planner_error(InfeasibleTask(str(error), self.machine.assumed.devices), kind) from error
            request, notes = least, (_note_smaller_reserve(request, least), *notes)
        if self.sharder is not None:
            notes = (*self.machine.assumed.notes(parts), *notes)
        for note in notes:
            result.say(note)
        return request, parts

    def _parts(self, request: PlacementRequest, result: ModelPlan) -> Sequence[TablePart]:
        if self.sharder is None:
            return self._place_by_evenshard(request, result)
        task = replace(request.task().as_whole, task_id="the model")
        placement = self.sharder.place(task)
        check_placement(task, placement)
        return placement.parts(request.tables)

    def _place_by_evenshard(self, request: PlacementRequest, result: ModelPlan) -> Sequence[TablePart]:
        on, limit_s, started = self.machine.compute_device, self.arguments.timeout_seconds, time.monotonic()
        search = self.knobs.search
        model, hardware = choose_model(search.model, self.knobs.machine.hardware, on)
        config = PlaceConfig.of(search)
        better_ms: set[float] = set()  # one per better placement

        def count(predicted_ms: float, done: float) -> None:
            better_ms.add(predicted_ms)
            result.num_found = len(better_ms)

        theirs = _default_plan(request, limit_s)
        left_s = None if limit_s is None else max(limit_s - (time.monotonic() - started), 0.0)
        effort = replace(config.effort, time_limit_s=left_s)
        config = replace(config, effort=effort, known=theirs, progress=count)
        answer = make_displayable(place_request(replace(request, hardware=hardware), model, config))
        assumed = self.machine.assumed.notes(answer.parts)
        result.answer = replace(answer, notes=(*assumed, *answer.notes))
        for line in (*warning_texts(answer), *assumed, *assumed_lookups_texts(answer), *answer.notes):
            log.warning("%s", line)
        if limit_s is not None and time.monotonic() - started >= limit_s:
            result.say(f"The search stopped after timeout_seconds={limit_s} with the best plan found so far.")
        if HardwareName.parse(hardware).kind.compute_device != on:
            result.say(f"The plan is for {on} ranks, but its times are for {hardware}; another plan may be faster.")
        return result.answer.parts

    def _say_changed(self, result: ModelPlan) -> None:
        if result.answer is None:
            result.say("callbacks changed the plan.")
            return
        try:
            changed = predicted(result.plan, result.answer, self.knobs.search.model)
            now = f"{changed.predicted_ms:.4g} {EMBEDDING_WORK} predicted"
        except EvenshardError as error:
            now = f"its time cannot be predicted ({reason_of(error)})"
        result.say(
            f"callbacks changed the plan: {now}, {result.answer.predicted_ms:.4g} before. The answer still describes "
            f"the previous plan."
        )


def _default_plan(request: PlacementRequest, limit_s: float | None) -> Sequence[Sequence[TablePart]]:
    """Return the plan of TorchRec's default settings; empty if TorchRec finds none or would take minutes."""
    task = request.task()
    if len(task.tables) * task.num_devices > MOST_SHARDS:
        return ()
    timeout_s = DEFAULT_PLAN_S if limit_s is None else min(DEFAULT_PLAN_S, int(DEFAULT_PLAN_SHARE * limit_s))
    if not timeout_s:
        return ()
    try:
        return [plan.parts for plan in TorchRecPlanner(task, Bandwidths(), timeout_s).plans([DEFAULT_SETTING])]
    except Exception as error:  # any error of TorchRec: the plan is only an additional start
        log.warning("TorchRec could not make its default plan, so the search starts without it: %s", reason_of(error))
        return ()


def _check_dense(machine: TorchRecMachine, dense: int) -> None:
    if dense > max(machine.rooms_bytes):
        has = f"{size_text(max(machine.rooms_bytes))} of {size_text(max(machine.caps_bytes))}"
        error = InfeasibleTask(
            f"the dense model needs {size_text(dense)} per device, but only {has} are not reserved: no memory is left "
            f"for tables.",
            "Raise memory_cap_gb, or give dense_gb if the dense model is sharded.",
        )
        raise planner_error(error, "INSUFFICIENT_STORAGE")


def _note_smaller_reserve(request: PlacementRequest, least: PlacementRequest) -> str:
    return (
        f"The tables fit only if {pct_text(100 * least.reserved_share)} of each device's memory is reserved, not "
        f"{pct_text(100 * request.reserved_share)}. Unlike TorchRec's planner, evenshard counts a rank's own samples "
        f"({size_text(request.sample_memory.total)}) in addition to the reserve. Give reserved_gb to set the reserve."
    )


def _note_torchrec_tables(plan: ShardingPlan) -> str:
    placed = (
        f"{qualify_name(path, name)} ({entry.sharding_type}, {entry.compute_kernel})"
        for path, tables in plan.plan.items()
        for name, entry in tables.items()
    )
    return (
        f"TorchRec's planner placed the tables of modules that evenshard does not place, in the remaining memory; "
        f"predicted times do not include them: {cut(', '.join(placed), 400)}."
    )


def _fits_total_memory(request: PlacementRequest) -> bool:
    task = request.task()
    available = sum(request.rooms_bytes)
    if task.may_offload:
        available += sum(request.nodes.host_bytes)
    return sum(part_bytes(task, table, whole_part(table)) for table in request.tables) <= available


def _less(available: Sequence[int], used: Sequence[int]) -> list[int]:
    return [size - taken for size, taken in zip(available, used, strict=True)]
