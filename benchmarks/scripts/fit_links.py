"""Fit of links to published nccl-tests, with its errors: links in a node, and EFA between nodes.

    python -m benchmarks.scripts.fit_links [--truth FOLDER] [--write]
    python -m benchmarks.scripts.fit_links --plans

The folder has published measurements (its README names their sources), which are not part of the project. --write
writes the curves to evenshard/price/profiles/links. The fit is that of ``evenshard calibrate-link``.

Time does not fall with size, so a row that is above or below both of its neighbours in size by more than a tenth is
noise of the source and is excluded. Errors are those of held-out sizes: of ten sizes, each four times the previous,
each is held out in turn, so that its neighbours differ by a factor of 16. Between nodes, the fit takes the slower tier
of links, and its errors are those of a held-out number of nodes.

Legend: P rows.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scipy.optimize import minimize

import evenshard
from benchmarks.references import others_measurements
from benchmarks.references.rows import read_rows, run_script
from evenshard.base.messages import text_table
from evenshard.measure.calibrate.link import ExchangePoint, fit_curve, fit_link, write_link
from evenshard.placement.nodes import Nodes
from evenshard.planner.pricing import part_costs
from evenshard.price.collectives import (
    Links,
    TierBytes,
    all_reduce_bytes,
    all_to_all_bytes,
    reduce_scatter_bytes,
    tiers_ms,
)
from evenshard.price.evidence import Evidence
from evenshard.price.hardware import link_profile_path
from evenshard.price.link import EFA_LINE_GB_S, GPUS_OF_A_NODE, LINKS, NVLINK_GB_S, nvlink_by_rule
from evenshard.price.link_model import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    Curve,
    Link,
    bus_factor,
    curve_at,
)
from evenshard.sharders.model import DeviceModel
from evenshard.tables.reuse import FloatArray

FILE, NODES_FILE = "nccl.csv", "collectives_2026.csv"
SOURCE = "nccl-tests of NVIDIA (ai-dynamo/aiconfigurator 095f58a51, systems/data/*/comm/nccl)"
PCIE = "pcie4_host"
LINK_OF_GPU = {
    "a100_sxm": "nvlink_a100",
    "h100_sxm": "nvlink_h100",
    "h200_sxm": "nvlink_h200",
    "b200_sxm": "nvlink_b200",
    "gb200": "nvlink_gb200",
    "l40s": PCIE,
}
# All-reduces of one node in the second file, timed by others.
ALSO_OF_GPU = {"A100": "nvlink_a100", "H100": "nvlink_h100", "H200": "nvlink_h200", "GB200": "nvlink_gb200"}
EFA, EFA_GPU = "efa_400g", "nvlink_h100"
EFA_SOURCE = "nccl-tests on AWS p5.48xlarge (crazyguitar/aws-gpu-communication-benchmark fd167f9)"
SPANS = {"nvlink_gb200": 72.0}
# GPUs at which curves between nodes state their latency, and starts of their fit: us, us per GPU, GB/s.
GPUS_OF_FIT = 16
STARTS = ((20.0, 5.0, 42.0), (200.0, 2.0, 42.0), (1.5, 8.0, 42.0))
# Ratio to a neighbour above which a row contradicts it.
CONTRADICTION = 1.1


@dataclass(frozen=True)
class Rows:
    """Times of one collective between a number of GPUs.

    Attributes:
        moved_P: bytes that each GPU moves.
        us_P: microseconds.
    """

    moved_P: FloatArray
    us_P: FloatArray

    def of(self, chosen_P: np.ndarray) -> Rows:
        """Return the rows selected by a mask."""
        return Rows(self.moved_P[chosen_P], self.us_P[chosen_P])


# Of a link: by collective and number of GPUs.
Truth = Mapping[str, Mapping[tuple[str, int], Rows]]


def read_truth(folder: Path) -> tuple[Truth, int]:
    """Read the rows of every link in ``LINK_OF_GPU``, and count how many more were noise."""
    series: dict[tuple[str, str, int, str], dict[int, float]] = defaultdict(dict)
    for row in read_rows(folder / NODES_FILE):
        if row["nodes"] == "1" and row["gpu"] in ALSO_OF_GPU:
            num, size = int(row["gpus"]), int(row["bytes"])
            us = bus_factor(row["collective"], num) * size / float(row["busbw_gb_s"]) / 1e3
            series[ALSO_OF_GPU[row["gpu"]], row["collective"], num, NODES_FILE][size] = us
    for row in read_rows(folder / FILE):
        if row["gpu"] in LINK_OF_GPU:
            collective = row["collective"].replace("alltoall", ALL_TO_ALL)
            key = (LINK_OF_GPU[row["gpu"]], collective, int(row["num_gpus"]), row["dtype_bytes"])
            series[key][int(row["bytes"])] = 1e3 * float(row["ms"])
    found: dict[str, dict[tuple[str, int], list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    noise = 0
    for (link, collective, num, _), of_size in series.items():
        ordered = sorted(of_size.items())
        for at, (size, us) in enumerate(ordered):
            if is_noise([one for _, one in ordered], at):
                noise += 1
            else:
                found[link][collective, num].append((bus_factor(collective, num) * size, us))
    return {
        link: {kind: Rows(*np.array(sorted(rows)).T) for kind, rows in of_kind.items()}
        for link, of_kind in found.items()
    }, noise


def is_noise(us: Sequence[float], at: int) -> bool:
    """Return True if a time contradicts its neighbours in size: one for the smallest size, none for the largest."""
    if at == len(us) - 1:
        return False
    around = us[max(at - 1, 0) : at] + us[at + 1 : at + 2]
    return us[at] > CONTRADICTION * max(around) or (at > 0 and us[at] < min(around) / CONTRADICTION)


# Fitting -------------------------------------------------------------------------------------------------------------


def fitted_curves(of_kind: Mapping[tuple[str, int], Rows]) -> tuple[Curve, ...]:
    """Fit a curve for every collective and number of GPUs."""
    return tuple(fit_curve(*kind, rows.moved_P, rows.us_P) for kind, rows in sorted(of_kind.items()))


def errors_of(curve: Curve, rows: Rows) -> FloatArray:
    """Return the relative errors of a curve, [P]."""
    return np.asarray(np.abs(1e3 * (curve.latency_ms + curve.bytes_ms(rows.moved_P)) / rows.us_P - 1))


def left_out_errors(kind: tuple[str, int], rows: Rows, sizes: Iterable[Sequence[float]]) -> FloatArray:
    """Return the errors of held-out sizes, [P], with one fit for each group of sizes."""
    found = []
    for of_test in sizes:
        tested_P = np.isin(rows.moved_P, of_test)
        seen = rows.of(~tested_P)
        found.append(errors_of(fit_curve(*kind, seen.moved_P, seen.us_P), rows.of(tested_P)))
    return np.concatenate(found)


def one_by_one(rows: Rows) -> list[list[float]]:
    """List each size but the smallest as its own group; beyond the second largest a curve is a straight line."""
    return [[size] for size in np.unique(rows.moved_P)[1:].tolist()]


def fitted_link(name: str, truth: Truth, errors_P: FloatArray) -> Link:
    """Fit the link of a GPU; the GB200, measured on 4 GPUs only, takes the curves of 8 GPUs from the B200."""
    of_kind = dict(truth[name])
    more = ""
    if name == "nvlink_gb200":
        of_kind |= {kind: rows for kind, rows in truth["nvlink_b200"].items() if kind[1] == GPUS_OF_A_NODE}
        more = "; 8 GPUs as nvlink_b200; more as 8, a guess"
    even = of_kind[ALL_TO_ALL, GPUS_OF_A_NODE]
    moved_P = even.moved_P.round().astype(int).tolist()
    points = [
        ExchangePoint(own, own, GPUS_OF_A_NODE * own, us / 1e3)
        for own, us in zip(moved_P, even.us_P.tolist(), strict=True)
    ]
    straight = fit_link(points).link
    # Without peer-to-peer, the path through the host is the limit, so the bytes of all devices count.
    gb_s, is_shared = straight.bandwidth_gb_s, name not in NVLINK_GB_S
    return Link(
        float(f"{straight.latency_us:.3g}"),
        f"fitted to {SOURCE}{more}. The straight line is of all-to-alls of 8 GPUs",
        **{"shared_gb_s" if is_shared else "bandwidth_gb_s": float(f"{gb_s * GPUS_OF_A_NODE**is_shared:.4g}")},
        spans=SPANS.get(name, float(GPUS_OF_A_NODE)),
        curves=fitted_curves(of_kind),
        evidence=(
            Evidence(
                "collectives of 2 to 8 GPUs, 1 KB to 256 MB, each size by its neighbours, which are 16 times apart",
                SOURCE,
                sum(len(rows.us_P) for rows in truth[name].values()),
                len(errors_P),
                *_percent(errors_P),
            ),
        ),
    )


# Between nodes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeRows:
    """Times of one collective between nodes of 8 H100.

    Attributes:
        num_P: number of GPUs.
        near_us_P: time of the bytes within a node, by the fitted link, without latency.
        far_bytes_P: bytes that a GPU moves between nodes.
        us_P: measured microseconds.
    """

    num_P: FloatArray
    near_us_P: FloatArray
    far_bytes_P: FloatArray
    us_P: FloatArray

    def of(self, chosen_P: np.ndarray) -> NodeRows:
        """Return the rows selected by a mask."""
        return NodeRows(*(getattr(self, one.name)[chosen_P] for one in fields(self)))


def read_nodes(folder: Path, near: Link) -> dict[str, NodeRows]:
    """Read the rows of several nodes, by collective."""
    found = defaultdict(list)
    for row in read_rows(folder / NODES_FILE):
        if int(row["nodes"]) < 2:
            continue
        collective, num, size = row["collective"], int(row["gpus"]), float(row["bytes"])
        machine = Nodes(num, GPUS_OF_A_NODE, intra=EFA_GPU, inter=EFA)
        moved = collective_bytes(machine, collective, np.full(num, size))
        near_us = 1e3 * float(tiers_ms(machine, moved, Links(near))[0][0])
        us = bus_factor(collective, num) * size / float(row["busbw_gb_s"]) / 1e3
        found[collective].append((num, near_us, float(moved.inter[0]), us))
    return {collective: NodeRows(*np.array(rows, dtype=float).T) for collective, rows in found.items()}


def collective_bytes(machine: Nodes, collective: str, sizes_D: FloatArray) -> TierBytes:
    """Return the bytes of a collective with nccl-tests' sizes."""
    if collective == ALL_TO_ALL:
        return all_to_all_bytes(machine, sizes_D / machine.num_devices)
    return (all_reduce_bytes if collective == ALL_REDUCE else reduce_scatter_bytes)(machine, sizes_D)


