"""Tables in files of other tools and in lists of sizes: values, assumptions, notes and errors."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenshard.base.errors import BadInput
from evenshard.tables.assumptions import TableSet
from evenshard.tables.sources import tables_from
from evenshard.tables.tools.protobuf_text import parse_text

EASYREC = """data_config { batch_size: 512 }
feature_configs { id_feature { num_buckets: 100 embedding_dim: 16 feature_name: "user" embedding_name: "u"
  value_dim: 1 } }
feature_configs { id_feature { num_buckets: 100 embedding_dim: 16 feature_name: "friend" embedding_name: "u" } }
feature_configs { combo_feature { feature_name: "pair" hash_bucket_size: 70 zch { zch_size: 60 } embedding_dim: 8 } }
feature_configs { lookup_feature { feature_name: "word" vocab_list: ["a", "b"] embedding_dim: 8 pooling: "mean" } }
feature_configs { id_feature { feature_name: "city" vocab_list: "a" default_bucketize_value: 0 embedding_dim: 8
  weighted: true data_type: "FP16" } }
feature_configs { id_feature { feature_name: "day" vocab_dict: [{value: 6}, {value: 2}] embedding_dim: 4 } }
feature_configs { raw_feature { feature_name: "age" boundaries: [1, 2.5] embedding_dim: 4 value_dim: 3 } }
feature_configs { id_feature { feature_name: "file" vocab_file: "words.txt" embedding_dim: 4 } }
feature_configs { sequence_feature { sequence_name: "seen" sequence_length: 50
  features { id_feature { feature_name: "user" num_buckets: 100 embedding_dim: 16 embedding_name: "u" } } } }
feature_configs { sequence_id_feature { feature_name: "bought" dynamicemb { max_capacity: 30 } embedding_dim: 4 } }"""
GROUPS = """model_config {
  feature_groups { group_type: DEEP feature_names: "user" feature_names: ["pair", "bought", "file", "age"]
    sequence_groups { feature_names: ["seen__user", "user"] } embedding_name_suffix: "x" }
  feature_groups { group_type: WIDE feature_names: "user" } %s
  feature_groups { group_type: JAGGED_SEQUENCE feature_names: "bought" } }"""
HUGECTR = json.loads("""{"solver": {"batchsize": 64, "gpu": [0, 1]}, "layers": [
  {"type": "Data", "slot_size_array": [10, 0, 20, 30], "sparse": [
    {"top": "deep", "slot_num": 3, "nnz_per_slot": [1, 2, 3], "is_fixed_length": true},
    {"top": "wide", "slot_num": 1, "nnz_per_slot": 4}]},
  {"bottom": "deep", "top": "d", "sparse_embedding_hparam": {"embedding_vec_size": 16, "combiner": 1}},
  {"bottom": "wide", "top": "w", "sparse_embedding_hparam": {"embedding_vec_size": 1, "combiner": "sum"}}]}""")
SCHEMA = r"""
feature { name: "item" type: INT int_domain { name: "items" max: 99 is_categorical: true } annotation {
  tag: "categorical" extra_metadata { value: "\n\026\n\tdimension\022\t\021\000\000\000\000\000\0000@" } } }
feature { name: "seen" value_count { min: 2 max: 20 } int_domain { name: "items" max: 149 }
  annotation { tag: "Tags.CATEGORICAL" tag: "sequence" } }
