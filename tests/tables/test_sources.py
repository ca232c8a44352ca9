"""What a user may hand over as tables: every kind of source, what is reported as assumed, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from evenshard.base.errors import BadConfig, BadFile, BadInput
from evenshard.tables.assumptions import Assumption, TableSet, assume_reuse_bins, assume_weight_bits
from evenshard.tables.files import save_tables
from evenshard.tables.sources import (
    SourceKind,
    kind_of_source,
    load_catalog,
    tables_from,
    tables_in_python,
    with_weight_bits,
)
from evenshard.tables.table import Table
from support.traffic_builders import (
    ADS_MISSES,
    ADS_ROWS,
    TRAFFIC,
    USER_MISSES,
    USER_ROWS,
    bins,
    dlrm,
    write_batches,
    write_parquet,
)

DEFAULT = "1, the default, since the file gives none"
AS_GIVEN = "as given, since the sample lacks the table"
ADS = {"name": "ads", "num_rows": 8, "embedding_dim": 16}
USER = {"name": "user", "num_rows": 6, "embedding_dim": 32, "weight_bits": 16}
ITEM = {"name": "item", "num_rows": 5, "embedding_dim": 4, "weight_bits": 16}


def write_records(folder: Path, *records: dict[str, Any]) -> Path:
    path = folder / "t.json"
    path.write_text(json.dumps(records))
    return path


def refused(source: str | Path, **options: Any) -> str:
    with pytest.raises(BadInput) as caught:
        tables_from(source, **({"batch_size": 2} | options))
    message = str(caught.value)
    assert "\n" not in message and message.endswith(".")
    return message


# Which source is what -------------------------------------------------------------------------------------------------


def test_a_name_tells_the_kind(tmp_path: Path) -> None:
    kinds = {
        SourceKind.CATALOG: ["mlperf_dlrm_v2"],
        SourceKind.TABLE_FILE: ["t.yaml", "a/t.json", "t.CSV", "t.parquet"],
        SourceKind.BATCH_FILE: ["b.pt", "b.pt.gz"],
        None: ["t.txt", "t.gz", "mlperf", ""],
    }
    for kind, names in kinds.items():
        assert [kind_of_source(name) for name in names] == [kind] * len(names)
    source = write_parquet(tmp_path / "sample.parquet", TRAFFIC)  # a folder, as Spark's
    assert kind_of_source(source) is SourceKind.TRAFFIC_FOLDER
    assert len(tables_from(source, 2, embedding_dim=8).tables) == 2


# A table file alone ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_file_and_what_it_leaves_out(tmp_path: Path, suffix: str) -> None:
    tables = (Table("ads", 8, 16, 2.5), Table("user", 6, 32, 1.0, bins(0.5, 0.5), 16))
    save_tables(tables, tmp_path / f"t{suffix}")
    assert tables_from(tmp_path / f"t{suffix}", 2) == TableSet(tables, (assume_reuse_bins("ads"),))


def test_a_missing_pooling_factor_takes_the_default_and_a_named_precision_is_no_assumption(tmp_path: Path) -> None:
    path = write_records(tmp_path, ADS, USER)
    found = tables_from(path, 2)
    assert [one.pooling_factor for one in found.tables] == [1.0, 1.0]
    assert found.assumptions == (
        Assumption("ads", "pooling_factor", DEFAULT),
        assume_reuse_bins("ads"),
        assume_weight_bits("ads", 32),
        Assumption("user", "pooling_factor", DEFAULT),
        assume_reuse_bins("user"),
    )
    other = tables_from(path, 2, weight_bits=8, default_pooling_factor=7.5)
    assert [(one.pooling_factor, one.weight_bits) for one in other.tables] == [(7.5, 8)] * 2
    assert {one.column for one in other.assumptions} == {"pooling_factor", "reuse_bins"}


def test_another_precision_keeps_a_data_type_of_so_many_bits() -> None:
    found = with_weight_bits(TableSet((Table("a", 9, 4, 2.0, None, 16, "bf16"), Table("b", 9, 4, 2.0, None, 8))), 16)
    assert [one.dtype for one in found.tables] == ["bf16", "fp16"]
    assert [one.dtype for one in with_weight_bits(found, 4).tables] == ["int4", "int4"]
    assert [one.problem() for one in found.tables] == [None, None]


def test_tables_made_in_python_can_only_lack_a_histogram() -> None:
    counted, uncounted = Table("a", 9, 4, 2.0, bins(1)), Table("b", 9, 4, 2.0)
    assert TableSet.of([counted, uncounted]) == TableSet((counted, uncounted), (assume_reuse_bins("b"),))


# Public sets ----------------------------------------------------------------------------------------------------------


def test_what_public_sets_assume() -> None:
    """NVIDIA's sets publish the power law of their lookups; a precision is not published."""
    for name, columns in (("nvidia_tiny", ["weight_bits"]), ("criteo_kaggle", ["reuse_bins", "weight_bits"])):
        found = tables_from(name, 65_536)
        assert found.tables == load_catalog(name, 65_536)
        expected = [(table.name, column) for table in found.tables for column in columns]
        assert [(one.table, one.column) for one in found.assumptions] == expected


