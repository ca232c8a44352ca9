"""Plans of TorchRec's planner as baselines, for answers and studies.

``torchrec_sharder`` plans whole tables only; the other functions allow every sharding type. ``torchrec_candidates``
tries all ``SETTINGS`` of ``topology``, and allows caches and UVM only if no plan fits without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

from evenshard.base.errors import InfeasibleTask
from evenshard.placement.task import ShardingTask
from evenshard.planner.answer import BY_MODEL, BY_RATING, DEFAULT_PLAN, Baseline
from evenshard.planner.baselines import FULL_SPACE, Candidate, find_violation
from evenshard.planner.request import PlacementRequest
from evenshard.price.step import PartCosts
from evenshard.torchrec.baseline import topology

if TYPE_CHECKING:  # TorchRec takes seconds to import
    from evenshard.torchrec.baseline.sharder import TorchRecPlanner, TorchRecSharder

# Seconds per setting, after which TorchRec returns its best plan; without a timeout, large tasks take minutes.
_TIMEOUT_S = 5


def torchrec_sharder(hardware: str, link: str, sort_by: Literal["storage", "perf"]) -> TorchRecSharder:
    """Return TorchRec's planner, restricted to whole tables, for this hardware and link."""
    topology.require_torchrec()
    from evenshard.torchrec.baseline.sharder import TorchRecSharder

    return TorchRecSharder(partial(topology.bandwidths_of, hardware, link), sort_by)


def torchrec_planner(hardware: str, link: str) -> Callable[[ShardingTask], TorchRecPlanner]:
    """Return a function that builds TorchRec's planner for a task, with every sharding type."""
    topology.require_torchrec()
    from evenshard.torchrec.baseline.sharder import TorchRecPlanner

    return lambda task: TorchRecPlanner(task, topology.bandwidths_of(hardware, link, task.machine))


def torchrec_candidates(request: PlacementRequest, costs: PartCosts) -> Iterator[Candidate]:
    """Yield TorchRec's default plan, the best of all settings by TorchRec's rating, and the best by the cost model.

    Raises:
        InfeasibleTask: if TorchRec finds no plan.
    """
    topology.require_torchrec()
    from evenshard.torchrec.baseline.sharder import TorchRecPlanner

    task = request.task()
    bandwidths = topology.machine_bandwidths(request.hardware, request.nodes, costs.links)
    # The default plan has no timeout, as in TorchRec.
    patient, planner = (TorchRecPlanner(task, bandwidths, timeout_s) for timeout_s in (None, _TIMEOUT_S))
    plans = [*patient.plans(topology.SETTINGS[:1]), *planner.plans(topology.SETTINGS[1:])]
    num_settings = len(topology.SETTINGS)
    if not plans and task.may_offload:
        plans, num_settings = [*planner.plans(topology.OFFLOAD_SETTINGS)], num_settings + len(topology.OFFLOAD_SETTINGS)
    if not plans:
        raise InfeasibleTask(f"TorchRec's planner found no plan in any of {num_settings} settings")
    default = next((plan for plan in plans if plan.setting == topology.DEFAULT_SETTING), None)
    if default is None:
        note = "TorchRec's planner with its defaults found no plan"
        yield Baseline(FULL_SPACE, None, None, note, str(topology.DEFAULT_SETTING), chosen=DEFAULT_PLAN), None
    else:
        yield Baseline(FULL_SPACE, None, setting=str(default.setting), chosen=DEFAULT_PLAN), default.parts
    # Plans of all settings are rated with the same bandwidths and pooling factors, if all are in device memory.
    on_device = all(part.storage.is_on_device for plan in plans for part in plan.parts)
    rated = min(plans, key=lambda plan: planner.rating_ms(plan.parts) if on_device else plan.rating_ms)
    yield Baseline(FULL_SPACE, None, setting=str(rated.setting), chosen=BY_RATING), rated.parts
    best = min(plans, key=lambda of: (bool(find_violation(costs, of.parts)), costs.predict(of.parts).predicted_ms))
    setting = f"{best.setting}; best of {num_settings} settings"
    yield Baseline(FULL_SPACE, None, setting=setting, chosen=BY_MODEL), best.parts
