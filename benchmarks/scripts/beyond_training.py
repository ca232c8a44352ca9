"""Tables that a bundled model has seen nothing like: how often the simulated time lies within its 90 % intervals.

python -m benchmarks.scripts.beyond_training --hardware simulated:h100

Placements of 12 random tables at random devices. Half of the tables (or the batch) lie a factor beyond the training
data. Both intervals leave the error of the device aside, which the simulator, of the same profile, does not have.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from evenshard.placement.parts import whole_tables
from evenshard.planner.priced import priced
from evenshard.planner.pricing import measured_parts, part_costs
from evenshard.planner.request import PlacementRequest, caps_of
from evenshard.sharders.models import PlacementModel, load_model
from evenshard.tables.table import Table
from evenshard.utils.text_table import text_table

QUANTITIES = ("num_rows", "embedding_dim", "pooling_factor", "batch_size")
NUM_TABLES, NUM_DEVICES, BATCH_SIZE = 12, 4, 65536


@dataclass(frozen=True)
class Trial:
    """One placement: its simulated time beside what was predicted.

    Attributes:
        error: of the prediction, absolute, of the logarithm.
        in_own: whether the time lies in the cost model's own interval.
        in_widened: whether it lies in the one that ``extrapolation`` makes of it.
        above: what the upper end was multiplied with.
    """

    error: float
    in_own: bool
    in_widened: bool
    above: float


def requests(
    model: PlacementModel, quantity: str, factor: float, count: int, rng: random.Random
) -> Iterator[PlacementRequest]:
    """Random requests, ``factor`` beyond the largest value that the model has seen of one quantity; 1 for none."""
    for _ in range(count):
        beyond = {quantity: getattr(model.trained_on, quantity)[1] * factor} if factor > 1 else {}
        batch_size = int(beyond.pop("batch_size", BATCH_SIZE))
        tables = []
        for number in range(NUM_TABLES):
            table = Table(
                f"t{number}", int(10 ** rng.uniform(3, 8)), rng.choice([16, 32, 64, 128]), 10 ** rng.uniform(-1, 1.5)
            )
            far = {name: value if name == "pooling_factor" else int(value) for name, value in beyond.items()}
            tables.append(replace(table, **far) if number % 2 == 0 else table)
        yield PlacementRequest(
            tuple(tables), caps_of(1e6, NUM_DEVICES), batch_size, hardware=model.trained_on.hardware.replace(" ", "")
        )


def trials(model: PlacementModel, quantity: str, factor: float, count: int, seed: int = 0) -> Iterator[Trial]:
    """Predicts and simulates a random placement of each request."""
    rng = random.Random(seed)
    for request in requests(model, quantity, factor, count, rng):
        costs = part_costs(request, model)
        parts = tuple(replace(one, devices=(rng.randrange(NUM_DEVICES),)) for one in whole_tables(request.tables))
        found = costs.predict(parts)
        widened, _ = priced(request, model, costs, found)
        with measured_parts(request, model, visits=1) as measure:
            ms = measure(costs.task, [parts])[0].max_device_ms
        yield Trial(
            abs(math.log(ms / found.predicted_ms)),
            found.low_ms <= ms <= found.high_ms,
            widened.model_low_ms <= ms <= widened.model_high_ms,
            widened.model_high_ms / found.high_ms,
        )


def main() -> None:
    """Prints a table: a row for each quantity and factor."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hardware", default="simulated:h100")
    parser.add_argument("--count", type=int, default=30)
    args = parser.parse_args()
    model = load_model(None, args.hardware)
    rows = [("beyond", "factor", "median error", "in the model's own", "in the widened", "upper end times")]
    for quantity, factor in (("nothing", 1.0), *((name, factor) for name in QUANTITIES for factor in (2.0, 4.0))):
        some = list(trials(model, quantity, factor, args.count))
        rows.append(
            (
                quantity,
                f"{factor:g}",
                f"{100 * median(one.error for one in some):.1f} %",
                f"{sum(one.in_own for one in some)} of {len(some)}",
                f"{sum(one.in_widened for one in some)} of {len(some)}",
                f"{median(one.above for one in some):.2f}",
            )
        )
    print(text_table(rows, "<>>>>>"))


if __name__ == "__main__":
    main()
