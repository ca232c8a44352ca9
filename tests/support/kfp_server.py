"""A server that answers like Kubeflow Pipelines' v2beta1 API, as far as evenshard asks it. It runs nothing.

What it says of runs is what Kubeflow Pipelines 2.17 said of three real ones (kubeflow_runs.json), with all nodes of
Argo's, no errors and no names of pods. Of requests it shows the shape on the wire, not that a cluster would take them.
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
from urllib.parse import parse_qs, urlsplit

import pytest

from support import http_server
from support.repository import ROOT

API = "/apis/v2beta1"
RUNS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("kubeflow_runs.json").read_text())
# 25 and 24 runs more, with faults; beside the repository, where they are at hand.
MORE_RUNS = ROOT.parent / "shared/kfp/real_runs_2.json"
RUNS_WITH_HISTORY = ROOT.parent / "shared/kfp/real_runs_3.json"
NEVER = "0001-01-01T00:00:00Z"


def more_runs() -> dict[str, dict[str, Any]]:
    """What is in ``MORE_RUNS``, in the form of ``RUNS``; skips the test where it is not at hand."""
    if not MORE_RUNS.exists():
        pytest.skip(f"no recorded runs at {MORE_RUNS.name}")
    runs = json.loads(MORE_RUNS.read_text())
    return {name: {**run, "tasks": run.pop("run_details")["task_details"]} for name, run in runs.items()}


def runs_with_history() -> list[dict[str, Any]]:
    """The runs in ``RUNS_WITH_HISTORY`` with what was done to them; skips the test where they are not at hand."""
    if not RUNS_WITH_HISTORY.exists():
        pytest.skip(f"no recorded runs at {RUNS_WITH_HISTORY.name}")
    found: list[dict[str, Any]] = json.loads(RUNS_WITH_HISTORY.read_text())
    return found


def nodes_of(run: str, clock: str = "23:59:59", ago_s: float = 0.0) -> list[dict[str, Any]]:
    """The nodes of a recorded run as they were at an hour of its day.

    Args:
        ago_s: their times are moved, so that this hour was so many seconds ago.
    """
    moment = datetime.fromisoformat(f"{RUNS[run]['created_at'][:10]}T{clock}+00:00")
    moved = datetime.now(UTC) - timedelta(seconds=ago_s) - moment

    def begun(stamp: str) -> bool:
        return stamp != NEVER and datetime.fromisoformat(stamp) <= moment

    def now(stamp: str) -> str:
        return (datetime.fromisoformat(stamp) + moved).isoformat() if begun(stamp) else NEVER

    nodes = []
    for node in RUNS[run]["tasks"]:
        states = [one for one in node.get("state_history", ()) if "state" in one and begun(one["update_time"])]
        if not begun(node["start_time"]) or ("state" in node and not states):
            continue
        times = {key: now(node[key]) for key in ("start_time", "end_time")}
        history = [{**one, "update_time": now(one["update_time"])} for one in states]
        known = {"state": states[-1]["state"], "state_history": history} if states else {}
        nodes.append({**node, **times, **known})
    return nodes


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    token: str | None
    body: Any


@dataclass
class FakePipelines:
    """What the server knows and how it misbehaves.

    Attributes:
        token: that it asks for; None for none.
        failures: statuses to answer first, one for each request, by "METHOD path"; 0: no answer until it ends.
        states: of the run, one for each look; the last stays.
        history: its states before.
        runs: of recurring runs.
        running: what ``nodes_of`` takes, for the nodes of a run that is RUNNING.
        ended: likewise, of one that has SUCCEEDED, one for each look; the last stays.
    """

    token: str | None = None
    failures: dict[str, list[int]] = field(default_factory=dict)
    states: list[str] = field(default_factory=lambda: ["SUCCEEDED"])
    history: list[str] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    running: tuple[str, str, float] = ("train_succeeded", "04:41:30", 0.0)
    ended: list[tuple[Any, ...]] = field(default_factory=lambda: [("place_succeeded",)])
    finished_at: datetime | None = None
    login_page: bool = False
    experiments: dict[str, dict[str, Any]] = field(default_factory=dict)
    recurring: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    url: str = ""
    ends: threading.Event = field(default_factory=threading.Event)

    def is_silent(self, method: str, path: str) -> bool:
        """Whether the next such request is not answered."""
        return self.failures.get(f"{method} {path.removeprefix(API)}", [])[:1] == [0]

    def asked(self, method: str, path: str) -> list[Request]:
        return [one for one in self.requests if (one.method, one.path) == (method, API + path)]

    def answer(self, request: Request) -> tuple[int, Any]:
        path = request.path.removeprefix(API)
        failures = self.failures.get(f"{request.method} {path}", [])
        if failures:
            status = failures.pop(0)
            if status == 0:
                self.ends.wait()
            return status or 200, {"message": f"told to answer {status}"}
        if self.token is not None and request.token != f"Bearer {self.token}":
            return 401, {"error": "token has expired"}
        if (request.method, path) == ("GET", "/experiments"):
            wanted = json.loads(request.query["filter"])["predicates"][0]["stringValue"]
            found = [one for one in self.experiments.values() if one["display_name"] == wanted]
            return 200, {"experiments": found, "total_size": len(found)} if found else {}
        if (request.method, path) == ("POST", "/experiments"):
            made = {**request.body, "experiment_id": f"e{len(self.experiments) + 1}"}
            self.experiments[made["experiment_id"]] = made
            return 200, made
        if (request.method, path) == ("POST", "/runs"):
            return 200, {**request.body, "run_id": "r1", "state": "PENDING"}
        if (request.method, path) == ("POST", "/recurringruns"):
            made = {**request.body, "recurring_run_id": f"rr{len(self.recurring) + 1}", "status": "ENABLED"}
            self.recurring[made["recurring_run_id"]] = made
            return 200, made
        if (request.method, path) == ("GET", "/recurringruns"):
            return 200, _page("recurringRuns", self.recurring.values(), request.query)
        if (request.method, path) == ("GET", "/runs"):
            return 200, _page("runs", self.runs, request.query)
        name, _, order = path.removeprefix("/recurringruns/").partition(":")
        if request.method == "POST" and name in self.recurring and order in ("disable", "enable"):
            self.recurring[name]["status"] = f"{order.upper()}D"
            return 200, {}
        if request.method == "DELETE" and path.removeprefix("/recurringruns/") in self.recurring:
            del self.recurring[path.removeprefix("/recurringruns/")]
            return 200, {}
        if (request.method, path) in (("POST", "/runs/r1:terminate"), ("POST", "/runs/r1:retry")):
            return 200, {}
        if (request.method, path) == ("GET", "/runs/r1"):
            return 200, self._run()
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
    """One of an experiment on each page, to whatever size it was asked for."""
    mine = [one for one in known if one["experiment_id"] == query["experiment_id"]]
    first = int(query.get("page_token") or 0)
    more = {"next_page_token": str(first + 1)} if first + 1 < len(mine) else {}
    return {kind: mine[first : first + 1], "total_size": len(mine), **more} if mine else {}


@contextmanager
def serving(fake: FakePipelines) -> Iterator[FakePipelines]:
    """The server, on a free port of this machine."""

    class Handler(http_server.Silent):
        def _answer(self) -> None:
            parts = urlsplit(self.path)
            size = int(self.headers.get("Content-Length", 0))
            request = Request(
                self.command,
                parts.path,
                {name: values[0] for name, values in parse_qs(parts.query).items()},
                self.headers.get("Authorization"),
                json.loads(self.rfile.read(size)) if size else None,
            )
            fake.requests.append(request)
            status, content = (200, "<html>log in</html>") if fake.login_page else fake.answer(request)
            body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Type", "text/html" if isinstance(content, str) else "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except ConnectionError:
                pass  # whoever asked has given up

        do_GET = do_POST = do_DELETE = _answer

    with http_server.serving(Handler) as fake.url:
        try:
            yield fake
        finally:
            fake.ends.set()
