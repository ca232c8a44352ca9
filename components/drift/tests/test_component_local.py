"""The component, run as a task that others wait for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from evenshard_components.drift.component import drift
from evenshard_components.merge_costs.component import merge_costs


@pytest.mark.parametrize(("batch_size", "due"), [(32, False), (10**9, True)])
def test_a_pipeline_branches_on_it(
    run_pipeline: Callable[[Any], Path], small_round: Path, batch_size: int, due: bool
) -> None:
    """The model of the small round against its own tables, with its own batch or a far larger one."""
    at = {name: str(small_round / name) for name in ("tables/tables.parquet", "part_1")}
    request = {"batch_size": batch_size, "tolerated_pct": 100.0}

    @dsl.pipeline(name="watching")
    def watching() -> None:
        tables = dsl.importer(artifact_uri=at["tables/tables.parquet"], artifact_class=dsl.Dataset).output
        asked = drift(tables=tables, request=request, model_uri=str(small_round))
        with dsl.If(asked.outputs["Output"] == True, name="due"):  # noqa: E712
            with dsl.ParallelFor(items=[at["part_1"]]) as part:
                imported = dsl.importer(artifact_uri=part, artifact_class=dsl.Dataset)
            merge_costs(parts=dsl.Collected(imported.output), round_number=1)

    folder = run_pipeline(watching)
    assert (folder / "drift/summary").exists()
    assert (folder / "merge-costs/costs").exists() == due
