"""HTTP servers inside of a test, on a free port, that end with it."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Silent(BaseHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Logs nothing."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serves in threads, by TLS if that is given; yields the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]  # the first value of each word
    token: str | None
    body: Any  # as read from JSON


@contextmanager
def answering(answer: Callable[[Request], tuple[int, Any]], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serves what a function answers to each request: a status, and a text or what becomes JSON."""

    class Handler(Silent):
        def _answer(self) -> None:
            parts, size = urlsplit(self.path), int(self.headers.get("Content-Length", 0))
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            body = json.loads(self.rfile.read(size)) if size else None
            request = Request(self.command, parts.path, query, self.headers.get("Authorization"), body)
            status, said = answer(request)
            content = (said if isinstance(said, str) else json.dumps(said)).encode()
            with suppress(ConnectionError):  # whoever asked has given up
                self.send_response(status)
                self.send_header("Content-Type", "text/plain" if isinstance(said, str) else "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_POST = do_DELETE = _answer

    with serving(Handler, tls) as url:
        yield url


@contextmanager
def hanging() -> Iterator[socket.socket]:
    """A listener that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def num_taken(server: socket.socket) -> int:
    """Connections to a listener since it was last asked."""
    with suppress(BlockingIOError):
        server.accept()[0].close()
        return 1 + num_taken(server)
    return 0
