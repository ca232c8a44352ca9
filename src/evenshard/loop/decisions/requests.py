"""Implementation of the pipeline tasks ``place``, ``drift`` and ``watch``, which read local paths and S3 addresses."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from evenshard.api import place
from evenshard.base.documents import replace_non_finite
from evenshard.base.errors import BadConfig
from evenshard.base.retry import with_retries
from evenshard.base.s3 import local_copy
from evenshard.base.typed import section
from evenshard.loop.commands import DriftRequest, WatchConfig
from evenshard.loop.decisions.drift import Drift, compute_drift, print_drift
from evenshard.loop.decisions.watch import Watched, find_traces, print_watched, watch
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.config_file import request_record
from evenshard.planner.diff import diff
from evenshard.planner.file import load_answer, save_answer
from evenshard.planner.pricing import find_model_source, load_learned_model, model_of
from evenshard.planner.rules import RULES, Rules
from evenshard.price.hardware import HardwareName
from evenshard.report.comparisons import print_difference
from evenshard.report.page.page import save_page
from evenshard.sharders.catalog import HEURISTICS
from evenshard.tables.sources import tables_from
from evenshard.torchrec.plan.file import PLACEMENT, PLAN, placement_in_use, save_plan

# Arguments of ``place`` that a request cannot set: model and current plan are inputs of the task, traffic is passed as
# tables, and a pod has no device to measure on, no files and no TorchRec model.
NOT_IN_REQUEST = {"model", "traffic", "compare", "num_measured", "hosts", "near", "constraints"}
NO_PLAN = "no_plan.txt"

log = logging.getLogger(__name__)


def place_arguments(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``evenshard.place`` from the section ``place`` of the settings, with defaults."""
    if "near" in request:
        raise BadConfig("params section place: near is not supported. Name the current plan with --set in_use=FILE.")
    arguments = asdict(section({"place": request}, "place", request_record(NOT_IN_REQUEST)))
    return {**arguments, **vars(Rules.of(**{name: arguments[name] for name in RULES}))}


@with_retries
def place_tables(
    tables: str, model: str | None, request: Mapping[str, Any], in_use: str | None
) -> tuple[PlacementAnswer, str]:
    """Place tables; return the answer, and its difference from the current plan as Markdown.

    Args:
        tables: path or S3 address of a table file, folder of traffic or DLRM batch file.
        model: a model's folder, here or on S3, or its MLflow URI; None for the device model of simulated hardware.
        request: arguments of ``evenshard.place``.
        in_use: placement.json or TorchRec plan of the running job, or a folder with either. ``max_move_gb`` needs
            placement.json.
    """
    arguments = place_arguments(request)
    bound = arguments["max_move_gb"]
    if bound is not None and in_use is None:
        raise BadConfig(f"max_move_gb is {bound:g}, but no current plan is given. Name it with --set in_use=FILE.")
    near = in_use if bound is not None else None
    answer = place(tables, model=model, compare=HEURISTICS, near=near, **arguments)
    text = "No current plan was given, so there is nothing to compare with.\n"
    if in_use is not None:
        judge = model_of(find_model_source(answer))
        with local_copy(in_use) as path:
            old = placement_in_use(path, answer, judge)
        text = _as_markdown(lambda file: print_difference(diff(old, answer, judge), file))
    return answer, text


def save_placement(answer: PlacementAnswer, placement: Path, plan: Path, page: Path) -> None:
    """Write placement.json and plan.json into their folders, and the report page.

    If TorchRec cannot run this placement, for example because kernels are missing, no_plan.txt gives the reason.
    """
    for folder in (placement, plan):
        folder.mkdir(parents=True, exist_ok=True)
    save_answer(answer, placement / PLACEMENT)
    save_page(answer, page)
    try:
        save_plan(answer, plan / PLAN, compute_device=HardwareName.parse(answer.request.hardware).kind.compute_device)
    except BadConfig as error:  # the placement is useful without a plan
        log.warning("no TorchRec plan written: %s", error)
        (plan / NO_PLAN).write_text(f"{error}\n")


@with_retries
def check_drift(tables: str, model: str, request: Mapping[str, Any]) -> tuple[Drift, str]:
    """Compare today's tables with a model's training data; return the drift, and its text as Markdown."""
    asked = section({"drift": dict(request)}, "drift", DriftRequest)
    held = load_learned_model(model, None)
    batch_size = asked.batch_size or int(held.trained_on.batch_size[1])
    with local_copy(tables) as path:
        now = tables_from(
            path,
            batch_size,
            embedding_dim=asked.embedding_dim,
            default_pooling_factor=asked.default_pooling_factor,
            columns=asked.columns,
        )
    found = compute_drift(held.trained_on, now.tables, batch_size, asked.num_devices, asked.tolerated_pct)
    return found, _as_markdown(lambda file: print_drift(found, held.source, file))


@with_retries
def watch_training(
    traces: str, in_use: str, tables: str | None, model_uri: str, request: Mapping[str, Any], observation: Path
) -> tuple[Watched, str]:
    """Decide whether a training job should move to a new placement; return the decision, and its text as Markdown.

    Args:
        traces: path or S3 address of a trace, an archive, or a folder of them.
        in_use: placement.json of the job, or a folder with it.
        tables: today's table file; None for the tables of the placement.
        model_uri: model for predictions; "" for the model that made the placement.
        request: fields of ``WatchConfig``.
        observation: folder for observation.json and, if the traces are complete, the cost dataset costs.parquet.
    """
    config = section({"watch": dict(request)}, "watch", WatchConfig)
    observation.mkdir(parents=True, exist_ok=True)
    with local_copy(traces) as traced, local_copy(in_use) as folder:
        placement = folder / PLACEMENT if folder.is_dir() else folder
        old = load_answer(placement)
        today = None
        if tables is not None:
            with local_copy(tables) as path:
                today = tables_from(path, old.request.batch_size)
        model = model_of(model_uri or find_model_source(old), None)
        found = watch(find_traces(traced), placement, model, config, today, costs=observation / "costs.parquet")
    content = {
        **asdict(found.observation),
        "comparison": asdict(found.comparison),
        "payback": None if found.paid is None else asdict(found.paid),
        "pays": found.pays,
    }
    (observation / "observation.json").write_text(json.dumps(replace_non_finite(content), indent=1) + "\n")
    return found, _as_markdown(lambda file: print_watched(found, file))


def _as_markdown(print_to: Callable[[TextIO], None]) -> str:
    """Return printed output as a Markdown code block, which Kubeflow displays."""
    text = io.StringIO()
    print_to(text)
    lines = "\n".join(line.rstrip() for line in text.getvalue().splitlines())
    return f"```text\n{lines}\n```\n"
