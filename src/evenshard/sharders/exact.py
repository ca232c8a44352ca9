"""The best placement if costs added up: an integer program over single-table costs, solved by OR-tools.

A fused shard does not cost the sum of its tables, so this is optimal for the sums and not for the hardware. What is
left between it and a learned placement is what the sums do not see.

Legend: I items, D devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from evenshard.placement.items import Items, canonical_devices
from evenshard.placement.placement import Placement
from evenshard.placement.plan import check_placement
from evenshard.placement.refusal import no_placement_found, require_room
from evenshard.placement.renaming import device_kinds
from evenshard.placement.task import ShardingTask
from evenshard.sharders.greedy import GreedySharder
from evenshard.tables.table import Table
from evenshard.utils.errors import BadConfig, InfeasibleTask
from evenshard.utils.extras import require_package
from evenshard.utils.messages import cut

# The solver counts in whole units: so many make up the lower bound; a table is rounded by half of one.
COST_UNITS = 1_000_000
# Relative distance from the bound at which a placement counts as optimal; measuring is far noisier.
GAP_LIMIT = 5e-4


class ExactSharder:
    """Minimises the largest sum of single-table costs within the devices' memory; never worse than greedy on the sums.

    Privileged as single-cost greedy is: every table of the task has to be measured beforehand.
    """

    name = "exact_single_cost"

    def __init__(
        self, cost_ms_of_table: Mapping[str, float] | Callable[[Table], float], time_limit_s: float = 1.0
    ) -> None:
        """Takes costs by name of the table, or a function of it.

        Args:
            cost_ms_of_table: cost of each table on its own, ms, at least 0.
            time_limit_s: the solver's own seconds, which count its steps, so that the same task gets the same
                placement whatever else the machine does. Each is one to three seconds of one core.

        Raises:
            BadConfig: if the time limit is not above 0.
            MissingPackage: if OR-tools is not installed.
        """
        require_package("ortools")
        if not time_limit_s > 0:
            raise BadConfig(f"time_limit_s is {time_limit_s}. Make it larger than 0.")
        self._cost = cost_ms_of_table if callable(cost_ms_of_table) else lambda table: cost_ms_of_table[table.name]
        self._time_limit_s = time_limit_s

    def place(self, task: ShardingTask) -> Placement:
        """The best placement found.

        Raises:
            InfeasibleTask: if no placement fits the memory, or none was found in time.
            BadConfig: if a table's cost is negative or not finite.
        """
        require_room(task)
        costs_ms = [self._cost_ms(table) for table in task.tables]
        greedy = self._greedy(task)
        # What the most loaded device takes at least: an equal share, or the heaviest table.
        lowest_ms = max(sum(costs_ms) / task.num_devices, max(costs_ms))
        if greedy is not None and _load_ms(greedy, costs_ms) <= lowest_ms * (1 + GAP_LIMIT):
            return greedy
        solved = _solve(task, costs_ms, lowest_ms, greedy, self._time_limit_s)
        found = [placement for placement in (solved, greedy) if placement is not None]
        if not found:
            raise no_placement_found(task, f"the solver found none in its {self._time_limit_s:g} s")
        best = min(found, key=lambda placement: _load_ms(placement, costs_ms))
        check_placement(task, best)
        return best

    def _cost_ms(self, table: Table) -> float:
        cost_ms = self._cost(table)
        if not 0 <= cost_ms < math.inf:
            raise BadConfig(
                f"table {cut(table.name)} costs {cost_ms} ms on its own, which nothing can. Measure it again."
            )
        return cost_ms

    def _greedy(self, task: ShardingTask) -> Placement | None:
        try:
            return GreedySharder("greedy", self._cost).place(task)
        except InfeasibleTask:
            return None  # a dead end of greedy; the solver may still find room


def _load_ms(placement: Placement, costs_ms: Sequence[float]) -> float:
    return max(sum(costs_ms[position] for position in shard) for shard in placement.shards())


def _solve(
    task: ShardingTask, costs_ms: Sequence[float], lowest_ms: float, hint: Placement | None, time_limit_s: float
) -> Placement | None:
    """The best placement of an integer program with a variable for each item and device; None if it found none.

    Devices of one kind can swap names. Each of them is named by the first item that it holds, the costliest first, so
    that the solver does not see the same placement twice: item i has a variable for the first i + 1 of a kind.

    Args:
        task: the task to place.
        costs_ms: cost of each table.
        lowest_ms: a lower bound of the largest sum.
        hint: a placement to begin with.
        time_limit_s: limit in the solver's own seconds.

    Raises:
        InfeasibleTask: if it proves that none fits the memory.
    """
    from ortools.sat.python import cp_model

    items = Items.of(task)
    item_ms = [sum(costs_ms[position] for position in tables) for tables in items.members]
    order = sorted(range(len(item_ms)), key=lambda item: item_ms[item], reverse=True)
    unit_ms = lowest_ms / COST_UNITS or 1.0  # where nothing costs anything, any unit will do
    units = [round(item_ms[item] / unit_ms) for item in order]

    model, kinds = cp_model.CpModel(), device_kinds(task)
    rank_D = [kinds[:device].count(kind) for device, kind in enumerate(kinds)]
    choices = [
        {device: model.new_bool_var("") for device, rank in enumerate(rank_D) if rank <= number and allowed[device]}
        for number, allowed in enumerate(items.allowed_ID[order].tolist())
    ]
    longest = model.new_int_var(0, sum(units), "longest")
    for one in choices:
        model.add_exactly_one(one.values())
    for device in range(task.num_devices):
        here = [number for number, one in enumerate(choices) if device in one]
        variables = [choices[number][device] for number in here]
        load = cp_model.LinearExpr.weighted_sum(variables, [units[number] for number in here])
        model.add(load <= longest)
        for kind, room in enumerate(items.room_DR[device].tolist()):  # the rule of ``legal_mask``
            needs = items.needs_IR[[order[number] for number in here], kind].tolist()
            model.add(cp_model.LinearExpr.weighted_sum(variables, needs) <= room)
    model.minimize(longest)
    if hint is not None:
        devices = items.devices(hint)
        hinted = canonical_devices([devices[item] for item in order], kinds)
        for one, device in zip(choices, hinted, strict=True):
            for name, variable in one.items():
                model.add_hint(variable, name == device)

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    # On one thread the default search stays with the hint; in turn with the others it finds better in a second.
    solver.parameters.interleave_search = True
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = time_limit_s
    solver.parameters.relative_gap_limit = GAP_LIMIT / 2  # the other half is for the rounding
    status = solver.solve(model)
    assert status != cp_model.MODEL_INVALID, "the integer program is wrong"
    if status == cp_model.INFEASIBLE:
        raise no_placement_found(task, "no placement fits")
    if status == cp_model.UNKNOWN:
        return None
    device_of_item = [0] * len(order)
    for item, one in zip(order, choices, strict=True):
        device_of_item[item] = next(device for device, variable in one.items() if solver.boolean_value(variable))
    return items.placement(device_of_item)
