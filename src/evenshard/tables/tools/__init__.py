"""Readers of tables in files of other tools; each adds records of a table file, with assumptions, to a ``ToolFile``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evenshard.base.knobs import MAX_TABLES
from evenshard.tables.assumptions import Assumption
from evenshard.tables.records import RawTable

_DIM_STEP = 4  # of the dims that FBGEMM's kernels support


@dataclass
class ToolFile:
    """Tables of a file, completed while it is read."""

    default_pooling_factor: float = 1.0
    embedding_dim: int | None = None  # of tables whose dim the file does not state
    kind: str = "a list of sizes"
    records: list[RawTable] = field(default_factory=list)
    assumptions: list[Assumption] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    batch: str = ""  # stated batch, such as "1,024 samples per device"

    def add(self, name: str, num_rows: Any, dim: Any, lookups: Mapping[str, float | None], **more: Any) -> None:
        """Add a table with the lookups per sample of each feature; a value that is None is missing."""
        if len(self.records) >= MAX_TABLES:
            raise ValueError(f"more than {MAX_TABLES:,} tables")
        if isinstance(dim, int) and dim % _DIM_STEP:
            self.assume(name, "embedding_dim", f"the next multiple of {_DIM_STEP}, which FBGEMM needs, above {dim}")
            dim += -dim % _DIM_STEP
        lacking = [feature for feature, count in lookups.items() if count is None]
        values = {"name": name, "num_rows": num_rows, "embedding_dim": dim, "feature_names": [*lookups], **more}
        if len(lacking) < len(lookups):
            default = self.default_pooling_factor
            values["feature_pooling_factors"] = [float(count or default) for count in lookups.values()]
            if lacking:
                self.assume(name, "pooling_factor", f"{default:g}, the default, for {', '.join(lacking)}")
        self.records.append(values)

    def assume(self, table: str, column: str, text: str) -> None:
        """Add an assumption."""
        self.assumptions.append(Assumption(table, column, text))
