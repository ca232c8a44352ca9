"""The user's own table files: exact round trips, and one clear line for everything that can be wrong with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenshard.base.errors import BadFile
from evenshard.tables.files import load_numbered_tables, load_tables, save_tables
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.records import REUSE_COLUMNS
from evenshard.tables.reuse import DLRM_2021_REUSE
from evenshard.tables.table import DATA_TYPES, LOAD_FACTORS, POOLINGS, Table

SUFFIXES = [".yaml", ".yml", ".json", ".csv", ".parquet"]
UNIFORM = [1 / 17] * 17
RECORD = {"name": "ads", "num_rows": 1000, "embedding_dim": 16, "pooling_factor": 2.5}
ADS = Table("ads", 1000, 16, 2.5)
HEADER = "name,num_rows,embedding_dim,pooling_factor"
HEADED = "- {name: a, embedding_dim: 4, "


def write(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def complaint(path: Path) -> str:
    """The message of the BadFile that loading raises; it is one line and names the file first."""
    with pytest.raises(BadFile) as caught:
        load_tables(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message
    return message.removeprefix(str(path))


# Round trips ---------------------------------------------------------------------------------------------------------

names = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=12)
histograms = st.none() | st.just(DLRM_2021_REUSE) | st.just(tuple(UNIFORM))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_generated_pool_and_odd_names_survive_every_format(tmp_path: Path, suffix: str) -> None:
    odd = ["12", "true", "null", "1e3", "~", "2024-01-01", " ", "a,b", 'say "hi"', "two\r\nlines"]
    tables = (*generate_tables(GeneratorConfig(30), 65_536, 0), *(Table(name, 5, 4, 1.0) for name in odd))
    for name in ("a", "b"):  # a folder called key=value adds no column
        save_tables(tables, tmp_path / "date=2024" / f"{name}{suffix}")
        assert load_tables(tmp_path / "date=2024" / f"{name}{suffix}") == tables
    assert len({path.read_bytes() for path in (tmp_path / "date=2024").iterdir()}) == 1


@st.composite
def special_tables(draw: st.DrawFn) -> Table:
    own = tuple(draw(st.lists(st.floats(0, 100), max_size=3)))
    num_rows = draw(st.integers(1, 10**9))
    shares = st.lists(st.integers(1, 9), min_size=1, max_size=min(num_rows, 5))
    row_shares = draw(st.none() | shares.map(lambda ones: tuple(one / sum(ones) for one in ones)))
    ratios = st.lists(st.floats(0, 1), min_size=len(LOAD_FACTORS) - 1, max_size=len(LOAD_FACTORS) - 1)
    count = max(len(own), 1)
    data_type = draw(st.sampled_from(["", *DATA_TYPES]))
    return Table(
        draw(names),
        num_rows,
        draw(st.integers(1, 1024)),
        sum(own) if own else draw(st.floats(0, 1e6)),
        draw(histograms),
        DATA_TYPES.get(data_type, 8),
        data_type=data_type,
        pooling=draw(st.sampled_from(POOLINGS)),
        is_weighted=draw(st.booleans()),
        feature_names=tuple(draw(st.just([]) | st.lists(names, min_size=count, max_size=count, unique=True))),
        feature_pooling_factors=own,
        is_deduplicated=draw(st.booleans()),
        module=draw(st.just("") | names),
        row_shares=row_shares,
        miss_ratios=draw(st.none() | ratios.map(lambda ones: (*sorted(ones, reverse=True), 0.0))),
    )


@pytest.mark.parametrize("suffix", [".yaml", ".json", ".csv", ".parquet"])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables=st.lists(special_tables(), min_size=1, max_size=4))
def test_every_field_of_a_table_is_saved(tmp_path: Path, suffix: str, tables: list[Table]) -> None:
    numbered = tuple(replace(one, name=f"{number} {one.name}") for number, one in enumerate(tables))
    assert [one.problem() for one in numbered] == [None] * len(numbered)
    save_tables(numbered, tmp_path / f"tables{suffix}")
    assert load_tables(tmp_path / f"tables{suffix}") == numbered


def test_files_of_plain_tables_have_plain_columns_only(tmp_path: Path) -> None:
    tables = [ADS, Table("b", 7, 4, 1.0, tuple(UNIFORM), 16)]
    for suffix in SUFFIXES:
        save_tables(tables, tmp_path / f"t{suffix}")
    bins = json.dumps(UNIFORM)
    assert (tmp_path / "t.csv").read_bytes().decode() == (
        f'{HEADER},reuse_bins,weight_bits\r\nads,1000,16,2.5,,32\r\nb,7,4,1.0,"{bins}",16\r\n'
    )
    assert json.loads((tmp_path / "t.json").read_text())[0] == {**RECORD, "reuse_bins": None, "weight_bits": 32}
    columns = pq.read_schema(tmp_path / "t.parquet").names
    assert columns == [*HEADER.split(","), "reuse_bins", "weight_bits"]
    save_tables([ADS, replace(ADS, name="s", pooling="none")], tmp_path / "t.parquet")
    assert pq.read_schema(tmp_path / "t.parquet").names == [*columns, "pooling"]


# Forms a user may write ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [[RECORD], {"tables": [RECORD]}])
@pytest.mark.parametrize("suffix", [".json", ".yaml"])  # JSON text is YAML too
def test_a_list_of_records_or_a_tables_key(tmp_path: Path, suffix: str, content: Any) -> None:
    assert load_tables(write(tmp_path, f"t{suffix}", content)) == (ADS,)


def test_yaml_by_hand(tmp_path: Path) -> None:
    text = "tables:\n- {name: 12, num_rows: 1e6, embedding_dim: 16, pooling_factor: 3}\n"
    assert load_tables(write(tmp_path, "t.yaml", text)) == (Table("12", 1_000_000, 16, 3.0),)


def test_csv_from_a_spreadsheet(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbf" + f"{HEADER},weight_bits\r\nads,1000.0,16,2.5,\r\n\r\n".encode())
    assert load_tables(path) == (ADS,)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"data_type": "BF16"}, {"weight_bits": 16, "data_type": "bf16"}),
        ({"data_type": "int4", "weight_bits": 4}, {"weight_bits": 4, "data_type": "int4"}),
        ({"pooling": "MEAN"}, {"pooling": "mean"}),
        ({"is_weighted": "True", "is_deduplicated": "false"}, {"is_weighted": True}),
        (
            {"pooling_factor": None, "feature_pooling_factors": [1.5, 2]},
            {"feature_pooling_factors": (1.5, 2.0), "pooling_factor": 3.5},
        ),
        ({"feature_names": ["a", "b"]}, {"feature_names": ("a", "b"), "feature_pooling_factors": (1.25, 1.25)}),
        (
            {"feature_names": '["a"]', "row_shares": "[0.75, 0.25]"},
            {"feature_names": ("a",), "row_shares": (0.75, 0.25)},
        ),
        ({"module": "user.ebc", "pooling": "", "feature_names": "", "is_weighted": None}, {"module": "user.ebc"}),
    ],
)
def test_what_is_left_out_follows_from_what_is_given(
    tmp_path: Path, more: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert load_tables(write(tmp_path, "t.json", [RECORD | more])) == (replace(ADS, **expected),)


def test_csv_histogram_in_one_column_or_in_seventeen(tmp_path: Path) -> None:
    one = write(tmp_path, "one.csv", f'{HEADER},reuse_bins\nads,1000,16,2.5,"{json.dumps(UNIFORM)}"\nb,1,4,1,\n')
    columns = ",".join(REUSE_COLUMNS)
    shares = ",".join(repr(share) for share in UNIFORM)
    many = write(tmp_path, "many.csv", f"{HEADER},{columns}\nads,1000,16,2.5,{shares}\nb,1,4,1{',' * 17}\n")
    expected = (Table("ads", 1000, 16, 2.5, tuple(UNIFORM)), Table("b", 1, 4, 1.0))
    assert load_tables(one) == load_tables(many) == expected


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_files_written_by_pandas(tmp_path: Path, suffix: str) -> None:
    """pandas turns whole numbers into floats and missing ones into NaN."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([RECORD, {**RECORD, "name": "b", "reuse_bins": UNIFORM, "weight_bits": 16}])
    frame["num_rows"] = frame["num_rows"].astype(float)
    path = tmp_path / f"t{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    assert load_tables(path) == (ADS, Table("b", 1000, 16, 2.5, tuple(UNIFORM), 16))


