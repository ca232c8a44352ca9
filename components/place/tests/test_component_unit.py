"""The body, called as a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from kfp import dsl

from evenshard.planner.file import load_answer
from evenshard.utils.errors import BadConfig
from evenshard_components.place.component import place

Artifacts = Callable[..., dict[str, Any]]


@pytest.fixture
def tables(tmp_path: Path) -> Any:
    rows = [{"name": f"t{n}", "num_rows": 500 * (n + 1), "embedding_dim": 16, "pooling_factor": 2.0} for n in range(6)]
    pd.DataFrame(rows).to_csv(tmp_path / "own.csv", index=False)
    return dsl.Dataset(name="own", uri=str(tmp_path / "own.csv"))


def test_the_bundled_model_places_and_numbers_may_be_floats(tables: Any, made: Artifacts) -> None:
    outputs = made("placement", "page", "metrics")
    place.python_func(tables=tables, request={"num_devices": 2.0, "pinned": {"t0": [1.0]}}, **outputs)
    answer = load_answer(Path(outputs["placement"].path, "placement.json"))
    assert answer.num_devices == 2 and answer.device_of_table[0] == 1
    assert outputs["metrics"].metadata["predicted_ms"] == pytest.approx(answer.predicted_ms)
    assert "t5" in Path(outputs["page"].path).read_text()


def test_an_unknown_word_is_named(tables: Any, made: Artifacts) -> None:
    with pytest.raises(BadConfig, match="num_device'"):
        place.python_func(tables=tables, request={"num_device": 2}, **made("placement", "page", "metrics"))
