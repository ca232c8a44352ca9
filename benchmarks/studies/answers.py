"""Answers of sharders as JSON: placements, or reasons why there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benchmarks.studies.units import Store, Unit
from evenshard.base.errors import InfeasibleTask
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.sharders.catalog import Sharder

# ``placement``: device of each table; or ``infeasible``: the reason. Some sharders add more keys.
Answer = dict[str, Any]


def answer_with(placement: Placement, **more: Any) -> Answer:
    """Return a feasible answer."""
    return {"placement": list(placement.device_of_table), **more}


def placement_of(answer: Answer, task: ShardingTask) -> Placement | None:
    """Return the placement of an answer; None if it is infeasible."""
    where = answer.get("placement")
    return None if where is None else Placement(tuple(where), task.num_devices)


def ask_all(tasks: Sequence[ShardingTask], place: Callable[[ShardingTask], Answer]) -> tuple[list[Answer], float]:
    """Return one answer per task, feasible or not, and the mean seconds per task."""
    answers, seconds = [], []
    for task in tasks:
        start = time.perf_counter()
        try:
            answers.append(place(task))
        except InfeasibleTask as error:
            answers.append({"infeasible": str(error)})
        seconds.append(time.perf_counter() - start)
    return answers, fmean(seconds)


def answers_of(sharder: Sharder, tasks: Sequence[ShardingTask]) -> tuple[list[Answer], float]:
    """Return the answers of a sharder; see ``ask_all``."""
    return ask_all(tasks, lambda task: answer_with(sharder.place(task)))


@dataclass(frozen=True)
class Row:
    """The answers of one sharder to the tasks of a setting.

    Attributes:
        sharder: its name.
        seed: seed of its training; None if it was not trained.
        answers: answers by task.
    """

    sharder: str
    seed: int | None
    answers: tuple[Answer, ...]


def rows_of(sources: Sequence[Unit], store: Store) -> list[Row]:
    """Return the rows of all units that answered: the ``answers`` of each result, a list for each sharder."""
    return [
        Row(sharder, getattr(source, "seed", None), tuple(answers))
        for source in sources
        for sharder, answers in store.result(source)["answers"].items()
    ]
