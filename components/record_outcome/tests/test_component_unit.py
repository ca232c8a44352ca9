"""The body, called as a function."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfp import dsl

from evenshard_components.record_outcome.component import record_outcome


def test_a_failure_is_written_down_with_its_reason(made: Callable[..., dict[str, Any]]) -> None:
    outputs = made("outcome", "summary")
    status = dsl.PipelineTaskFinalStatus("FAILED", "run-7", "loop", 9, "no\nmemory")
    record_outcome.python_func(status=status, **outputs)
    found = json.loads(Path(outputs["outcome"].path).read_text())
    assert (found["state"], found["run"], found["message"]) == ("FAILED", "run-7", "no\nmemory")
    assert Path(outputs["summary"].path).read_text() == "**FAILED**: run-7 (no memory)\n"
