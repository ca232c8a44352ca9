"""An answer as a data frame of pandas: one row per part of a table, where it lives and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenshard.planner.answer import PlacementAnswer
from evenshard.utils.extras import require_package
from evenshard.utils.units import bytes_to_gb

if TYPE_CHECKING:
    import pandas as pd


def answer_frame(answer: PlacementAnswer) -> pd.DataFrame:
    """The parts in their order.

    Columns: ``table``; ``sharding_type`` and ``kernel`` in TorchRec's words; ``device``, missing for replicas, which
    are on all ``devices`` (a tuple); rows and columns of the part (the first of each, and how many); ``memory_gb`` of
    each of its devices; ``alone_ms`` and ``adds_ms``.

    Raises:
        MissingPackage: pandas is not installed.
    """
    require_package("pandas")
    import pandas as pd

    columns = zip(answer.parts, answer.part_bytes, answer.alone_ms, answer.adds_ms, strict=True)
    frame = pd.DataFrame(
        {
            "table": part.table,
            "sharding_type": answer.type_of_table[part.table],
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
