"""The all-to-all model: hand-computable exchanges of named links, and who waits for whom before them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.measure.config import MeasureConfig
from evenshard.measure.link import LINKS, Link, beyond_span, is_modelled, link, link_of, start_skew_ms
from evenshard.utils.errors import BadConfig, BadFile

PLAIN = Link(latency_us=0.0, bandwidth_gb_s=1.0, source="by hand")


def test_two_devices_by_hand() -> None:
    """500,000 samples each. Device 0 sends 3 values of 4 bytes for the other's half and receives 1: 6 MB at 1 GB/s.

    Device 1 sends 1 value and receives 3: the busier direction takes as long.
    """
    assert PLAIN.all_to_all_ms([3, 1], 1_000_000) == pytest.approx((6.0, 6.0))


def test_four_devices_by_hand() -> None:
    """250 samples each, 4 bytes a value: 1000 bytes per unit of dim and peer, 1 us per 1000 bytes.

    Device 0 sends 8 to each of 3 and receives 3; device 1 sends 2 to each, 6, and receives 9; device 3 only receives.
    """
    found = PLAIN.all_to_all_ms([8, 2, 1, 0], 1000)
    assert found == pytest.approx((24e-3, 9e-3, 10e-3, 11e-3))


def test_latency_is_paid_once_per_exchange_in_microseconds() -> None:
    slow_start = Link(latency_us=500.0, bandwidth_gb_s=1.0, source="by hand")
    assert slow_start.all_to_all_ms([3, 1], 1_000_000) == pytest.approx((6.5, 6.5))
    assert slow_start.all_to_all_ms([0, 0], 1_000_000) == pytest.approx((0.5, 0.5))


def test_one_device_exchanges_nothing_and_waits_for_nobody() -> None:
    assert Link(500.0, 1.0, "by hand").all_to_all_ms([64], 4096) == (0.0,)


def test_twice_the_bandwidth_takes_half_the_time() -> None:
    twice = Link(0.0, 2.0, "by hand").all_to_all_ms([8, 2, 1], 3000)
    assert twice == pytest.approx([ms / 2 for ms in PLAIN.all_to_all_ms([8, 2, 1], 3000)])


@settings(deadline=None)
@given(dims=st.lists(st.integers(0, 500), min_size=2, max_size=8), data=st.data())
def test_renamed_devices_swap_their_times(dims: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(dims))))
    times = LINKS["ethernet_25g"].all_to_all_ms(dims, 512)
    assert LINKS["ethernet_25g"].all_to_all_ms([dims[d] for d in order], 512) == tuple(times[d] for d in order)


@settings(deadline=None)
@given(share=st.integers(1, 100), devices=st.integers(2, 8))
def test_even_dims_are_the_fastest_split(share: int, devices: int) -> None:
    even = PLAIN.all_to_all_ms([share] * devices, 512)
    uneven = PLAIN.all_to_all_ms([share + 1, *[share] * (devices - 2), share - 1], 512)
    assert len(set(even)) == 1 and max(uneven) > max(even)


@pytest.mark.parametrize("name", sorted(LINKS))
def test_each_link_is_named_sourced_and_physical(name: str) -> None:
    found = link(name)
    assert found is LINKS[name] and found.source
    assert 0 < found.latency_us < 1000 and 0 < found.bandwidth_gb_s < 1000


def test_line_rates_in_bits_become_bytes() -> None:
    assert (link("ethernet_10g").bandwidth_gb_s, link("ethernet_25g").bandwidth_gb_s) == (10 / 8, 25 / 8)
    assert link("infiniband_hdr").bandwidth_gb_s == 200 / 8


def test_an_unknown_link_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadConfig, match=r"link is 'carrier_pigeon'.*ethernet_25g"):
        link("carrier_pigeon")


def test_auto_is_an_affordable_network() -> None:
    assert link_of(MeasureConfig()) == "ethernet_25g" and link_of(MeasureConfig(), "nvlink_a100") == "nvlink_a100"
    assert link_of(MeasureConfig(link="pcie3_host"), "nvlink_a100") == "pcie3_host"


# Links of one's own --------------------------------------------------------------------------------------------------

CALIBRATED = """\
latency_us: {value: 17.5, source: by hand}
bandwidth_gb_s: {value: 2, source: by hand}
source: two machines and a cable
"""


@pytest.mark.parametrize("name", ["mine.yaml", "mine.yml"])
def test_a_link_can_come_from_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(CALIBRATED)
    assert link(str(tmp_path / name)) == Link(17.5, 2.0, "two machines and a cable")


def test_a_file_that_is_no_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    with pytest.raises(BadFile, match=r"mine\.yaml: no such file"):
        link(str(path))
    path.write_text(CALIBRATED.replace("bandwidth_gb_s", "bandwidth_mb_s"))
    with pytest.raises(BadFile, match="constant 'bandwidth_mb_s' is unknown"):
        link(str(path))
    path.write_text(CALIBRATED.replace("value: 17.5", "value: -17.5"))
    with pytest.raises(BadFile, match=r"constant latency_us is -17\.5"):
        link(str(path))


# More devices than it connects --------------------------------------------------------------------------------------


def test_more_devices_than_a_link_connects_are_told() -> None:
    said = beyond_span("nvlink_h200", 16)
    assert said is not None
    assert said.startswith("16 devices are priced as if one node held them all, each with 450 GB/s a direction, ")
    assert "but nvlink_h200 connects 8. Across nodes the exchange is slower" in said
    assert beyond_span("nvlink_h200", 8) is None and beyond_span("nvlink_h200", 9) is not None


def test_links_inside_of_a_node_span_eight_and_networks_any_number() -> None:
    spans = {name: found.spans for name, found in LINKS.items()}
    assert {name for name, span in spans.items() if span == 8} == {
        "pcie3_host", "nvlink_v100", "nvlink_a100", "nvlink_h200",
    }  # fmt: skip
    assert set(spans.values()) == {8, math.inf}
    assert beyond_span("ethernet_25g", 10**6) is None


def test_of_other_links_nothing_is_said() -> None:
    assert beyond_span("mine.yaml", 1000) is None and beyond_span("nccl", 1000) is None and beyond_span("", 9) is None


def test_what_really_exchanged_is_not_modelled() -> None:
    assert [is_modelled(name) for name in ("gloo", "nccl", "ethernet_25g", "mine.yaml")] == [False, False, True, True]


def test_a_link_of_a_file_may_say_what_it_connects(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(CALIBRATED + "spans: {value: 4, source: a cable each}\n")
    assert link(str(tmp_path / "mine.yaml")).spans == 4
    (tmp_path / "mine.yaml").write_text(CALIBRATED)
    assert link(str(tmp_path / "mine.yaml")).spans == math.inf


# Start skew ----------------------------------------------------------------------------------------------------------


def test_devices_wait_for_the_slowest_forward_by_hand() -> None:
    assert start_skew_ms([5.0, 7.0, 0.0, 4.0]) == (2.0, 0.0, 7.0, 3.0)
    assert start_skew_ms([3.0]) == (0.0,)
    assert start_skew_ms([0.0, 0.0]) == (0.0, 0.0)


def test_nobody_waits_for_a_device_that_ran_out_of_memory_nor_does_it_wait() -> None:
    assert start_skew_ms([5.0, math.inf, 7.0]) == (2.0, 0.0, 0.0)
    assert start_skew_ms([math.inf, math.inf]) == (0.0, 0.0)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=8))
def test_after_waiting_all_devices_begin_together(forwards: list[float]) -> None:
    waits = start_skew_ms(forwards)
    assert min(waits) == 0.0
    ends = [own + wait for own, wait in zip(forwards, waits, strict=True)]
    assert ends == pytest.approx([max(forwards)] * len(ends))


def test_a_link_that_carries_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "dead.yaml"
    path.write_text(
        "latency_us: {value: 10, source: by hand}\nbandwidth_gb_s: {value: 0, source: by hand}\nsource: by hand\n"
    )
    with pytest.raises(BadFile, match="bandwidth_gb_s is 0"):
        link(str(path))
