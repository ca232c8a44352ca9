"""What a user may hand over as tables: every kind of source, what is reported as assumed, and what is refused."""

from __future__ import annotations

import gzip
import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from evenshard.base.errors import BadConfig, BadFile, BadInput
from evenshard.tables.assumptions import Assumption, TableSet, assume_reuse_bins, assume_weight_bits
from evenshard.tables.files import save_tables
from evenshard.tables.sources import (
    SourceKind,
    catalog_names,
    complete_tables,
    kind_of_source,
    load_catalog,
    tables_from,
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

LARGE_SETS = ("nvidia_large", "nvidia_jumbo", "nvidia_colossal")  # groups as in nvidia_tiny, only more
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


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("mlperf_dlrm_v2", SourceKind.CATALOG),
        ("t.yaml", SourceKind.TABLE_FILE),
        ("t.yml", SourceKind.TABLE_FILE),
        ("a/t.json", SourceKind.TABLE_FILE),
        ("t.CSV", SourceKind.TABLE_FILE),
        ("t.parquet", SourceKind.TABLE_FILE),
        ("b.pt", SourceKind.BATCH_FILE),
        ("b.pt.gz", SourceKind.BATCH_FILE),
        ("t.txt", None),
        ("t.gz", None),
        ("mlperf", None),
        ("", None),
    ],
)
def test_a_name_tells_the_kind(source: str, kind: SourceKind | None) -> None:
    assert kind_of_source(source) is kind
    if source:
        assert kind_of_source(Path(source)) is kind


def test_a_folder_is_traffic_whatever_it_is_called(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "sample.parquet", TRAFFIC)  # as Spark does
    assert kind_of_source(source) is SourceKind.TRAFFIC_FOLDER
    assert len(tables_from(source, 2, embedding_dim=8).tables) == 2


# A table file alone ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".json", ".csv", ".parquet"])
def test_a_table_file_and_what_it_leaves_out(tmp_path: Path, suffix: str) -> None:
    tables = (Table("ads", 8, 16, 2.5), Table("user", 6, 32, 1.0, bins(0.5, 0.5), 16))
    save_tables(tables, tmp_path / f"t{suffix}")
    assert tables_from(tmp_path / f"t{suffix}", 2) == TableSet(tables, (assume_reuse_bins("ads"),))


def test_a_missing_pooling_factor_takes_the_default(tmp_path: Path) -> None:
    path = write_records(tmp_path, ADS, USER)
    found = tables_from(path, 2)
    assert [one.pooling_factor for one in found.tables] == [1.0, 1.0]
    assert found.assumptions == (
        Assumption("ads", "pooling_factor", DEFAULT),
        Assumption("ads", "reuse_bins", "DLRM 2021 index reuse, rescaled per table"),
        Assumption("ads", "weight_bits", "32, the default"),
        Assumption("user", "pooling_factor", DEFAULT),
        assume_reuse_bins("user"),
    )
    assert tables_from(path, 2, default_pooling_factor=7.5).tables[0].pooling_factor == 7.5


def test_weight_bits_override_every_table_and_are_no_assumption(tmp_path: Path) -> None:
    found = tables_from(write_records(tmp_path, ADS, USER), 2, weight_bits=8)
    assert [one.weight_bits for one in found.tables] == [8, 8]
    assert {one.column for one in found.assumptions} == {"pooling_factor", "reuse_bins"}
    with pytest.raises(BadConfig, match="weight_bits is 5"):
        with_weight_bits(found, 5)


def test_another_precision_keeps_a_data_type_of_so_many_bits() -> None:
    found = with_weight_bits(TableSet((Table("a", 9, 4, 2.0, None, 16, "bf16"), Table("b", 9, 4, 2.0, None, 8))), 16)
    assert [one.dtype for one in found.tables] == ["bf16", "fp16"]
    assert [one.dtype for one in with_weight_bits(found, 4).tables] == ["int4", "int4"]
    assert [one.problem() for one in found.tables] == [None, None]


def test_tables_made_in_python_can_only_lack_a_histogram() -> None:
    counted, uncounted = Table("a", 9, 4, 2.0, bins(1)), Table("b", 9, 4, 2.0)
    assert TableSet.of([counted, uncounted]) == TableSet((counted, uncounted), (assume_reuse_bins("b"),))


