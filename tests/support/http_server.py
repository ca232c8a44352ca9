"""An HTTP server inside of a test, on a free port, that ends with it."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Silent(BaseHTTPRequestHandler):
    """Logs nothing."""

    def log_message(self, *args: object) -> None:
        """See ``http.server``."""


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
class Hanging:
    """A server that takes connections and says nothing.

    Attributes:
        port: where it listens, on 127.0.0.1.
        taken: the connections so far.
    """

    port: int
    taken: list[socket.socket] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def hanging() -> Iterator[Hanging]:
    """Such a server, which ends with the block."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        state = Hanging(server.getsockname()[1])

        def take() -> None:
            with suppress(OSError):
                while True:
                    state.taken.append(server.accept()[0])

        threading.Thread(target=take, daemon=True).start()
        try:
            yield state
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for one in state.taken:
                one.close()
