"""A proxy before a server that cuts connections and damages bytes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Faults:
    """What the proxy does; it may be changed while it runs.

    Attributes:
        endpoint: where the proxy listens.
        cuts: after how many bytes each next answer ends; none where it is empty.
        flip: occurrences of the first are replaced by the second, on both ways; both of one length.
        bytes_down: passed on to the client so far.
    """

    endpoint: str = ""
    cuts: list[int] = field(default_factory=list)
    flip: tuple[bytes, bytes] | None = None
    bytes_down: int = 0


@contextmanager
def faulty_network(upstream: str) -> Iterator[Faults]:
    """A proxy before ``upstream`` (http://host:port)."""
    target = urlsplit(upstream)
    with socket.create_server(("127.0.0.1", 0)) as server:
        faults = Faults(f"http://127.0.0.1:{server.getsockname()[1]}")

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = server.accept()
                    upward = socket.create_connection((target.hostname, target.port))
                    threading.Thread(target=_pass, args=(client, upward, faults, False), daemon=True).start()
                    threading.Thread(target=_pass, args=(upward, client, faults, True), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield faults
        server.shutdown(socket.SHUT_RDWR)


def _pass(source: socket.socket, sink: socket.socket, faults: Faults, down: bool) -> None:
    passed = 0
    with source, sink, suppress(OSError):
        while chunk := source.recv(1 << 16):
            if faults.flip is not None:
                chunk = chunk.replace(*faults.flip)
            if down:
                limit = faults.cuts[0] if faults.cuts else None
                chunk = chunk if limit is None else chunk[: max(0, limit - passed)]
                faults.bytes_down += len(chunk)
            sink.sendall(chunk)
            passed += len(chunk)
            if down and faults.cuts and passed >= faults.cuts[0]:
                faults.cuts.pop(0)
                break
        for one in (source, sink):
            one.shutdown(socket.SHUT_RDWR)
