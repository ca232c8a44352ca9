"""The body, called as a function."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfp import dsl

from evenshard.measure.cost_rows import read_rows
from evenshard_components.merge_costs.component import merge_costs

Artifacts = Callable[..., dict[str, Any]]


def test_parts_become_a_round_beside_the_earlier_ones(
    given: Artifacts, made: Artifacts, small_round: Path, tmp_path: Path
) -> None:
    outputs = made("costs", "metrics")
    parts = [dsl.Dataset(name=name, uri=str(tmp_path / name)) for name in ("part_2", "part_1")]
    for part in parts:
        Path(part.path).mkdir()
        shutil.copy(small_round / part.name / "round_001.parquet", Path(part.path, "round_002.parquet"))
        Path(part.path, "mlflow_backlog", part.name).mkdir(parents=True)
    earlier = given("costs")["costs"]
    merge_costs.python_func(parts=parts, earlier=earlier, round_number=2, **outputs)
    folder = Path(outputs["costs"].path)
    assert sorted(path.name for path in folder.glob("*.*")) == ["round_001.parquet", "round_002.parquet"]
    assert sorted(path.name for path in folder.glob("mlflow_backlog/*")) == ["part_1", "part_2"]
    rounds = [read_rows(path) for path in sorted(folder.glob("*.*"))]
    assert rounds[0] == rounds[1]
    assert outputs["metrics"].metadata == {"num_placements": 4 + 2 * 2, "num_parts": 2}
