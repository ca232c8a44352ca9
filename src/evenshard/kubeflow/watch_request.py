"""The inputs and outputs of the component ``watch``: the traces of a training, and the placement to go on with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evenshard.kubeflow.place_request import as_markdown, save_placement
from evenshard.kubeflow.retry import with_retries
from evenshard.planner.file import load_answer
from evenshard.planner.in_use import PLACEMENT
from evenshard.planner.model import model_of, named_model
from evenshard.stages.decisions.watch import WatchConfig, Watched, traces_in, watch
from evenshard.stages.decisions.watch_text import print_watched
from evenshard.tables.sources import tables_from
from evenshard.utils.json_files import finite
from evenshard.utils.params import section
from evenshard.utils.s3 import local


@dataclass(frozen=True)
class WatchOutputs:
    """Where the task writes.

    Attributes:
        summary: the verdict and why, in Markdown.
        observation: folder of observation.json and, where the traces can be one, the cost dataset costs.parquet.
        placement, plan, page: see ``save_placement``; the placement to go on with.
    """

    summary: Path
    observation: Path
    placement: Path
    plan: Path
    page: Path


def watched_metrics(watched: Watched) -> dict[str, float | None]:
    """The figures of a run of ``watch``, by which one day can be compared with another."""
    return {
        "observed_ms": watched.comparison.observed_ms,
        "predicted_ms": watched.comparison.predicted_ms,
        "saves_ms": watched.difference.times.saves_ms,
        "break_even_steps": None if watched.paid is None else watched.paid.break_even_steps,
        "gained_seconds": 0.0 if watched.paid is None else watched.paid.gained_seconds,
        "pays": float(watched.pays),
    }


@with_retries
def watch_training(
    traces: str, in_use: str, tables: str | None, model_uri: str, request: Mapping[str, Any], outputs: WatchOutputs
) -> Watched:
    """Whether a training should move to another placement, and which.

    Args:
        traces: path or S3 address of a trace, an archive, or a folder of them.
        in_use: placement.json that the training runs with, or a folder with it.
        tables: today's table file; None for the tables of the placement.
        model_uri: predicts; "" for the model that made the placement.
        request: fields of ``WatchConfig``.

    Raises:
        BadInput: if something of that cannot be used.
        InfeasibleTask: if today's tables do not fit on the old devices.
    """
    config = section({"watch": dict(request)}, "watch", WatchConfig)
    outputs.observation.mkdir(parents=True, exist_ok=True)
    with local(traces, listed=True) as traced, local(in_use, listed=True) as folder:
        placement = folder / PLACEMENT if folder.is_dir() else folder
        old = load_answer(placement)
        today = None
        if tables is not None:
            with local(tables, listed=True) as path:
                today = tables_from(path, old.request.batch_size)
        model = model_of(model_uri or named_model(old), None)
        costs = outputs.observation / "costs.parquet"
        found = watch(traces_in(traced), placement, model, config, today, costs=costs)
    content = {
        **asdict(found.observation),
        "comparison": asdict(found.comparison),
        "payback": None if found.paid is None else asdict(found.paid),
        "pays": found.pays,
    }
    (outputs.observation / "observation.json").write_text(json.dumps(finite(content), indent=1) + "\n")
    save_placement(found.best, outputs.placement, outputs.plan, outputs.page)
    outputs.summary.write_text(as_markdown(lambda file: print_watched(found, file)))
    return found
