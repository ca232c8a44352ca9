"""The component, run as a task after tasks side by side."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfp import dsl

from evenshard.measure.cost_dataset import read_rows
from evenshard_components.merge_costs.component import merge_costs


def test_a_task_merges_what_was_collected(run_pipeline: Callable[[Any], Path], small_round: Path) -> None:
    @dsl.pipeline(name="merging")
    def merging() -> None:
        with dsl.ParallelFor(items=[str(small_round / "part_1"), str(small_round / "part_2")]) as part:
            imported = dsl.importer(artifact_uri=part, artifact_class=dsl.Dataset)
        merge_costs(parts=dsl.Collected(imported.output), round_number=1)

    merged = run_pipeline(merging) / "merge-costs/costs/round_001.parquet"
    assert read_rows(merged).rows == read_rows(small_round / "costs/round_001.parquet").rows
