"""A training that runs, watched: what its traces show, what a new placement would save, and whether the move pays.

Predictions are of a model, and the traces say how right it is here: what a step is predicted to save is scaled by what
a step takes over what was predicted for it. The move pays where that is more, over the steps to come, than
what the transfer and the restart take.
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
from evenshard.planner.request import PlacementRequest
from evenshard.report.comparisons import print_difference
from evenshard.sharders.model import Model
from evenshard.tables.assumptions import TableSet

_TRACES = ("*.json", "*.json.gz", "*.tar.gz")


@dataclass(frozen=True)
class Watched:
    """A training, and the decision about its placement.

    Attributes:
        comparison: the observation beside the prediction for the placement in use.
        scale: observed step time over the predicted one.
        old, new: the placement in use, and the best that was found, its devices named so that least moves.
        difference: between the two, with the times of a step scaled to the observed ones.
        paid: when the move pays back; None where the best placement is the one in use.
        pays: True to make the move.
        costs_problem: why there is no cost dataset; empty where there is one.
    """

    observation: ObservedTraining
    comparison: ObservedAndPredicted
    scale: float
    old: PlacementAnswer
    new: PlacementAnswer
    difference: Difference
    steps: int
    paid: Payback | None
    pays: bool
    costs_problem: str = ""

    @property
    def best(self) -> PlacementAnswer:
        """The placement to go on with."""
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
    """Read the traces of a training's ranks, and decide if another placement of its tables would pay.

    Args:
        in_use: placement.json that it runs with.
        model: model that predicts both placements.
        tables: today's tables; None for those of the placement in use.
        costs: the cost dataset to write, where the traces can be one.

    Raises:
        BadInput: if a file cannot be used, or the traces are of another training than the placement.
        InfeasibleTask: if today's tables do not fit on the old devices.
    """
    old = load_answer(in_use)
    observation, comparison, problem = _observe(traces, in_use, costs)
    if observation.unseen:
        raise BadConfig(
            f"the traces do not show {', '.join(observation.unseen)}, so that what a move would save cannot be scaled "
            f"to what the training takes. Record whole training steps: `evenshard observe -h`."
        )
    scale = comparison.observed_ms / comparison.predicted_ms if comparison.predicted_ms > 0 else 1.0
    today = tables or TableSet(old.request.tables, old.request.assumptions)
    new = replan(old, today, model, old.request.batch_size, search)
    difference = diff(old, new, model, config.link_gb_s)
    if difference.renaming is not None:
        new = rename_devices(new, difference.renaming.new_names, model)
        difference = diff(old, new, model, config.link_gb_s)
    difference = _scale_times(difference, scale)
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
    """Place today's tables on the devices, and by the rules, of an old answer, no worse than it does.

    Raises:
        InfeasibleTask: if they do not fit there any more.
    """
    request = request_now(old.request, tables, batch_size)
    config = replace(config or PlaceConfig(), tables_from=tables_from, known=(old.parts,))
    return place_request(request, model, config)


def request_now(old: PlacementRequest, tables: TableSet, batch_size: int) -> PlacementRequest:
    """Return the old request with today's tables; rules about tables that are gone go with them."""
    names = {table.name for table in tables.tables}
    return replace(
        old,
        tables=tables.tables,
        assumptions=tables.assumptions,
        rules=old.rules.of_tables(names),
        batch_size=batch_size,
        table_optimizers={name: optimizer for name, optimizer in old.table_optimizers.items() if name in names},
    )


def traces_in(path: Path) -> tuple[Path, ...]:
    """Return the traces in a folder, or the one file; raise BadConfig if there is none."""
    found = tuple(sorted(one for kind in _TRACES for one in path.glob(kind))) if path.is_dir() else (path,)
    if not found:
        raise BadConfig(
            f"{path} has no trace ({', '.join(_TRACES)}). Record one of every rank: `evenshard observe -h`."
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
        observation, comparison = observe.run(inputs)  # if these are of use at all
        problem = str(error)
    assert comparison is not None  # with the placement in use
    return observation, comparison, problem


def _scale_times(difference: Difference, scale: float) -> Difference:
    times = difference.times
    names = ("old_ms", "new_ms", "saves_ms", "saves_low_ms", "saves_high_ms", "lower_bound_ms")
    scaled = replace(times, **{name: getattr(times, name) * scale for name in names})
    return replace(difference, times=replace(scaled, predicted_by=f"{times.predicted_by}, scaled to the traces"))


def verdict_text(watched: Watched) -> str:
    """Return the decision in one line."""
    if watched.pays:
        return f"Replan: the new placement pays over {watched.steps:,} steps."
    if not watched.difference.moves:
        return "Stay: no better placement was found."
    return f"Stay: a move would not surely pay over {watched.steps:,} steps."


def print_watched(watched: Watched, file: TextIO | None = None) -> None:
    """Print the decision and its reasons."""
    console = plain_console(file)
    console.print(verdict_text(watched), style="bold")
    console.print(
        f"Embedding tables take {watched.scale:.2f} times as long as predicted for the placement in use. The time that "
        "a move saves is scaled by that, too.",
        soft_wrap=True,
    )
    if watched.costs_problem:
        console.print(f"No cost dataset: {printable(watched.costs_problem)}", soft_wrap=True)
    console.print()
    console.print(observation_text(watched.observation, watched.comparison), soft_wrap=True, highlight=False)
    console.print()
    print_difference(watched.difference, file, watched.paid)
