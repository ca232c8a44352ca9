"""The sharders' answers: placements and reasons as JSON, with the sharder that gave them."""

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
from evenshard.sharders.learned import Sharder

# ``placement``: device of each table; or ``infeasible``: why there is none. More keys where a sharder says more.
Answer = dict[str, Any]


def answer_with(placement: Placement, **more: Any) -> Answer:
    """The answer that is a placement."""
    return {"placement": list(placement.device_of_table), **more}


def placement_of(answer: Answer, task: ShardingTask) -> Placement | None:
    """The placement of an answer; None for an infeasible one."""
    where = answer.get("placement")
    return None if where is None else Placement(tuple(where), task.num_devices)


def ask_all(tasks: Sequence[ShardingTask], place: Callable[[ShardingTask], Answer]) -> tuple[list[Answer], float]:
    """One answer per task, and the mean seconds each took; "it fits nowhere" is an answer too."""
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
    """``ask_all`` of a sharder."""
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
