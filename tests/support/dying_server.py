"""A proxy that counts requests and lets the server behind it die at one request and no other.

The request at which it shall stop, it loses, or hands on whole and loses the answer, or hands on half and kills the
real server. From then on it answers no request, until it shall go on.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from support.http_server import Silent, serving
from support.patience import PATIENCE_S

REQUEST, ANSWER, MIDDLE = "request", "answer", "middle"


@dataclass
class Dying:
    """What the proxy does; it may be changed while it runs.

    Attributes:
        url: where it listens.
        stop_at: number of the request to stop at, counted from 1; None never stops.
        counts: which requests count, by method and path; all others pass.
        lost: what is lost of that request: REQUEST, ANSWER or MIDDLE (half of its body).
        kill: called in the MIDDLE.
        requests: method and path of those that counted.
        dead: whether it has stopped.
        pause_s: seconds that it lets pass before it hands on a request that counts.
    """

    url: str = ""
    stop_at: int | None = None
    counts: Callable[[str, str], bool] = lambda method, path: True
    lost: str = ANSWER
    kill: Callable[[], None] = lambda: None
    requests: list[tuple[str, str]] = field(default_factory=list)
    dead: bool = False
    pause_s: float = 0.0

    def go_on(self) -> None:
        """Passes everything from now on."""
        self.stop_at, self.dead = None, False


@contextmanager
def dying(upstream: str) -> Iterator[Dying]:
    """A proxy before ``upstream`` (http://host:port)."""
    target, state, lock = urlsplit(upstream), Dying(), threading.Lock()

    class Handler(Silent):
        protocol_version = "HTTP/1.1"  # answers "Expect: 100-continue", which S3 clients wait for

        def _pass_on(self) -> None:
            with lock:
                if state.dead:
                    return
                counts = state.counts(self.command, self.path)
                if counts:
                    state.requests.append((self.command, self.path))
                    state.dead = len(state.requests) == state.stop_at
                stops = state.dead
            if stops and state.lost == REQUEST:
                return
            if counts:
                time.sleep(state.pause_s)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with closing(
                http.client.HTTPConnection(target.hostname or "", target.port, timeout=PATIENCE_S)
            ) as to_server:
                self._exchange(to_server, body, stops)

        def _exchange(self, to_server: http.client.HTTPConnection, body: bytes, stops: bool) -> None:
            to_server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "expect"):
                    to_server.putheader(name, value)
            to_server.putheader("Connection", "close")
            to_server.endheaders()
            if stops and state.lost == MIDDLE:
                to_server.send(body[: len(body) // 2])
                state.kill()
                return
            to_server.send(body)
            answer = to_server.getresponse()
            content = answer.read()
            if stops:
                return
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length or "0")
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(content)

        def _answer(self) -> None:
            with suppress(OSError, http.client.HTTPException):
                self._pass_on()
            self.close_connection = True

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _answer

    with serving(Handler) as state.url:
        yield state
