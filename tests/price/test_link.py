"""The all-to-all model: hand-computable exchanges of named links, and who waits for whom before them."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evenshard.base.errors import BadConfig, BadFile
from evenshard.placement.nodes import Nodes
from evenshard.placement.sharding import TABLE_WISE
from evenshard.placement.task import ShardingTask
from evenshard.price.collectives import Links, Volumes, all_reduce_bytes, all_to_all_ms, exchange_times, transfer_ms
from evenshard.price.link import ALIASES, LINKS, link, link_name, resolve_link, warn_beyond_span
from evenshard.price.link_model import ALL_REDUCE, Link
from support.truth import truth_file

PLAIN = Link(latency_us=0.0, bandwidth_gb_s=1.0, source="by hand")
SHARED = Link(0.0, "by hand", bandwidth_gb_s=1.0, slowest_gb_s=2.0, shared_gb_s=10.0)
SLOW_START = Link(latency_us=500.0, bandwidth_gb_s=1.0, source="by hand")
FOUR_MS = (24e-3, 9e-3, 10e-3, 11e-3)


@pytest.mark.parametrize(
    ("found", "dims", "batch_size", "expected_ms"),
    [
        # 500,000 samples each. Device 0 sends 3 values of 4 bytes for the other's half and receives 1: 6 MB at 1 GB/s.
        # Device 1 sends 1 value and receives 3: the busier direction takes as long.
        (PLAIN, [3, 1], 1_000_000, (6.0, 6.0)),
        # 250 samples each, 4 bytes a value: 1000 bytes per unit of dim and peer, 1 us per 1000 bytes. Device 0 sends 8
        # to each of 3 and receives 3; device 1 sends 2 to each, 6, and receives 9; device 3 only receives.
        (PLAIN, [8, 2, 1, 0], 1000, FOUR_MS),
        # Beside the bytes of their own at 1 GB/s, 24 kB of the slowest at 2, and 33 of all at 10.
        (SHARED, [8, 2, 1, 0], 1000, [ms + 12e-3 + 3.3e-3 for ms in FOUR_MS]),
        (SLOW_START, [3, 1], 1_000_000, (6.5, 6.5)),
        (SLOW_START, [0, 0], 1_000_000, (0.5, 0.5)),  # once per exchange, of no bytes too
        (SLOW_START, [64], 4096, (0.0,)),  # one device exchanges nothing and waits for nobody
    ],
)
def test_exchanges_by_hand(found: Link, dims: list[int], batch_size: int, expected_ms: Sequence[float]) -> None:
    assert all_to_all_ms(found, dims, batch_size) == pytest.approx(expected_ms)


def test_bus_bandwidth_is_that_of_an_even_exchange() -> None:
    """Of buffers of 4 x 1 MB each device sends 3: the bytes that nccl-tests divides by the time."""
    ms = all_to_all_ms(SHARED, [1] * 4, 1_000_000)[0]
    assert SHARED.even_gb_s(4) == pytest.approx(3e6 / (ms * 1e6)) == pytest.approx(1 / (1 + 0.5 + 0.4))
    assert LINKS["nvlink_a100"].even_gb_s(8) == pytest.approx(210, rel=0.05)


def test_each_link_is_named_sourced_and_physical() -> None:
    for name, found in LINKS.items():
        assert found is link(name) and found.source
        assert 0 < found.latency_us < 1000 and 0 < found.even_gb_s(2) < 1000 and 0.9 < found.forward_share <= 1
        assert not any(one.problem() for one in found.evidence)


def test_a_link_may_be_called_by_another_name_and_a_misspelt_one_is_refused() -> None:
    for name, meant in (("ib_400g", "infiniband_ndr"), ("IB-200G", "infiniband_hdr"), ("nvlink-h200", "nvlink_h200")):
        assert link_name(name) == meant and link(name) is LINKS[meant]
    assert set(ALIASES.values()) <= set(LINKS) and link_name("mine.yaml") == "mine.yaml"
    with pytest.raises(BadConfig, match=r"link is 'carrier_pigeon'.*ethernet_25g"):
        link("carrier_pigeon")
    with pytest.raises(BadConfig, match=r"^link is 'nvlink_h10'\. Did you mean nvlink_h100 or nvlink_\w+\?"):
        link("nvlink_h10")


def test_auto_is_an_affordable_network() -> None:
    assert resolve_link("auto") == "ethernet_25g" and resolve_link("auto", "nvlink_a100") == "nvlink_a100"
    assert resolve_link("pcie3_host", "nvlink_a100") == "pcie3_host"


CALIBRATED = """\
latency_us: {value: 17.5, source: by hand}
bandwidth_gb_s: {value: 2, source: by hand}
source: two machines and a cable
"""


def test_a_link_can_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    for more, expected in (
        ("", {}),
        ("spans: {value: 4, source: a cable each}\n", {"spans": 4}),
        ("slowest_gb_s: {value: 3, source: by hand}\nshared_gb_s: {value: 9, source: by hand}\n",
         {"slowest_gb_s": 3.0, "shared_gb_s": 9.0}),
    ):  # fmt: skip
        path.write_text(CALIBRATED + more)
        plain = Link(17.5, "two machines and a cable", bandwidth_gb_s=2.0)
        assert link(str(path)) == replace(plain, **expected) and plain.spans == math.inf


def test_a_file_that_is_no_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    with pytest.raises(BadFile, match=r"mine\.yaml: no such file"):
        link(str(path))
    bandwidth = "bandwidth_gb_s: {value: 2, source: by hand}\n"
    for old, new, why in (
        ("bandwidth_gb_s", "bandwidth_mb_s", "'bandwidth_mb_s' is unknown"),
        ("value: 17.5", "value: -17.5", r"latency_us is -17\.5"),
        ("value: 2", "value: 0", "bandwidth_gb_s is 0"),
        (bandwidth, "", "sets none of the bandwidths bandwidth_gb_s, slowest_gb_s, shared_gb_s"),
    ):
        path.write_text(CALIBRATED.replace(old, new))
        with pytest.raises(BadFile, match=why):
            link(str(path))


def test_more_devices_than_a_link_connects_are_told() -> None:
    said = warn_beyond_span("nvlink_h200", 16)
    assert said is not None
    assert said.startswith("16 devices are priced as one node, with 309 GB/s per device and direction, ")
    assert "but nvlink_h200 connects only 8 devices. Communication between nodes is slower" in said
    assert warn_beyond_span("nvlink_h200", 8) is None and warn_beyond_span("nvlink_h200", 9) is not None


def assert_evidence(found: Link, errors: np.ndarray, num_held_out: int) -> None:
    (evidence,) = found.evidence
    assert evidence.held_out == num_held_out
    assert evidence.median_error_percent == pytest.approx(100 * np.median(errors), abs=0.06)
    assert evidence.p90_error_percent == pytest.approx(100 * np.percentile(errors, 90), abs=0.06)


def test_exchanges_of_four_2080_ti_that_are_not_in_the_fit() -> None:
    """Every second plan; the first half is in the fit."""
    with truth_file("rtx_2080_ti_all_to_all.csv").open() as file:
        rows = np.array([[float(cell) for cell in row] for row in list(csv.reader(file))[1:]])[1::2]
    dims, starts, forward, backward = (rows[:, first : first + 4] for first in (0, 4, 8, 12))
    waits = starts.max(axis=1, keepdims=True) - starts
    found = LINKS["pcie3_host"]
    times = all_to_all_ms(found, dims, 65_536)
    backward_errors = np.abs(times / backward - 1)
    forward_errors = np.abs(found.forward_share * times / (forward - waits) - 1)
    assert np.median(backward_errors) < 0.007 and np.percentile(backward_errors, 90) < 0.06
    assert np.median(forward_errors) < 0.018
    both = np.concatenate([backward_errors, forward_errors])
    assert_evidence(found, both, num_held_out=len(rows))


def points_of(gpu: str, what: str) -> list[dict[str, str]]:
    """The points of a GPU whose description begins like that."""
    with truth_file("gpu_points.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["gpu"].startswith(gpu) and row["what"].startswith(what)]


def even_us(name: str, buffer_bytes: float, devices: int) -> float:
    """One value of each sample on each device."""
    return 1e3 * float(all_to_all_ms(link(name), [1] * devices, int(buffer_bytes / 4))[0])


@pytest.mark.parametrize("gpu", ["a100", "h100", "b200"])
def test_bus_bandwidths_are_those_that_nvidia_shows(gpu: str) -> None:
    (point,) = points_of(f"8 x {gpu.upper()}", "NCCL all-to-all bus bandwidth")
    assert link(f"nvlink_{gpu}").even_gb_s(8) == pytest.approx(float(point["bw_gb_s"]), rel=0.07)


def nodes_us(intra: str, inter: str, buffer_bytes: float, devices: int) -> float:
    """One value of each sample on each device of nodes of 8."""
    machine = Nodes(devices, 8, inter=inter)
    task = ShardingTask((), machine, (10**9,) * devices, int(buffer_bytes / 4))
    volumes = Volumes.empty(devices)
    volumes.sent[:] = 1.0
    volumes.collectives.add(("", TABLE_WISE))
    times = exchange_times(task, volumes, Links(link(intra), link(inter)))
    return 1e3 * float(times.backward[0])


def test_bus_bandwidths_of_four_nodes_are_those_that_nvidia_shows() -> None:
    """24 of 31 peers are on other nodes; as one tier, the slow link alone, an exchange takes longer."""
    for intra, inter, gpu in (("nvlink_a100", "infiniband_hdr", "A100"), ("nvlink_h100", "infiniband_ndr", "H100")):
        (point,) = points_of(f"32 x {gpu}", "NCCL all-to-all bus bandwidth")
        moved_kb = 4e6 * 31 / 32
        assert moved_kb / nodes_us(intra, inter, 4e9, 32) == pytest.approx(float(point["bw_gb_s"]), rel=0.06)
        assert moved_kb / even_us(inter, 4e9, 32) < float(point["bw_gb_s"])


def test_without_peer_to_peer_pcie_5_is_twice_as_fast() -> None:
    assert link("pcie5_host").even_gb_s(8) == pytest.approx(2 * link("pcie4_host").even_gb_s(8))


def test_an_all_reduce_of_two_nodes_takes_as_long_as_published() -> None:
    """1 MB on 2 x 8 H100 takes 87 us; the rule is a little high."""
    machine, links = Nodes(16, 8, inter="infiniband_ndr"), Links(link("nvlink_h100"), link("infiniband_ndr"))
    moved = all_reduce_bytes(machine, np.full(16, 2.0**20))
    took_ms = links.widest.latency_ms(16, ALL_REDUCE) + transfer_ms(machine, moved, links)[0]
    assert took_ms == pytest.approx(0.087, rel=0.12)
