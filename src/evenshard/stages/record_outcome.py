"""How did a run of the pipeline end? Written down whatever happened."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from evenshard.atomic import atomic_path


@dataclass(frozen=True)
class RecordOutcomeInputs:
    """What Kubeflow Pipelines says at the end of a run.

    Attributes:
        state: SUCCEEDED, FAILED or CANCELLED.
        run: name of the run.
        task: of what has ended.
        message: of the failure; "" where there was none.
    """

    state: str
    run: str
    task: str
    message: str = ""


@dataclass(frozen=True)
class RecordOutcomeOutputs:
    """``outcome``: JSON; ``summary``: one line of Markdown."""

    outcome: Path
    summary: Path


def run(inputs: RecordOutcomeInputs, outputs: RecordOutcomeOutputs) -> None:
    """Writes both."""
    ended = {**asdict(inputs), "ended_at": datetime.now(UTC).isoformat(timespec="seconds")}
    line = f"**{inputs.state}**: {inputs.run}" + (f" ({' '.join(inputs.message.split())})" if inputs.message else "")
    for path, text in ((outputs.outcome, json.dumps(ended, indent=1)), (outputs.summary, line)):
        with atomic_path(path) as draft:
            draft.write_text(text + "\n")
