"""The body, called as a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from kfp import dsl

from evenshard.base.errors import BadConfig
from evenshard_components.drift.component import drift
from support.learned import LEARNED

Artifacts = Callable[..., dict[str, Any]]
H200 = str(LEARNED)


def tables(folder: Path, **changes: Any) -> Any:
    like = {"embedding_dim": 64, "pooling_factor": 8.0, **changes}
    rows = [{"name": f"t{n}", "num_rows": 100_000 * (n + 1), **like} for n in range(40)]
    pd.DataFrame(rows).to_csv(folder / "today.csv", index=False)
    return dsl.Dataset(name="today", uri=str(folder / "today.csv"))


def test_tables_that_are_covered_need_no_training(tmp_path: Path, made: Artifacts) -> None:
    outputs = made("summary", "metrics")
    due = drift.python_func(tables=tables(tmp_path), request={"num_devices": 8.0}, model_uri=H200, **outputs)
    assert due is False
    text = Path(outputs["summary"].path).read_text()
    assert text.startswith(f"```text\nThe 40 tables are covered by {H200}.\n") and text.endswith("\n```\n")
    assert outputs["metrics"].metadata == {"outside_load_pct": 0.0, "rare_pct": 0.0}


@pytest.mark.parametrize(
    ("changes", "request_of", "why"),
    [
        ({"embedding_dim": 4096}, {}, "40 tables have a larger dim"),
        ({}, {"num_devices": 4000}, "4,000 devices are more than"),
        ({"pooling_factor": None}, {"default_pooling_factor": 5000.0}, "40 tables have more lookups"),
    ],
)
def test_what_the_model_has_not_seen_calls_for_training(
    tmp_path: Path, made: Artifacts, changes: dict[str, Any], request_of: dict[str, Any], why: str
) -> None:
    outputs = made("summary", "metrics")
    asked = {"tables": tables(tmp_path, **changes), "model_uri": H200, **outputs}
    assert drift.python_func(request=request_of, **asked) is True
    assert why in Path(outputs["summary"].path).read_text()
    if not request_of:
        assert outputs["metrics"].metadata["outside_load_pct"] == pytest.approx(100)
        assert drift.python_func(request={"tolerated_pct": 100.0}, **asked) is False


def test_a_request_that_does_not_fit_is_refused(tmp_path: Path, made: Artifacts) -> None:
    asked = {"tables": tables(tmp_path), "model_uri": H200, **made("summary", "metrics")}
    for request, why in (({"embedding_dim": 8}, r"Leave embedding_dim \(8\) out"), ({"num_device": 2}, "num_device'")):
        with pytest.raises(BadConfig, match=why):
            drift.python_func(request=request, **asked)
