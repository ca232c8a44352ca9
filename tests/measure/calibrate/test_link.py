"""The link model is found again in synthetic exchanges, measured for real, and read back."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evenshard.base.errors import BadConfig, BadInput, MeasurementFailed
from evenshard.cli import main
from evenshard.measure.calibrate.link import (
    ExchangePoint,
    LinkFit,
    calibrate_link,
    fit_curve,
    fit_link,
    list_peers,
    make_point,
    save_link,
)
from evenshard.measure.config import MeasureConfig
from evenshard.measure.distributed.jobs import BETWEEN_NODES, EVERYONE, IN_NODE
from evenshard.price.collectives import all_to_all_ms
from evenshard.price.link import link
from evenshard.price.link_model import ALL_TO_ALL, BANDWIDTHS, Link
from support.ranks import run_ranks
from support.servers import free_ports

KB, MB = 1024, 1024**2
CPU = MeasureConfig(hardware="cpu")
FIT = LinkFit(Link(123.5, "", 4.25, math.inf, 9.5), 0.99, 0.05, 0.2, 90, origin="gloo on cpu: a: b x 2; 2026-01-31 UTC")


def even(size: int, ms: float) -> ExchangePoint:
    """Of four ranks that send alike."""
    return ExchangePoint(size, size, 4 * size, ms)


def exchanges(latency_us: float, gb_s: float, noise: float = 0.0, sizes: int = 17) -> list[ExchangePoint]:
    rng = np.random.default_rng(3)
    return [
        even(KB << doubling, 1e3 * (latency_us * 1e-6 + (KB << doubling) / (gb_s * 1e9)) * factor)
        for doubling in range(sizes)
        for factor in np.exp(noise * rng.standard_normal(8))
    ]


@pytest.mark.parametrize(("latency_us", "gb_s"), [(250.0, 1.5), (15.0, 450.0)])
def test_known_constants_are_found(latency_us: float, gb_s: float) -> None:
    exact = fit_link(exchanges(latency_us, gb_s))
    assert (exact.link.latency_us, exact.link.bandwidth_gb_s) == pytest.approx((latency_us, gb_s))
    assert (exact.link.slowest_gb_s, exact.link.shared_gb_s) == (math.inf, math.inf)
    assert exact.r2 == pytest.approx(1) and exact.p90_relative_error < 1e-9 and exact.num_points == 17 * 8

    noisy = fit_link(exchanges(latency_us, gb_s, noise=0.1))
    assert (noisy.link.latency_us, noisy.link.bandwidth_gb_s) == pytest.approx((latency_us, gb_s), rel=0.1)
    assert 0.04 < noisy.median_relative_error < 0.1 < noisy.p90_relative_error < 0.25


@pytest.mark.parametrize("terms", [(60.0, 23.0, 25.0), (math.inf, 12.0, math.inf), (10.0, math.inf, 40.0)])
def test_own_slowest_and_shared_bytes_are_told_apart(terms: tuple[float, float, float]) -> None:
    """Dims of four devices, from even to all on one, at batch sizes that double."""
    known = Link(500.0, "by hand", **dict(zip(BANDWIDTHS, terms, strict=True)))
    points = []
    for dims in ((4, 4, 4, 4), (1, 2, 3, 4), (8, 1, 1, 1)):
        for batch in [1024 << doubling for doubling in range(10)]:
            sent = [dims_of * batch * 3 for dims_of in dims]  # 4 bytes a value, a quarter of the samples to each
            times = all_to_all_ms(known, dims, batch).tolist()
            points += [
                ExchangePoint(max(own, (sum(sent) - own) // 3), max(sent), sum(sent), ms)
                for own, ms in zip(sent, times, strict=True)
            ]
    fit = fit_link(points).link
    assert fit.latency_us == pytest.approx(500)
    for name, gb_s in zip(BANDWIDTHS, terms, strict=True):
        assert 1 / getattr(fit, name) == pytest.approx(1 / gb_s, abs=1e-6)


def test_latency_is_never_negative_and_points_without_a_bandwidth_are_refused() -> None:
    points = [even(size, size**1.2 / 1e9) for size in (KB, 8 * KB, MB)]
    fit = fit_link(points).link
    assert fit.latency_us == 0 and fit.bandwidth_gb_s > 0
    for points in ([even(KB, 4.0), even(MB, 2.0)], [even(KB, 1.0), even(KB, 1.1)], [even(KB, 0.0), even(MB, 1.0)], []):
        with pytest.raises(MeasurementFailed):
            fit_link(points)


def test_a_saved_link_is_a_link(tmp_path: Path) -> None:
    path = tmp_path / "rack7.yaml"
    save_link(FIT, "rack7", path)
    read = link(str(path))
    assert (read.latency_us, read.bandwidth_gb_s, read.slowest_gb_s, read.shared_gb_s) == (123.5, 4.25, math.inf, 9.5)
    for part in ("rack7", FIT.origin, "R2 0.990", "median 5 %", "90th percentile 20 %"):
        assert part in read.source
    for part in ("123.5 us", "4.250 GB/s for bytes of the device itself", "9.500 GB/s for bytes of all", "90 points"):
        assert part in FIT.text()


def test_who_shares_a_link_by_hand() -> None:
    """Two nodes of two: rank 0 sends 5 values to each peer, the others 1, 2 and 3."""
    values = (5, 1, 2, 3)

    def point(tier: str, rank: int) -> tuple[int, int, int]:
        peers = [list_peers(one, 4, tier, 2) for one in range(4)]
        found = make_point(values, rank, peers, 1.0)
        return found.own_bytes // 4, found.slowest_bytes // 4, found.all_bytes // 4

    assert point(EVERYONE, 3) == (9, 15, 33)
    assert [point(IN_NODE, rank) for rank in (0, 3)] == [(5, 5, 6), (3, 3, 5)]
    assert [point(BETWEEN_NODES, rank) for rank in (0, 1, 3)] == [(10, 10, 22), (5, 10, 22), (6, 10, 22)]


def test_settings_that_make_no_sense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(BadInput, match=r"torchrun --nproc-per-node N -m evenshard calibrate-link"):
        calibrate_link(CPU, tmp_path / "a.yaml", 1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadConfig, match="simulated:h200"):
        calibrate_link(replace(CPU, hardware="simulated:h200"), tmp_path / "a.yaml", 1)
    with pytest.raises(BadConfig, match="--max-mb"):
        calibrate_link(CPU, tmp_path / "a.yaml", 0.001)
    with pytest.raises(BadConfig, match=r"\.yaml"):
        calibrate_link(CPU, tmp_path / "a.txt", 1)


def calibrate_rank(rank: int, out: Path) -> int:
    os.environ["RANK"] = str(rank)
    return main(["calibrate-link", "--hardware", "cpu", "--max-mb", "4", "--out", str(out / "my.yaml")])


@pytest.mark.slow
@pytest.mark.parametrize(("per_node", "saved"), [(4, ["my"]), (2, ["my_inter", "my_intra"])])
def test_four_processes_calibrate_the_links_of_one_node_or_two(tmp_path: Path, per_node: int, saved: list[str]) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    run_ranks(calibrate_rank, 4, tmp_path, join=False, WORLD_SIZE="4", LOCAL_WORLD_SIZE=str(per_node), **address)
    assert sorted(path.stem for path in tmp_path.glob("*.yaml")) == saved
    for name in saved:
        read = link(str(tmp_path / f"{name}.yaml"))
        assert 1 < read.latency_us < 1e5 and 0.001 < read.even_gb_s(4) < 100
        assert f"{name}: gloo on cpu: " in read.source and " x 4, " in read.source and " points" in read.source
        assert ("nodes of 2 devices" in read.source) == ("inter" in name)
        assert ("in node of 2 devices" in read.source) == ("intra" in name)


BYTES_P = 1024.0 * 2 ** np.arange(11)


def test_a_curve_that_bends_is_found_and_noise_does_not_hide_that_long_calls_grow() -> None:
    """20 us up to 64 KB, then 1 GB/s."""
    us_P = 20 + np.maximum(BYTES_P - 65_536, 0) / 1e3
    curve = fit_curve(ALL_TO_ALL, 2, BYTES_P, us_P)
    found = [float(curve.latency_ms + curve.bytes_ms(moved)) * 1e3 for moved in BYTES_P]
    assert found == pytest.approx(us_P.tolist(), rel=0.02) and curve.gb_s == pytest.approx(1.0, rel=0.02)
    # Times off by 30 %, as on a busy machine, of four repeats each; the longest take 1.7 times the shortest.
    moved_P = np.tile(BYTES_P, 4)
    for seed in range(10):
        us_P = (1500 + moved_P / 1e3) * np.exp(np.random.default_rng(seed).normal(0, 0.3, len(moved_P)))
        assert fit_curve(ALL_TO_ALL, 2, moved_P, us_P).gb_s > 0
    with pytest.raises(MeasurementFailed, match="larger messages do not take longer"):
        fit_curve(ALL_TO_ALL, 2, BYTES_P, np.linspace(2000, 1000, len(BYTES_P)))
