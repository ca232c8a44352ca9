"""The outcome of a pipeline run, written down whatever happened, as far as Kubeflow Pipelines reports it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from evenshard.utils.atomic import atomic_path

UNKNOWN_STATE = "UNKNOWN"
ENDED_AS = {
    **dict.fromkeys(("COMPLETE", "CACHED", "SUCCEEDED"), "SUCCEEDED"),
    "FAILED": "FAILED",
    **dict.fromkeys(("CANCELED", "CANCELLED"), "CANCELED"),
}
"""The state of a run by that of its exit handler's tasks.

On a cluster that is a state of ML Metadata, on this machine one of kfp.local. RUNNING, NEW and UNKNOWN say nothing: a
success whose last branch was skipped reads RUNNING, as does a run that was stopped (kubeflow/pipelines#11979).
"""


@dataclass(frozen=True)
class RecordOutcomeInputs:
    """What Kubeflow Pipelines says at the end of a run.

    Attributes:
        said: the state of all that came before, in its own words.
        run: name of the run.
        page: page of the run, or its id if the address is unknown.
    """

    said: str
    run: str
    page: str


@dataclass(frozen=True)
class RecordOutcomeOutputs:
    """``outcome``: JSON; ``summary``: one line of Markdown."""

    outcome: Path
    summary: Path


def run(inputs: RecordOutcomeInputs, outputs: RecordOutcomeOutputs) -> str:
    """Writes both; returns SUCCEEDED, FAILED, CANCELED or UNKNOWN."""
    state = ENDED_AS.get(inputs.said, UNKNOWN_STATE)
    ended = {"state": state, **asdict(inputs), "ended_at": datetime.now(UTC).isoformat(timespec="seconds")}
    ambiguous = f" (Kubeflow Pipelines says {inputs.said}, which a success may read like too)"
    line = f"**{state}**: {inputs.run}{ambiguous if state == UNKNOWN_STATE else ''}. See {inputs.page}"
    for path, text in ((outputs.outcome, json.dumps(ended, indent=1)), (outputs.summary, line)):
        with atomic_path(path) as draft:
            draft.write_text(text + "\n")
    return state