def fit_nodes(collective: str, rows: NodeRows) -> Curve:
    """Fit latency, latency per GPU and bandwidth between nodes by least absolute error of the logarithm."""

    def curve(logs_3: FloatArray) -> Curve:
        base_us, per_us, gb_s = np.exp(np.clip(logs_3, 0, np.log([1e3, 1e3, EFA_LINE_GB_S]))).tolist()
        us, rounded = base_us + GPUS_OF_FIT * per_us, float(f"{per_us:.3g}")
        return Curve(collective, GPUS_OF_FIT, (0.0,), (float(f"{us:.4g}"),), float(f"{gb_s:.4g}"), rounded)

    def off(logs_3: FloatArray) -> float:
        return float(np.abs(np.log(nodes_us(curve(logs_3), rows) / rows.us_P)).mean())

    fits = [minimize(off, np.log(start), method="Nelder-Mead", options={"maxiter": 3000}) for start in STARTS]
    return curve(min(fits, key=lambda fit: float(fit.fun)).x)


def nodes_us(curve: Curve, rows: NodeRows) -> FloatArray:
    """Return predicted times, [P]: the latency and the slower tier of links."""
    latency_us_P = curve.us[0] + curve.us_per_device * (rows.num_P - curve.num_devices)
    return np.asarray(latency_us_P + np.maximum(rows.near_us_P, rows.far_bytes_P / curve.gb_s / 1e3))


