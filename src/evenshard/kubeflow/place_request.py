"""The request of the pipeline ``place``: arguments of ``evenshard.place``, as a section of settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, make_dataclass
from typing import Any

from evenshard.kubeflow.retry import with_retries
from evenshard.planner import api
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.options import Option, place_options
from evenshard.planner.rules import RULES, Rules
from evenshard.sharders.catalog import HEURISTICS
from evenshard.utils.params import section

NOT_IN_REQUEST = {"model", "traffic", "compare", "num_measured", "cluster"}
"""The model is another input of the task, traffic comes as tables, a pod has nothing to measure on and no files."""


def place_arguments(request: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``evenshard.place`` that a request gives, and the defaults of the others.

    Args:
        request: section ``place`` of the settings.

    Raises:
        BadConfig: if a key is unknown, or a value is of the wrong type or out of range.
    """
    options = [option for option in place_options() if option.name not in NOT_IN_REQUEST]
    kinds = [(option.name, _kind(option), option.default) for option in options]
    arguments = asdict(section({"place": request}, "place", make_dataclass("PlaceRequest", kinds)))
    return {**arguments, **vars(Rules.of(**{name: arguments[name] for name in RULES}))}


def _kind(option: Option) -> Any:
    if option.name in RULES:
        return Any  # judged by Rules.of
    return option.kind | None if option.default is None else option.kind


@with_retries
def place_tables(tables: str, model: str | None, request: Mapping[str, Any]) -> PlacementAnswer:
    """Places tables, and compares with the heuristics.

    Args:
        tables: path or S3 address of a table file, folder of traffic or DLRM batch file.
        model: a model's folder, here or on S3, or its MLflow URI; None for the one that comes with evenshard.
        request: arguments of ``evenshard.place``.

    Raises:
        BadInput: if something of that cannot be used.
        InfeasibleTask: if there is no legal placement.
    """
    return api.place(tables, model=model, compare=HEURISTICS, **place_arguments(request))
