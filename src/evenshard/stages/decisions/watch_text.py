"""A watched training as text: what to do, what the traces show, and what a move would take and bring."""

from __future__ import annotations

from typing import TextIO

from evenshard.planner.diff.text import print_difference
from evenshard.stages.decisions.watch import Watched
from evenshard.stages.observe_text import observation_text
from evenshard.utils.console import plain_console
from evenshard.utils.messages import printable


def verdict_text(watched: Watched) -> str:
    """Whether to move, in one line."""
    if watched.pays:
        return f"Replan: the new placement pays over {watched.steps:,} steps."
    if not watched.difference.moves:
        return "Stay: no better placement was found."
    return f"Stay: a move would not surely pay over {watched.steps:,} steps."


def print_watched(watched: Watched, file: TextIO | None = None) -> None:
    """Prints it.

    Args:
        file: output; None for stdout.
    """
    console = plain_console(file)
    console.print(verdict_text(watched), style="bold")
    console.print(
        f"The slowest rank takes {watched.scale:.2f} times what was predicted for the placement in use: what a step "
        "would save is scaled likewise.",
        soft_wrap=True,
    )
    if watched.costs_problem:
        console.print(f"No cost dataset: {printable(watched.costs_problem)}", soft_wrap=True)
    console.print()
    console.print(observation_text(watched.observation, watched.comparison), soft_wrap=True, highlight=False)
    console.print()
    print_difference(watched.difference, file, watched.paid)