def nodes_link(of_collective: Mapping[str, NodeRows]) -> tuple[Link, list[tuple[str, ...]]]:
    """Fit the link between nodes; also return a table of its errors."""
    cells: list[tuple[str, ...]] = [("collective", "rows", "fitted: median", "90 %", "nodes left out: median", "90 %")]
    curves, all_errors = [], []
    for collective, rows in sorted(of_collective.items()):
        curves.append(fit_nodes(collective, rows))
        left_out = []
        for num in np.unique(rows.num_P):
            is_tested_P = rows.num_P == num
            fitted, tested = fit_nodes(collective, rows.of(~is_tested_P)), rows.of(is_tested_P)
            left_out.append(np.abs(nodes_us(fitted, tested) / tested.us_P - 1))
        all_errors += left_out
        errors = (np.abs(nodes_us(curves[-1], rows) / rows.us_P - 1), np.concatenate(left_out))
        cells.append((collective, str(len(rows.us_P)), *(f"{one}" for of in errors for one in _percent(of))))
    gathers = next(one for one in curves if one.collective == ALL_GATHER)
    even = next(one for one in curves if one.collective == ALL_TO_ALL)
    # Reduce-scatters were not measured. NCCL's are rings in the opposite direction of an all-gather.
    curves.append(replace(gathers, collective=REDUCE_SCATTER))
    errors_P = np.concatenate(all_errors)
    points = "collectives of 16, 64 and 256 H100, 32 MB to 8 GB, each number of GPUs by the others"
    evidence = Evidence(points, EFA_SOURCE, len(errors_P), len(errors_P), *_percent(errors_P))
    source = f"fitted to {EFA_SOURCE}. Reduce-scatters as all-gathers. Smaller messages were not measured"
    return Link(even.us[0], source, bandwidth_gb_s=even.gb_s, curves=tuple(curves), evidence=(evidence,)), cells


