"""The all-to-all model: hand-computable exchanges of named links, and who waits for whom before them."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.base.errors import BadConfig, BadFile
from evenshard.placement.nodes import Nodes
from evenshard.placement.sharding import TABLE_WISE
from evenshard.placement.task import ShardingTask
from evenshard.price.collectives import Links, Volumes, all_to_all_ms, exchange_times
from evenshard.price.link import ALIASES, LINKS, is_modelled, link, link_name, resolve_link, warn_beyond_span
from evenshard.price.link_model import Link
from support.truth import truth_file

PLAIN = Link(latency_us=0.0, bandwidth_gb_s=1.0, source="by hand")


def test_two_devices_by_hand() -> None:
    """500,000 samples each. Device 0 sends 3 values of 4 bytes for the other's half and receives 1: 6 MB at 1 GB/s.

    Device 1 sends 1 value and receives 3: the busier direction takes as long.
    """
    assert all_to_all_ms(PLAIN, [3, 1], 1_000_000) == pytest.approx((6.0, 6.0))


def test_four_devices_by_hand() -> None:
    """250 samples each, 4 bytes a value: 1000 bytes per unit of dim and peer, 1 us per 1000 bytes.

    Device 0 sends 8 to each of 3 and receives 3; device 1 sends 2 to each, 6, and receives 9; device 3 only receives.
    """
    found = all_to_all_ms(PLAIN, [8, 2, 1, 0], 1000)
    assert found == pytest.approx((24e-3, 9e-3, 10e-3, 11e-3))


def test_latency_is_paid_once_per_exchange_in_microseconds() -> None:
    slow_start = Link(latency_us=500.0, bandwidth_gb_s=1.0, source="by hand")
    assert all_to_all_ms(slow_start, [3, 1], 1_000_000) == pytest.approx((6.5, 6.5))
    assert all_to_all_ms(slow_start, [0, 0], 1_000_000) == pytest.approx((0.5, 0.5))


def test_one_device_exchanges_nothing_and_waits_for_nobody() -> None:
    assert all_to_all_ms(Link(500.0, "by hand", bandwidth_gb_s=1.0), [64], 4096).tolist() == [0.0]


def test_twice_the_bandwidth_takes_half_the_time() -> None:
    twice = all_to_all_ms(Link(0.0, "by hand", bandwidth_gb_s=2.0), [8, 2, 1], 3000)
    assert twice == pytest.approx([ms / 2 for ms in all_to_all_ms(PLAIN, [8, 2, 1], 3000)])


@settings(deadline=None)
@given(dims=st.lists(st.integers(0, 500), min_size=2, max_size=8), data=st.data())
def test_renamed_devices_swap_their_times(dims: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(dims))))
    times = all_to_all_ms(LINKS["pcie3_host"], dims, 512)
    renamed = all_to_all_ms(LINKS["pcie3_host"], [dims[d] for d in order], 512)
    assert renamed == pytest.approx(times[order], rel=1e-12)


@settings(deadline=None)
@given(share=st.integers(1, 100), devices=st.integers(2, 8))
def test_even_dims_are_the_fastest_split(share: int, devices: int) -> None:
    even = all_to_all_ms(PLAIN, [share] * devices, 512)
    uneven = all_to_all_ms(PLAIN, [share + 1, *[share] * (devices - 2), share - 1], 512)
    assert len(set(even)) == 1 and max(uneven) > max(even)


SHARED = Link(0.0, "by hand", bandwidth_gb_s=1.0, slowest_gb_s=2.0, shared_gb_s=10.0)


def test_own_slowest_and_shared_bytes_by_hand() -> None:
    """The devices above: 24, 9, 10 and 11 kB of their own at 1 GB/s, 24 kB of the slowest at 2, 33 of all at 10."""
    own = (24e-3, 9e-3, 10e-3, 11e-3)
    assert all_to_all_ms(SHARED, [8, 2, 1, 0], 1000) == pytest.approx([ms + 12e-3 + 3.3e-3 for ms in own])


def test_bus_bandwidth_is_that_of_an_even_exchange() -> None:
    """Of buffers of 4 x 1 MB each device sends 3: the bytes that nccl-tests divides by the time."""
    ms = all_to_all_ms(SHARED, [1] * 4, 1_000_000)[0]
    assert SHARED.even_gb_s(4) == pytest.approx(3e6 / (ms * 1e6)) == pytest.approx(1 / (1 + 0.5 + 0.4))
    assert LINKS["nvlink_a100"].even_gb_s(8) == pytest.approx(210, rel=0.05)


@pytest.mark.parametrize("name", sorted(LINKS))
def test_each_link_is_named_sourced_and_physical(name: str) -> None:
    found = link(name)
    assert found is LINKS[name] and found.source
    assert 0 < found.latency_us < 1000 and 0 < found.even_gb_s(2) < 1000 and 0.9 < found.forward_share <= 1
    assert not any(one.problem() for one in found.evidence)


dims_of_devices = st.lists(st.integers(0, 500), min_size=2, max_size=8)


@settings(deadline=None)
@given(name=st.sampled_from(sorted(LINKS)), dims=dims_of_devices, data=st.data())
def test_more_dims_never_make_the_slowest_exchange_faster(name: str, dims: list[int], data: st.DataObject) -> None:
    found, device = LINKS[name], data.draw(st.integers(0, len(dims) - 1))
    more = [own + (number == device) for number, own in enumerate(dims)]
    before, after = all_to_all_ms(found, dims, 512), all_to_all_ms(found, more, 512)
    assert max(after) >= max(before) * (1 - 1e-12) and after[device] >= before[device] * (1 - 1e-12)


@settings(deadline=None)
@given(name=st.sampled_from(sorted(LINKS)), dims=dims_of_devices)
def test_twice_the_batch_takes_twice_the_bytes_of_a_straight_link(name: str, dims: list[int]) -> None:
    if LINKS[name].curves:
        return
    fixed_ms = LINKS[name].latency_us / 1e3
    once, twice = (all_to_all_ms(LINKS[name], dims, batch) - fixed_ms for batch in (512, 1024))
    assert twice == pytest.approx(2 * once, abs=1e-9)


def test_line_rates_in_bits_become_bytes() -> None:
    assert (link("ethernet_10g").bandwidth_gb_s, link("ethernet_25g").bandwidth_gb_s) == (10 / 8, 25 / 8)
    assert link("ethernet_1g").bandwidth_gb_s == 1 / 8
    assert link("infiniband_hdr").bandwidth_gb_s < 200 / 8 and link("infiniband_ndr").bandwidth_gb_s < 400 / 8


def test_an_unknown_link_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadConfig, match=r"link is 'carrier_pigeon'.*ethernet_25g"):
        link("carrier_pigeon")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("ib_400g", "infiniband_ndr"), ("IB-200G", "infiniband_hdr"), ("h100_nvlink", "nvlink_h100"),
     ("v100_dgx1_nvlink", "nvlink_v100_dgx1"), ("nvlink-h200", "nvlink_h200")],
)  # fmt: skip
def test_a_link_may_be_called_by_another_name(name: str, meant: str) -> None:
    assert link_name(name) == meant and link(name) is LINKS[meant]


def test_other_names_are_of_links_and_of_no_other() -> None:
    assert set(ALIASES.values()) <= set(LINKS) and not set(ALIASES) & set(LINKS)
    assert link_name("mine.yaml") == "mine.yaml"


def test_a_misspelt_link_is_refused_with_the_nearest_ones() -> None:
    with pytest.raises(
        BadConfig, match=r"^link is 'nvlink_h10'\. Did you mean nvlink_h100 or nvlink_\w+\? Use one of "
    ):
        link("nvlink_h10")


def test_auto_is_an_affordable_network() -> None:
    assert resolve_link("auto") == "ethernet_25g" and resolve_link("auto", "nvlink_a100") == "nvlink_a100"
    assert resolve_link("pcie3_host", "nvlink_a100") == "pcie3_host"


# Links of one's own --------------------------------------------------------------------------------------------------

CALIBRATED = """\
latency_us: {value: 17.5, source: by hand}
bandwidth_gb_s: {value: 2, source: by hand}
source: two machines and a cable
"""


@pytest.mark.parametrize("name", ["mine.yaml", "mine.yml"])
def test_a_link_can_come_from_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(CALIBRATED)
    assert link(str(tmp_path / name)) == Link(17.5, "two machines and a cable", bandwidth_gb_s=2.0)


def test_a_file_that_is_no_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    with pytest.raises(BadFile, match=r"mine\.yaml: no such file"):
        link(str(path))
    path.write_text(CALIBRATED.replace("bandwidth_gb_s", "bandwidth_mb_s"))
    with pytest.raises(BadFile, match="'bandwidth_mb_s' is unknown"):
        link(str(path))
    path.write_text(CALIBRATED.replace("value: 17.5", "value: -17.5"))
    with pytest.raises(BadFile, match=r"latency_us is -17\.5"):
        link(str(path))


# More devices than it connects --------------------------------------------------------------------------------------


def test_more_devices_than_a_link_connects_are_told() -> None:
    said = warn_beyond_span("nvlink_h200", 16)
    assert said is not None
    assert said.startswith("16 devices are priced as one node, with 309 GB/s per device and direction, ")
    assert "but nvlink_h200 connects only 8 devices. Communication between nodes is slower" in said
    assert warn_beyond_span("nvlink_h200", 8) is None and warn_beyond_span("nvlink_h200", 9) is not None


def test_links_inside_of_a_node_span_it_and_networks_any_number() -> None:
    spans = {name: found.spans for name, found in LINKS.items()}
    assert {name for name, span in spans.items() if span == 8} == {
        "pcie3_host", "pcie4", "pcie5", "nvlink_a100", "nvlink_h100", "nvlink_h200", "nvlink_b200", "nvlink_b300",
        "infinity_fabric_mi300x", "infinity_fabric_mi350x",
    }  # fmt: skip
    assert (spans["nvlink_v100_dgx1"], spans["nvlink_v100"]) == (4, 16)  # half a DGX-1; a DGX-2
    assert warn_beyond_span("ethernet_25g", 10**6) is None


def test_of_other_links_nothing_is_said() -> None:
    assert (
        warn_beyond_span("mine.yaml", 1000) is None
        and warn_beyond_span("nccl", 1000) is None
        and warn_beyond_span("", 9) is None
    )


def test_what_really_exchanged_is_not_modelled() -> None:
    assert [is_modelled(name) for name in ("gloo", "nccl", "ethernet_25g", "mine.yaml")] == [False, False, True, True]


def test_a_link_of_a_file_may_say_what_it_connects(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(CALIBRATED + "spans: {value: 4, source: a cable each}\n")
    assert link(str(tmp_path / "mine.yaml")).spans == 4
    (tmp_path / "mine.yaml").write_text(CALIBRATED)
    assert link(str(tmp_path / "mine.yaml")).spans == math.inf


def test_a_link_that_carries_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "dead.yaml"
    path.write_text(
        "latency_us: {value: 10, source: by hand}\nbandwidth_gb_s: {value: 0, source: by hand}\nsource: by hand\n"
    )
    with pytest.raises(BadFile, match="bandwidth_gb_s is 0"):
        link(str(path))
    path.write_text("latency_us: {value: 10, source: by hand}\nsource: by hand\n")
    with pytest.raises(BadFile, match="sets none of the bandwidths bandwidth_gb_s, slowest_gb_s, shared_gb_s"):
        link(str(path))


def test_a_file_may_have_terms_of_the_slowest_device_and_of_all(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "latency_us: {value: 10, source: by hand}\nslowest_gb_s: {value: 3, source: by hand}\n"
        "shared_gb_s: {value: 9, source: by hand}\nsource: by hand\n"
    )
    assert link(str(path)) == Link(10.0, "by hand", slowest_gb_s=3.0, shared_gb_s=9.0)


# Measured by others --------------------------------------------------------------------------------------------------


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


def test_exchanges_of_half_a_dgx1_that_are_not_in_the_fit() -> None:
    """Buffers of 2 MB to 2 GB, then of one table of 32 to 256 dims at batch 256; every second one is in the fit."""
    large = points_of("4 x V100", "PARAM all_to_all, ")
    large = [row for row in large if row["what"].endswith(" bytes")]
    small = points_of("4 x V100", "all_to_all, batch 256")
    sizes = [float(row["what"].split()[-2]) for row in large] + [
        256 * 4 * float(row["what"].split()[-1]) for row in small
    ]
    times = np.array([float(row["total_us"]) for row in large + small])
    found = link("nvlink_v100_dgx1")
    errors = np.abs(np.array([even_us("nvlink_v100_dgx1", size, 4) for size in sizes]) / times - 1)
    assert len(errors) == 15 and errors.max() < 0.06
    assert_evidence(found, errors[1::2], num_held_out=7)
    of_a_dgx2 = np.array([even_us("nvlink_v100", size, 4) for size in sizes])
    assert np.median(of_a_dgx2 / times) < 0.65


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("nvlink_a100", "8 x A100"),
        ("nvlink_h100", "8 x H100"),
        ("nvlink_h200", "8 x H100"),
        ("nvlink_b200", "8 x B200"),
    ],
)
def test_bus_bandwidths_are_those_that_nvidia_shows(name: str, gpu: str) -> None:
    (point,) = points_of(gpu, "NCCL all-to-all bus bandwidth")
    devices = int(gpu.split()[0])
    assert link(name).even_gb_s(devices) == pytest.approx(float(point["bw_gb_s"]), rel=0.07)


def test_an_exchange_of_four_h100() -> None:
    """By someone else than the curves, on another machine: 335 GB/s, where NVIDIA's nccl-tests have 285."""
    (h100,) = points_of("4 x H100", "all-to-all")
    assert even_us("nvlink_h100", 524_288_000, 4) == pytest.approx(float(h100["total_us"]), rel=0.16)


