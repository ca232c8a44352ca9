"""``evenshard.load_answer`` and ``evenshard.save_answer``: answers as placement.json."""

from __future__ import annotations

from pathlib import Path

from evenshard.planner import file
from evenshard.planner.file import save_answer
from evenshard.report.answer import PlacementAnswer, make_displayable

__all__ = ["load_answer", "save_answer"]


def load_answer(path: str | Path) -> PlacementAnswer:
    """The answer of a placement.json.

    Raises:
        BadFile: if it cannot be used; the message says what to do.
    """
    return make_displayable(file.load_answer(path))