def test_traffic_of_a_public_set(tmp_path: Path) -> None:
    found = tables_from("criteo_kaggle", 2, traffic=write_parquet(tmp_path, {"C6": [[3, 4], [3]]}))
    (c6,) = (one for one in found.tables if one.name == "C6")
    assert (c6.pooling_factor, c6.reuse_bins) == (1.5, bins(0.5, 0.5))
    assert [one for one in found.assumptions if one.table == "C6"] == [assume_weight_bits("C6", 32)]
    assert [one for one in found.assumptions if one.table == "C1"] == [
        Assumption("C1", "pooling_factor", AS_GIVEN),
        assume_reuse_bins("C1"),
        assume_weight_bits("C1", 32),
    ]


# Traffic alone --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "keyed", "batch.pt.gz"])
def test_traffic_alone(tmp_path: Path, kind: str) -> None:
    source = tmp_path / kind
    if kind == "parquet":
        write_parquet(source, TRAFFIC, 0, 1, 1, 3)  # the first and the third file are empty
    elif kind == "keyed":
        write_batches(source, TRAFFIC, 3)
    else:
        torch.save(dlrm(TRAFFIC), tmp_path / "a.pt")
        source.write_bytes(gzip.compress((tmp_path / "a.pt").read_bytes()))
    found = tables_from(source, 2, embedding_dim=8, weight_bits=16)
    ads, user = ("ads", "user") if kind in ("parquet", "keyed") else ("t000", "t001")
    assert found == TableSet(
        (
            Table(ads, 8, 8, 1.5, bins(4 / 5, 1 / 5), 16, row_shares=ADS_ROWS, miss_ratios=ADS_MISSES),
            Table(user, 6, 8, 1.0, bins(2 / 3, 1 / 3), 16, row_shares=USER_ROWS, miss_ratios=USER_MISSES),
        ),
        (
            Assumption(ads, "num_rows", "8, the largest index seen + 1"),
            Assumption(user, "num_rows", "6, the largest index seen + 1"),
        ),
    )


def test_traffic_alone_needs_the_dims(tmp_path: Path) -> None:
    message = refused(write_parquet(tmp_path, TRAFFIC))
    assert message.startswith(str(tmp_path)) and "Give embedding_dim" in message
    assert "weight_bits" in {one.column for one in tables_from(tmp_path, 2, embedding_dim=8).assumptions}


# A table file and traffic ---------------------------------------------------------------------------------------------


def test_traffic_wins_over_the_file(tmp_path: Path) -> None:
    traffic = write_parquet(tmp_path / "traffic", TRAFFIC)
    path = write_records(tmp_path, {**USER, "pooling_factor": 99, "reuse_bins": bins(0, 0, 1)})
    found = tables_from(path, 2, traffic=traffic)
    assert found == TableSet(
        (Table("user", 6, 32, 1.0, bins(2 / 3, 1 / 3), 16, row_shares=USER_ROWS, miss_ratios=USER_MISSES),),
        notes=(f"{traffic}: ignored feature 'ads', which no table has.",),
    )


def test_traffic_tells_what_the_file_does_not_and_the_file_or_the_default_the_rest(tmp_path: Path) -> None:
    (traffic,) = write_parquet(tmp_path / "traffic", {**TRAFFIC, "never": [[]] * 4}).iterdir()  # a file, not its folder
    whole = {**ITEM, "name": "whole", "pooling_factor": 3, "reuse_bins": bins(0, 1)}
    half = {**ITEM, "name": "half", "pooling_factor": 4}
    records = write_records(tmp_path, ITEM, USER, ADS, whole, half, {**ITEM, "name": "never"})
    found = tables_from(records, 2, traffic=traffic)
    assert found.tables == (
        Table("item", 5, 4, 1.0, None, 16),
        Table("user", 6, 32, 1.0, bins(2 / 3, 1 / 3), 16, row_shares=USER_ROWS, miss_ratios=USER_MISSES),
        Table("ads", 8, 16, 1.5, bins(4 / 5, 1 / 5), row_shares=ADS_ROWS, miss_ratios=ADS_MISSES),
        Table("whole", 5, 4, 3.0, bins(0, 1), 16),
        Table("half", 5, 4, 4.0, None, 16),
        Table("never", 5, 4, 0.0, None, 16),
    )
    assert found.assumptions == (
        Assumption("item", "pooling_factor", DEFAULT),
        assume_reuse_bins("item"),
        assume_weight_bits("ads", 32),
        Assumption("whole", "pooling_factor", AS_GIVEN),
        Assumption("whole", "reuse_bins", AS_GIVEN),
        Assumption("half", "pooling_factor", AS_GIVEN),
        assume_reuse_bins("half"),
        Assumption("never", "reuse_bins", "none, since no row was looked up"),
    )


