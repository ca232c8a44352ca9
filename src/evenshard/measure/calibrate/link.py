"""Calibration of links: times collectives of many sizes between the devices of a run and fits link models to them.

Runs under torchrun, one process per device: NCCL between GPUs, gloo between CPUs. With several hosts of several devices
each, it fits two links: one within a host, timed on all hosts at the same time, and one between hosts, where every
device sends only to devices of other hosts.

Even and uneven all-to-alls show whether the bytes of a rank, of the slowest rank or of all ranks limit the time. For
links within a host, a curve for each collective and number of devices then maps bytes to time. Links between hosts have
no curves, because an all-gather or all-reduce over several hosts also uses the links within them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path

import numpy as np

from evenshard.base.errors import BadConfig, BadInput, MeasurementFailed
from evenshard.base.messages import brief
from evenshard.base.outputs import write_text
from evenshard.measure.config import MeasureConfig
from evenshard.measure.distributed import collective
from evenshard.measure.distributed.collective import CollectiveHardware
from evenshard.measure.distributed.jobs import BETWEEN_NODES, EVERYONE, IN_NODE, TimeCollectives, TimeExchanges
from evenshard.measure.fbgemm import resolve_device
from evenshard.price.link_model import ALL_TO_ALL, BANDWIDTHS, BYTES_PER_VALUE, COLLECTIVES, Curve, Link, bus_factor
from evenshard.tables.reuse import FloatArray

KB, MB = 1024, 1024**2  # bytes
LEAST_MB = 4 * KB / MB  # with fewer sizes, latency and bandwidth cannot be told apart
# A curve gets the fewest points with which the mean error at each size is below OFF or within the noise.
OFF, MOST_POINTS = 0.08, 4
MOST_SIZES = 18  # sizes considered as points of a curve: at most C(16, 4) = 1,820 fits


@dataclass(frozen=True)
class ExchangePoint:
    """Byte counts of one rank in one all-to-all, and its median duration on this rank."""

    own_bytes: int  # sent or received by this rank, whichever is more
    slowest_bytes: int  # the largest ``own_bytes`` of any rank
    all_bytes: int  # sent by all ranks
    ms: float

    @property
    def counts(self) -> tuple[int, int, int]:
        """Return the three byte counts."""
        return self.own_bytes, self.slowest_bytes, self.all_bytes


@dataclass(frozen=True)
class LinkFit:
    """A link model fitted to measured all-to-alls."""

    link: Link  # without a source
    r2: float  # share of the variance of log time that the model explains
    median_relative_error: float  # of the modelled times
    p90_relative_error: float
    num_points: int  # (rank, all-to-all) pairs in the fit
    origin: str = ""  # machine and devices of the measurement

    @property
    def goodness(self) -> str:
        """Summarize the goodness of fit in one line."""
        return (
            f"R2 {self.r2:.3f}, relative error median {100 * self.median_relative_error:.0f} %, 90th percentile "
            f"{100 * self.p90_relative_error:.0f} %, {self.num_points} points"
        )

    def text(self) -> str:
        """Format the fit as the output of ``evenshard calibrate-link``."""
        bandwidths = ", ".join(
            f"{gb_s:.3f} GB/s for {of}"
            for name, of in BANDWIDTHS.items()
            if (gb_s := getattr(self.link, name)) < math.inf
        )
        curves = "".join(
            f"\n{curve.collective} on {curve.num_devices} devices: latency {curve.us[0]:.1f} us, {curve.gb_s:.3f} GB/s "
            f"at large sizes, {len(curve.kb)} points"
            for curve in self.link.curves
        )
        return (
            f"latency:   {self.link.latency_us:.1f} us\nbandwidth: {bandwidths}\n"
            f"fit:       {self.goodness}\nmeasured:  {self.origin}{curves}"
        )


def calibrate_link(config: MeasureConfig, out: Path, max_mb: float) -> dict[Path, LinkFit]:
    """Measure all-to-alls, fit link models and save them, on rank 0; all other ranks must call ``serve``.

    Args:
        out: link profile to write (.yaml), for ``price.link``. With links within and between hosts, two files with the
            suffixes ``_intra`` and ``_inter``.
        max_mb: MB (1024**2 bytes) that a device sends to all other devices in the largest all-to-all.

    Raises:
        BadInput: without torchrun, or if a setting is not valid.
        MeasurementFailed: if a rank hangs or dies.
    """
    size, per_node = collective.world_size(), collective.local_world_size()
    if size == 1:
        raise BadInput(
            "a single process has no link to measure. Start one process per device: torchrun --nproc-per-node N -m "
            "evenshard calibrate-link."
        )
    if not config.hardware_name.kind.runs_kernels:
        raise BadConfig(f"hardware is {brief(config.hardware)}, which has no real link. Use auto, cpu or cuda.")
    if out.suffix not in (".yaml", ".yml"):
        raise BadConfig(f"--out is {out}, but measure.link reads YAML files only. Choose a name that ends with .yaml.")
    if not LEAST_MB <= max_mb < float("inf"):
        raise BadConfig(f"--max-mb is {max_mb:g}. Make it at least {LEAST_MB:.3f}.")
    two_tiers = 1 < per_node < size
    if two_tiers and size % per_node:
        raise BadInput(f"{size} processes run in all, {per_node} on this host. Start the same number on every host.")
    tiers = {out: EVERYONE}
    if two_tiers:
        tiers = {out.with_stem(f"{out.stem}_intra"): IN_NODE, out.with_stem(f"{out.stem}_inter"): BETWEEN_NODES}
    fits = {}
    with closing(CollectiveHardware(config, resolve_device(config))) as hardware:
        for path, tier in tiers.items():
            fits[path] = _measure_tier(hardware, int(max_mb * MB), tier, per_node if two_tiers else size)
        provenance = hardware.provenance
    for path, fit in fits.items():
        where = "" if tiers[path] == EVERYONE else f"; {tiers[path].replace('_', ' ')} of {per_node} devices"
        origin = (
            f"{provenance.link} on {provenance.hardware}, {provenance.driver}, {provenance.versions}; messages of "
            f"1 KB to {max_mb:g} MB per device{where}; {datetime.now(UTC).date().isoformat()} UTC"
        )
        fits[path] = replace(fit, origin=origin)
        save_link(fits[path], path.stem, path)
    return fits


def _measure_tier(hardware: CollectiveHardware, max_bytes: int, tier: str, near: int) -> LinkFit:
    """Measure and fit one link: within hosts, between hosts, or among all devices if there is only one tier.

    Args:
        near: number of devices per host; the number of all devices if there is only one tier.
    """
    points = measure_all_to_all(hardware, max_bytes, tier, near)
    fit = fit_link(points)
    if tier == BETWEEN_NODES:
        return fit
    # Curves for 2, 4, 8, ... devices of a host, if the number divides the host's, and for the whole host.
    curves = []
    for size in [*(size for size in (2, 4, 8, 16, 32) if size < near and near % size == 0), near]:
        own = points if size == near else measure_all_to_all(hardware, max_bytes, IN_NODE, size)
        own_P, slowest_P, all_P = np.array([point.counts for point in own], dtype=np.float64).T
        # Bytes of an even all-to-all that takes the same time.
        moved = np.asarray(fit.link.even_bytes(own_P, slowest_P, all_P, size))
        curves.append(fit_curve(ALL_TO_ALL, size, moved, 1e3 * np.array([point.ms for point in own])))  # us
        curves += _measure_curves(hardware, max_bytes, size)
    ordered = tuple(sorted(curves, key=lambda curve: COLLECTIVES.index(curve.collective)))
    return replace(fit, link=replace(fit.link, curves=ordered))


def _measure_curves(hardware: CollectiveHardware, max_bytes: int, size: int) -> list[Curve]:
    # The buffer has one part per rank. ``values`` are per part: all parts but one add up to the bytes of a size.
    values = tuple(max(1, num_bytes // BYTES_PER_VALUE // (size - 1)) for num_bytes in _sizes(max_bytes))
    of_ranks = hardware.run_on_all(TimeCollectives(values, size), "calibrating the link")
    times_RCS = np.array(of_ranks).reshape(len(of_ranks), -1, len(values))
    buffers = size * BYTES_PER_VALUE * np.array(values, dtype=np.float64)  # bytes of the whole buffer
    us_CRS = 1e3 * times_RCS.swapaxes(0, 1)
    return [
        fit_curve(name, size, np.tile(bus_factor(name, size) * buffers, len(us_RS)), us_RS.ravel())
        for name, us_RS in zip(COLLECTIVES[1:], us_CRS, strict=True)
    ]


def _sizes(max_bytes: int) -> list[int]:
    return [KB << doubling for doubling in range(int(math.log2(max_bytes / KB)) + 1)]


def measure_all_to_all(
    hardware: CollectiveHardware, max_bytes: int, tier: str = EVERYONE, devices_per_node: int = 0
) -> tuple[ExchangePoint, ...]:
    """Time even and uneven all-to-alls of doubling sizes, 1 KB to ``max_bytes`` per device, on all ranks.

    ``tier`` selects the ranks to which a rank sends: all, those of its host, or those of other hosts.
    """
    num_ranks = collective.world_size()
    peers = [list_peers(rank, num_ranks, tier, devices_per_node) for rank in range(num_ranks)]
    # Of each size, bytes over senders, relative to the largest: even, rising, mostly from rank 0.
    rising = tuple((rank + 1) / num_ranks for rank in range(num_ranks))
    shapes = ((1.0,) * num_ranks, rising, (1.0, *[0.125] * (num_ranks - 1)))
    exchanges = tuple(_values(shape, size, len(peers[0])) for size in _sizes(max_bytes) for shape in shapes)
    of_ranks = hardware.run_on_all(TimeExchanges(exchanges, tier, devices_per_node), "calibrating the link")
    return tuple(
        make_point(values, rank, peers, ms)
        for rank, times in enumerate(of_ranks)
        for values, ms in zip(exchanges, times, strict=True)
    )


def list_peers(rank: int, num_ranks: int, tier: str, devices_per_node: int) -> list[int]:
    """Return the other ranks to which a rank sends: all, those of its host, or those of other hosts."""
    node = rank // devices_per_node if devices_per_node else 0
    return [
        other
        for other in range(num_ranks)
        if other != rank and (tier == EVERYONE or (other // devices_per_node == node) == (tier == IN_NODE))
    ]


def make_point(values: Sequence[int], rank: int, peers: Sequence[Sequence[int]], ms: float) -> ExchangePoint:
    """Return byte counts and time of a rank in an all-to-all, counting only ranks connected to it by transfers.

    ``values[r]`` is the number of values that rank r sends to each rank in ``peers[r]``, which connects them.
    """
    linked = {rank}
    while more := {peer for other in linked for peer in peers[other]} - linked:
        linked |= more
    busier = {r: max(values[r] * len(peers[r]), sum(values[peer] for peer in peers[r])) for r in linked}
    sent = sum(values[r] * len(peers[r]) for r in linked)
    return ExchangePoint(
        BYTES_PER_VALUE * busier[rank], BYTES_PER_VALUE * max(busier.values()), BYTES_PER_VALUE * sent, ms
    )


def _values(shape: Sequence[float], size: int, num_peers: int) -> tuple[int, ...]:
    """Return the number of values that each rank sends to each peer; the largest sender sends ``size`` bytes."""
    return tuple(max(1, round(share * size / (BYTES_PER_VALUE * num_peers))) for share in shape)


def fit_link(points: Sequence[ExchangePoint]) -> LinkFit:
    """Fit latency and bandwidths by least squared relative error, which gives small and large sizes the same weight.

    No constant is negative. A bandwidth that does not limit the times is infinite. If the byte counts are collinear, as
    with two devices, the times are attributed to the rank's own bytes.

    Raises:
        MeasurementFailed: if the times do not grow with the sizes.
    """
    from scipy.optimize import nnls

    bytes_P3 = np.array([point.counts for point in points], dtype=np.float64)
    seconds = np.array([point.ms for point in points], dtype=np.float64) / 1e3
    if len(points) < 2 or np.ptp(bytes_P3[:, 0]) == 0 or not (seconds > 0).all():
        raise MeasurementFailed("a link model needs all-to-alls of at least two sizes, all with times above 0.")
    # seconds = latency + sum of bytes / bandwidth. Divided by the seconds, every target is 1 and errors are relative.
    columns_P4 = np.concatenate([np.ones((len(points), 1)), bytes_P3], axis=1) / seconds[:, None]
    scale_4 = columns_P4.max(axis=0)
    constants_4 = nnls(columns_P4 / scale_4, np.ones(len(points)))[0] / scale_4
    if not constants_4[1:].any():
        raise MeasurementFailed(
            "larger all-to-alls do not take longer: the sizes are too small or the times too noisy. Raise --max-mb, or "
            "measure on a quieter machine."
        )
    model = columns_P4 @ constants_4 * seconds
    own_gb_s, slowest_gb_s, shared_gb_s = (1e-9 / each if each else math.inf for each in constants_4[1:].tolist())
    errors = np.abs(model / seconds - 1)
    logs = np.log(seconds)
    total = float(((logs - logs.mean()) ** 2).sum())
    return LinkFit(
        Link(float(constants_4[0]) * 1e6, "", own_gb_s, slowest_gb_s, shared_gb_s),
        r2=1 - float(((logs - np.log(model)) ** 2).sum()) / total if total else 0.0,
        median_relative_error=float(np.median(errors)),
        p90_relative_error=float(np.percentile(errors, 90)),
        num_points=len(points),
    )


def save_link(fit: LinkFit, name: str, path: Path) -> None:
    """Write the fit as a link profile that ``price.link`` reads."""
    of_all = f"{name}: {fit.origin}; {fit.goodness}"
    write_link(replace(fit.link, source=of_all), f"fitted by calibrate-link ({fit.goodness})", path)


def write_link(link: Link, source: str, path: Path) -> None:
    """Write a link profile atomically, with one source for all its constants."""
    import yaml

    constants = {name: getattr(link, name) for name in ("latency_us", *BANDWIDTHS, "spans")}
    content: dict[str, object] = {
        name: {"value": value, "source": source} for name, value in constants.items() if value < math.inf
    }
    content["source"] = link.source
    lines = yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True)
    for name in ("curves", "evidence"):
        of_link = [asdict(one) for one in getattr(link, name)]
        kept = [{key: value for key, value in one.items() if key != "us_per_device" or value} for one in of_link]
        if records := json.loads(json.dumps(kept)):  # YAML has no tuples
            lines += f"{name}:\n" + yaml.safe_dump(records, default_flow_style=None, sort_keys=False, width=200)
    write_text(path, lines)


# Curves ---------------------------------------------------------------------------------------------------------------


def fit_curve(collective: str, num_devices: int, moved_P: FloatArray, us_P: FloatArray) -> Curve:
    """Fit a nondecreasing, piecewise linear curve to measured times, by least squared relative error.

    Raises:
        MeasurementFailed: if the times do not grow with the sizes.
    """
    sizes_S = np.unique(moved_P)
    sizes_S = sizes_S[np.unique(np.linspace(0, len(sizes_S) - 1, MOST_SIZES).round().astype(int))]
    # Index of the size in ``sizes_S`` that is nearest to each measurement, for the mean error at each size.
    size_P = np.abs(np.log(moved_P[:, None] / sizes_S)).argmin(axis=1)
    best = _Fit.of(np.zeros(1), moved_P, us_P)
    for more in range(1, min(MOST_POINTS, len(sizes_S) - 2) + 1):
        if best.grows and best.is_close(size_P):
            break
        inner = combinations(sizes_S[1:-1].tolist(), more)
        fits = (_Fit.of(np.array([0.0, *points]), moved_P, us_P) for points in inner)
        best = min(fits, key=lambda fit: (not fit.grows, fit.residual))
    ns_per_byte = float(best.steps_K[-1]) * 1e3  # from us per byte
    if not best.grows:
        raise MeasurementFailed(
            f"larger messages do not take longer in {collective} on {num_devices} devices: the sizes are too small or "
            "the times too noisy. Raise --max-mb, or measure on a quieter machine."
        )
    us = np.cumsum(best.steps_K[:-1])
    kb = tuple(float(f"{num_bytes / 1e3:.6g}") for num_bytes in best.points_K)
    return Curve(collective, num_devices, kb, tuple(float(f"{t:.4g}") for t in us), float(f"{1 / ns_per_byte:.4g}"))


class _Fit:
    """Piecewise linear curve of time over bytes, fitted to measured times."""

    def __init__(self, points_K: FloatArray, steps_K: FloatArray, residual: float, ratio_P: FloatArray) -> None:
        self.points_K, self.steps_K, self.residual, self.ratio_P = points_K, steps_K, residual, ratio_P

    @staticmethod
    def of(points_K: FloatArray, moved_P: FloatArray, us_P: FloatArray) -> _Fit:
        from scipy.optimize import nnls

        lengths_K = np.diff(points_K)
        # For each measurement: the share of each segment below its size, 0 to 1, and its bytes beyond the last point.
        passed_PK = np.clip((moved_P[:, None] - points_K[:-1]) / lengths_K, 0, 1)
        beyond_P1 = np.maximum(moved_P - points_K[-1], 0)[:, None]
        columns_PK = np.concatenate([np.ones_like(beyond_P1), passed_PK, beyond_P1], axis=1) / us_P[:, None]
        scale_K = columns_PK.max(axis=0)
        scale_K[scale_K == 0] = 1.0
        steps_K, residual = nnls(columns_PK / scale_K, np.ones(len(us_P)))
        return _Fit(points_K, steps_K / scale_K, float(residual), columns_PK @ (steps_K / scale_K))

    @property
    def grows(self) -> bool:
        return bool(self.steps_K[-1] > 0)

    def is_close(self, size_P: np.ndarray) -> bool:
        """Return True if, at each size, the curve's mean error is at most ``OFF`` or within the noise of the times."""
        counts_S, logs_P = np.maximum(np.bincount(size_P), 1), np.log(self.ratio_P)
        mean_S = np.bincount(size_P, logs_P) / counts_S
        variance_S = np.bincount(size_P, (logs_P - mean_S[size_P]) ** 2) / counts_S
        # The noise of a mean is taken as twice its standard error.
        return bool((np.abs(mean_S) <= np.maximum(OFF, 2 * np.sqrt(variance_S / counts_S))).all())
