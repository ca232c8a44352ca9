"""TorchRec's planner with its own costs and with evenshard's, judged by the simulated true cost.

    evenshard export-estimator --hardware simulated:h100 -o estimator.json
    python -m benchmarks.scripts.torchrec_estimator --estimator estimator.json --tables mlperf_dlrm_v2 --devices 8

Prints a row of markdown for each case. By default: Spearman's rank correlation of ratings with true costs over random
placements that fit, by TorchRec's default estimator, by the exported one in TorchRec's sum over shards, and by it with
its performance model. With --what plans: true costs of plans, and their ratings in brackets, ms, of ``SIDES``:

- default, default_swept: TorchRec's estimator with TorchRec's own setting, and with free hands, told lookups and
  bandwidths, where it takes the plan that it rates best;
- exported, exported_swept: the exported estimator with its performance model, likewise;
- device_model, device_model_swept: the exported estimator with plans rated by evenshard's device model, whose costs are
  the true ones but for histograms of reuse, which TorchRec's planner does not know; counted_swept: with the histograms,
  the true costs;
- place: the answer of ``evenshard place``.

Devices have 67 GB for tables, 8 to a node; a global batch of 65,536, SGD.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks.shardbench.cases import tables_called
from evenshard.placement.parts import TablePart
from evenshard.placement.task import ShardingTask
from evenshard.planner.file import read_json
from evenshard.planner.place import place_request
from evenshard.sharders.model import DeviceModel
from evenshard.sharders.torchrec.planner import machine_bandwidths, table_name
from evenshard.sharders.torchrec.rival import TorchRecPlan, TorchRecPlanner
from evenshard.sharders.torchrec.settings import PlannerSetting, free_hands
from evenshard.torchrec.estimator import EvenshardPerfModel
from evenshard.torchrec.estimator.examples import FittedMachine, random_parts
from evenshard.torchrec.estimator.perf_config import FittedEstimator, FittedPerfModel, fitted_estimator
from evenshard.utils.errors import InfeasibleTask

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import Topology

HARDWARE = "simulated:h100"
ROOM_BYTES = 67 * 2**30
DEVICES_PER_NODE = 8
SIDES = (
    "default",
    "default_swept",
    "exported",
    "exported_swept",
    "device_model",
    "device_model_swept",
    "counted_swept",
    "place",
)


class Case:
    """Tables on devices, and TorchRec's planner on both sides."""

    def __init__(self, tables: str, devices: int, fit: dict[str, object]) -> None:
        machine = FittedMachine(HARDWARE)
        self.request = machine.request(tables_called(tables), devices // DEVICES_PER_NODE, ROOM_BYTES)
        self.task: ShardingTask = self.request.task()
        self._costs = machine.costs(self.request)
        bandwidths = machine_bandwidths(HARDWARE, self.task.machine, machine.links())

        def estimator_of(topology: object, constraints: object) -> FittedEstimator:
            return fitted_estimator(fit, topology, constraints)  # type: ignore[arg-type]

        def device_model(topology: Topology) -> EvenshardPerfModel:
            return EvenshardPerfModel(topology, HARDWARE)

        def count_calls(topology: Topology) -> EvenshardPerfModel:
            named = (replace(table, name=table_name(at)) for at, table in enumerate(self.task.tables))
            return EvenshardPerfModel(topology, HARDWARE, tables=[*named])

        def planner(rates: Callable[[Topology], Any]) -> TorchRecPlanner:
            return TorchRecPlanner(self.task, bandwidths, estimator_of=estimator_of, rates=rates)

        self.default = TorchRecPlanner(self.task, bandwidths)
        self.shards_only = TorchRecPlanner(self.task, bandwidths, estimator_of=estimator_of)
        self.ours = planner(FittedPerfModel)
        self._planners = {
            "default": self.default,
            "exported": self.ours,
            "device_model": planner(device_model),
            "counted": planner(count_calls),
        }

    def true_ms(self, parts: Sequence[TablePart]) -> float:
        """The time of a step."""
        return self._costs.predict(parts).predicted_ms

    def correlations(self, placements: int) -> Iterator[float]:
        """Of the default estimator, of the exported one, and of it with its performance model."""
        rng = np.random.default_rng(0)
        drawn = []
        for _ in range(placements):
            try:
                drawn.append(random_parts(self.task, rng))
            except InfeasibleTask:
                continue
        true = [self.true_ms(parts) for parts in drawn]
        for planner in (self.default, self.shards_only, self.ours):
            yield float(spearmanr(true, [planner.rating_ms(parts) for parts in drawn]).statistic)

    def plan(self, side: str) -> tuple[Sequence[TablePart], float]:
        """One of ``SIDES``, with its rating, ms."""
        if side == "place":
            answer = place_request(self.request, DeviceModel(HARDWARE))
            return answer.parts, answer.predicted_ms
        planner = self._planners[side.removesuffix("_swept")]
        told = [one for one in free_hands(self.task) if one.lookups and not one.own_constants]
        plan = best_rated(planner.plans(told)) if side.endswith("_swept") else planner.plan(PlannerSetting())
        return plan.parts, plan.rating_ms


def best_rated(plans: Iterable[TorchRecPlan]) -> TorchRecPlan:
    """The plan that TorchRec would take."""
    return min(plans, key=lambda one: one.rating_ms)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--estimator", type=Path, required=True, help="of evenshard export-estimator, as JSON")
    parser.add_argument("--tables", default="mlperf_dlrm_v2,criteo_1tb,nvidia_tiny")
    parser.add_argument("--devices", default="8,16,64")
    parser.add_argument("--placements", type=int, default=40)
    parser.add_argument("--what", choices=("ratings", "plans"), default="ratings")
    parser.add_argument("--sides", default=",".join(SIDES), help="of --what plans")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    fit = read_json(args.estimator, "an estimator", "Export it again.")
    for name in args.tables.split(","):
        for devices in map(int, args.devices.split(",")):
            case = Case(name, devices, fit)
            print(f"| {name} | {devices} |", end="", flush=True)
            if args.what == "ratings":
                cells = (f"{one:.3f}" for one in case.correlations(args.placements))
            else:
                cells = (f"{case.true_ms(parts):.3f} ({ms:.3f})" for parts, ms in map(case.plan, args.sides.split(",")))
            for cell in cells:
                print(f" {cell} |", end="", flush=True)
            print(flush=True)


if __name__ == "__main__":
    main()
