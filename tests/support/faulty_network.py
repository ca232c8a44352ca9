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
    """The proxy's address, after how many bytes each next answer ends, and bytes replaced by others of their length."""

    endpoint: str
    cuts: list[int] = field(default_factory=list)
    flip: tuple[bytes, bytes] = (b"", b"")


@contextmanager
def faulty_network(upstream: str) -> Iterator[Faults]:
    """Start a proxy before ``upstream``; its faults may be changed while it runs."""
    target = urlsplit(upstream)
    with socket.create_server(("127.0.0.1", 0)) as server:
        faults = Faults(f"http://127.0.0.1:{server.getsockname()[1]}")

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = server.accept()
                    upward = socket.create_connection((target.hostname, target.port))
                    for ends in ((client, upward, faults, False), (upward, client, faults, True)):
                        threading.Thread(target=_pass, args=ends, daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield faults
        server.shutdown(socket.SHUT_RDWR)


def _pass(source: socket.socket, sink: socket.socket, faults: Faults, down: bool) -> None:
    passed = 0
    with source, sink, suppress(OSError):
        while chunk := source.recv(1 << 16):
            chunk = chunk.replace(*faults.flip) if faults.flip[0] else chunk
            is_cut = down and bool(faults.cuts) and passed + len(chunk) >= faults.cuts[0]
            sink.sendall(chunk[: faults.cuts[0] - passed] if is_cut else chunk)
            passed += len(chunk)
            if is_cut:
                faults.cuts.pop(0)
                break
        for one in (source, sink):
            one.shutdown(socket.SHUT_RDWR)
