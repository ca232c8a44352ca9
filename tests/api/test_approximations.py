"""Tables that are timed as similar ones are: every answer names them, from whatever input its tables come."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection

import evenshard
from evenshard.tables.files import save_tables
from evenshard.tables.table import DATA_TYPES, Table
from support.traffic_builders import TRAFFIC, write_parquet

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


@pytest.mark.parametrize("suffix", [".yaml", ".json", ".csv", ".parquet"])
def test_of_a_table_file(tmp_path: Path, suffix: str) -> None:
    save_tables([APPROXIMATED], tmp_path / f"t{suffix}")
    assert named(tmp_path / f"t{suffix}") == TEXTS


def test_of_tables_in_python() -> None:
    record = {key: value for key, value in asdict(APPROXIMATED).items() if value is not None}
    assert named([APPROXIMATED]) == named([record]) == named(pd.DataFrame([record])) == TEXTS


def test_of_a_model() -> None:
    config = EmbeddingBagConfig(
        name="clicks",
        num_embeddings=1000,
        embedding_dim=16,
        feature_names=["clicks"],
        data_type=DataType.BF16,
        pooling=PoolingType.MEAN,
    )
    assert named(EmbeddingBagCollection(tables=[config], is_weighted=True, device="meta")) == TEXTS


def test_of_traffic_and_of_a_public_set(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "sample", TRAFFIC)
    eighths = {"data_type": "8-bit data is timed like another type with the same number of bits"}
    assert named(folder, embedding_dim=16, batch_size=4) == {}
    assert named(folder, embedding_dim=16, batch_size=4, weight_bits=8) == eighths
    assert named("mlperf_dlrm_v2", weight_bits=8) == eighths


@pytest.mark.parametrize("data_type", DATA_TYPES)
def test_data_types(data_type: str) -> None:
    found = named([Table("a", 1000, 16, 4.0, data_type=data_type, weight_bits=DATA_TYPES[data_type])])
    is_timed = data_type in ("fp32", "fp16")
    assert found == (
        {}
        if is_timed
        else {"data_type": f"{data_type.upper()} is timed like another type with the same number of bits"}
    )


def test_of_an_answer_that_is_placed_again() -> None:
    first = evenshard.place([APPROXIMATED], 2, hardware="h100", effort="quick")
    from evenshard.planner.place import place_request
    from evenshard.planner.pricing import model_of

    again = place_request(first.request, model_of(None, first.request.hardware))
    assert again.assumptions == first.assumptions
