"""Differences between placements: how often the true one lies in its 90 % interval, in worlds of drawn constants.

    python -m benchmarks.scripts.differences [--worlds 60] [--first 100] [--tasks 12]

A world has other devices and links than the profiles say: each constant of the device model that no data sheet states,
and the latencies and bandwidths of each collective, times a factor of its own. How far factors spread follows from the
profile's error: nine of ten kernel times of devices are within its factor, and so are nine of ten times of long and of
short exchanges. A task is random tables on some devices with placements: the answer of a short search, also with
fewer types, what rules of thumb find, and these with tables moved. Each pair has a predicted difference with its
interval, and a true difference in every world. Even tasks are of one node, odd ones of two.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from benchmarks.scripts.savings import move_some
from evenshard.measure.collectives import Links
from evenshard.measure.evidence import DeviceError
from evenshard.measure.link_model import COLLECTIVES, Curve, Link
from evenshard.measure.price.step import PartCosts
from evenshard.measure.simulated.cluster import simulated_kind
from evenshard.measure.simulated.gpu_profile import FREE_CONSTANTS, GpuProfile, gpu_profile
from evenshard.placement.machine import Machine
from evenshard.placement.parts import TablePart
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.planner.pricing import PricedParts, link_error, part_costs, price_parts
from evenshard.planner.request import PlacementRequest, caps_of
from evenshard.planner.saving import saving, shared_work
from evenshard.sharders.catalog import HEURISTICS, Resources, sharder
from evenshard.sharders.model import DeviceModel
from evenshard.sharders.search.search import PlanSearchEffort
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.utils.text_table import text_table

BATCH_SIZE = 65_536
DIMS = (16, 32, 64, 128)
# Devices with a profile, and links between their nodes; tables and devices.
HARDWARE = ("h100", "a100_80gb", "v100", "h200")
TASKS = ((20, 4), (40, 16), (26, 8), (80, 16), (60, 8), (26, 16))
EFFORT = PlaceConfig(effort=PlanSearchEffort(changes=60, idle_kicks=3))
# Narrower sets of types whose answers are placements, too.
TYPES = (("column_wise", "table_wise"), ("row_wise", "data_parallel"))
# Tables that move at random.
MOVED = (1, 3, 8)
# Half the width of a 90 % interval of the normal distribution, in standard deviations.
HALF_WIDTH = 1.645
BANDS = ((0.0, 0.3), (0.3, 0.6), (0.6, 0.9), (0.9, 1.01))


@dataclass(frozen=True)
class Pair:
    """Two placements in one world.

    Attributes:
        hardware: of the devices.
        predicted_ms: of the difference, with its ends, ms.
        true_ms: in the world.
        shared: of the slowest devices' work.
        share: half the width of the interval, in the step's time.
    """

    hardware: str
    predicted_ms: tuple[float, float, float]
    true_ms: float
    shared: float
    share: float

    @property
    def is_inside(self) -> bool:
        """Whether the interval has the true difference."""
        return self.predicted_ms[1] <= self.true_ms <= self.predicted_ms[2]


@dataclass(frozen=True)
class World:
    """Factors of the constants: of a device's, and of each collective's latency and bytes, link after link."""

    constants: dict[str, float]
    links: tuple[dict[str, tuple[float, float]], ...]


def drawn_world(rng: np.random.Generator, spread: float, links: Sequence[Link]) -> World:
    """A world.

    Args:
        spread: standard deviation of the logarithm of each constant's factor.
        links: their errors say how far theirs spread.
    """
    of_links = [
        {name: tuple(np.exp(rng.normal(0, _deviation(one.error), 2)).tolist()) for name in COLLECTIVES} for one in links
    ]
    return World(
        dict(zip(FREE_CONSTANTS, np.exp(rng.normal(0, spread, len(FREE_CONSTANTS))), strict=True)), (*of_links,)
    )


def _deviation(error: DeviceError) -> float:
    return math.log(error.factor) / HALF_WIDTH


def other_profile(profile: GpuProfile, world: World) -> GpuProfile:
    """The device of a world."""
    return replace(profile, **{name: getattr(profile, name) * one for name, one in world.constants.items()})


def other_link(one: Link, factors: dict[str, tuple[float, float]]) -> Link:
    """The link of a world; what has no curve goes by the factors of an all-to-all."""
    latency, speed = factors["all_to_all"]
    return replace(
        one,
        latency_us=one.latency_us * latency,
        **{name: getattr(one, name) * speed for name in ("bandwidth_gb_s", "slowest_gb_s", "shared_gb_s")},
        curves=tuple(_other_curve(curve, *factors[curve.collective]) for curve in one.curves),
    )


def _other_curve(curve: Curve, latency: float, speed: float) -> Curve:
    faster = curve.faster(speed)
    more_us = curve.us[0] * (latency - 1)
    return replace(faster, us=tuple(us + more_us for us in faster.us))


@dataclass(frozen=True)
class Study:
    """A task with its placements."""

    request: PlacementRequest
    model: DeviceModel
    costs: PartCosts
    plans: dict[str, PricedParts]

    @staticmethod
    def of(number: int) -> Study:
        """One of the random tasks."""
        rng = np.random.default_rng(number)
        num_tables, devices = TASKS[number % len(TASKS)]
        hardware = HARDWARE[number // 2 % len(HARDWARE)]
        pool = generate_tables(GeneratorConfig(2000, DIMS), BATCH_SIZE, seed=5)
        usable = [table for table in pool if table.pooling_factor <= table.num_rows]
        chosen = rng.choice(len(usable), num_tables, replace=False).tolist()
        tables = tuple(replace(usable[one], name=f"t{at}") for at, one in enumerate(chosen))
        profile = gpu_profile(hardware)
        machine = Machine(devices, min(devices, 8), intra=profile.link, inter="infiniband_ndr" if devices > 8 else "")
        request = PlacementRequest(
            tables, caps_of(80.0, devices), BATCH_SIZE, hardware=f"simulated:{hardware}", machine=machine
        )
        model = DeviceModel(request.hardware)
        costs = part_costs(request, model)
        found: dict[str, tuple[TablePart, ...]] = {"answer": place_request(request, model, EFFORT).parts}
        for types in TYPES:
            narrower = replace(request, sharding_types=types)
            found[types[0]] = place_request(narrower, model, EFFORT).parts
        for name in HEURISTICS:
            found[name] = sharder(name, Resources(seed=number)).place(request.task()).parts(tables)
        for count in MOVED:
            for name in ("answer", "lookup_greedy"):
                if (parts := move_some(costs.task, found[name], count, rng)) is not None:
                    found[f"{name}, {count}"] = parts
        return Study(
            request,
            model,
            costs,
            {name: price_parts(request, model, costs, costs.predict(parts))[0] for name, parts in found.items()},
        )

    @property
    def links(self) -> tuple[Link, ...]:
        """Of both tiers."""
        links = self.costs.links
        return (links.intra,) if links.inter is None else (links.intra, links.inter)

    def true(self, world: World) -> dict[str, PricedParts]:
        """What the placements take in a world, and what their devices do."""
        links = Links(*(other_link(one, factors) for one, factors in zip(self.links, world.links, strict=True)))
        kind = simulated_kind(other_profile(self.model.profile, world), self.request.nodes)
        costs = PartCosts(self.costs.task, [kind], [0] * self.request.num_devices, links)
        return {name: costs.predict(one.parts) for name, one in self.plans.items()}  # type: ignore[misc]

    def spread(self, worlds: int = 12) -> float:
        """That of constants with which nine of ten kernel times of devices are within the profile's factor."""
        rng, trial, errors = np.random.default_rng(0), 0.1, []
        for _ in range(worlds):
            found = self.true(drawn_world(rng, trial, self.links))
            for name, plan in self.plans.items():
                errors += [
                    abs(math.log(getattr(new, what) / getattr(old, what)))
                    for old, new in zip(plan.devices, found[name].devices, strict=True)
                    for what in ("predicted_fwd_compute_ms", "predicted_bwd_compute_ms")
                    if getattr(old, what) > 0
                ]
        return trial * math.log(self.model.device_error.factor) / float(np.quantile(errors, 0.9))

    def pairs(self, worlds: int, seed: int) -> Iterator[Pair]:
        """Each pair of placements in each world."""
        errors = self.model.device_error, link_error(self.request, self.model)
        names = [table.name for table in self.request.tables]
        rng, spread = np.random.default_rng(seed), self.spread()
        drawn = [self.true(drawn_world(rng, spread, self.links)) for _ in range(worlds)]
        for one, other in combinations(self.plans, 2):
            old, new = self.plans[one], self.plans[other]
            if set(old.parts) == set(new.parts):
                continue
            shared = shared_work(old, new, names)
            found = saving(old, new, (self.costs.pipeline,) * 2, shared, errors)
            share = (found.high_ms - found.low_ms) / 2 / old.predicted_ms
            for true in drawn:
                true_ms = true[one].predicted_ms - true[other].predicted_ms
                yield Pair(self.request.hardware, (found.ms, found.low_ms, found.high_ms), true_ms, shared, share)


