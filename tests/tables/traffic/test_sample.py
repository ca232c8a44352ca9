"""Files of traffic: what they may hold, and one clear line for everything that can be wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from evenshard.tables.traffic import tables_from_traffic
from support.traffic_builders import TRAFFIC, bins, complaint, jagged, write_batches, write_column, write_parquet

# Parquet --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([3, 3, None, 1], pa.uint16()), (4, 3 / 4, bins(0.5, 0.5))),
        (pa.array([[3], [3], None, [1]], pa.list_(pa.int32())), (4, 3 / 4, bins(0.5, 0.5))),
        (pa.array([[3], [3], [], [1]], pa.large_list(pa.uint64())), (4, 3 / 4, bins(0.5, 0.5))),
        (pa.array([[3, 5], [3, 4]], pa.list_(pa.int64(), 2)), (6, 2.0, bins(2 / 3, 1 / 3))),
    ],
)
def test_numbers_and_lists_of_any_width_and_nulls_for_no_lookup(tmp_path: Path, column: Any, expected: Any) -> None:
    (ads,) = tables_from_traffic(write_column(tmp_path / "a.parquet", column), 2, embedding_dim=8).tables
    assert (ads.num_rows, ads.pooling_factor, ads.reuse_bins) == expected


def test_a_file_of_nothing_but_nulls_has_no_type_and_no_lookups(tmp_path: Path) -> None:
    write_column(tmp_path / "a.parquet", pa.array([[1], [1]]))
    write_column(tmp_path / "b.parquet", pa.nulls(2))
    write_column(tmp_path / "c.parquet", pa.array([[], []]))
    (ads,) = tables_from_traffic(tmp_path, 2, embedding_dim=8).tables
    assert (ads.pooling_factor, ads.reuse_bins) == (2 / 6, bins(0, 1))


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([1.0, None]), "column 'ads': has type double, not row numbers. "),
        (pa.array([[1.0], []]), "pandas stores integers with nulls as floats"),
        (pa.array([True, False]), "has type bool"),
        (pa.array([[[1]], []]), "not row numbers"),
        (pa.array([[1, None], []]), "column 'ads': a list contains a null"),
        (pa.array([[1], [2**63]], pa.list_(pa.uint64())), "column 'ads': row numbers exceed 2**63 - 1"),
        (pa.array([[1], [-1]]), "table 'ads': index -1 is negative"),
    ],
)
def test_wrong_columns_are_refused(tmp_path: Path, column: Any, words: str) -> None:
    path = write_column(tmp_path / "a.parquet", column)
    message = complaint(tmp_path, columns={"ads": "ads"})
    assert words in message and message.startswith(str(path))


@pytest.mark.parametrize("write", [write_parquet, write_batches])
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, write: Any) -> None:
    (path,) = write(tmp_path, TRAFFIC).iterdir()
    whole = path.read_bytes()
    for length in range(0, len(whole), 1 + len(whole) // 10):
        path.write_bytes(whole[:length])
        assert complaint(path).startswith(str(path))
    path = write_column(tmp_path / "damaged.parquet", pa.array(list(range(10_000))))
    content = bytearray(path.read_bytes())
    content[4:4000] = b"\xff" * 3996
    path.write_bytes(content)
    assert "cannot be read as Parquet" in complaint(path)


# .pt files ------------------------------------------------------------------------------------------------------------


def test_the_order_of_the_keys_and_other_entries_do_not_matter(tmp_path: Path) -> None:
    torch.save(jagged(TRAFFIC) | {"dense": torch.ones(4)}, tmp_path / "a.pt")
    turned = jagged({name: TRAFFIC[name] for name in ("user", "ads")})
    torch.save(turned | {"lengths": turned["lengths"].reshape(2, 4), "weights": None}, tmp_path / "b.pt")
    ads, user = tables_from_traffic(tmp_path, 4, embedding_dim=8).tables
    assert (ads.name, ads.pooling_factor, user.pooling_factor) == ("ads", 1.5, 1)
    assert ads.reuse_bins == bins(4 / 5, 1 / 5)


def test_each_batch_is_checked(tmp_path: Path) -> None:
    write_batches(tmp_path, TRAFFIC)
    torch.save(jagged(TRAFFIC) | {"lengths": torch.tensor([2, 1, 0, 3, 1, -1, 3, 1])}, tmp_path / "a.pt")
    assert "a.pt, table 'user': a sample has a negative number" in complaint(tmp_path)


# Folders and tables ---------------------------------------------------------------------------------------------------


def test_a_folder_holds_one_kind_of_file_and_sparks_leftovers(tmp_path: Path) -> None:
    write_parquet(tmp_path, TRAFFIC, 2)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part-0.parquet.crc").touch()
    assert tables_from_traffic(tmp_path, 2, embedding_dim=8).tables[0].pooling_factor == 1.5
    write_batches(tmp_path, TRAFFIC)
    assert "mixes .parquet and .pt files (0.pt, part-0.parquet)" in complaint(tmp_path)
    (tmp_path / "0.pt").rename(tmp_path / "0.csv")
    assert "0.csv: is neither a .parquet nor a .pt file" in complaint(tmp_path)


def test_other_sources_are_refused(tmp_path: Path) -> None:
    assert "contains no file" in complaint(tmp_path)
    assert "no such file or folder" in complaint(tmp_path / "absent")
    (tmp_path / "year=2024.parquet").mkdir()
    assert "is neither a .parquet nor a .pt file" in complaint(tmp_path)
    (tmp_path / "a.pt.gz").write_bytes(b"\x1f\x8b but nothing more")
    assert "cannot be unpacked" in complaint(tmp_path / "a.pt.gz")
    assert "contains no sample" in complaint(write_parquet(tmp_path / "empty", {"ads": []}))
    pq.write_table(pa.table({}), tmp_path / "none.parquet")
    assert "has no column" in complaint(tmp_path / "none.parquet")
    pq.write_table(pa.table([[1], [2]], names=["ads", "ads"]), tmp_path / "twice.parquet")
    assert "several columns 'ads'" in complaint(tmp_path / "twice.parquet")


def test_all_files_hold_the_same_tables(tmp_path: Path) -> None:
    for write, suffix in ((write_parquet, "part-1.parquet"), (write_batches, "1.pt")):
        source = write(tmp_path / suffix, {"ads": [[1], [2]], "user": [[1], [2]]}, 1)
        write(tmp_path / "other", {"ads": [[1], [2]]}, 1)
        (source / suffix).write_bytes((tmp_path / "other" / suffix).read_bytes())
        assert f"{suffix}: lacks table 'user' of" in complaint(source)
        source = write(tmp_path / "other", {"ads": [[1], [2]], "user": [[1], [2]]}, 1)
        write(tmp_path / suffix, {"ads": [[1], [2]]}, 1)
        (tmp_path / suffix / suffix).write_bytes((source / suffix).read_bytes())
        assert f"{suffix}: has table 'user', which is not in" in complaint(tmp_path / suffix)