# Public sets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in catalog_names() if name not in LARGE_SETS])
def test_every_public_set(name: str) -> None:
    found = tables_from(name, 65_536)
    assert found.tables == load_catalog(name, 65_536)
    # NVIDIA's sets publish the power law of their lookups; a precision is not published.
    columns = ["weight_bits"] if name.startswith("nvidia") else ["reuse_bins", "weight_bits"]
    assert [(one.table, one.column) for one in found.assumptions] == [
        (t.name, c) for t in found.tables for c in columns
    ]


def test_a_public_set_in_another_dim_and_precision() -> None:
    found = tables_from("criteo_kaggle", 1024, embedding_dim=64, weight_bits=16)
    assert {(one.embedding_dim, one.weight_bits) for one in found.tables} == {(64, 16)}
    assert {one.column for one in found.assumptions} == {"reuse_bins"}
    assert "publishes an embedding dim for each table" in refused("nvidia_tiny", embedding_dim=64)


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


@pytest.mark.parametrize("kind", ["parquet", "keyed", "dlrm", "batch.pt", "batch.pt.gz"])
def test_traffic_alone(tmp_path: Path, kind: str) -> None:
    source = tmp_path / kind
    if kind == "parquet":
        write_parquet(source, TRAFFIC, 1)
    elif kind == "keyed":
        write_batches(source, TRAFFIC, 3)
    else:
        path = source if kind.startswith("batch") else source / "a.pt"
        path.parent.mkdir(exist_ok=True)
        torch.save(dlrm(TRAFFIC), path)
        if kind.endswith(".gz"):
            path.write_bytes(gzip.compress(path.read_bytes()))
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


@pytest.mark.parametrize("write", [write_parquet, write_batches])
def test_traffic_tells_what_the_file_does_not(tmp_path: Path, write: Any) -> None:
    traffic = write(tmp_path / "traffic", TRAFFIC)
    found = tables_from(write_records(tmp_path, USER, ADS), 2, traffic=traffic)
    assert found.tables == (
        Table("user", 6, 32, 1.0, bins(2 / 3, 1 / 3), 16, row_shares=USER_ROWS, miss_ratios=USER_MISSES),
        Table("ads", 8, 16, 1.5, bins(4 / 5, 1 / 5), row_shares=ADS_ROWS, miss_ratios=ADS_MISSES),
    )
    assert found.assumptions == (assume_weight_bits("ads", 32),)


def test_traffic_may_be_one_parquet_file(tmp_path: Path) -> None:
    (path,) = write_parquet(tmp_path / "traffic", TRAFFIC).iterdir()
    assert tables_from(write_records(tmp_path, ADS), 2, traffic=path).tables[0].pooling_factor == 1.5


def test_traffic_wins_over_the_file(tmp_path: Path) -> None:
    traffic = write_parquet(tmp_path / "traffic", TRAFFIC)
    path = write_records(tmp_path, {**USER, "pooling_factor": 99, "reuse_bins": bins(0, 0, 1)})
    found = tables_from(path, 2, traffic=traffic)
    assert found == TableSet(
        (Table("user", 6, 32, 1.0, bins(2 / 3, 1 / 3), 16, row_shares=USER_ROWS, miss_ratios=USER_MISSES),),
        notes=(f"{traffic}: ignored feature 'ads', which no table has.",),
    )


def test_a_table_without_traffic_keeps_what_the_file_gives_or_takes_the_default(tmp_path: Path) -> None:
    traffic = write_parquet(tmp_path / "traffic", TRAFFIC)
    whole = {**ITEM, "name": "whole", "pooling_factor": 3, "reuse_bins": bins(0, 1)}
    half = {**ITEM, "name": "half", "pooling_factor": 4}
    found = tables_from(write_records(tmp_path, ITEM, USER, whole, half), 2, traffic=traffic)
    assert found.tables == (
        Table("item", 5, 4, 1.0, None, 16),
        Table("user", 6, 32, 1.0, bins(2 / 3, 1 / 3), 16, row_shares=USER_ROWS, miss_ratios=USER_MISSES),
        Table("whole", 5, 4, 3.0, bins(0, 1), 16),
        Table("half", 5, 4, 4.0, None, 16),
    )
    assert found.assumptions == (
        Assumption("item", "pooling_factor", DEFAULT),
        assume_reuse_bins("item"),
        Assumption("whole", "pooling_factor", AS_GIVEN),
        Assumption("whole", "reuse_bins", AS_GIVEN),
        Assumption("half", "pooling_factor", AS_GIVEN),
        assume_reuse_bins("half"),
    )