def _percent(errors_P: FloatArray) -> tuple[float, float]:
    return round(100 * float(np.median(errors_P)), 1), round(100 * float(np.percentile(errors_P, 90)), 1)


# Rules ---------------------------------------------------------------------------------------------------------------


def rule_errors(name: str, links: Mapping[str, Link], truth: Truth, same_line: bool) -> FloatArray:
    """Return the errors of the rule for a link, [P], from links of all line rates, or of other line rates only."""
    others = {
        other: links[other]
        for other in links
        if other != name and (same_line or NVLINK_GB_S[other] != NVLINK_GB_S[name])
    }
    by_rule = nvlink_by_rule(NVLINK_GB_S[name], GPUS_OF_A_NODE, others, ())
    found = []
    for (collective, num), rows in truth[name].items():
        curve = curve_at(by_rule.curves, collective, num)
        assert curve is not None
        found.append(errors_of(curve, rows))
    return np.concatenate(found)


def between_errors(link: Link, truth: Mapping[tuple[str, int], Rows]) -> FloatArray:
    """Return the errors on 4 GPUs of the curves of 2 and 8 GPUs, [P]."""
    found = []
    for (collective, num), rows in truth.items():
        curve = curve_at([one for one in link.curves if one.num_devices != 4], collective, 4)
        if num == 4 and curve is not None:
            found.append(errors_of(curve, rows))
    return np.concatenate(found)


# Plans ---------------------------------------------------------------------------------------------------------------


def measured_link(of_kind: Mapping[tuple[str, int], Rows]) -> Link:
    """Return the link of 8 L40S with a point at every measured size, the mean of its times."""
    curves = []
    for kind, rows in of_kind.items():
        sizes = np.unique(rows.moved_P)
        us = np.maximum.accumulate([rows.us_P[rows.moved_P == size].mean() for size in sizes])
        gb_s = float((sizes[-1] - sizes[-2]) / (us[-1] - us[-2]) / 1e3)
        curves.append(Curve(*kind, (0.0, *(sizes / 1e3).tolist()), (us[0].item(), *us.tolist()), gb_s))
    return replace(LINKS[PCIE], curves=tuple(curves), evidence=())


