"""A server that answers like Kubeflow Pipelines' v2beta1 API, as far as evenshard asks it. It runs nothing.

What it says of runs is what Kubeflow Pipelines 2.17 said of real ones (kubeflow_runs.json). Of requests it shows the
shape on the wire, not that a cluster would take them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from support.http_server import Request, answering

API = "/apis/v2beta1"
RUNS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("kubeflow_runs.json").read_text())
NEVER = "0001-01-01T00:00:00Z"


def nodes_of(name: str, clock: str = "23:59:59", ago_s: float = 0.0) -> list[dict[str, Any]]:
    """The nodes of a recorded run as they were at an hour of its day, moved to ``ago_s`` seconds ago."""
    run = RUNS[name]
    moment = datetime.fromisoformat(f"{run['created_at'][:10]}T{clock}+00:00")
    moved = datetime.now(UTC) - timedelta(seconds=ago_s) - moment

    def begun(stamp: str) -> bool:
        return stamp != NEVER and datetime.fromisoformat(stamp) <= moment

    def now(stamp: str) -> str:
        return (datetime.fromisoformat(stamp) + moved).isoformat() if begun(stamp) else NEVER

    nodes = []
    for node in run["tasks"]:
        states = [one for one in node.get("state_history", ()) if "state" in one and begun(one["update_time"])]
        if not begun(node["start_time"]) or ("state" in node and not states):
            continue
        times = {key: now(node[key]) for key in ("start_time", "end_time")}
        history = [{**one, "update_time": now(one["update_time"])} for one in states]
        known = {"state": states[-1]["state"], "state_history": history} if states else {}
        nodes.append({**node, **times, **known})
    return nodes


def as_asked(name: str) -> dict[str, Any]:
    """A recorded run as the API gave it while its exit handler ran: the last moment of the run, for one without."""
    run = RUNS[name]
    handler = next((one for one in run["tasks"] if one.get("display_name") == "record-outcome"), None)
    stamp = run["finished_at"] if handler is None else handler["start_time"]
    moment = datetime.fromisoformat(stamp) + timedelta(seconds=5)
    before = [one for one in run["state_history"] if datetime.fromisoformat(one["update_time"]) <= moment]
    state = [one["state"] for one in before if "state" in one][-1]
    nodes = nodes_of(name, f"{moment:%H:%M:%S}")
    return {"run_id": "id-7", "display_name": name, "state": state, "run_details": {"task_details": nodes}}


@dataclass
class FakePipelines:
    """What the server knows and how it misbehaves."""

    token: str | None = None  # that it asks for
    # statuses to answer first, one for each request, by "METHOD path"; 0: no answer until it ends
    failures: dict[str, list[int]] = field(default_factory=dict)
    states: list[str] = field(default_factory=lambda: ["SUCCEEDED"])  # of the run, one for each look; the last stays
    history: list[str] = field(default_factory=list)  # its states before
    runs: list[dict[str, Any]] = field(default_factory=list)  # of recurring runs
    # the run id-7, or statuses of a refusal, one for each look; the last stays
    recorded: list[dict[str, Any] | int] = field(default_factory=list)
    # what ``nodes_of`` takes, for the nodes of a run that is RUNNING, and of one that has SUCCEEDED, at each look
    running: tuple[str, str, float] = ("train_succeeded", "04:41:30", 0.0)
    ended: list[tuple[Any, ...]] = field(default_factory=lambda: [("place_succeeded",)])
    finished_at: datetime | None = None
    login_page: bool = False
    experiments: dict[str, dict[str, Any]] = field(default_factory=dict)
    recurring: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    url: str = ""
    ends: threading.Event = field(default_factory=threading.Event)

    def asked(self, method: str, path: str) -> list[Request]:
        return [one for one in self.requests if (one.method, one.path) == (method, API + path)]

    def answer(self, request: Request) -> tuple[int, Any]:
        self.requests.append(request)
        path, method = request.path.removeprefix(API), request.method
        if self.login_page:
            return 200, "<html>log in</html>"
        if failures := self.failures.get(f"{method} {path}"):
            status = failures.pop(0)
            if status == 0:
                self.ends.wait()
            return status or 200, {"message": f"told to answer {status}"}
        if self.token is not None and request.token != f"Bearer {self.token}":
            return 401, {"error": "token has expired"}
        name, _, order = path.removeprefix("/recurringruns/").partition(":")
        match method, path:
            case "GET", "/experiments":
                wanted = json.loads(request.query["filter"])["predicates"][0]["stringValue"]
                found = [one for one in self.experiments.values() if one["display_name"] == wanted]
                return 200, {"experiments": found, "total_size": len(found)} if found else {}
            case "POST", "/experiments":
                made = {**request.body, "experiment_id": f"e{len(self.experiments) + 1}"}
                self.experiments[made["experiment_id"]] = made
                return 200, made
            case "POST", "/runs":
                return 200, {**request.body, "run_id": "r1", "state": "PENDING"}
            case "POST", "/recurringruns":
                made = {**request.body, "recurring_run_id": f"rr{len(self.recurring) + 1}", "status": "ENABLED"}
                self.recurring[made["recurring_run_id"]] = made
                return 200, made
            case "GET", "/recurringruns":
                return 200, _page("recurringRuns", self.recurring.values(), request.query)
            case "GET", "/runs":
                return 200, _page("runs", self.runs, request.query)
            case "POST", _ if name in self.recurring and order in ("disable", "enable"):
                self.recurring[name]["status"] = f"{order.upper()}D"
                return 200, {}
            case "DELETE", _ if name in self.recurring:
                del self.recurring[name]
                return 200, {}
            case "POST", "/runs/r1:terminate" | "/runs/r1:retry":
                return 200, {}
            case "GET", "/runs/r1":
                return 200, self._run()
            case "GET", "/runs/id-7":
                answer = self.recorded.pop(0) if len(self.recorded) > 1 else self.recorded[0]
                return (answer, {"error": "no"}) if isinstance(answer, int) else (200, answer)
        return 404, {"message": f"{path} not found"}

    def _run(self) -> dict[str, Any]:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        ended = self.ended[0]
        if state == "SUCCEEDED" and len(self.ended) > 1:
            self.ended.pop(0)
        recorded = {"SUCCEEDED": ended, "RUNNING": self.running, "PENDING": None}
        names = recorded.get(state, ("place_failed",))
        nodes = [] if names is None else nodes_of(*names)
        run = {"run_id": "r1", "display_name": "a run", "state": state, "run_details": {"task_details": nodes}}
        run["state_history"] = [{"state": one, "update_time": NEVER} for one in (*self.history, state)]
        return run if self.finished_at is None else {**run, "finished_at": self.finished_at.isoformat()}


def _page(kind: str, known: Iterable[dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
    """One of an experiment on each page."""
    mine = [one for one in known if one["experiment_id"] == query["experiment_id"]]
    first = int(query.get("page_token") or 0)
    more = {"next_page_token": str(first + 1)} if first + 1 < len(mine) else {}
    return {kind: mine[first : first + 1], "total_size": len(mine), **more} if mine else {}


@contextmanager
def serving(fake: FakePipelines) -> Iterator[FakePipelines]:
    """The server, on a free port of this machine."""
    with answering(fake.answer) as fake.url:
        try:
            yield fake
        finally:
            fake.ends.set()