def test_a_table_that_the_traffic_never_reads(tmp_path: Path) -> None:
    traffic = write_parquet(tmp_path / "traffic", {"item": [[], []]})
    found = tables_from(write_records(tmp_path, ITEM), 2, traffic=traffic)
    assert found.tables == (Table("item", 5, 4, 0.0, None, 16),)
    assert found.assumptions == (Assumption("item", "reuse_bins", "none, since no row was looked up"),)


def test_fewer_samples_than_a_batch_are_said_to_be_assumed(tmp_path: Path) -> None:
    traffic = write_parquet(tmp_path / "traffic", TRAFFIC)
    found = tables_from(write_records(tmp_path, ADS), 64, traffic=traffic)
    assert [(one.column, one.text[:18]) for one in found.assumptions] == [
        ("reuse_bins", "counted over 4 sam"),
        ("weight_bits", "32, the default"),
    ]


def test_traffic_for_tables_made_in_python(tmp_path: Path) -> None:
    ads, item = Table("ads", 8, 4, 9.0), Table("item", 8, 4, 3.0)
    found = complete_tables(TableSet.of([ads, item]), 2, write_parquet(tmp_path, TRAFFIC))
    assert found.tables == (Table("ads", 8, 4, 1.5, bins(0.8, 0.2), row_shares=ADS_ROWS, miss_ratios=ADS_MISSES), item)
    assert found.assumptions == (Assumption("item", "pooling_factor", AS_GIVEN), assume_reuse_bins("item"))


# What is refused ------------------------------------------------------------------------------------------------------


def test_senseless_settings_are_refused(tmp_path: Path) -> None:
    path, traffic = write_records(tmp_path, ADS), write_parquet(tmp_path / "traffic", TRAFFIC)
    assert "batch_size is 0" in refused(path, batch_size=0)
    assert "weight_bits is 5. Choose one of (4, 8, 16, 32)" in refused(path, weight_bits=5)
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
    with pytest.raises(BadConfig):
        tables_from(tmp_path / "tables", 2)


def test_a_parquet_file_of_traffic_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = write_parquet(tmp_path, TRAFFIC).iterdir()
    monkeypatch.setattr(pq, "read_table", None)
    message = refused(path)
    assert "has none of a table file's columns (name, num_rows," in message
    assert "move it to a folder of its own, or give it as traffic of a table file" in message


def test_traffic_that_does_not_fit_the_tables_is_refused(tmp_path: Path) -> None:
    traffic = write_parquet(tmp_path / "traffic", TRAFFIC)
    with pytest.raises(BadFile, match="index 7 is beyond the table's 5 rows"):
        tables_from(write_records(tmp_path, {**ADS, "num_rows": 5}), 2, traffic=traffic)
    with pytest.raises(BadFile, match="has tables 'ads', 'user', but none of the given tables"):
        tables_from(write_records(tmp_path, ITEM), 2, traffic=traffic)


# What the user sees ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_importing_it_is_quick() -> None:
    script = "import sys, evenshard.tables.sources; assert not {'torch', 'pyarrow', 'rich', 'yaml'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_counting_shows_a_bar_on_stderr_and_nothing_on_stdout(tmp_path: Path) -> None:
    write_parquet(tmp_path, TRAFFIC, 1, 2)
    master, slave = pty.openpty()
    script = (
        "import sys; from evenshard.tables.sources import tables_from; tables_from(sys.argv[1], 2, embedding_dim=8)"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=slave, check=True, env=environment)
    os.close(slave)
    shown = b""
    with suppress(OSError):  # how a terminal without a writer ends
        while part := os.read(master, 4096):
            shown += part
    os.close(master)
    assert done.stdout == b""
    assert b"counting lookups" in shown and b"3/3" in shown