feature { name: "kind" int_domain { max: 999 is_categorical: true } }
feature { name: "age" int_domain { max: 99 } annotation { tag: "continuous" } }"""
IN_JSON = """{"feature": [
{"name": "item", "intDomain": {"name": "items", "max": "99", "isCategorical": true},
 "annotation": {"comment": ["{\\"embedding_sizes\\": {\\"dimension\\": 16.0}}"]}},
{"name": "seen", "valueCount": {"min": "2", "max": "20"}, "intDomain": {"name": "items", "max": "149"},
 "annotation": {"tag": ["categorical", "sequence"]}},
{"name": "kind", "intDomain": {"max": "999", "isCategorical": true}}]}"""


def read(folder: Path, content: Any, **options: Any) -> TableSet:
    path = folder / "file"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return tables_from(path, 1024, **options)


def listed(found: TableSet) -> list[str]:
    """Return the name, rows, dim, pooling and lookups of each table as words."""
    shown = [(each, " ".join(f"{count:g}" for count in each.feature_lookups)) for each in found.tables]
    return [f"{each.name} {each.num_rows} {each.embedding_dim} {each.pooling} {counts}" for each, counts in shown]


def assumed(found: TableSet, column: str) -> dict[str, str]:
    return {each.table: each.text for each in found.assumptions if each.column == column}


def test_features_of_torcheasyrec(tmp_path: Path) -> None:
    found = read(tmp_path, EASYREC, default_pooling_factor=2)
    assert listed(found) == [
        *("u 100 16 sum 1 2", "pair_emb 60 8 sum 2", "word_emb 4 8 mean 2", "city_emb 1 8 sum 2"),
        *("day_emb 7 4 sum 2", "age_emb 3 4 sum 3", "u_sequence 100 16 none 50", "bought_emb 30 4 none 2"),
    ]
    assert [table.feature_names for table in found.tables[::6]] == [("user", "friend"), ("seen__user",)]
    assert (found.tables[3].is_weighted, found.tables[3].data_type) == (True, "fp16")
    lookups = assumed(found, "pooling_factor")
    assert lookups["u"] == "2, the default, for friend" and lookups["u_sequence"].startswith("the longest sequence")
    assert "u_sequence" in assumed(found, "name") and "age_emb" not in lookups
    files, batch = found.notes
    assert files.endswith("vocab_file: file.") and "512 samples per device" in batch and "1,024 over all" in batch


@pytest.mark.parametrize("model", ["deepfm { } 4", "xdeepfm { } 16", "deepfm { wide_embedding_dim: 8 } 8"])
def test_groups_of_torcheasyrec(tmp_path: Path, model: str) -> None:
    fields, _, dim = model.rpartition(" ")
    assert listed(read(tmp_path, EASYREC + GROUPS % fields)) == [
        *("u_x 100 16 sum 1", "pair_emb_x 60 8 sum 1", "bought_emb_x 30 4 sum 1", "age_emb_x 3 4 sum 3"),
        *("u_x_sequence 100 16 none 50 1", f"u_wide 100 {dim} sum 1", "bought_emb 30 4 none 1"),
    ]


def test_slots_of_hugectr(tmp_path: Path) -> None:
    found = read(tmp_path, HUGECTR)
    assert listed(found) == ["d_0 10 16 mean 1", "d_2 20 16 mean 2 3", "w_0 30 4 sum 4"]  # slot 1 shares a table
    assert {*assumed(found, "embedding_dim")} == {*assumed(found, "pooling_factor")} == {"w_0"}
    assert "64 samples over all devices" in found.notes[0]
    alone = {"top": "e", "sparse_embedding_hparam": {"embedding_vec_size": 8, "slot_size_array": [5, 6]}}
    assert listed(read(tmp_path, {"layers": [alone]})) == ["e_0 5 8 sum 1", "e_1 6 8 sum 1"]


@pytest.mark.parametrize(("stated", "rows"), [("vocabulary_size", 9), ("max_vocabulary_size_per_gpu", 18)])
def test_hash_tables_of_hugectr(tmp_path: Path, stated: str, rows: int) -> None:
    data, deep, wide = HUGECTR["layers"]
    deep = {**deep, "sparse_embedding_hparam": {"embedding_vec_size": 16, stated: 9}}
    wide = {**wide, "sparse_embedding_hparam": {"embedding_vec_size": 4, "workspace_size_per_gpu_in_mb": 1}}
    found = read(tmp_path, HUGECTR | {"layers": [{"sparse": data["sparse"]}, deep, wide]})
    assert listed(found) == [f"d {rows} 16 sum 1 2 3", f"w {2 * 2**20 // 16} 4 sum 4"]
    assert {*assumed(found, "num_rows")} == {"d", "w"}


@pytest.mark.parametrize("schema", [SCHEMA, IN_JSON])
def test_schemas_of_merlin(tmp_path: Path, schema: str) -> None:
    found = read(tmp_path, schema)
    assert listed(found) == ["items 150 16 none 1 20", "kind 1000 80 sum 1"]  # 1.6 * 1000**.56 = 76.6
    assert {*assumed(found, "embedding_dim")} == {"kind"} and "items" in assumed(found, "pooling")
    assert {table.embedding_dim for table in read(tmp_path, schema, embedding_dim=64).tables} == {64}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        *((text, "t000 1460 8, t001 583 8") for text in ("1460-583", " 1460, 583\n", "1460 583", "1460\r\n583")),
        *((sizes, "t000 1460 8, t001 583 8") for sizes in ([1460, 583], {"counts": [1460, 583]})),
        ({"a": 1460, "b": {"num_embeddings": 583}}, "a 1460 8, b 583 8"),
        ({"cats": [{"col_name": "a", "cardinality": 5}], "labels": []}, "a 5 8"),
        ({"a": [1460, 4], "b": [583]}, "a 1460 4, b 583 8"),
    ],
)
def test_sizes(tmp_path: Path, content: Any, expected: str) -> None:
    assert listed(read(tmp_path, content, embedding_dim=8)) == [f"{table} sum 1" for table in expected.split(", ")]


def test_sizes_in_a_name_and_in_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "day_fea_count.npz", counts=np.array([1460, 583], np.int32))
    for source in ("1460-583", "1460,583", tmp_path / "day_fea_count.npz"):
        assert listed(tables_from(source, 1024, embedding_dim=8)) == ["t000 1460 8 sum 1", "t001 583 8 sum 1"]
    for wrong in ({"X_cat": [1]}, {"counts": np.array([{}])}):
        np.savez(tmp_path / "a.npz", **wrong)
        with pytest.raises(BadInput, match=r"has no array counts .* Give DLRM's \*_fea_count\.npz"):
            tables_from(tmp_path / "a.npz", 1024, embedding_dim=8)


@pytest.mark.parametrize(
    ("content", "dim", "words"),
    [
        ("1460-583", None, "states no embedding dims. Give embedding_dim (--dim)"),
        ({"a": [5, 8]}, 8, "states each table's dim. Leave embedding_dim (8) out"),
        ("1460 583\n5 6\n", 8, "is neither a list of tables nor"),
        ({"a": [1, 2, 3]}, None, "TorchEasyRec config (feature_configs), HugeCTR model (layers), Merlin schema"),
        ("feature_configs {\n id_feature { % }\n}", None, "line 2 is not protobuf text"),
        ("feature { name: 'a' }", None, "is a Merlin schema, but states the rows of no table"),
        ({"a": ["x"]}, 8, "is neither a list of tables nor"),
        ("{", None, "is neither a list of tables nor"),
        ({"layers": [3]}, None, "cannot be read"),
        ({"a": {"rows": "many", "dim": 8}}, None, "num_rows is 'many', not a number"),
        ("1-" * 100_000 + "1", 8, "more than 100,000 tables"),
    ],
)
def test_errors(tmp_path: Path, content: Any, dim: int | None, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(tmp_path, content, embedding_dim=dim)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a: 1 a: -2 b { c: true d: false }; b < c: x >  # end",
            {"a": [1, -2], "b": [{"c": [True], "d": [False]}, {"c": ["x"]}]},
        ),
        ("a: [{b: 1.5e3}, {b: 'x' \"y\"}] c: ['x', 'y'],", {"a": [{"b": ["1.5e3"]}, {"b": ["xy"]}], "c": ["x", "y"]}),
        (r'a: "\101\t\"\\ \303\274\377" [x.y/z] { }', {"a": ['A\t"\\ ü\udcff'], "[x.y/z]": [{}]}),
        *((text, None) for text in ("a: 1 }", "{ a: 1 }", "a {", "1", 'a: "x\ny"', "a: [ { b: 1 } ] a { 2 }")),
    ],
)
def test_protobuf_text(text: str, message: Any) -> None:
    with nullcontext() if message else pytest.raises(ValueError, match="not"):
        assert parse_text(text) == message
