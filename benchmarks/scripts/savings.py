"""What one placement saves against another: how often the simulated saving lies in its 90 % interval.

python -m benchmarks.scripts.savings --model work/round_3 --first 300 --count 6

The tables are random, and no training has seen them. They are placed, drift as in benchmarks.scripts.near_placement,
and are placed again: near the old placement, within a tenth of all bytes and free. From the old one and the free one, 1
to all tables move at random, too. Each pair is predicted and simulated (of the same profile, so that the error of a
device is left aside). The model has learned from a simulated device: it is a loop's with ``measure.hardware``
simulated:<profile>.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.scripts.near_placement import drift_factors
from evenshard.placement.parts import TablePart
from evenshard.placement.plan import check_sharding
from evenshard.placement.task import ShardingTask
from evenshard.planner.near_placement import Near
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.planner.pricing import PricedParts, measured_parts, part_costs, price_parts
from evenshard.planner.request import PlacementRequest, caps_of
from evenshard.planner.saving import difference_error, error_correlation, shared_work
from evenshard.sharders.models import PlacementModel, load_model
from evenshard.sharders.search.search import PlanSearchEffort
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.table import Table
from evenshard.utils.errors import InfeasibleTask
from evenshard.utils.text_table import text_table

BATCH_SIZE = 65_536
DIMS = (4, 8, 16, 32, 64, 128, 256)
# Tables, on as many devices as the loop's tasks have by default: of others its model has seen little, and says so.
TASKS, NUM_DEVICES = (20, 30, 40), 4
# Tables that move at random.
MOVED = (1, 2, 4, 8, 40)
EFFORT = PlaceConfig(effort=PlanSearchEffort(changes=60, idle_kicks=3))
# Of the work that the slowest devices share.
BANDS = ((0.0, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 1.01))
# Correlations of the model's errors of both placements.
RULES: dict[str, Callable[[float], float]] = {
    "as independent": lambda _: 0.0,
    "as shared": lambda shared: shared,
    "by the rule": error_correlation,
}


@dataclass(frozen=True)
class Pair:
    """Two placements of the same tables.

    Attributes:
        old, new: predicted.
        old_ms, new_ms: simulated.
        shared: of the slowest devices' work.
    """

    old: PricedParts
    new: PricedParts
    old_ms: float
    new_ms: float
    shared: float

    def interval(self, correlation: float) -> tuple[bool, float]:
        """Whether the 90 % interval of the saving has the simulated one, and half its width, per cent of a step."""
        old, new = self.old, self.new
        below = difference_error(old.predicted_ms - old.model_low_ms, new.model_high_ms - new.predicted_ms, correlation)
        above = difference_error(old.model_high_ms - old.predicted_ms, new.predicted_ms - new.model_low_ms, correlation)
        off = (self.old_ms - self.new_ms) - (old.predicted_ms - new.predicted_ms)
        return -below <= off <= above, 50 * (below + above) / old.predicted_ms


def pairs(model: PlacementModel, number: int) -> Iterator[Pair]:
    """Those of one random task."""
    rng = np.random.default_rng(number)
    before, today = (_request(model, tables) for tables in _tables(number, rng))
    old = place_request(before, model, EFFORT)
    tenth = sum(table.size_bytes for table in before.tables) // 10
    found = {"old": old.parts}
    for name, most in (("near", tenth), ("free", None)):
        found[name] = place_request(today, model, EFFORT, near=Near(old, "old", most)).parts
    costs = part_costs(today, model)
    for base in ("old", "free"):
        for count in MOVED:
            if (parts := move_some(costs.task, found[base], count, rng)) is not None:
                found[f"{base}, {count}"] = parts
    with measured_parts(today, model, visits=1) as measure:
        simulated = measure(costs.task, list(found.values()))
    ms = {name: cost.step_ms(costs.task.pipeline) for name, cost in zip(found, simulated, strict=True)}
    predicted = {name: price_parts(today, model, costs, costs.predict(parts))[0] for name, parts in found.items()}
    names = [table.name for table in today.tables]
    for name in found:
        for base in ("old", "free") if name.startswith("free,") else ("old",):
            one, other = predicted[base], predicted[name]
            if set(one.parts) != set(other.parts):
                yield Pair(one, other, ms[base], ms[name], shared_work(one, other, names))


def _tables(number: int, rng: np.random.Generator) -> Iterator[tuple[Table, ...]]:
    """A task's tables, and the same with other lookups."""
    made = generate_tables(GeneratorConfig(2000, DIMS), BATCH_SIZE, seed=5)
    pool = [table for table in made if table.pooling_factor <= table.num_rows]  # of others no model has seen any
    drawn = rng.choice(len(pool), TASKS[number % len(TASKS)], replace=False).tolist()
    tables = tuple(replace(pool[one], name=f"t{position}") for position, one in enumerate(drawn))
    yield tables
    yield tuple(
        replace(table, pooling_factor=float(table.pooling_factor * factor))
        for table, factor in zip(tables, drift_factors(len(tables), rng), strict=True)
    )


def _request(model: PlacementModel, tables: tuple[Table, ...]) -> PlacementRequest:
    hardware = model.trained_on.hardware.replace(" ", "")
    return PlacementRequest(tables, caps_of(80.0, NUM_DEVICES), BATCH_SIZE, hardware=hardware)


def move_some(
    task: ShardingTask, parts: tuple[TablePart, ...], count: int, rng: np.random.Generator
) -> tuple[TablePart, ...] | None:
    """A placement with so many of its tables that have one part on other devices; None where that is not legal."""
    names = [part.table for part in parts]
    whole = [name for name in names if names.count(name) == 1]
    moved = set(rng.choice(whole, min(count, len(whole)), replace=False).tolist())
    found = tuple(
        replace(part, devices=(int(rng.integers(task.num_devices)),))
        if part.table in moved and len(part.devices) == 1
        else part
        for part in parts
    )
    try:
        check_sharding(task, found)
    except InfeasibleTask:
        return None
    return found


def main() -> None:
    """Prints a table: a row for each band of what the slowest devices share."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, action="append", required=True, help="repeatable")
    parser.add_argument("--first", type=int, default=0, help="number of the first task")
    parser.add_argument("--count", type=int, default=12)
    args = parser.parse_args()
    known = [
        pair
        for number in range(args.first, args.first + args.count)
        for folder in args.model
        for pair in pairs(load_model(folder), number)
    ]
    heads = list(RULES)
    rows = [("shared work", "pairs", "errors' correlation", *heads)]
    for low, high in (*BANDS, (0.0, 2.0)):
        some = [pair for pair in known if low <= pair.shared < high]
        rows.append((f"{low:g} to {min(high, 1):g}" if high < 2 else "all", str(len(some)), *_cells(some)))
    print(text_table(rows, "<>>>>>"))


def _cells(some: list[Pair]) -> list[str]:
    if len(some) < 2:
        return ["-"] * (1 + len(RULES))
    errors = [
        (np.log(pair.old_ms / pair.old.predicted_ms), np.log(pair.new_ms / pair.new.predicted_ms)) for pair in some
    ]
    cells = [f"{np.corrcoef(np.array(errors).T)[0, 1]:.2f}"]
    for rule in RULES.values():
        inside, widths = zip(*(pair.interval(rule(pair.shared)) for pair in some), strict=True)
        cells.append(f"{100 * np.mean(inside):.0f} %, +-{np.median(widths):.2f} %")
    return cells


if __name__ == "__main__":
    main()
