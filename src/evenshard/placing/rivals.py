"""What would others do with the same tables? The rules of thumb and TorchRec's planner, judged by the same model.

They place whole tables: none of them splits. A rival that knows nothing of a rule may break it, and is then marked.
"""

from __future__ import annotations

from collections.abc import Sequence

from evenshard.errors import BadConfig, InfeasibleTask
from evenshard.measure import SIMULATED, MeasureConfig
from evenshard.measure.hardware import Measure
from evenshard.models import PlacementModel
from evenshard.placement import broken_constraints
from evenshard.placing.answer import Rival
from evenshard.placing.request import PlacementRequest
from evenshard.sharders.base import Sharder
from evenshard.sharders.greedy import expert_sharders
from evenshard.sharders.random import RandomSharder
from evenshard.sharders.torchrec_planner import Bandwidths, TorchRecSharder, bandwidths_of

HEURISTICS = ("random", "size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy")
TORCHREC = ("torchrec_planner", "torchrec_planner_perf")
RIVALS = (*HEURISTICS, *TORCHREC)


def rivals(
    request: PlacementRequest, model: PlacementModel, names: Sequence[str], measure: Measure | None = None
) -> tuple[Rival, ...]:
    """Each rival's answer, in the order of ``names``.

    Args:
        names: of ``RIVALS``.
        measure: measures their placements too, where there is one.

    Raises:
        BadConfig: if a name is unknown, or TorchRec is asked for and not installed.
    """
    unknown = next((name for name in names if name not in RIVALS), None)
    if unknown is not None:
        raise BadConfig(f"there is no sharder {unknown!r} to compare with. Choose from {', '.join(RIVALS)}.")
    _, task = request.task({})
    found: list[Rival] = []
    for name in names:
        try:
            placement = _sharder(name, request).place(task)
        except InfeasibleTask as error:
            found.append(Rival(name, None, None, str(error).removeprefix(f"{task.task_id}: ")))
            continue
        predicted_ms = float(model.cost_model.overall_ms(task, [placement])[0])
        measured_ms = None
        if measure is not None:
            measured_ms = measure([(task, placement)])[0].max_device_ms
        found.append(Rival(name, predicted_ms, measured_ms, "; ".join(broken_constraints(task, placement))))
    return tuple(found)


def _sharder(name: str, request: PlacementRequest) -> Sharder:
    if name == "random":
        return RandomSharder(seed=0)
    if name in TORCHREC:
        known = request.hardware.startswith(SIMULATED)
        bandwidths = bandwidths_of(MeasureConfig(request.hardware)) if known else Bandwidths()
        return TorchRecSharder(bandwidths, "storage" if name == "torchrec_planner" else "perf")
    return next(sharder for sharder in expert_sharders() if sharder.name == name)
