"""A sample of traffic is read piece by piece: memory is bounded whatever its size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evenshard.tables.traffic import counts as counts_module
from evenshard.tables.traffic import tables as tables_module
from evenshard.tables.traffic import tables_from_traffic


@pytest.mark.slow
def test_reading_is_bounded_whatever_the_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).integers(0, 10**6, 4 << 19)  # 16 MiB of each table, in one row group
    column = pa.ListArray.from_arrays(np.arange(0, len(rows) + 1, 4, dtype=np.int32), pa.array(rows))
    pq.write_table(pa.table({"a": column, "b": column}), tmp_path / "a.parquet", row_group_size=1 << 19)
    for name in ("GROUP_LOOKUPS", "BLOCK_LOOKUPS"):
        monkeypatch.setattr(tables_module, name, 1 << 14)
    arrow = []
    add = counts_module.WindowedCounts.add

    def watched(self: Any, *args: Any) -> None:
        arrow.append(pa.total_allocated_bytes())
        add(self, *args)

    monkeypatch.setattr(counts_module.WindowedCounts, "add", watched)
    before = pa.total_allocated_bytes()
    found = tables_from_traffic(tmp_path / "a.parquet", 4096, embedding_dim=8)
    assert [one.pooling_factor for one in found.tables] == [4, 4]
    assert found.tables[0].reuse_bins == found.tables[1].reuse_bins
    assert len(arrow) > 300 and max(arrow) - before < 4 << 20