def test_statistics_without_names_and_dims_are_numbered(tmp_path: Path) -> None:
    """As DreamShard's data: bin_0 to bin_16, all of them zero where nothing was looked up."""
    columns = ",".join(f"bin_{number}" for number in range(17))
    text = f"num_rows,pooling_factor,{columns}\n10,1,0,1{',0' * 15}\n20,0,0{',0.0' * 16}\n"
    path = write(tmp_path, "t.csv", text)
    twice = (0.0, 1.0) + (0.0,) * 15
    assert load_numbered_tables(path, True) == (Table("0", 10, 1, 1.0, twice), Table("1", 20, 1, 0.0))
    with pytest.raises(BadFile, match="'embedding_dim' is missing"):
        load_numbered_tables(path, False)
    named = write(tmp_path, "n.json", [{**RECORD, "name": None, "table": "ads"}, {**RECORD, "name": "b"}])
    assert [one.name for one in load_numbered_tables(named, True)] == ["ads", "b"]
    assert load_numbered_tables(named, True)[1].embedding_dim == 16


# What can be wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_rows": -3}, "record 2 (table 'b'): num_rows is -3"),
        ({"num_rows": 10.5}, "num_rows is 10.5, not a whole number"),
        ({"num_rows": "+-5"}, "num_rows is '+-5', not a number"),
        ({"num_rows": "9" * 5000}, "9999', not a whole number"),
        ({"num_rows": True}, "num_rows is True, not a number"),
        ({"num_rows": None}, "num_rows is empty"),
        ({"pooling_factor": 1e308}, "pooling_factor is 1e+308, not a number from 0 to 1,000,000"),
        ({"pooling_factor": float("nan")}, "'NaN' is not a valid number"),
        ({"pooling_factor": float("-inf")}, "'-Infinity' is not a valid number"),
        ({"reuse_bins": [None] * 17}, "a share of reuse_bins is None"),
        ({"reuse_bins": 0.5}, "reuse_bins is 0.5, not a list"),
        ({"reuse_bins": "[0.5"}, "reuse_bins is '[0.5', not a JSON list"),
        ({"reuse_bin_0": 1.0}, "reuse_bin_1 is empty"),
        ({"reuse_bins": UNIFORM, "reuse_bin_0": 1.0}, "both reuse_bins and reuse_bin_0"),
        ({"name": ""}, "record 2: name is empty"),
        ({"name": ["x"]}, "name is ['x'], not a string"),
        ({"name": "ads"}, "records 1, 2: several tables are named 'ads'"),
        ({"data_type": "fp64"}, "data_type is 'fp64', not one of fp32, fp16, bf16"),
        ({"data_type": "bf16", "weight_bits": 32}, "data_type is bf16, which has 16 bits, but weight_bits is 32"),
        ({"pooling": "max"}, "pooling is 'max', not one of sum, mean, none"),
        ({"is_deduplicated": 1}, "is_deduplicated is 1, not true or false"),
        ({"feature_names": ["a", "a"]}, "feature_names has an empty or duplicate name"),
        ({"feature_pooling_factors": [1.0, 1.0]}, "feature_pooling_factors add up to 2, but pooling_factor is 2.5"),
        ({"feature_pooling_factors": [3.5, -1]}, "feature_pooling_factors contains a number that is -1.0, not"),
        ({"row_shares": [0.5, "x"]}, "a share of row_shares is 'x', not a number"),
        ({"miss_ratios": [0.5] * 14 + ["x"]}, "a ratio of miss_ratios is 'x', not a number"),
    ],
)
def test_a_wrong_value_is_named_with_its_record(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    assert words in complaint(write(tmp_path, "t.json", [RECORD, {**RECORD, "name": "b", **change}]))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.json", "", "contains no table"),
        ("t.json", '[{"name": "ads", "num', "is not JSON"),
        ("t.json", '{"table": []}', "is neither a list"),
        ("t.json", "[3]", "record 1: is 3, not a record"),
        ("t.yaml", HEADED + "num_rows: .nan}", "num_rows is nan, not a whole number"),
        ("t.yaml", HEADED + "num_rows: 5, pooling_factor: .inf}", "pooling_factor is inf, not a number from 0"),
        ("t.json", "[" * 100_000, "nested too deep"),
        ("t.yaml", "- !!python/object:os.system {}", "not readable as YAML"),
        ("t.csv", HEADER + "\n", "contains no table"),
        ("t.csv", HEADER + "\nads,1000,16\n", "record 1: has fewer fields than the header's 4"),
        ("t.csv", HEADER + "\nads,1000,16,1\nb,1,2,3,4\n", "record 2: has more fields than the header's 4"),
        ("t.csv", HEADER + ',weight_bits\n"ads,1000\n', "is not CSV"),
        ("t.csv", HEADER + ",name\nads,1,2,3,b\n", "'name' appears twice in the header"),
        ("t.csv", HEADER + "\nads,1000,16,nan\n", "pooling_factor is nan"),
        ("t.parquet", "PAR1 and nothing more", "is not valid Parquet"),
        ("t.txt", "ads", "unknown suffix '.txt'. Use one of .yaml, .yml, .json, .csv, .parquet"),
        ("tables", "ads", "unknown suffix ''"),
    ],
)
def test_a_broken_file_is_one_clear_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    assert words in complaint(write(tmp_path, name, text))


