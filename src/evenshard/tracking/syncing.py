"""How does the outbox reach MLflow? Entry by entry, the oldest first; what has been sent is not sent again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evenshard.messages import without_credentials
from evenshard.tracking.client import connect, environment, first_line, patience, tracking_uri
from evenshard.tracking.outbox import RUN, Entry, entries, locked
from evenshard.tracking.sending import ensure_run, send

TIME_TO_UPLOAD = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "120"}
"""Nobody waits for a sync, and a large file that a stage could not upload must get through."""
IN_USE = "a stage is still writing it, or another sync is sending it"


@dataclass(frozen=True)
class Synced:
    """What became of an entry of the outbox.

    Attributes:
        name: of its folder.
        run_id: of the run; empty where it was not sent.
        num_sent: operations sent by this call.
        problem: why it is still there; empty where it is not.
    """

    name: str
    run_id: str
    num_sent: int
    problem: str = ""


def sync(to: str | None = None) -> list[Synced]:
    """Sends what is in the outbox.

    Args:
        to: URI of the MLflow that gets all; None for the one that each entry was meant for.

    Returns:
        One record per entry. Entries with a problem stay where they are.
    """
    done: list[Synced] = []
    away: dict[str, str] = {}
    for folder in entries():
        with locked(folder) as free:
            done.append(_sync_one(folder, to, away) if free else Synced(folder.name, "", 0, IN_USE))
    return done


def _sync_one(folder: Path, to: str | None, away: dict[str, str]) -> Synced:
    """``away``: what the MLflows that did not answer said; they are asked once."""
    run_id, num_sent = "", 0
    try:
        entry = Entry(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:  # torn by a power cut, or of a later version
        return Synced(folder.name, "", 0, f"{folder / RUN} cannot be read ({first_line(error)})")
    uri = to or _meant_for(entry.uri)
    if not to and "***" in uri:
        problem = f"it is meant for {uri}. Set MLFLOW_TRACKING_URI to that, with its password, or name another (--to)"
        return Synced(folder.name, "", 0, problem)
    if uri in away:
        return Synced(folder.name, "", 0, away[uri])
    try:
        # MLflow's registry asks the environment where the logged model is
        with environment({"MLFLOW_TRACKING_URI": uri}, replace=True), environment(TIME_TO_UPLOAD), patience():
            client = connect(uri)
            run_id = ensure_run(client, entry.record)
            for operation in entry.operations():
                send(client, run_id, operation, folder)
                entry.count_sent()
                num_sent += 1
    except Exception as error:  # MLflow, SQLAlchemy, requests and the artifact stores raise dozens of kinds
        problem = f"{without_credentials(uri)}: {first_line(error)}"
        if not run_id:
            away[uri] = problem
        return Synced(folder.name, run_id, num_sent, problem)
    entry.remove()
    return Synced(folder.name, run_id, num_sent)


def _meant_for(uri: str) -> str:
    """The URI with its password, which the outbox does not keep."""
    return tracking_uri() if without_credentials(tracking_uri()) == uri else uri
