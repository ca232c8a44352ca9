"""A sample of traffic is read piece by piece: memory is bounded whatever its size."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from evenshard.tables.traffic import counts as counts_module
from evenshard.tables.traffic import tables as tables_module
from evenshard.tables.traffic import tables_from_traffic
from support.traffic_builders import TRAFFIC, write_batches, write_parquet


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.parquet", "a.pt"])
def test_reading_is_bounded_whatever_the_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    num_samples = 1 << 19
    rows = np.random.default_rng(0).integers(0, 10**6, 4 * num_samples)
    if name == "a.parquet":  # 16 MiB of each table, in one row group
        column = pa.ListArray.from_arrays(np.arange(0, len(rows) + 1, 4, dtype=np.int32), pa.array(rows))
        pq.write_table(pa.table({"a": column, "b": column}), tmp_path / name, row_group_size=num_samples)
    else:
        lengths = torch.full((2 * num_samples,), 4, dtype=torch.int16)
        content = {"keys": ["a", "b"], "values": torch.from_numpy(rows).repeat(2), "lengths": lengths}
        torch.save(content, tmp_path / name)
        del content
    monkeypatch.setattr(tables_module, "GROUP_LOOKUPS", 1 << 14)
    monkeypatch.setattr(tables_module, "BLOCK_LOOKUPS", 1 << 14)

    write = write_parquet if name == "a.parquet" else write_batches
    tables_from_traffic(write(tmp_path / "small", TRAFFIC), 2, embedding_dim=8)  # imports take memory too
    resident, arrow = [resident_bytes()], [pa.total_allocated_bytes()]
    add = counts_module.WindowedCounts.add

    def watched(self: Any, *args: Any) -> None:
        resident.append(resident_bytes())
        arrow.append(pa.total_allocated_bytes())
        add(self, *args)

    monkeypatch.setattr(counts_module.WindowedCounts, "add", watched)
    found = tables_from_traffic(tmp_path / name, 4096, embedding_dim=8)
    assert [one.pooling_factor for one in found.tables] == [4, 4]
    assert found.tables[0].reuse_bins == found.tables[1].reuse_bins
    assert len(resident) > 300 and max(resident) - resident[0] < 24 << 20  # the files hold 32 MiB and more
    assert max(arrow) - arrow[0] < 4 << 20  # Arrow keeps freed memory, so it is not seen in the resident memory