def report(pairs: Sequence[Pair]) -> str:
    """The table: a row for each band, and for all."""
    groups = {
        f"shared work {low:g} to {min(high, 1):g}": [pair for pair in pairs if low <= pair.shared < high]
        for low, high in BANDS
    }
    for hardware in dict.fromkeys(pair.hardware for pair in pairs):
        groups[hardware] = [pair for pair in pairs if pair.hardware == hardware]
    rows = [("", "differences", "inside", "half the width, of a step")]
    for name, some in {**groups, "all": pairs}.items():
        if some:
            inside, width = np.mean([pair.is_inside for pair in some]), np.median([pair.share for pair in some])
            rows.append((name, f"{len(some):,}", f"{100 * inside:.0f} %", f"{100 * width:.1f} %"))
    return text_table(rows, "<>>>")


def main() -> None:
    """Prints a table: rows for bands of what the slowest devices share, and for devices."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--worlds", type=int, default=60)
    parser.add_argument("--first", type=int, default=100, help="number of the first task")
    parser.add_argument("--tasks", type=int, default=12)
    args = parser.parse_args()
    known: list[Pair] = []
    for number in range(args.first, args.first + args.tasks):
        known += Study.of(number).pairs(args.worlds, number)
    print(report(known))


if __name__ == "__main__":
    main()
