"""The answer that users hold: it says what it is, in a terminal, a notebook, a data frame and a page."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from evenshard.base.installation import require_package
from evenshard.base.units import bytes_to_gb
from evenshard.planner import answer, file

if TYPE_CHECKING:
    import pandas as pd


class PlacementAnswer(answer.PlacementAnswer):
    """A placement of parts of tables with all that is known about it, and how it is shown.

    Fields and numbers are those of ``evenshard.planner.answer.PlacementAnswer``. Times are milliseconds of one training
    step.
    """

    def __eq__(self, other: object) -> bool:
        """Return True if both have equal fields, in whatever class."""
        if not isinstance(other, answer.PlacementAnswer):
            return NotImplemented
        return all(getattr(self, one.name) == getattr(other, one.name) for one in fields(self))

    __hash__ = answer.PlacementAnswer.__hash__

    def __repr__(self) -> str:
        """The answer in about ten lines; ``summary`` has all of it."""
        from evenshard.report.terminal import brief_text

        return brief_text(self)

    def _repr_html_(self) -> str:
        from evenshard.report.page.page import frame

        return frame(self)

    def summary(self) -> str:
        """The answer as ``evenshard place`` prints it."""
        from evenshard.report.terminal import summary_text

        return summary_text(self)

    def to_frame(self) -> pd.DataFrame:
        """The parts as a data frame of pandas: a row each, in their order.

        Columns: ``table``; ``sharding_type`` and ``kernel`` in TorchRec's words; ``device``, missing for replicas,
        which are on all ``devices`` (a tuple); rows and columns of the part (the first of each, and how many);
        ``memory_gb`` of each of its devices; ``alone_ms`` and ``adds_ms``.

        Raises:
            MissingPackage: pandas is not installed.
        """
        require_package("pandas")
        import pandas as pd

        columns = zip(self.parts, self.part_bytes, self.alone_ms, self.adds_ms, strict=True)
        frame = pd.DataFrame(
            {
                "table": part.table,
                "sharding_type": self.type_of_table[part.table],
                "kernel": str(part.storage),
                "device": part.devices[0] if len(part.devices) == 1 else None,
                "devices": part.devices,
                "first_row": part.rows.start,
                "num_rows": part.rows.size,
                "first_column": part.columns.start,
                "num_columns": part.columns.size,
                "memory_gb": bytes_to_gb(size_bytes),
                "alone_ms": alone_ms,
                "adds_ms": adds_ms,
            }
            for part, size_bytes, alone_ms, adds_ms in columns
        )
        return frame.astype({"device": "Int64"})

    def save_report(self, path: str | Path) -> None:
        """Writes the page of ``evenshard place --report``, as a whole or not at all."""
        from evenshard.report.page.page import save_page

        save_page(self, Path(path))


def make_displayable(found: answer.PlacementAnswer) -> PlacementAnswer:
    """The answer as one that shows itself; what was derived from it is kept."""
    own = object.__new__(PlacementAnswer)
    vars(own).update(vars(found))
    return own


def load_answer(path: str | Path) -> PlacementAnswer:
    """Load the answer of a placement.json.

    Raises:
        BadFile: if it cannot be used; the message says what to do.
    """
    return make_displayable(file.load_answer(path))
