"""Columns of table files as their authors call them, names that are mapped, and TorchRec's configurations as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType

from evenshard.base.errors import BadConfig, BadFile, BadRecords
from evenshard.tables.files import load_tables, load_tables_with_assumptions, tables_of_records
from evenshard.tables.records import (
    COLUMN_ALIASES,
    KNOWN_COLUMNS,
    UNUSED_FIELDS,
    BadRecord,
    ColumnNames,
    close_column,
    is_config,
    list_unused_fields,
)
from evenshard.tables.table import Table
from evenshard.torchrec import tables_of

ADS = Table("ads", 1000, 16, 2.5)


def ours(record: dict[Any, Any], **given: str) -> tuple[dict[Any, Any], list[str]]:
    """A record with our columns, and the extra ones."""
    names = ColumnNames(given)
    return names.translate(record), list(names.extra)


@pytest.mark.parametrize(
    "record",
    [
        {"name": "ads", "hash_size": 1000, "dim": 16, "avg_pooling": 2.5},
        {"table_name": "ads", "num_embeddings": 1000, "embedding_dim": 16, "pooling": 2.5},
        {"table": "ads", "rows": "1000", "dim": "16", "pooling": "2.5"},
        {"name": "ads", "rows": 1000, "num_rows": None, "dim": 16, "pooling_factor": 2.5},  # a blank one says nothing
        {"name": "ads", "num_rows": None, "rows": 1000, "dim": 16, "pooling_factor": 2.5},
        {"name": "ads", "rows": 1000, "num_rows": 1000, "dim": 16, "pooling_factor": 2.5},  # the same twice
    ],
)
def test_aliases_are_our_columns(record: dict[str, Any]) -> None:
    assert tables_of_records([record], 1.0).tables == (ADS,)
    assert not set(COLUMN_ALIASES) & set(KNOWN_COLUMNS) and set(COLUMN_ALIASES.values()) <= set(KNOWN_COLUMNS)


def test_pooling_is_a_word_or_a_number() -> None:
    whole = {"name": "ads", "num_rows": 1000, "embedding_dim": 16}
    for pooling in ("mean", "NONE", "PoolingType.SUM"):
        (table,) = tables_of_records([{**whole, "pooling": pooling}], 2.5).tables
        assert table == replace(ADS, pooling=pooling.lower().removeprefix("poolingtype."))
    with pytest.raises(
        BadFile, match=r"has both pooling_factor and pooling, which both mean pooling_factor. Remove one"
    ):
        tables_of_records([{**whole, "pooling_factor": 2.5, "pooling": 3}], 1.0)


def test_a_mapped_column_wins_over_its_own_name() -> None:
    record = {"id": "ads", "num_rows": "not these", "real_rows": 1000, "dim": 16, "mean_len": 2.5, "ttl": 3}
    given = {"id": "name", "real_rows": "rows", "mean_len": "pooling_factor"}
    for order in (record, dict(reversed(record.items()))):
        found = tables_of_records([order], 1.0, given)
        assert found.tables == (ADS,) and found.missed == ()
        (note,) = found.notes
        assert "2 columns are not used" in note and "'num_rows'" in note and "'ttl'" in note
    (note,) = tables_of_records([record], 1.0, {**given, "ttl": ""}).notes
    assert "1 column is not used: 'num_rows'" in note, "a column that is left out on purpose is not named"


def test_a_mapping_to_nothing_that_is_known_is_refused() -> None:
    with pytest.raises(BadConfig, match=r"'a' to 'num_row', which is not a column of a table; the closest is 'num_r"):
        ours({"a": 5}, a="num_row")
    assert tables_of_records([asdict(ADS)], 1.0, {"hash": "num_rows"}).missed == ("hash",)


def test_extra_columns_are_named_once_with_what_they_may_mean(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("name,num_rows,embedding_dim,poolingfactor,owner,\nads,1000,16,2.5,x,\nb,10,8,1,,\n")
    found = load_tables_with_assumptions(path, 1.5)
    assert [one.pooling_factor for one in found.tables] == [1.5, 1.5]
    assert found.notes == (
        f"{path}: 3 columns are not used: 'poolingfactor', 'owner', an unnamed column. To use: --columns "
        "poolingfactor=pooling_factor.",
    )
    assert found.assumptions[0].column == "pooling_factor", "what was assumed instead is reported too"
    assert load_tables(path, {"poolingfactor": "pooling_factor"})[0] == ADS


def test_all_that_is_wrong_with_a_file_comes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("name,num_rows,dim,weight_bits\na,many,0,31\na,10,8,64\n,10,8,\n")
    with pytest.raises(BadRecords) as caught:
        load_tables_with_assumptions(path, 1.0)
    expected = [
        "record 1 (table 'a'): num_rows is 'many', not a number. Correct the value.",
        "record 1 (table 'a'): embedding_dim is 0, not a whole number from 1 to 65,536. Correct the value.",
        "record 1 (table 'a'): weight_bits is 31, not one of (4, 8, 16, 32). Correct the value.",
        "record 2 (table 'a'): weight_bits is 64, not one of (4, 8, 16, 32). Correct the value.",
        "record 3: name is empty. Fill it in.",
        "records 1, 2: several tables are named 'a'. Give each a different name.",
    ]
    assert caught.value.lines == (f"{path}: 6 problems", *expected)
    assert "\n" not in str(caught.value) and all(line.rstrip(".") in str(caught.value) for line in expected)


def test_a_problem_of_many_records_is_one_and_many_problems_are_cut() -> None:
    records: list[dict[str, Any]] = [{"name": f"t{number}", "num_rows": "x", "dim": 4} for number in range(30)]
    with pytest.raises(BadFile, match="all 30 records: num_rows is 'x'"):
        tables_of_records(records, 1.0)
    records[0]["num_rows"] = 10
    with pytest.raises(BadFile, match=r"records 2, 3, .*, 13 and 17 more: num_rows is 'x'"):
        tables_of_records(records, 1.0)
    with pytest.raises(BadRecords) as caught:
        tables_of_records([{"name": f"t{number}", "dim": 8, "rows": -number} for number in range(50)], 1.0)
    assert len(caught.value.lines) == 22
    assert caught.value.lines[0] == "tables: 50 problems" and caught.value.lines[-1] == "And 30 more."


def test_two_columns_of_one_meaning_that_differ_are_refused() -> None:
    with pytest.raises(BadRecord, match=r"has both num_rows and rows"):
        ours({"num_rows": 5, "rows": 6})
    assert ours({"num_rows": 5, "rows": 6}, rows="") == ({"num_rows": 5}, [])


def test_a_close_name_is_found_whatever_its_underscores() -> None:
    assert close_column("NumRows", KNOWN_COLUMNS) == "num_rows"
    assert close_column("weightbits", KNOWN_COLUMNS) == "weight_bits"
    assert close_column("owner", KNOWN_COLUMNS) is None


def test_a_missing_column_names_those_that_it_may_be() -> None:
    with pytest.raises(BadRecords) as caught:
        tables_of_records([{"NAME": "ads", "Num_Rows": 10, "embedding_dim": 4}], 1.0)
    assert caught.value.lines[1:] == (
        "record 1: column 'name' is missing. If 'NAME' is this column, give --columns NAME=name.",
        "record 1: column 'num_rows' is missing. If 'Num_Rows' is this column, give --columns Num_Rows=num_rows.",
    )
    with pytest.raises(BadFile) as unlike:
        tables_of_records([{"name": "ads", "card": 10, "owner": "x", "embedding_dim": 4}], 1.0)
    assert str(unlike.value).endswith("(--columns THEIRS=num_rows). Unused columns: 'card', 'owner'.")
    with pytest.raises(BadRecords, match=r"no record has a column 'cardinality'. Correct it"):
        tables_of_records([{"name": "ads", "card": 10, "embedding_dim": 4}], 1.0, {"cardinality": "num_rows"})


@pytest.mark.parametrize("mark", ",;\t|")
def test_columns_are_separated_as_the_header_says(tmp_path: Path, mark: str) -> None:
    lines = (("name", "num_rows", "embedding_dim", "pooling_factor"), ("ads", '"1,000,000"', "4", "2.5"))
    (tmp_path / "t.csv").write_text("".join(mark.join(line) + "\n" for line in lines))
    assert load_tables(tmp_path / "t.csv") == (Table("ads", 1_000_000, 4, 2.5),)


def test_other_commas_are_no_thousands() -> None:
    for text in ("1,00", "1,0000", ",100", "1.000.000", "1,000.5", "1M", "1000,000"):
        with pytest.raises(BadFile, match=r"num_rows is '.*', not a (whole )?number"):
            tables_of_records([{"name": "ads", "num_rows": text, "embedding_dim": 4}], 1.0)


# TorchRec's configurations -------------------------------------------------------------------------------------------

BAGS = [
    EmbeddingBagConfig(
        name="clicks", num_embeddings=800_000, embedding_dim=32, feature_names=["seen", "bought"],
        data_type=DataType.FP16, pooling=PoolingType.MEAN, need_pos=True,
    ),
    EmbeddingBagConfig(name="user", num_embeddings=5000, embedding_dim=64, feature_names=["id"],
        data_type=DataType.UINT8),
]  # fmt: skip
HISTORY = EmbeddingConfig(name="history", num_embeddings=900, embedding_dim=16, feature_names=["items"])


def test_json_of_configurations_gives_the_tables_of_the_configurations(tmp_path: Path) -> None:
    path = tmp_path / "configs.json"
    path.write_text(json.dumps([asdict(one) for one in [*BAGS, HISTORY]], default=str))
    found = load_tables_with_assumptions(path, 2.0)
    of_configs = (*tables_of(BAGS, default_pooling_factor=2.0), *tables_of([HISTORY], default_pooling_factor=2.0))
    assert found.tables == tuple(replace(one, data_type=one.dtype) for one in of_configs)
    assert [one.pooling for one in found.tables] == ["mean", "sum", "none"]
    assert [(one.dtype, one.weight_bits) for one in found.tables] == [("fp16", 16), ("int8", 8), ("fp32", 32)]
    assert found.notes == (), "fields of TorchRec that are not set are not named"
    said = {(one.table, one.column): one.text for one in found.assumptions}
    assert said["clicks", "need_pos"] == "ignored: position weights are not timed"
    assert said["history", "pooling"].startswith("none, because the record has TorchRec's fields")
    assert not {column for _, column in said} & {"init_fn", "use_virtual_table", "input_dim"}
    assert tables_of_records([asdict(one) for one in [*BAGS, HISTORY]], 2.0).tables == found.tables


def test_a_table_of_ours_is_no_configuration() -> None:
    assert not is_config({"name": "a", "num_embeddings": 5, "embedding_dim": 4})
    assert is_config(asdict(HISTORY)) and list(list_unused_fields("a", {"name": "a"})) == []
    assert set(UNUSED_FIELDS) <= {one.name for one in fields(EmbeddingBagConfig)} | {"stash_weights"}
