"""The pipeline ``place``: its request, which has arguments of ``evenshard.place``, and what it leaves."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, make_dataclass
from pathlib import Path
from typing import Any, TextIO

from evenshard.kubeflow.retry import with_retries
from evenshard.measure.hardware import HardwareName
from evenshard.planner import api
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.diff.diff import diff
from evenshard.planner.diff.text import print_difference
from evenshard.planner.file import save_answer
from evenshard.planner.in_use import PLACEMENT, PLAN, placement_in_use
from evenshard.planner.model import model_of, named_model
from evenshard.planner.options import Option, place_options
from evenshard.planner.page.page import save_page
from evenshard.planner.rules import RULES, Rules
from evenshard.planner.torchrec.plan_file import save_plan
from evenshard.sharders.catalog import HEURISTICS
from evenshard.utils.errors import BadConfig
from evenshard.utils.params import section
from evenshard.utils.s3 import local

NOT_IN_REQUEST = {"model", "traffic", "compare", "num_measured", "cluster", "near", "constraints"}
"""Model and plan in use are inputs of the task, traffic comes as tables, a pod has nothing to measure on, no files, and
no model of TorchRec's."""
NO_PLAN = "no_plan.txt"

log = logging.getLogger(__name__)


def place_arguments(request: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``evenshard.place`` that a request gives, and the defaults of the others.

    Args:
        request: section ``place`` of the settings.

    Raises:
        BadConfig: if a key is unknown, or a value is of the wrong type or out of range.
    """
    if "near" in request:
        raise BadConfig("params section place: near is the pipeline's in_use. Name the plan there (--set in_use=FILE).")
    options = [option for option in place_options() if option.name not in NOT_IN_REQUEST]
    kinds = [(option.name, _kind(option), option.default) for option in options]
    arguments = asdict(section({"place": request}, "place", make_dataclass("PlaceRequest", kinds)))
    return {**arguments, **vars(Rules.of(**{name: arguments[name] for name in RULES}))}


def _kind(option: Option) -> Any:
    if option.name in RULES:
        return Any  # judged by Rules.of
    return option.kind | None if option.default is None else option.kind


@dataclass(frozen=True)
class PlaceOutputs:
    """Where the task writes: folders of placement.json and of plan.json, the page, and the difference in Markdown."""

    placement: Path
    plan: Path
    page: Path
    difference: Path


@with_retries
def place_tables(
    tables: str, model: str | None, request: Mapping[str, Any], in_use: str | None, outputs: PlaceOutputs
) -> PlacementAnswer:
    """Places tables, compares with the heuristics and with the plan in use, and writes all of it.

    Args:
        tables: path or S3 address of a table file, folder of traffic or DLRM batch file.
        model: a model's folder, here or on S3, or its MLflow URI; None for the device model of simulated hardware.
        request: arguments of ``evenshard.place``; ``max_move_gb`` bounds what moves from the plan in use.
        in_use: placement.json or plan for TorchRec that the training runs with, or a folder with either; None for none.
            A bound needs placement.json.

    Raises:
        BadInput: if something of that cannot be used.
        InfeasibleTask: if there is no legal placement.
    """
    arguments = place_arguments(request)
    bound = arguments["max_move_gb"]
    if bound is not None and in_use is None:
        raise BadConfig(f"max_move_gb is {bound:g}, but no plan in use is named. Name it with --set in_use=FILE.")
    near = in_use if bound is not None else None
    answer = api.place(tables, model=model, compare=HEURISTICS, near=near, **arguments)
    text = "No plan in use was named: nothing to compare with.\n"
    if in_use is not None:
        judge = model_of(named_model(answer))
        with local(in_use, listed=True) as path:
            old = placement_in_use(path, answer, judge)
        text = as_markdown(lambda file: print_difference(diff(old, answer, judge), file))
    save_placement(answer, outputs.placement, outputs.plan, outputs.page)
    outputs.difference.write_text(text)
    return answer


def save_placement(answer: PlacementAnswer, placement: Path, plan: Path, page: Path) -> None:
    """Writes placement.json and plan.json into their folders, and the page.

    Where TorchRec cannot have this placement, such as tables on kernels that it has none of, no_plan.txt says why.
    """
    for folder in (placement, plan):
        folder.mkdir(parents=True, exist_ok=True)
    save_answer(answer, placement / PLACEMENT)
    compute_device = HardwareName.parse(answer.request.hardware).kind.compute_device
    save_page(answer, page)
    try:
        save_plan(answer, plan / PLAN, compute_device=compute_device)
    except BadConfig as error:  # the placement is worth having all the same
        log.warning("no plan for TorchRec: %s", error)
        (plan / NO_PLAN).write_text(f"{error}\n")


def as_markdown(print_to: Callable[[TextIO], None]) -> str:
    """What a command prints, as a block of Markdown, which Kubeflow shows."""
    text = io.StringIO()
    print_to(text)
    lines = "\n".join(line.rstrip() for line in text.getvalue().splitlines())
    return f"```text\n{lines}\n```\n"
