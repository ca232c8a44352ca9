"""Decision whether to move a running training job to a new placement, based on its traces.

The predicted saving per step is multiplied by observed / predicted step time. The move pays off if the saving over the
remaining steps exceeds the time of the transfer and the restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from evenshard.base.console import plain_console
from evenshard.base.errors import BadConfig, BadInput
from evenshard.base.messages import printable
from evenshard.loop import observe
from evenshard.loop.commands import ObserveInputs, WatchConfig
from evenshard.loop.observe import ObservedAndPredicted, observation_text
from evenshard.measure.traces.ranks import ObservedTraining
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.diff import diff, rename_devices
from evenshard.planner.difference import Difference, Payback, payback
from evenshard.planner.file import load_answer
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.report.comparisons import print_difference
from evenshard.sharders.model import Model
from evenshard.tables.assumptions import TableSet

_TRACES = ("*.json", "*.json.gz", "*.tar.gz")


@dataclass(frozen=True)
class Watched:
    """An observed training run, and the decision whether to move it to a new placement."""

    observation: ObservedTraining
    comparison: ObservedAndPredicted  # of the current placement
    scale: float  # observed step time / predicted step time
    old: PlacementAnswer  # current placement
    new: PlacementAnswer  # best placement found, with devices numbered to move the least data
    difference: Difference  # from old to new, with step times scaled to the observation
    steps: int  # remaining training steps
    paid: Payback | None  # when the move pays back; None if the current placement is best
    pays: bool  # True to make the move
    costs_problem: str = ""  # reason for a missing cost dataset

    @property
    def best(self) -> PlacementAnswer:
        """Return the placement to use from now on."""
        return self.new if self.pays else self.old


def watch(
    traces: Sequence[Path],
    in_use: Path,
    model: Model,
    config: WatchConfig,
    tables: TableSet | None = None,
    search: PlaceConfig | None = None,
    costs: Path | None = None,
) -> Watched:
    """Read the traces of a training job, and decide whether moving its tables to another placement pays off.

    Args:
        in_use: placement.json of the job.
        model: model that predicts both placements.
        tables: today's tables; None for those of the current placement.
        costs: the cost dataset to write, if the traces are complete.

    Raises:
        BadInput: if a file cannot be used, or the traces and the placement are from different training runs.
        InfeasibleTask: if today's tables do not fit on the devices of the job.
    """
    old = load_answer(in_use)
    observation, comparison, problem = _observe(traces, in_use, costs)
    if observation.unseen:
        raise BadConfig(
            f"the traces lack {', '.join(observation.unseen)}, so predicted savings cannot be scaled to observed "
            f"times. Record whole training steps (see `evenshard observe -h`)."
        )
    scale = comparison.observed_ms / comparison.predicted_ms if comparison.predicted_ms > 0 else 1.0
    today = tables or TableSet(old.request.tables, old.request.assumptions)
    new = replan(old, today, model, old.request.batch_size, search)
    difference = diff(old, new, model, config.link_gb_s)
    if difference.renaming is not None:
        new = rename_devices(new, difference.renaming.new_names, model)
        difference = diff(old, new, model, config.link_gb_s)
    times = difference.times
    names = ("old_ms", "new_ms", "saves_ms", "saves_low_ms", "saves_high_ms", "lower_bound_ms")
    scaled = replace(times, **{name: getattr(times, name) * scale for name in names})
    scaled = replace(scaled, predicted_by=f"{times.predicted_by}, scaled to the traces")
    difference = replace(difference, times=scaled)
    paid = payback(difference, new, config.steps, model, config.link_gb_s, config.restart_minutes)
    pays = paid is not None and (paid.gained_low_seconds if config.surely else paid.gained_seconds) > 0
    pays = pays and bool(difference.moves)
    return Watched(observation, comparison, scale, old, new, difference, config.steps, paid, pays, problem)


def replan(
    old: PlacementAnswer,
    tables: TableSet,
    model: Model,
    batch_size: int,
    config: PlaceConfig | None = None,
    tables_from: str | None = None,
) -> PlacementAnswer:
    """Place today's tables with the devices and rules of an old answer; the old placement is also a candidate.

    Raises:
        InfeasibleTask: if the tables no longer fit.
    """
    names = {table.name for table in tables.tables}
    request = replace(
        old.request,
        tables=tables.tables,
        assumptions=tables.assumptions,
        rules=old.request.rules.of_tables(names),  # without rules about removed tables
        batch_size=batch_size,
        table_optimizers={name: own for name, own in old.request.table_optimizers.items() if name in names},
    )
    config = replace(config or PlaceConfig(), tables_from=tables_from, known=(old.parts,))
    return place_request(request, model, config)


def find_traces(path: Path) -> tuple[Path, ...]:
    """Return the traces in a folder, or the one file; raise BadConfig if there is none."""
    found = tuple(sorted(trace for kind in _TRACES for trace in path.glob(kind))) if path.is_dir() else (path,)
    if not found:
        raise BadConfig(
            f"{path} contains no trace ({', '.join(_TRACES)}). Record one per rank (see `evenshard observe -h`)."
        )
    return found


def _observe(
    traces: Sequence[Path], in_use: Path, costs: Path | None
) -> tuple[ObservedTraining, ObservedAndPredicted, str]:
    inputs, problem = ObserveInputs(tuple(traces), in_use), ""
    try:
        observation, comparison = observe.run(inputs, costs)
    except BadInput as error:
        if costs is None:
            raise
        observation, comparison = observe.run(inputs)  # checks the traces first
        problem = str(error)
    assert comparison is not None  # because of the current placement
    return observation, comparison, problem


def print_watched(watched: Watched, file: TextIO | None = None) -> None:
    """Print the decision and its reasons."""
    console = plain_console(file)
    verdict = f"Stay: a move is not certain to pay back within {watched.steps:,} steps."
    if watched.pays:
        verdict = f"Replan: the move pays back within {watched.steps:,} steps."
    elif not watched.difference.moves:
        verdict = "Stay: no better placement was found."
    console.print(verdict, style="bold")
    console.print(
        f"Embedding tables take {watched.scale:.2f} times the predicted time of the current placement. Predicted "
        "savings are scaled by this factor.",
        soft_wrap=True,
    )
    if watched.costs_problem:
        console.print(f"No cost dataset: {printable(watched.costs_problem)}", soft_wrap=True)
    console.print()
    console.print(observation_text(watched.observation, watched.comparison), soft_wrap=True, highlight=False)
    console.print()
    print_difference(watched.difference, file, watched.paid)
