"""Recorded batches of lookups: read, checked, and turned into tables."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import pytest
import torch

from evenshard.base.errors import BadConfig, BadFile
from evenshard.loop import generate_tables
from evenshard.loop.loop import GenerateTablesConfig, GenerateTablesInputs, GenerateTablesOutputs
from evenshard.tables.dlrm_batch import read_dlrm_batch
from evenshard.tables.files import load_tables
from evenshard.tables.table import Table
from support.traffic_builders import TRAFFIC, jagged

# Three tables, two samples. Table 0: sample 0 reads rows 7, 7 and sample 1 row 2; table 1 is never read; table 2:
# sample 0 reads nothing, sample 1 reads row 0 five times.
INDICES = torch.tensor([7, 7, 2, 0, 0, 0, 0, 0])
OFFSETS = torch.tensor([0, 2, 3, 3, 3, 3, 8])
LENGTHS = torch.tensor([[2, 1], [0, 0], [0, 5]], dtype=torch.int32)
GOOD = (INDICES, OFFSETS, LENGTHS)
KEYED = jagged(TRAFFIC)


class _Innocent:
    """Any class will do: only tensors and plain containers may be in the file."""


def saved(content: Any, legacy: bool = False) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


def complaint(path: Path) -> str:
    with pytest.raises(BadFile) as caught:
        read_dlrm_batch(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message
    return message


def generated(path: Path, dims: tuple[int, ...], **more: int) -> tuple[Table, ...]:
    """The pool that the loop makes of a batch file."""
    pool = path.with_name("tables.parquet")
    config = GenerateTablesConfig(str(path), 1, 1, 1, 1, 1.0, 2, embedding_dims=dims, **more)
    generate_tables.run(config, GenerateTablesInputs(), GenerateTablesOutputs(pool, path.with_name("tasks.json")))
    return load_tables(pool)


@pytest.mark.parametrize(("name", "legacy"), [("b.pt", False), ("b.pt", True), ("b.pt.gz", False), ("b.pt.gz", True)])
def test_a_batch_is_read_whole_or_refused_where_it_is_cut(tmp_path: Path, name: str, legacy: bool) -> None:
    whole = saved((INDICES.int(), OFFSETS.int(), LENGTHS), legacy)
    whole = gzip.compress(whole) if name.endswith("gz") else whole
    (tmp_path / name).write_bytes(whole)
    batch = read_dlrm_batch(tmp_path / name)
    assert (batch.names, batch.batch_size) == (("t000", "t001", "t002"), 2)
    assert batch.indices.dtype == torch.int64
    assert torch.equal(batch.indices, INDICES) and torch.equal(batch.lengths, LENGTHS)
    for length in range(0, len(whole), 1 + len(whole) // 10):
        (tmp_path / name).write_bytes(whole[:length])
        message = complaint(tmp_path / name)
        assert "cannot be read" in message or "cannot be unpacked" in message


def test_tables_by_hand(tmp_path: Path) -> None:
    (tmp_path / "b.pt").write_bytes(saved(GOOD))
    first, never, last = generated(tmp_path / "b.pt", (16,), weight_bits=16)
    assert (first.name, first.num_rows, first.pooling_factor) == ("t000", 8, 1.5)  # largest index 7; 3 lookups / 2
    assert first.reuse_bins == (0.5, 0.5) + (0.0,) * 15  # row 2 once, row 7 twice
    assert (never.name, never.num_rows, never.pooling_factor, never.reuse_bins) == ("t001", 1, 0.0, None)
    assert (last.num_rows, last.pooling_factor) == (1, 2.5)
    assert last.reuse_bins == (0.0, 0.0, 0.0, 1.0) + (0.0,) * 13  # one row, five times
    assert {(table.embedding_dim, table.weight_bits) for table in (first, never, last)} == {(16, 16)}
    assert [table.problem() for table in (first, never, last)] == [None] * 3
    drawn = [
        [one.embedding_dim for one in generated(tmp_path / "b.pt", (4, 8, 16, 32), seed=seed)] for seed in (3, 3, 4)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    with pytest.raises(BadConfig, match="embedding_dims"):
        generated(tmp_path / "b.pt", (16, 0))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ((INDICES, OFFSETS), "contains a tuple. It must contain (indices, offsets, lengths) or"),
        ({"keys": ["a"]}, "contains a dict with 'keys'"),
        (([1, 2], OFFSETS, LENGTHS), "indices is a list, not a tensor"),
        ((INDICES.float(), OFFSETS, LENGTHS), "indices has type torch.float32"),
        ((INDICES[:1].expand(2**40), OFFSETS, LENGTHS), "indices claims 1,099,511,627,776 values, more than the file"),
        ((INDICES.to("meta"), OFFSETS, LENGTHS), "indices claims 8 values, more than the file contains"),
        ((INDICES, OFFSETS, LENGTHS.to_sparse()), "lengths has type torch.int32 (torch.sparse_coo)"),
        ((INDICES, OFFSETS, LENGTHS.flatten()), "lengths has 1 dimensions, not 2"),
        ((INDICES[:0], OFFSETS[:1], LENGTHS[:0]), "0 tables and 2 samples"),
        ((INDICES, OFFSETS[:-1], LENGTHS), "has 6 offsets, not 3 tables x 2 samples + 1"),
        ((torch.arange(9), OFFSETS + 1, LENGTHS), "offsets run from 1 to 9, but there are 9 indices"),
        ((INDICES, OFFSETS, LENGTHS.flip(0)), "table 't000': offsets do not match the lengths"),
        ((INDICES, torch.tensor([0, 2, 3, 9, 3, 3, 8]), LENGTHS), "table 't001': offsets do not match"),
        ((INDICES, OFFSETS, torch.tensor([[2, 1], [1, -1], [0, 5]])), "table 't001': a sample has a negative number"),
        ((torch.tensor([7, 7, 2, 0, 0, -4, 0, 0]), OFFSETS, LENGTHS), "table 't002': index -4 is negative"),
        ((_Innocent(), OFFSETS, LENGTHS), "cannot be read"),
        (KEYED | {"keys": ["ads", 3]}, "keys is not a list of table names"),
        (KEYED | {"keys": ["ads", "ads"]}, "keys contains 'ads' twice"),
        (KEYED | {"keys": ["a", "b", "c"]}, "lengths of shape [8] cannot be split evenly over 3 tables"),
        (KEYED | {"lengths": KEYED["lengths"].reshape(4, 2)}, "lengths of shape [4, 2] cannot be split evenly"),
        (KEYED | {"values": KEYED["values"][:-1]}, "lengths add up to 10, but there are 9 row numbers"),
        (KEYED | {"values": [1, 2]}, "values is a list, not a tensor"),
        (KEYED | {"values": KEYED["values"] - 1}, "table 'user': index -1 is negative"),
        (KEYED | {"lengths": torch.tensor([2, 1, 0, 3, 1, -1, 3, 1])}, "'user': a sample has a negative number"),
    ],
)
def test_tensors_that_contradict_each_other_are_refused(tmp_path: Path, content: Any, words: str) -> None:
    (tmp_path / "b.pt").write_bytes(saved(content))
    assert words in complaint(tmp_path / "b.pt")


def test_other_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no such file" in complaint(tmp_path / "absent.pt")
    assert "is not a file" in complaint(tmp_path)
    (tmp_path / "b.pt").write_bytes(b"\x80\x02no pickle")
    message = complaint(tmp_path / "b.pt")
    assert "cannot be read" in message and "weights_only" not in message and "trust" not in message
    monkeypatch.setattr("evenshard.base.documents.MAX_UNPACKED_BYTES", 2**20)
    (tmp_path / "long.pt.gz").write_bytes(gzip.compress(bytes(2**22)))
    assert "unpacks to more than 0.00098 GB" in complaint(tmp_path / "long.pt.gz")
