"""The body, called as a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from kfp import dsl

from evenshard.placement.tasks import load_tasks
from evenshard.tables.files import load_tables
from evenshard_components.conftest import CONFIG
from evenshard_components.generate_tables.component import generate_tables


def test_it_writes_the_pool_and_tasks_of_its_halves(made: Callable[..., dict[str, Any]]) -> None:
    outputs = made("tables", "tasks", "metrics")
    generate_tables.python_func(config=CONFIG["generate_tables"], **outputs)
    pool = load_tables(Path(outputs["tables"].path, "tables.parquet"))
    split = load_tasks(Path(outputs["tasks"].path), pool)
    assert (len(pool), len(split.train), len(split.test)) == (24, 4, 2)
    assert outputs["metrics"].metadata["num_tables"] == 24


def test_a_table_file_takes_the_place_of_the_source(tmp_path: Path, made: Callable[..., dict[str, Any]]) -> None:
    rows = [{"name": f"t{n}", "num_rows": 50, "embedding_dim": 8, "pooling_factor": 1.0} for n in range(12)]
    pd.DataFrame(rows).to_csv(tmp_path / "own.csv", index=False)
    outputs, own = made("tables", "tasks", "metrics"), dsl.Dataset(name="own", uri=str(tmp_path / "own.csv"))
    generate_tables.python_func(config=CONFIG["generate_tables"], source=own, **outputs)
    assert len(load_tables(Path(outputs["tables"].path, "tables.parquet"))) == 12
