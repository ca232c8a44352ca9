"""Curves of collectives: straight pieces by hand, between numbers of devices, and what links make of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evenshard.base.errors import BadFile
from evenshard.placement.nodes import Nodes
from evenshard.placement.sharding import DATA_PARALLEL, ROW_WISE, TABLE_WISE
from evenshard.placement.task import ShardingTask
from evenshard.price.collectives import Links, Volumes, exchange_times
from evenshard.price.link import NVLINK_GB_S, link, nvlink_by_rule
from evenshard.price.link_model import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    COLLECTIVES,
    Curve,
    Link,
    bus_factor,
    curve_at,
)

# 10 us; 20 us more for 40 KB; then 100 GB/s, 0.01 us a KB.
BENT = Curve(ALL_TO_ALL, 2, (0.0, 40.0), (10.0, 30.0), 100.0)


def of_bytes(curve: Curve, *moved: float) -> list[float]:
    return (1e3 * curve.bytes_ms(np.array(moved))).tolist()


def test_pieces_by_hand() -> None:
    assert [bus_factor(one, 4) for one in COLLECTIVES] == [0.75, 0.75, 0.75, 1.5]
    assert BENT.latency_ms == 0.01
    assert of_bytes(BENT, 0, 20_000, 40_000, 140_000, 1e9) == pytest.approx([0, 10, 20, 21, 20 + 1e4 - 0.4])


def test_a_floor_is_below_in_proportion_to_the_bytes() -> None:
    """Here it is the last piece, of 100 GB/s; where a curve begins flat, no bytes are sure to take time."""
    assert (BENT.floor.kb, BENT.floor.us, BENT.floor.gb_s) == ((0.0,), (10.0,), 100.0)
    late = replace(BENT, us=(10.0, 10.1))
    assert late.floor.gb_s == pytest.approx(400)
    assert of_bytes(replace(BENT, us=(10.0, 10.0)).floor, 1e9) == [0.0]


def test_between_numbers_of_devices_times_are_interpolated() -> None:
    eight = Curve(ALL_TO_ALL, 8, (0.0, 10.0), (20.0, 20.0), 50.0)
    four = curve_at([BENT, eight], ALL_TO_ALL, 4)
    assert four is not None and four.num_devices == 4 and four.latency_ms == pytest.approx(0.015)
    for moved in (5e3, 20e3, 1e6):
        assert of_bytes(four, moved) == pytest.approx([np.mean([of_bytes(one, moved) for one in (BENT, eight)])])
    assert curve_at([BENT, eight], ALL_TO_ALL, 3).latency_ms < 0.015  # type: ignore[union-attr]
    assert curve_at([BENT, eight], ALL_TO_ALL, 72) is eight and curve_at([eight], ALL_TO_ALL, 2) is eight
    assert curve_at([BENT], ALL_GATHER, 2) is None
    of_nodes = replace(BENT, num_devices=16, us=(160.0, 170.0), us_per_device=5.0)
    for num_devices, us in ((16, 160), (64, 400), (4, 100)):  # 5 us for each of the other devices
        found = curve_at([of_nodes], ALL_TO_ALL, num_devices)
        assert found is not None and found.latency_ms == us / 1e3 and found.bytes_ms(1e12) == of_nodes.bytes_ms(1e12)


def test_an_uneven_exchange_counts_as_an_even_one_that_takes_as_long() -> None:
    shares = Link(0.0, "by hand", bandwidth_gb_s=1.0, slowest_gb_s=2.0, shared_gb_s=10.0, curves=(BENT,))
    assert shares.even_bytes(7.0, 7.0, 14.0, 2) == pytest.approx(7.0)
    assert shares.even_bytes(17.0, 0.0, 0.0, 2) == pytest.approx(17 / 1.7)
    assert float(shares.bytes_ms(40_000, 40_000, 80_000, 2)) == pytest.approx(0.02)
    assert float(shares.bytes_ms(2e9, 0.0, 0.0, 2, ALL_GATHER)) == pytest.approx(2e3)  # no curve: as the numbers say


CURVES = tuple(
    Curve(name, 4, (0.0,), (us,), gb_s)
    for name, us, gb_s in zip(COLLECTIVES, (1e3, 2e3, 3e3, 4e3), (0.001, 0.002, 0.004, 0.008), strict=True)
)
EACH = Link(0.0, "by hand", bandwidth_gb_s=1.0, curves=CURVES)


def volumes(**values: float) -> Volumes:
    found = Volumes.empty(4)
    for name, value in values.items():
        if name == "replicated_values":
            found.replicated_values = value
        else:
            getattr(found, name)[:] = value
    return found


@pytest.mark.parametrize(
    ("of", "way", "forward_ms", "backward_ms"),
    [
        ({"sent": 1.0}, TABLE_WISE, 1 + 24e-3, 1 + 24e-3),  # 2 samples of 4 bytes to 3 peers at 1 KB/ms
        ({"summed": 1.0}, ROW_WISE, 3 + 24e-3 / 4, 2 + 24e-3 / 2),  # sums are scattered, gradients are gathered
        ({"replicated_values": 4.0}, DATA_PARALLEL, 0, 4 + 24e-3 / 8),
    ],
)
def test_each_collective_takes_its_own_time(
    of: dict[str, float], way: str, forward_ms: float, backward_ms: float
) -> None:
    """One value for each of 8 samples; of all weights, a copy on each device."""
    task, held = ShardingTask((), Nodes.one_node(4), (10**9,) * 4, 8), volumes(**of)
    held.collectives.add(("", way))
    found = exchange_times(task, held, Links(EACH))
    assert found.forward.tolist() == pytest.approx([forward_ms] * 4)
    assert found.backward.tolist() == pytest.approx([backward_ms] * 4)


FILE = """\
latency_us: {value: 17.5, source: by hand}
bandwidth_gb_s: {value: 2, source: by hand}
source: two machines and a cable
curves:
- {collective: all_to_all, num_devices: 2, kb: [0, 40], us: [10, 30], gb_s: 100}
"""


def test_a_file_may_have_curves(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(FILE)
    assert link(str(path)).curve(ALL_TO_ALL, 2) == BENT
    assert link(str(path)).latency_ms(2) == 0.01 and link(str(path)).latency_ms(2, ALL_REDUCE) == 0.0175


def test_a_file_with_an_impossible_curve_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for old, new, why in (
        ("all_to_all", "broadcast", "curves[0]: collective is not one of all_to_all, "),
        ("num_devices: 2", "num_devices: 1", "num_devices is below 2"),
        ("[0, 40]", "[1, 40]", "kb must begin at 0"),
        ("[0, 40]", "[0, 0]", "kb must increase"),
        ("[0, 40]", "[0]", "have as many values as us"),
        ("[10, 30]", "[10, 3]", "us must not decrease"),
        ("gb_s: 100}", "gb_s: 0}", "gb_s must be above 0"),
        ("gb_s: 100}", "gb_s: 100, us_per_device: 6}", "us_per_device must be between 0 and"),
    ):
        path.write_text(FILE.replace(old, new))
        with pytest.raises(BadFile, match=why.replace("[", r"\[")):
            link(str(path))
    path.write_text(FILE + FILE.splitlines()[-1])
    with pytest.raises(BadFile, match="two curves of all_to_all for 2 devices"):
        link(str(path))


def test_a_link_of_another_line_rate_has_all_latencies_and_faster_bytes() -> None:
    """Each line rate counts once, however many links have it."""
    two = {
        name: replace(EACH, curves=(replace(BENT, gb_s=NVLINK_GB_S[name]),)) for name in ("nvlink_a100", "nvlink_h100")
    }
    found = nvlink_by_rule(1800.0, 8, {**two, "nvlink_h200": two["nvlink_h100"]}, ())
    (curve,) = found.curves
    assert curve.latency_ms == 0.01 and curve.gb_s == pytest.approx(1800)
    assert curve.us[1] == pytest.approx(10 + 20 * (1 / 6 + 1 / 4) / 2)
    assert found.bandwidth_gb_s == pytest.approx((6 + 4) / 2)