# What is refused ------------------------------------------------------------------------------------------------------


def test_senseless_settings_are_refused(tmp_path: Path) -> None:
    path, traffic = write_records(tmp_path, ADS), write_parquet(tmp_path / "traffic", TRAFFIC)
    assert "batch_size is 0" in refused(path, batch_size=0)
    assert "weight_bits is 5" in refused(path, weight_bits=5, traffic=tmp_path / "absent")  # before a sample is read
    assert "Leave embedding_dim (8) out" in refused(path, embedding_dim=8)
    assert "is a sample of traffic itself. Leave traffic" in refused(traffic, traffic=traffic, embedding_dim=8)
    assert "embedding_dim is 0" in refused(traffic, embedding_dim=0)
    assert "default_pooling_factor is -1" in refused(path, default_pooling_factor=-1)


def test_sources_that_are_none_are_refused(tmp_path: Path) -> None:
    message = refused("mlperf_dlrm_v3")
    assert message.startswith(
        "'mlperf_dlrm_v3' is not a source of tables. Did you mean mlperf_dlrm_v2? Give a table file ("
    )
    assert "Did you mean" not in refused("tables.txt")
    assert "absent.yaml: no such file" in refused(tmp_path / "absent.yaml")
    assert "absent.pt: no such file" in refused(tmp_path / "absent.pt", embedding_dim=8)
    assert "absent: no such file or folder" in refused(write_records(tmp_path, ADS), traffic=tmp_path / "absent")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and nothing more")
    assert "is not valid Parquet" in refused(tmp_path / "t.parquet")
    assert "t.json: is neither a .parquet nor a .pt file" in refused(tmp_path, embedding_dim=8)


def test_a_parquet_file_of_traffic_is_no_table_file(tmp_path: Path) -> None:
    (path,) = write_parquet(tmp_path, TRAFFIC).iterdir()
    message = refused(path)
    assert "has none of a table file's columns (name, num_rows," in message
    assert "move it to a folder of its own, or give it as traffic of a table file" in message


# Data frames and lists of dicts ---------------------------------------------------------------------------------------

RECORDS = [
    {"name": "ads", "hash_size": 1000, "dim": 16, "pooling": 2.5, "weight_bits": 16},
    {"name": "user", "hash_size": 50, "dim": 8},
]
FRAME = pd.DataFrame(RECORDS)


@pytest.mark.parametrize("tables", [tuple(RECORDS), FRAME, FRAME.convert_dtypes()])
def test_a_frame_and_records_are_read_as_their_file_is(tmp_path: Path, tables: Any) -> None:
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    found = tables_in_python(tables, 1024)
    of_file = tables_from(tmp_path / "t.csv", 1024)
    assert found is not None and (found.tables, found.assumptions) == (of_file.tables, of_file.assumptions)
    assert found.tables == (Table("ads", 1000, 16, 2.5, None, 16), Table("user", 50, 8, 1.0))
    assert type(found.tables[0].num_rows) is int and type(found.tables[0].pooling_factor) is float


def test_cells_may_hold_lists_and_numbers_of_numpy() -> None:
    record = {"name": "ads", "rows": np.int64(9), "dim": np.int32(8), "feature_pooling_factors": np.array([1.0, 2.0])}
    for tables in ([record], pd.DataFrame([record])):
        found = tables_in_python(tables, 1024)
        assert found is not None
        assert found.tables == (Table("ads", 9, 8, 3.0, feature_pooling_factors=(1.0, 2.0)),)


def test_what_is_wrong_and_what_is_extra_is_said_as_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"tables, record 2 \(table 'user'\): embedding_dim is 0"):
        tables_in_python(FRAME.assign(dim=[16, 0]), 1024)
    with pytest.raises(BadFile, match=r"record 2: is 5, not a record"):
        tables_in_python([RECORDS[0], 5], 1024)
    found = tables_in_python(FRAME.assign(owner="x"), 1024)
    assert found is not None and found.notes == ("tables: 1 column is not used: 'owner'.",)
    with pytest.raises(BadConfig, match="columns renames 'ttl', which is not a column of tables"):
        tables_in_python(FRAME, 1024, columns={"ttl": ""})
    assert tables_in_python([Table("a", 5, 4, 1.0)], 1024) is None
