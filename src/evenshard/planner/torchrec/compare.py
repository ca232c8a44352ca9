"""The predicted cost of a TorchRec plan, by the model that also predicts evenshard's answers.

::

    answer = evenshard.place(model, num_devices=8)
    theirs = predicted(EmbeddingShardingPlanner(topology).plan(model, sharders), answer)
    theirs.predicted_ms, answer.predicted_ms
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from evenshard.measure.price.step import PredictedParts
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.pricing import part_costs
from evenshard.planner.request import PlacementRequest
from evenshard.planner.torchrec.model import chosen_model
from evenshard.planner.torchrec.modules import qualified_name
from evenshard.planner.torchrec.plans import other_kernels, shards_of
from evenshard.planner.torchrec.tables import LEFT_TO_TORCHREC
from evenshard.sharders.model import Model

if TYPE_CHECKING:
    from torchrec.distributed.types import ShardingPlan

log = logging.getLogger(__name__)


def predicted(
    plan: ShardingPlan,
    asked: PlacementAnswer | PlacementRequest,
    model: Model | str | Path | None = None,
) -> PredictedParts:
    """What the cost model says about a plan, whether it keeps memory and rules or not.

    Args:
        plan: TorchRec's or evenshard's, sharded in any way. Modules that evenshard does not place count nothing. Of
            tables on kernels that evenshard does not place on, it warns (logging).
        asked: an answer for the same tables and devices, or its request. Tables are called as ``tables_of`` calls them.
        model: model as in ``evenshard.place``, the one that answered; None: the device model of simulated hardware.

    Raises:
        BadInput: if the plan is of other tables, or if there is no model.
    """
    request = asked.request if isinstance(asked, PlacementAnswer) else asked
    loaded, _ = chosen_model(model, request.hardware, "cuda")
    plan = _of_placed_modules(plan, request)
    for name, kernel in other_kernels(plan, request.tables).items():
        log.warning(
            "table %s is on %s in the plan; it is priced as on fused, in the memory of its device.", name, kernel
        )
    return part_costs(request, loaded).predict(shards_of(plan, request.tables))


def _of_placed_modules(plan: ShardingPlan, request: PlacementRequest) -> ShardingPlan:
    """The plan without the modules that TorchRec placed in it."""
    from torchrec.distributed.types import ShardingPlan

    others = {one.table for one in request.assumptions if one.column == LEFT_TO_TORCHREC}
    tables_at = {path: tuple(of) if isinstance(of, Mapping) else () for path, of in plan.plan.items()}
    left_out = {path for path, names in tables_at.items() if others & {qualified_name(path, name) for name in names}}
    return ShardingPlan({path: of for path, of in plan.plan.items() if path not in left_out})
