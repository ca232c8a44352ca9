"""The cost model of a TorchRec user, and what it predicts of a TorchRec plan, as it does of evenshard's answers.

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

from evenshard.measure.hardware import DEFAULT_HARDWARE, HardwareName, profile_of_gpu
from evenshard.measure.price.step import PredictedParts
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.model import model_of, named_with_hardware
from evenshard.planner.pricing import part_costs
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.model import Model
from evenshard.torchrec.model.modules import qualified_name
from evenshard.torchrec.model.tables import LEFT_TO_TORCHREC
from evenshard.torchrec.plan.plans import other_kernels, shards_of

if TYPE_CHECKING:
    from torchrec.distributed.types import ShardingPlan

log = logging.getLogger(__name__)


def chosen_model(where: str | Path | Model | None, hardware: str | None, compute_device: str) -> tuple[Model, str]:
    """A model and the hardware that it speaks of.

    Args:
        where: model as in ``evenshard.place``; None: the device model of simulated hardware.
        hardware: None: the model's, or the GPU's if there is no model either.
        compute_device: cuda or cpu.

    Raises:
        BadInput: if there is no such model, or it is of other hardware.
    """
    model, own = named_with_hardware(where, hardware)
    own = own or _hardware_here(compute_device)
    return model or model_of(None, own), own


def _hardware_here(compute_device: str) -> str:
    """The hardware with the name of the GPU; the default on the CPU, and for a GPU that is not known."""
    import torch

    if compute_device != "cuda" or not torch.cuda.is_available():
        return DEFAULT_HARDWARE
    name = torch.cuda.get_device_name()
    profile = profile_of_gpu(name)
    if profile is not None:
        return str(HardwareName.of("simulated", profile))
    log.warning("no model is known for %s; it is placed as for %s. Name hardware or model.", name, DEFAULT_HARDWARE)
    return DEFAULT_HARDWARE


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
    from torchrec.distributed.types import ShardingPlan

    others = {one.table for one in request.assumptions if one.column == LEFT_TO_TORCHREC}
    tables_at = {path: tuple(of) if isinstance(of, Mapping) else () for path, of in plan.plan.items()}
    left_out = {path for path, names in tables_at.items() if others & {qualified_name(path, name) for name in names}}
    return ShardingPlan({path: of for path, of in plan.plan.items() if path not in left_out})
