"""Tables that are timed as similar ones are: every answer names them, from whatever input its tables come."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import evenshard
from evenshard.tables.files import save_tables
from evenshard.tables.table import DATA_TYPES, Table

APPROXIMATED = Table("clicks", 1000, 16, 4.0, data_type="bf16", weight_bits=16, pooling="mean", is_weighted=True)
TEXTS = {
    "data_type": "BF16 is timed like another type with the same number of bits",
    "pooling": "MEAN is timed like SUM",
    "is_weighted": "the input dist includes the lookup weights; the kernel is timed without them",
}


def named(tables: Any, **knobs: Any) -> dict[str, str]:
    """The approximations that the answer names."""
    found = evenshard.place(tables, 2, hardware="h100", effort="quick", **knobs).assumptions
    columns = [(one.table, one.column) for one in found]
    assert len(set(columns)) == len(columns), "an assumption is named twice"
    return {one.column: one.text for one in found if one.column in TEXTS}


def test_of_tables_in_files_and_in_python(tmp_path: Path) -> None:
    record = {key: value for key, value in asdict(APPROXIMATED).items() if value is not None}
    save_tables([APPROXIMATED], tmp_path / "t.yaml")
    save_tables([APPROXIMATED], tmp_path / "t.parquet")
    for tables in ([APPROXIMATED], [record], pd.DataFrame([record]), tmp_path / "t.yaml", tmp_path / "t.parquet"):
        assert named(tables) == TEXTS


@pytest.mark.slow
def test_of_a_model() -> None:
    from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    kinds: dict[str, Any] = {"data_type": DataType.BF16, "pooling": PoolingType.MEAN}
    config = EmbeddingBagConfig(1000, 16, "clicks", feature_names=["clicks"], **kinds)
    assert named(EmbeddingBagCollection(tables=[config], is_weighted=True, device="meta")) == TEXTS


def test_data_types() -> None:
    for data_type, bits in DATA_TYPES.items():
        found = named([Table("a", 1000, 16, 4.0, data_type=data_type, weight_bits=bits)])
        said = f"{data_type.upper()} is timed like another type with the same number of bits"
        assert found == ({} if data_type in ("fp32", "fp16") else {"data_type": said})
