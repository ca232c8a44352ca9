"""The placement that a training runs with today, beside a new answer: of placement.json, or of a plan for TorchRec."""

from __future__ import annotations

from pathlib import Path

from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.file import load_answer, read_json
from evenshard.planner.pricing import reprice_answer
from evenshard.sharders.model import Model
from evenshard.torchrec.plan.file import load_plan_parts
from evenshard.utils.errors import BadConfig, BadFile

PLACEMENT, PLAN = "placement.json", "plan.json"


def load_placement(path: Path) -> PlacementAnswer:
    """The answer of placement.json, or of the folder that has it.

    Raises:
        BadFile: if it cannot be used, or is a plan for TorchRec.
    """
    return load_answer(path / PLACEMENT if path.is_dir() else path)


def placement_in_use(path: Path, new: PlacementAnswer, model: Model) -> PlacementAnswer:
    """The placement of a file, as an answer that ``diff`` compares with the new one.

    A plan for TorchRec knows no lookups: its parts are priced as those of today's tables.

    Args:
        path: placement.json, evenshard's plan for TorchRec, or a folder with either.
        new: the answer for today's tables.
        model: prices a plan.

    Raises:
        BadFile: if it is neither, or a plan is of other tables or ranks than the new answer.
    """
    if path.is_dir():
        path = next((path / name for name in (PLACEMENT, PLAN) if (path / name).exists()), path / PLACEMENT)
    content = read_json(path, "a placement", "Name placement.json, or evenshard's plan for TorchRec.")
    if "world_size" not in content:
        return load_answer(path)
    parts, world_size = load_plan_parts(path)
    if world_size != new.num_devices:
        problem = f"is a plan of {world_size} ranks, and the new placement has {new.num_devices}"
        raise BadFile(path, problem, "Name the placement.json that the plan was made with.")
    try:
        return reprice_answer(new, parts, model)
    except BadConfig as error:
        problem = f"is a plan of other tables ({str(error).rstrip('.')})"
        raise BadFile(path, problem, "Name the placement.json that it was made with.") from None
