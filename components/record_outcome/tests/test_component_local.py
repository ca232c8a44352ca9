"""The component, run as the exit handler of a pipeline whose task fails."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfp import dsl

from evenshard_components.conftest import CONFIG
from evenshard_components.generate_tables.component import generate_tables
from evenshard_components.record_outcome.component import record_outcome


def test_what_failed_is_recorded(run_pipeline: Callable[[Any], Path]) -> None:
    @dsl.pipeline(name="failing")
    def failing() -> None:
        with dsl.ExitHandler(record_outcome(run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER), name="loop"):
            generate_tables(config={**CONFIG["generate_tables"], "num_devices": 0})

    folder = run_pipeline(failing)
    assert not (folder / "generate-tables/tasks").exists()
    ended = json.loads((folder / "record-outcome/outcome").read_text())
    assert ended["state"] == "FAILED" and ended["page"] and "{{" not in ended["page"]
