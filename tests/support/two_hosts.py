"""Two hosts on this machine: network namespaces with a slow link between them, for torchrun on both."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PORT = 29_871  # in a namespace of its own
_RATE = "400mbit"


@dataclass(frozen=True)
class Host:
    """A network namespace.

    Attributes:
        namespace: its name.
        device: its end of the link.
        address: of that end.
    """

    namespace: str
    device: str
    address: str


class NotPermitted(Exception):
    """This machine lets nobody make namespaces, or links with a rate; says why."""


@contextmanager
def two_hosts(rate: str = _RATE) -> Iterator[tuple[Host, Host]]:
    """Two hosts, whose link takes ``rate`` in each direction; gone at the end of the block.

    Raises:
        NotPermitted: if the machine does not allow it.
    """
    own = f"es{os.getpid() % 100_000}"
    hosts = tuple(Host(f"{own}{end}", f"{own}{end}", f"10.201.0.{number}") for number, end in ((1, "a"), (2, "b")))
    first, second = hosts
    try:
        for host in hosts:
            _ip("netns", "add", host.namespace)
        _ip("link", "add", first.device, "netns", first.namespace, "type", "veth", "peer", "name", second.device,
            "netns", second.namespace)  # fmt: skip
        for host in hosts:
            _ip("-n", host.namespace, "link", "set", "lo", "up")
            _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", host.device)
            _ip("-n", host.namespace, "link", "set", host.device, "up")
            _run(["ip", "netns", "exec", host.namespace, "tc", "qdisc", "add", "dev", host.device, "root", "tbf",
                  "rate", rate, "burst", "64kb", "latency", "100ms"])  # fmt: skip
        yield first, second
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True, check=False)


def torchrun_on(hosts: Sequence[Host], per_host: int, command: Sequence[str], cwd: Path, seconds: float) -> str:
    """Runs torchrun on every host and returns what the first one printed.

    Raises:
        AssertionError: if one fails; with its error output.
    """
    processes = [
        subprocess.Popen(
            ["ip", "netns", "exec", host.namespace, sys.executable, "-m", "torch.distributed.run", "--nnodes",
             str(len(hosts)), "--node-rank", str(number), "--nproc-per-node", str(per_host), "--master-addr",
             hosts[0].address, "--master-port", str(_PORT), *command],
            cwd=cwd, env={**os.environ, "GLOO_SOCKET_IFNAME": host.device, "TP_SOCKET_IFNAME": host.device},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number, host in enumerate(hosts)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, said, strict=True):
        assert process.returncode == 0, errors
    return said[0][0]


def _ip(*arguments: str) -> None:
    _run(["ip", *arguments])


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NotPermitted(f"{command[0]} is not installed (apt-get install iproute2)") from None
    if done.returncode:
        raise NotPermitted(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1:] or 'refused'}")
