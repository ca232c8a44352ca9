"""The body, called as a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from kfp import dsl

from evenshard.planner.file import load_answer
from evenshard.torchrec.plan.file import load_plan_parts
from evenshard_components.place.component import place

Artifacts = Callable[..., dict[str, Any]]
OUTPUTS = ("placement", "plan", "page", "difference", "metrics")


@pytest.fixture
def tables(tmp_path: Path) -> Any:
    rows = [{"name": f"t{n}", "num_rows": 500 * (n + 1), "embedding_dim": 16, "pooling_factor": 2.0} for n in range(6)]
    pd.DataFrame(rows).to_csv(tmp_path / "own.csv", index=False)
    return dsl.Dataset(name="own", uri=str(tmp_path / "own.csv"))


def test_a_device_model_places_and_numbers_may_be_floats(tables: Any, made: Artifacts) -> None:
    outputs = made(*OUTPUTS)
    place.python_func(tables=tables, request={"num_devices": 2.0, "pinned": {"t0": [1.0]}}, **outputs)
    answer = load_answer(Path(outputs["placement"].path, "placement.json"))
    assert answer.num_devices == 2 and answer.device_of_table[0] == 1
    assert outputs["metrics"].metadata["predicted_ms"] == pytest.approx(answer.predicted_ms)
    assert "t5" in Path(outputs["page"].path).read_text()
    assert load_plan_parts(Path(outputs["plan"].path, "plan.json")) == (answer.parts, 2)
    assert "nothing to compare with" in Path(outputs["difference"].path).read_text()


@pytest.mark.parametrize("left", ["placement", "plan/plan.json"])
def test_what_an_earlier_run_left_is_the_plan_in_use(tables: Any, made: Artifacts, tmp_path: Path, left: str) -> None:
    """t0 lived on device 1, and is asked for on device 0: its 500 rows of 16 FP32 columns move."""
    first = made(*OUTPUTS)
    place.python_func(tables=tables, request={"num_devices": 2, "pinned": {"t0": 1}}, **first)
    (tmp_path / "first").mkdir()
    for name in ("placement", "plan"):
        Path(first[name].path).rename(tmp_path / "first" / name)
    outputs = made(*OUTPUTS)
    in_use = dsl.Artifact(name="in_use", uri=str(tmp_path / "first" / left))
    place.python_func(tables=tables, request={"num_devices": 2, "pinned": {"t0": 0}}, in_use=in_use, **outputs)
    text = Path(outputs["difference"].path).read_text()
    assert text.startswith("```text\nEmbedding work takes ") and "t0" in text
