"""The best known placement: long simulated annealing on the true simulated cost.

A reference and not a competitor: it sees the noise-free cost itself, which real hardware never shows. The gap of a
sharder to it is the part of its cost that better decisions could have saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.references.annealing import AnnealConfig, Population, Start
from benchmarks.references.annealing_starts import (
    Ranked,
    best_of_kinds,
    greedy_starts,
    ranked_starts,
    within_its_limits,
)
from benchmarks.references.shard_times import IntArray, ShardTimes
from benchmarks.references.steepest import descend
from evenshard.measure.config import MeasureConfig
from evenshard.measure.simulated.hardware import SimulatedHardware
from evenshard.placement.placement import Placement
from evenshard.placement.plan import check_placement
from evenshard.placement.task import ShardingTask
from evenshard.sharders.greedy import expert_sharders
from evenshard.sharders.packing.reasons import require_room
from evenshard.utils.errors import BadConfig, InfeasibleTask
from evenshard.utils.units import bytes_to_gb

KINDS_OF_ROUND = (1.0, 0.5, 0.25)  # share of the kinds of starts that each round of annealing takes up
START_SLACK = 1.3  # worse starts are left out: annealing would spend its time on catching up
FINALISTS = 4  # placements that are refined and measured at the end


class BestKnownSharder:
    """Anneals in three rounds; each takes up the best of the round before, heats them again, and looks less wide.

    Deterministic: the same task and starts, the same answer.
    """

    name = "best_known"

    def __init__(self, measure: MeasureConfig | str, config: AnnealConfig | None = None) -> None:
        """Takes the simulated hardware, by configuration or by name as "simulated:h200"; its noise is left out.

        Raises:
            BadConfig: if the hardware is real: its true cost is unknown.
        """
        given = MeasureConfig(hardware=measure) if isinstance(measure, str) else measure
        if given.hardware_name.kind.times == "measured":
            raise BadConfig(
                f"best_known searches the noise-free cost, which {given.hardware} does not have. "
                f"Use hardware simulated:<profile>."
            )
        self._hardware = SimulatedHardware(replace(given, noise=0.0))
        self._config = config or AnnealConfig()

    def place(self, task: ShardingTask) -> Placement:
        """The best placement found from its own starts.

        Raises:
            InfeasibleTask: as ``improve``.
        """
        return self.improve(task, ())[0]

    def improve(self, task: ShardingTask, starts: Sequence[Placement]) -> tuple[Placement, float]:
        """The best placement found from the given starts and its own, and its ``max_device_ms`` on the hardware.

        Args:
            task: the task to place.
            starts: legal placements; the answer is at most as slow as the fastest of them.

        Raises:
            InfeasibleTask: if a start is not legal, or if there is none that fits the devices.
            BadConfig: if the task has constraints beside one memory cap for all.
        """
        rules = any(limits.devices is not None for limits in task.limits) or task.together or task.apart
        if rules or len(set(task.room_bytes)) > 1:
            raise BadConfig(f"{task.task_id}: best_known knows one memory cap and no other constraints. Leave it out.")
        require_room(task)
        for start in starts:
            check_placement(task, start)
        times = ShardTimes(self._hardware, task)
        known = [np.array(placement.device_of_table) for placement in (*starts, *_expert_answers(task))]
        ranked = ranked_starts(times, _begin(times, task, known), START_SLACK)
        if not ranked:
            total = sum(table.size_bytes for table in task.tables)
            raise InfeasibleTask(
                f"{task.task_id}: found no placement of {bytes_to_gb(total):.2f} GB on {task.num_devices} devices of "
                f"{bytes_to_gb(times.room_bytes):.2f} GB. Raise num_devices, or memory_cap_gb if the device has more."
            )
        if task.num_devices > 1:
            ranked = self._anneal(times, task.num_devices, ranked)
        finalists = [start.device_of_T for _, start in ranked[:FINALISTS]]
        refined = [descend(times, task.num_devices, device_of_T) for device_of_T in finalists]
        return self._fastest(task, [*known, *finalists, *refined])

    def _anneal(self, times: ShardTimes, num_devices: int, ranked: Ranked) -> Ranked:
        evaluations = max(1, self._config.evaluations // len(KINDS_OF_ROUND))
        for number, share in enumerate(KINDS_OF_ROUND):
            seed = self._config.seed * len(KINDS_OF_ROUND) + number
            config = replace(self._config, evaluations=evaluations, seed=seed)
            population = Population(times, num_devices, best_of_kinds(ranked, share), config)
            population.run()
            found = [(ms, within_its_limits(times, device_of_T)) for ms, device_of_T in population.best()]
            ranked = sorted([*ranked, *found], key=lambda one: one[0])
        return ranked

    def _fastest(self, task: ShardingTask, found: Sequence[IntArray]) -> tuple[Placement, float]:
        """What the hardware says; the search may have left out how tables share the L2."""
        placements = list(dict.fromkeys(Placement(tuple(one.tolist()), task.num_devices) for one in found))
        costs = self._hardware.measure_many([(task, placement) for placement in placements])
        all_ms = [cost.max_device_ms for cost in costs]
        best = int(np.argmin(all_ms))
        return placements[best], all_ms[best]


def _begin(times: ShardTimes, task: ShardingTask, known: Sequence[IntArray]) -> list[Start]:
    """Own starts, and known placements both without limits and kept to those they are within."""
    free_D = np.full(task.num_devices, np.inf)
    as_they_are = [Start(device_of_T, free_D) for device_of_T in known]
    return [*as_they_are, *(within_its_limits(times, one) for one in known), *greedy_starts(times, task.num_devices)]


def _expert_answers(task: ShardingTask) -> list[Placement]:
    answers = []
    for sharder in expert_sharders():
        try:
            answers.append(sharder.place(task))
        except InfeasibleTask:  # another one may find room
            continue
    return answers
