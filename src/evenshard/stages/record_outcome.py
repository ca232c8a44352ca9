"""The outcome of a pipeline run, written down whatever happened, as far as Kubeflow Pipelines reports it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from evenshard.utils.atomic import atomic_path

UNKNOWN_STATE = "UNKNOWN"
# States of ML Metadata and kfp.local; RUNNING, NEW and UNKNOWN may be any (kubeflow/pipelines#11979).
ENDED_AS = {
    **dict.fromkeys(("COMPLETE", "CACHED", "SUCCEEDED"), "SUCCEEDED"),
    "FAILED": "FAILED",
    **dict.fromkeys(("CANCELED", "CANCELLED"), "CANCELED"),
}


@dataclass(frozen=True)
class Seen:
    """What the API of Kubeflow Pipelines says of a run while its exit handler runs.

    Attributes:
        state: SUCCEEDED, FAILED or CANCELED; UNKNOWN where it does not say.
        failed, cached, ran: names of the tasks that have failed or were stopped, that an earlier result stands for,
            and of the others that have succeeded.
        problem: why it does not say how the run ends; "" where it does, or where there is none to ask.
    """

    state: str = UNKNOWN_STATE
    failed: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()
    ran: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class RecordOutcomeInputs:
    """What Kubeflow Pipelines says at the end of a run.

    Attributes:
        said: the state of all that came before, as the exit handler is told it.
        run: name of the run.
        page: page of the run, or its id if the address is unknown.
        seen: what the API says.
    """

    said: str
    run: str
    page: str
    seen: Seen = Seen()


def run(inputs: RecordOutcomeInputs, outcome: Path, summary: Path) -> str:
    """Writes the outcome as JSON, and its summary, a line of Markdown.

    Returns:
        SUCCEEDED, FAILED, CANCELED or UNKNOWN: what the API says, else what the handler is told.
    """
    state = ENDED_AS.get(inputs.said, UNKNOWN_STATE) if inputs.seen.state == UNKNOWN_STATE else inputs.seen.state
    ended = {"state": state, **asdict(inputs), "ended_at": datetime.now(UTC).isoformat(timespec="seconds")}
    line = f"**{state}**: {inputs.run}{_because(state, inputs)}. See {inputs.page}"
    for path, text in ((outcome, json.dumps(ended, indent=1)), (summary, line)):
        with atomic_path(path) as draft:
            draft.write_text(text + "\n")
    return state


def _because(state: str, inputs: RecordOutcomeInputs) -> str:
    seen = inputs.seen
    told = f"the exit handler is told {inputs.said}"
    if state == UNKNOWN_STATE:
        told += ", which a success may read like too"
    if seen.problem:
        return f" ({seen.problem}; {told})"
    if state == UNKNOWN_STATE:
        return f" ({told})"
    ended = "was stopped" if state == "CANCELED" else "failed"
    parts = [f"{', '.join(seen.failed)} {ended}"] if seen.failed else []
    parts += [f"from the cache: {', '.join(seen.cached)}"] if seen.cached else []
    return f" ({'; '.join(parts)})" if parts else ""
