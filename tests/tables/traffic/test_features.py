"""Columns of traffic: renamed as the user says; dense, label and time columns are left out, and that is said."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evenshard.base.errors import BadConfig, BadFile
from evenshard.tables.sources import tables_from
from evenshard.tables.traffic import tables_from_traffic
from evenshard.tables.traffic.features import DENSE_COLUMN, LABEL_COLUMN, TIME_COLUMN, classify_column
from support.builders import table


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Four samples with two features among what else a log holds."""
    folder = tmp_path / "logs"
    folder.mkdir()
    lists = pa.list_(pa.int64())
    columns = {
        "label": pa.array([0, 1, 0, 0]),
        "is_click": pa.array([0, 1, 0, 0]),
        "bought": pa.array([True, False, False, False]),
        "I1": pa.array([5, -1, 300, 2]),
        "price": pa.array([0.5, 1.5, None, 2.0]),
        "image": pa.array([[0.1], [0.2], [0.3], [0.4]], pa.list_(pa.float32())),
        "ts": pa.array([datetime(2026, 1, 1)] * 4),
        "event_time": pa.array([1700000000, 1700000001, 1700000002, 1700000003]),
        "C1": pa.array([3, 3, 7, 1]),
        "clicked": pa.array([[7, 7], [2], [], [1, 3, 5]], lists),
        "target_item": pa.array([8, 0, 1, 2]),
    }
    pq.write_table(pa.table(columns), folder / "part-0.parquet")
    return folder


def test_what_looks_like_no_feature_is_left_out_and_said(logs: Path) -> None:
    found = tables_from_traffic(logs, 2, embedding_dim=8)
    assert [one.name for one in found.tables] == ["C1", "clicked", "target_item"]
    assert found.notes == (
        f"{logs}: ignored columns: 3 label ('label', 'is_click', 'bought'), 3 dense ('I1', 'price', 'image'), 2 time "
        "('ts', 'event_time'). To keep one: --columns label=label.",
    )


def test_columns_that_are_named_are_features_and_renamed(logs: Path) -> None:
    columns = {"C1": "user", "event_time": "event_time", "target_item": ""}
    found = tables_from_traffic(logs, 2, embedding_dim=8, columns=columns)
    assert {one.name: one.num_rows for one in found.tables} == {"user": 8, "clicked": 8, "event_time": 1700000004}
    assert "1 excluded ('target_item')" in found.notes[0] and "1 time ('ts')" in found.notes[0]
    with pytest.raises(BadFile, match=r"column 'price': has type double, not row numbers.*--columns price="):
        tables_from_traffic(logs, 2, embedding_dim=8, columns={"price": "price"})


def test_a_feature_of_a_table_is_one_whatever_it_looks_like(logs: Path) -> None:
    label, user = table("label", rows=2), table("user", rows=10)
    found = tables_from_traffic(logs, 2, [label, user], columns={"C1": "user"})
    assert [one.pooling_factor for one in found.tables] == [1.0, 1.0]
    assert found.tables[0].row_shares == (0.75, 0.25), "rows 0, 1, 0, 0"
    assert found.notes[1] == f"{logs}: ignored features 'clicked', 'target_item', which no table has."


def test_names_that_do_not_fit_are_refused(logs: Path, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"two columns for 'clicked': 'C1' and 'clicked'. Ignore one"):
        tables_from_traffic(logs, 2, embedding_dim=8, columns={"C1": "clicked"})
    with pytest.raises(
        BadConfig, match=r"renames 'C1' to 'usr', which is not a feature of the tables; the closest is 'us"
    ):
        tables_from_traffic(logs, 2, [table("user", rows=10)], columns={"C1": "usr"})
    with pytest.raises(BadConfig, match=r"columns renames 'C9', which is not a column of .*logs"):
        tables_from(logs, 2, embedding_dim=8, columns={"C9": "user"})
    pq.write_table(pa.table({"price": pa.array([0.5])}), tmp_path / "a.parquet")
    with pytest.raises(BadFile, match=r"contains no feature: 'price' is dense. Name the features"):
        tables_from_traffic(tmp_path / "a.parquet", 2, embedding_dim=8)


def test_one_mapping_serves_the_table_file_and_its_traffic(logs: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("name,n,dim\nuser,10,8\nclicked,10,8\n")
    found = tables_from(path, 2, traffic=logs, columns={"n": "num_rows", "C1": "user"})
    assert [(one.num_rows, one.pooling_factor) for one in found.tables] == [(10, 1.0), (10, 1.5)]
    with pytest.raises(BadConfig, match=r"columns renames 'm', which is not a column of .*t.csv or .*logs"):
        tables_from(path, 2, traffic=logs, columns={"n": "num_rows", "C1": "user", "m": "num_rows"})


def test_names_of_whole_numbers() -> None:
    sorts = {
        LABEL_COLUMN: [("label", False), ("click_label", True), ("is_click", True), ("target_item", True)],
        DENSE_COLUMN: [("I13", False), ("int_0", False), ("dense_features_3", False)],
        TIME_COLUMN: [("event_time", False), ("ts", False)],
        None: [(name, False) for name in ("is_click", "target_item", "i13", "C26", "time_of_day", "hits")],
    }
    for sort, columns in sorts.items():
        assert [classify_column(name, only_0_and_1) for name, only_0_and_1 in columns] == [sort] * len(columns)
    assert classify_column("cat_3", True) is classify_column("is_member", True) is None