def test_missing_files_folders_and_other_encodings(tmp_path: Path) -> None:
    assert "no such file" in complaint(tmp_path / "absent.csv")
    (tmp_path / "folder.csv").mkdir()
    assert "is not a file" in complaint(tmp_path / "folder.csv")
    for suffix in (".yaml", ".json", ".csv"):
        (tmp_path / f"t{suffix}").write_bytes("naïve".encode("latin-1"))
        assert "is not UTF-8" in complaint(tmp_path / f"t{suffix}")


# Too much of it ------------------------------------------------------------------------------------------------------


def test_too_many_tables_values_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenshard.tables.formats.MAX_TABLES", 3)
    monkeypatch.setattr("evenshard.tables.files.MAX_TABLES", 3)
    monkeypatch.setattr("evenshard.tables.formats.MAX_VALUES", 5_000)
    monkeypatch.setattr("evenshard.base.documents.MAX_TEXT_BYTES", 2**20)

    def parquet(num_rows: int, **more: Any) -> Path:
        names = pa.array([f"t{number}" for number in range(num_rows)])
        columns = {name: [5] * num_rows for name in ("num_rows", "embedding_dim", "pooling_factor")}
        pq.write_table(pa.table({"name": names, **columns, **more}), tmp_path / "t.parquet")
        return tmp_path / "t.parquet"

    csv = "".join(f"t{number},5,4,1\n" for number in range(4))
    assert len(load_tables(parquet(3))) == len(load_tables(write(tmp_path, "t.csv", f"{HEADER}\n{csv[:-9]}"))) == 3
    assert "contains 4 tables, more than 3" in complaint(parquet(4))
    assert "contains more than 3 tables" in complaint(write(tmp_path, "t.csv", f"{HEADER}\n{csv}"))
    long_list = pa.array([np.zeros(6_000)], pa.list_(pa.float64()))
    assert "contains more than 5,000 values" in complaint(parquet(1, reuse_bins=long_list))
    for suffix in (".csv", ".json", ".yaml"):
        assert "it is larger than 1 MB" in complaint(write(tmp_path, f"t{suffix}", " " * (2**20 + 1)))


# Whole or not at all -------------------------------------------------------------------------------------------------


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    save_tables([ADS], path)
    with pytest.raises(TypeError):
        save_tables([Table("b", 5, 4, 1.0), Table(name={1}, num_rows=5, embedding_dim=4, pooling_factor=1.0)], path)  # type: ignore[arg-type]
    assert load_tables(path) == (ADS,)
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.json"]
    with pytest.raises(BadFile, match="unknown suffix"):
        save_tables([ADS], tmp_path / "t.txt")
