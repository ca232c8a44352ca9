"""What exchanges between GPUs really go over, read off NCCL's log.

Between nodes NCCL takes InfiniBand or RoCE where a process may use it, else TCP sockets; within one, the other GPU's
memory or, where that cannot be reached, the host's. It tells only its log: a measurement over the wrong network looks
like any other. The log has a line for each connection, such as
``Channel 03/0 : 5[5] -> 12[4] [send] via NET/IB/3/GDRDMA`` or ``Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read``
(net.cc, p2p.cc and shm.cc in NVIDIA/nccl's src/transport).
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from evenshard.utils.process import environment

_CONNECTION = re.compile(r"\bvia NET/(?P<network>.+?)/\d+(?:\(\d+\))?(?P<direct>/GDRDMA)?")
_IN_NODE = re.compile(r"\bvia (?P<transport>P2P|SHM)/")
UNKNOWN = "network not known, as NCCL_DEBUG is set"
_NETWORK = "NET/"


@contextmanager
def nccl_log() -> Iterator[Path | None]:
    """A file that gets NCCL's lines about connections that this process makes inside.

    NCCL reads its settings once in a process. Where the user has set NCCL_DEBUG, its log stays theirs: None.
    """
    if "NCCL_DEBUG" in os.environ:
        yield None
        return
    handle, name = tempfile.mkstemp(prefix="evenshard-nccl-")
    os.close(handle)
    settings = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "NET,P2P,SHM", "NCCL_DEBUG_FILE": name}
    try:
        with environment(settings):
            yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def networks_in(log: Path | None) -> set[str]:
    """What a process's connections take: NET/IB/GDRDMA, NET/IB or NET/Socket between nodes, P2P or SHM within one."""
    if log is None:
        return {UNKNOWN}
    text = log.read_text(errors="replace")
    found = {f"{_NETWORK}{one['network']}{one['direct'] or ''}" for one in _CONNECTION.finditer(text)}
    return found | {one["transport"] for one in _IN_NODE.finditer(text)}


def link_of(backend: str, networks: Iterable[str]) -> str:
    """What a provenance names as the link: the backend, and the networks that any rank uses, such as nccl (NET/IB)."""
    named = ", ".join(sorted(set(networks)))
    return f"{backend} ({named})" if named else backend


def transport_problem(expected: str, backend: str, networks: Iterable[str]) -> str | None:
    """Why exchanges do not all take the network that was asked for; None if they do, or none was asked for.

    Args:
        expected: NCCL's name of the network, in capitals or not, such as ib or socket.
    """
    found = {one for one in networks if one.startswith(_NETWORK) or one == UNKNOWN}
    if not expected or (found and all(one.split("/")[1:2] == [expected] for one in map(str.lower, found))):
        return None
    if backend != "nccl":
        return f"exchanges of CPUs go through {backend}, not NET/{expected}. Leave --expect-transport out."
    if UNKNOWN in found:
        return "NCCL_DEBUG is set, so evenshard does not see which network NCCL takes. Unset it."
    taken = f"NCCL takes {', '.join(sorted(found))}" if found else "no connection of NCCL's leaves its node"
    return (
        f"{taken}, where NET/{expected} is expected. Give the pods the network's devices (k8s/trainjob-rdma does), or "
        f"leave --expect-transport out."
    )
