"""A server that answers like Kubeflow Pipelines' v2beta1 API, as far as evenshard asks it. It runs nothing.

It shows the shape of requests on the wire, not that a cluster would accept them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import http_serving

API = "/apis/v2beta1"


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
        failures: statuses to answer first, one for each request, by "METHOD path"; 0 stays silent for a second.
        states: of the run, one for each look; the last stays.
        error: of the run.
    """

    token: str | None = None
    failures: dict[str, list[int]] = field(default_factory=dict)
    states: list[str] = field(default_factory=lambda: ["SUCCEEDED"])
    error: str | None = None
    login_page: bool = False
    experiments: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    url: str = ""

    def asked(self, method: str, path: str) -> list[Request]:
        return [one for one in self.requests if (one.method, one.path) == (method, API + path)]

    def answer(self, request: Request) -> tuple[int, Any]:
        path = request.path.removeprefix(API)
        failures = self.failures.get(f"{request.method} {path}", [])
        if failures:
            status = failures.pop(0)
            time.sleep(1.0 if status == 0 else 0.0)
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
            return 200, {**request.body, "recurring_run_id": "rr1"}
        if (request.method, path) == ("GET", "/runs/r1"):
            return 200, self._run()
        return 404, {"message": f"{path} not found"}

    def _run(self) -> dict[str, Any]:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        tasks = [{"display_name": "loop", "state": state}, {"display_name": "record-outcome", "state": "SUCCEEDED"}]
        run = {"run_id": "r1", "display_name": "a run", "state": state, "run_details": {"task_details": tasks}}
        return {**run, "error": {"code": 9, "message": self.error}} if self.error else run


@contextmanager
def serving(fake: FakePipelines) -> Iterator[FakePipelines]:
    """The server, on a free port of this machine."""

    class Handler(http_serving.Silent):
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

        do_GET = do_POST = _answer

    with http_serving.serving(Handler) as fake.url:
        yield fake