# Several nodes, measured by others -----------------------------------------------------------------------------------


def nodes_us(intra: str, inter: str, buffer_bytes: float, devices: int) -> float:
    """One value of each sample on each device of nodes of 8."""
    machine = Nodes(devices, 8, inter=inter)
    task = ShardingTask((), machine, (10**9,) * devices, int(buffer_bytes / 4))
    volumes = Volumes.empty(devices)
    volumes.sent[:] = 1.0
    volumes.collectives.add(("", TABLE_WISE))
    times = exchange_times(task, volumes, Links(link(intra), link(inter)))
    return 1e3 * float(times.backward[0])


@pytest.mark.parametrize(
    ("intra", "inter", "gpu", "tolerance"),
    [("nvlink_a100", "infiniband_hdr", "32 x A100", 0.06), ("nvlink_h100", "infiniband_ndr", "32 x H100", 0.01)],
)
def test_bus_bandwidths_of_four_nodes_are_those_that_nvidia_shows(
    intra: str, inter: str, gpu: str, tolerance: float
) -> None:
    """24 of 31 peers are on other nodes; as one tier, the slow link alone, an exchange takes longer."""
    (point,) = points_of(gpu, "NCCL all-to-all bus bandwidth")
    buffer = 4e9
    moved = buffer * 31 / 32
    assert moved / nodes_us(intra, inter, buffer, 32) / 1e3 == pytest.approx(float(point["bw_gb_s"]), rel=tolerance)
    assert moved / even_us(inter, buffer, 32) / 1e3 < float(point["bw_gb_s"])


def test_the_shortest_exchange_of_two_nodes_of_a100() -> None:
    """Longer ones in the trace wait for other ranks."""
    (a100,) = points_of("16 x A100", "all-to-all, 12.58 MB")
    shortest, _ = map(float, a100["total_us"].split("-"))
    assert nodes_us("nvlink_a100", "infiniband_hdr", 12.58e6, 16) == pytest.approx(shortest, rel=0.06)