def plan_losses(of_kind: Mapping[tuple[str, int], Rows]) -> Iterator[str]:
    """Yield, for plans made with the fitted link and with PCIe 4 with peer-to-peer, the loss under all measured times.

    The loss is against the plan that is made with all measured times. Kernels are simulated.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "measured.yaml"
        write_link(measured_link(of_kind), "every measured size", path)
        for tables in ("mlperf_dlrm_v2", "criteo_1tb"):
            given = {"num_devices": 8, "memory_cap_gb": 40.0, "hardware": "l40s", "batch_size": 65_536}
            best = evenshard.place(tables, **given, intra=str(path))
            costs = part_costs(best.request, DeviceModel("simulated:l40s"))
            for name in (PCIE, "pcie4"):
                found_ms = costs.predict(evenshard.place(tables, **given, intra=name).parts).predicted_ms
                loss_pct = 100 * (found_ms / best.predicted_ms - 1)
                yield f"{tables} on 8 x l40s, planned with {name}: {loss_pct:.1f} % longer"


def main() -> None:
    """Fit the links, print the errors, and write the profiles with --write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--truth", type=Path, default=others_measurements.default_folder(), help="folder of the files")
    parser.add_argument("--write", action="store_true", help="write the profiles")
    parser.add_argument("--plans", action="store_true", help="print the loss of plans for 8 L40S, and no errors")
    args = parser.parse_args()
    truth, noise = read_truth(args.truth)
    if args.plans:
        print("\n".join(plan_losses(truth[PCIE])))
        return
    print(f"{sum(len(rows.us_P) for of in truth.values() for rows in of.values())} rows, and {noise} that are noise\n")
    cells = [("link", "collective", "GPUs", "points", "fitted: median", "worst", "left out: median", "worst")]
    links = {}
    for name, of_kind in truth.items():
        all_errors = []
        for kind, rows in sorted(of_kind.items()):
            curve = fit_curve(*kind, rows.moved_P, rows.us_P)
            fitted, left_out = errors_of(curve, rows), left_out_errors(kind, rows, one_by_one(rows))
            all_errors.append(left_out)
            numbers = [f"{100 * of(errors):.1f}" for errors in (fitted, left_out) for of in (np.median, np.max)]
            cells.append((name, kind[0], str(kind[1]), str(len(curve.kb)), *numbers))
        links[name] = fitted_link(name, truth, np.concatenate(all_errors))
        if args.write:
            write_link(links[name], f"fitted to {SOURCE}", link_profile_path(name))
    print(text_table(cells, "<<>>>>>>"), end="\n\n")
    efa, cells = nodes_link(read_nodes(args.truth, links[EFA_GPU]))
    if args.write:
        write_link(efa, f"fitted to {EFA_SOURCE}", link_profile_path(EFA))
    print(f"Between nodes, {EFA}:\n{text_table(cells, '<>>>>>')}\n")
    links = {name: one for name, one in links.items() if name in NVLINK_GB_S}
    cells = [
        ("link", "by its line rate: median", "90 %", "by other line rates: median", "90 %", "4 of 2 and 8", "90 %")
    ]
    rates = list(NVLINK_GB_S.values())
    of_rule: dict[bool, list[FloatArray]] = {True: [], False: []}
    for name in links:
        row: list[str] = []
        for same_line in (True, False):
            if same_line and rates.count(NVLINK_GB_S[name]) < 2:
                row += ["-", "-"]
                continue
            of_rule[same_line].append(rule_errors(name, links, truth, same_line))
            row += [f"{one}" for one in _percent(of_rule[same_line][-1])]
        cells.append((name, *row, *(f"{one}" for one in _percent(between_errors(links[name], truth[name])))))
    print(text_table(cells, "<>>>>>>"), end="\n\n")
    for same_line, errors in of_rule.items():
        together = np.concatenate(errors)
        what = "its line rate" if same_line else "other line rates"
        print(f"By links of {what}: {len(together)} rows, median and 90 % {_percent(together)}")


if __name__ == "__main__":
    run_script(main)
