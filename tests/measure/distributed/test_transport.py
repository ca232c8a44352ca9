"""The network that NCCL took, from its log. No GPU was at hand: lines are as its source and users' logs have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evenshard.measure.distributed.ranks import UNKNOWN, nccl_log, networks_in, transport_problem

START = "node-1:20:289 [0] NCCL INFO "
# Lines that name a network which is there, but which no connection takes.
OTHERS = (
    "NET/Plugin : No plugin found (libnccl-net.so), using internal implementation",
    "NET/IB : Using [0]mlx5_0:1/IB ; OOB ib0:192.168.11.1<0>",
    "NET/Socket : Using [0]ib0:192.168.11.1<0>",
    "Ring 00 : 0[1b000] -> 7[41000] via direct shared memory",
)


def test_networks_are_those_of_connections(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for connections, networks in (
        ((), set()),
        (("Channel 03/0 : 5[5] -> 12[4] [send] via NET/IB/3",), {"NET/IB"}),
        (("Channel 00/0 : 7[7] -> 6[6] via P2P/direct pointer/read",), {"P2P"}),
        (
            ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "Channel 00 : 1[1] -> 2[2] via SHM/direct/direct"),
            {"P2P", "SHM"},
        ),
        (("Ring 00 : 15[41000] -> 0[1b000] [receive] via NET/Socket/0",), {"NET/Socket"}),
        (("Channel 00/0 : 0[0] -> 9[1] [send] via NET/IB/1(1)/GDRDMA(PCI)/Shared",), {"NET/IB/GDRDMA"}),
        (("Channel 00/0 : 8[0] -> 0[0] [receive] via NET/AWS Libfabric/0/GDRDMA",), {"NET/AWS Libfabric/GDRDMA"}),
    ):
        log.write_text("".join(f"{START}{line}\n" for line in (*OTHERS, *connections)))
        assert networks_in(log) == networks


def test_nccl_is_told_to_log_unless_the_user_has_said_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    with nccl_log() as log:
        assert log is not None and log.exists() and os.environ["NCCL_DEBUG_FILE"] == str(log)
        assert (os.environ["NCCL_DEBUG"], os.environ["NCCL_DEBUG_SUBSYS"]) == ("INFO", "NET,P2P,SHM")
    assert not log.exists() and "NCCL_DEBUG" not in os.environ and "NCCL_DEBUG_FILE" not in os.environ
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    with nccl_log() as log:
        assert log is None and networks_in(log) == {UNKNOWN} and "NCCL_DEBUG_FILE" not in os.environ


def test_another_network_than_the_expected_one_is_a_problem() -> None:
    for expected, backend, networks, why in (
        ("", "nccl", {"NET/Socket"}, None),
        ("ib", "nccl", {"NET/IB", "NET/IB/GDRDMA"}, None),
        ("aws libfabric", "nccl", {"NET/AWS Libfabric/GDRDMA"}, None),
        ("ib", "nccl", {"NET/Socket"}, "NCCL uses NET/Socket, but NET/ib is expected."),
        ("ib", "nccl", {"NET/IB", "NET/Socket"}, "NCCL uses NET/IB, NET/Socket, but"),
        ("ib", "nccl", {"NET/IB", "P2P", "SHM"}, None),
        ("ib", "nccl", {"P2P"}, "no NCCL connection leaves its node, but"),
        ("ib", "nccl", {UNKNOWN}, "NCCL_DEBUG is set"),
        ("ib", "gloo", set(), "through gloo, not NET/ib."),
    ):
        found = transport_problem(expected, backend, networks)
        assert found is None if why is None else why in str(found)
