"""TorchRec's configurations as JSON: the tables are those of the configurations themselves."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path

from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType

from evenshard.tables.files import load_tables_with_assumptions, tables_of_records
from evenshard.tables.records import UNUSED_FIELDS, is_config, list_unused_fields
from evenshard.tables.table import Table
from evenshard.torchrec import tables_of

BAGS = [
    EmbeddingBagConfig(
        name="clicks", num_embeddings=800_000, embedding_dim=32, feature_names=["seen", "bought"],
        data_type=DataType.FP16, pooling=PoolingType.MEAN, need_pos=True,
    ),
    EmbeddingBagConfig(name="user", num_embeddings=5000, embedding_dim=64, feature_names=["id"],
        data_type=DataType.UINT8),
]  # fmt: skip


def typed(tables: tuple[Table, ...]) -> tuple[Table, ...]:
    """The tables with their data types named, as configurations name them."""
    return tuple(replace(one, data_type=one.dtype) for one in tables)


HISTORY = EmbeddingConfig(name="history", num_embeddings=900, embedding_dim=16, feature_names=["items"])


def test_json_of_configurations_gives_the_tables_of_the_configurations(tmp_path: Path) -> None:
    path = tmp_path / "configs.json"
    path.write_text(json.dumps([asdict(one) for one in [*BAGS, HISTORY]], default=str))
    found = load_tables_with_assumptions(path, 2.0)
    of_configs = (*tables_of(BAGS, default_pooling_factor=2.0), *tables_of([HISTORY], default_pooling_factor=2.0))
    assert found.tables == typed(of_configs)
    assert [one.pooling for one in found.tables] == ["mean", "sum", "none"]
    assert [(one.dtype, one.weight_bits) for one in found.tables] == [("fp16", 16), ("int8", 8), ("fp32", 32)]
    assert found.notes == (), "fields of TorchRec that are not set are not named"
    said = {(one.table, one.column): one.text for one in found.assumptions}
    assert said["clicks", "need_pos"] == "ignored: position weights are not timed"
    assert said["history", "pooling"].startswith("none, because the record has TorchRec's fields")
    assert not {column for _, column in said} & {"init_fn", "use_virtual_table", "input_dim"}


def test_the_fields_themselves_do_too() -> None:
    assert tables_of_records([asdict(one) for one in BAGS], 1.0).tables == typed(tables_of(BAGS))
    assert tables_of_records([{name: value for name, value in vars(BAGS[1]).items() if value is not None}], 1.0).tables


def test_a_table_of_ours_is_no_configuration() -> None:
    assert not is_config({"name": "a", "num_embeddings": 5, "embedding_dim": 4})
    assert is_config(asdict(HISTORY)) and list(list_unused_fields("a", {"name": "a"})) == []
    known = {one.name for one in fields(EmbeddingBagConfig)}
    assert set(UNUSED_FIELDS) <= known | {"stash_weights"}
