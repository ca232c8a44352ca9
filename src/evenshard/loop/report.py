"""Tables and plots of an evaluation, each as a file and all of them on one page."""

from __future__ import annotations

import base64
import csv
import html
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from evenshard.base.installation import require_package
from evenshard.base.messages import text_table
from evenshard.base.outputs import atomic_path, write_text
from evenshard.loop.sharder_comparison import NetworkAccuracy, Result, Standing
from evenshard.measure.cost_rows import TIMES
from evenshard.measure.noise import Noise
from evenshard.price.costs import CONTROL, OK, RANDOM_SHARD, MeasuredPlacement, PlacementCost
from evenshard.price.evidence import DeviceError, device_text
from evenshard.price.hardware import measured_or_simulated
from evenshard.sharders.catalog import LEARNED

CSV_COLUMNS = (
    *("task_id", "sharder", "status", "reason", "max_device_ms", "predicted_ms", "device_id", "num_tables"),
    *("input_dist_ms", "fwd_compute_ms", "fwd_all_to_all_ms", "bwd_all_to_all_ms", "bwd_compute_ms"),
    *("fwd_compute_spread_ms", "bwd_compute_spread_ms", "fwd_wait_ms", "all_to_all", "hardware"),
)
# Label and colour of each measured time in plots.
TIME_PARTS = {
    "fwd_compute_ms": ("forward", "#4c78a8"),
    "fwd_all_to_all_ms": ("all-to-all forward", "#f2b447"),
    "bwd_all_to_all_ms": ("all-to-all backward", "#e4813b"),
    "bwd_compute_ms": ("backward", "#8a5a9e"),
}

PICTURES = {
    "device_costs.png": "Time of each device on one held-out task",
    "predicted_vs_measured.png": "Predicted against {timed} cost",
    "cost_per_round.png": "Cost of proposed placements, {timed}, round by round",
}
_STYLE = (
    "body{font:15px sans-serif;max-width:72em;margin:2em auto;padding:0 1em}img{max-width:100%}"
    "pre{overflow-x:auto;font-size:13px}"
)

_POLICY, _SEARCH = "the policy", "evenshard's search"
# Colour of the dots, colour of the mean, and horizontal offset of both from the round's number.
PROPOSED = {_POLICY: ("#4c78a8", "#8a5a9e", 0.0), _SEARCH: ("#f2b447", "#e4813b", 0.12)}


def write_csv(results: Sequence[Result], path: Path) -> None:
    """Write one row per task, sharder and device, or one row with the reason for an infeasible task."""
    with atomic_path(path) as draft, draft.open("w", newline="") as file:
        writer = csv.DictWriter(file, CSV_COLUMNS, restval="")
        writer.writeheader()
        for result in results:
            writer.writerows(_csv_rows(result))


def write_plot_data(
    results: Sequence[Result], standings: Sequence[Standing], rounds: Sequence[MeasuredPlacement], folder: Path
) -> None:
    """Write the data of ``dvc plots``, one file per plot; ``rounds`` are the measurements of all benchmarks."""
    costs = ((one.sharder, one.measured_ms) for one in standings)
    heads = ("sharder", "mean_measured_ms", "ci95_low_ms", "ci95_high_ms")
    _write_data(
        heads, [(name, *map(_round, (ms.mean, ms.low, ms.high))) for name, ms in costs], folder / "sharders.csv"
    )
    pairs = [
        (one.answer.task.task_id, one.answer.sharder, _round(one.answer.predicted_ms), _round(one.measured_ms))
        for one in results
        if math.isfinite(one.measured_ms)
    ]
    heads = ("task_id", "sharder", "predicted_ms", "max_device_ms")
    _write_data(heads, pairs, folder / "predicted_vs_measured.csv")
    found = _group_costs(rounds)
    policy, search = found[_POLICY], found[_SEARCH]
    proposed = [
        {"round": number, "policy_ms": _mean_of_round(policy, number), "search_ms": _mean_of_round(search, number)}
        for number in sorted({*policy, *search})
    ]
    write_text(folder / "cost_per_round.json", json.dumps(proposed, indent=1) + "\n")  # CSV has no null


def _mean_of_round(costs: Mapping[int, Sequence[float]], number: int) -> float | None:
    return _round(fmean(costs.get(number, [math.nan])))


def _write_data(heads: Sequence[str], rows: Sequence[Sequence[object]], path: Path) -> None:
    with atomic_path(path) as draft, draft.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows((heads, *rows) if rows else [()])


def _csv_rows(result: Result) -> list[dict[str, object]]:
    answer = result.answer
    head: dict[str, object] = {"task_id": answer.task.task_id, "sharder": answer.sharder}
    measured = result.measured
    if answer.placement is None or measured is None:
        return [{**head, "status": "infeasible", "reason": answer.reason}]
    shards = answer.placement.shards()
    return [
        {
            **head,
            "max_device_ms": measured.cost.max_device_ms if measured.cost.fits else "",
            "predicted_ms": answer.predicted_ms,
            "device_id": device_id,
            "num_tables": len(shards[device_id]),
            **({name: value for name, value in asdict(cost).items() if name in TIMES} if cost.status == OK else {}),
            "status": measured_or_simulated(measured.provenance.hardware) if cost.status == OK else cost.status,
            "all_to_all": measured.cost.all_to_all,
            "hardware": measured.provenance.hardware,
        }
        for device_id, cost in enumerate(measured.cost.devices)
    ]


def metrics(
    standings: Sequence[Standing],
    accuracy: NetworkAccuracy,
    num_tasks: int,
    num_infeasible: int,
    noise: Noise,
    origin: Mapping[str, Any],
    model_accuracy: NetworkAccuracy | None = None,
) -> dict[str, Any]:
    """Return the contents of ``metrics.json``.

    Args:
        accuracy: accuracy of the learned sharder's cost network.
        model_accuracy: accuracy of evenshard's cost model; None if there is none.
    """
    noise_floor = noise.difference_pct(num_tasks - num_infeasible)
    return {
        **origin,
        "noise": {**asdict(noise), "equal_below_pct": _round(noise_floor)},
        "num_test_tasks": num_tasks,
        "num_infeasible": num_infeasible,
        "sharders": {
            standing.sharder: {
                "mean_measured_ms": _round(standing.measured_ms.mean),
                "ci95_ms": [_round(standing.measured_ms.low), _round(standing.measured_ms.high)],
                "difference_to_best_heuristic_pct": _round(standing.against_best_pct.mean),
                "difference_ci95_pct": [_round(standing.against_best_pct.low), _round(standing.against_best_pct.high)],
                "num_infeasible": standing.num_infeasible,
                "privileged": standing.privileged,
                "verdict": standing.verdict,
            }
            for standing in standings
        },
        **{
            name: {key: _round(value) for key, value in asdict(network).items()}
            for name, network in (("cost_network", accuracy), ("cost_model", model_accuracy))
            if network is not None
        },
    }


def summary(standings: Sequence[Standing]) -> dict[str, float | None]:
    """Return the contents of ``summary.json``: the metrics by which loops are compared."""
    means = {
        f"{'heuristic' if standing.is_best_heuristic else standing.sharder}_ms": _round(standing.measured_ms.mean)
        for standing in standings
        if standing.is_best_heuristic or standing.sharder in ("evenshard", *LEARNED)
    }
    return {**means, "noise_pct": _round(max(standing.noise_pct for standing in standings))}


def _round(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def standings_text(
    standings: Sequence[Standing], num_tasks: int, noise: Noise, hardware: str, device_error: DeviceError | None = None
) -> str:
    """Format the comparison of sharders as a table for the terminal, fastest first."""
    timed = measured_or_simulated(hardware)
    rows = [("sharder", f"mean {timed} ms", "to the best heuristic", "verdict")]
    for standing in sorted(standings, key=lambda standing: standing.measured_ms.mean):
        against = standing.against_best_pct
        difference = f"{against.mean:+.1f} % [{against.low:+.1f}, {against.high:+.1f}]"
        missed = f"; {standing.num_infeasible} of {num_tasks} tasks infeasible" if standing.num_infeasible else ""
        rows.append(
            (
                f"{standing.sharder} *" if standing.privileged else standing.sharder,
                f"{standing.measured_ms.mean:.3f}",
                "0" if standing.is_best_heuristic else difference,
                standing.verdict + missed,
            )
        )
    lines = [text_table(rows, "<>><")]
    if any(standing.privileged for standing in standings):
        lines.append(f"* privileged: every table of the test tasks was {timed} alone before placing")
    lines.append(f"{num_tasks} held-out tasks of unseen tables; paired differences with 95 % intervals")
    if noise.within_run_pct is not None:
        between = f" and {noise.between_run_pct:.1f} % between runs" if noise.between_run_pct is not None else ""
        if noise.relative_between_run_pct is not None:
            between += f" ({noise.relative_between_run_pct:.1f} % relative to each other)"
        equal_below = max(standing.noise_pct for standing in standings)
        lines.append(
            f"noise (standard deviation of repeated placements): {noise.within_run_pct:.1f} % within a run{between}; "
            f"differences below {equal_below:.1f} % count as equal"
        )
    if device_error is not None:
        lines.append(device_text(hardware, device_error))
    return "\n".join(lines)


@contextmanager
def _picture(path: Path, width: float, height: float, columns: int = 1) -> Iterator[tuple[Any, Any]]:
    require_package("matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, ((*axes,),) = pyplot.subplots(
        1, max(1, columns), figsize=(width, height), sharey=columns > 1, layout="constrained", squeeze=False
    )
    try:
        yield figure, axes
        for axis in axes:
            axis.spines[["top", "right"]].set_visible(False)
        with atomic_path(path) as draft:
            figure.savefig(draft, dpi=130, format="png", metadata={"Software": None})
    finally:
        pyplot.close(figure)


def plot_device_costs(costs: Mapping[str, PlacementCost], title: str, path: Path) -> None:
    """Draw forward, backward and both all-to-all times of each device as stacked bars, one panel per sharder."""
    with _picture(path, 1.2 + 3.1 * len(costs), 3.8, len(costs)) as (figure, axes):
        for axis, (sharder, cost) in zip(axes, costs.items(), strict=False):  # an empty panel if there is no cost
            bottom = [0.0] * len(cost.devices)
            devices = range(len(cost.devices))
            for part, (label, colour) in TIME_PARTS.items():
                heights = [getattr(device, part) for device in cost.devices]
                axis.bar(devices, heights, bottom=bottom, label=label, color=colour, width=0.7)
                bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
            axis.axhline(cost.max_device_ms, color="#333333", linewidth=1, linestyle="--")
            axis.set_title(f"{sharder}: {cost.max_device_ms:.2f} ms", fontsize=11)
            axis.set_xlabel("device")
            axis.set_xticks(list(devices))
            axis.margins(y=0.08)
        modelled = any(cost.all_to_all == "modelled" for cost in costs.values())
        axes[0].set_ylabel("ms per step" + (", all-to-all modelled" if modelled else ""))
        figure.suptitle(title, fontsize=11)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)


def plot_predicted_vs_measured(results: Sequence[Result], accuracy: NetworkAccuracy, hardware: str, path: Path) -> None:
    """Draw predicted against measured (or simulated) cost of all placements of the held-out tasks."""
    with _picture(path, 5.6, 5.0) as (_, (axis,)):
        measured = [result for result in results if math.isfinite(result.measured_ms)]
        for sharder in dict.fromkeys(result.answer.sharder for result in measured):
            own = [result for result in measured if result.answer.sharder == sharder]
            axis.scatter(
                [r.measured_ms for r in own], [r.answer.predicted_ms for r in own], s=14, alpha=0.75, label=sharder
            )
        if measured:
            values = [v for r in measured for v in (r.measured_ms, r.answer.predicted_ms)]
            ends = (min(values) * 0.95, max(values) * 1.05)  # 5 % margin around the diagonal
            axis.plot(ends, ends, color="#333333", linewidth=1, linestyle="--")
            axis.set(xlim=ends, ylim=ends)
            axis.legend(frameon=False, fontsize=8)
        axis.set(xlabel=f"{measured_or_simulated(hardware)} ms per step", ylabel="predicted ms per step")
        error, tau = accuracy.median_abs_pct_error, accuracy.kendall_tau
        axis.set_title(f"unseen tables: median error {error:.1f} %, Kendall's tau {tau:.2f}", fontsize=11)


def plot_cost_per_round(measured: Sequence[MeasuredPlacement], path: Path) -> None:
    """Draw the costs of each round's placements and their mean with a 95 % interval, for policy and search."""
    with _picture(path, 5.6, 3.8) as (_, (axis,)):
        by_round = _group_costs(measured)
        for label, costs in by_round.items():
            if not costs:
                continue
            dots, line, offset = PROPOSED[label]
            rounds = sorted(costs)
            places = [number + offset for number in rounds]
            means = [fmean(costs[number]) for number in rounds]
            # 95 % interval of a mean: 1.96 standard errors (normal approximation)
            errors = [1.96 * stdev(v) / math.sqrt(len(v)) if len(v) > 1 else 0.0 for v in (costs[r] for r in rounds)]
            for number, place in zip(rounds, places, strict=True):
                axis.scatter([place] * len(costs[number]), costs[number], s=10, alpha=0.35, color=dots)
            axis.errorbar(places, means, yerr=errors, marker="o", color=line, capsize=4, label=f"{label}: mean, 95 %")
        ticks = sorted({number for costs in by_round.values() for number in costs})
        timed = measured_or_simulated(", ".join({placement.provenance.hardware for placement in measured}))
        axis.set(xlabel="round (round 1 places at random)", ylabel=f"{timed} ms per step", xticks=ticks)
        axis.set_ylim(bottom=0)
        if ticks:
            axis.legend(frameon=False)


def _group_costs(measured: Sequence[MeasuredPlacement]) -> dict[str, dict[int, list[float]]]:
    found: dict[str, dict[int, list[float]]] = {label: {} for label in PROPOSED}
    for placement in measured:
        if placement.cost.fits and placement.proposed_by not in (CONTROL, RANDOM_SHARD):
            proposer = _SEARCH if placement.proposed_by == "evenshard" else _POLICY
            found[proposer].setdefault(placement.round, []).append(placement.cost.max_device_ms)
    return found


def save_summary(table: str, metrics: Mapping[str, Any], summary: Path) -> None:
    """Write an evaluation's table as Markdown, without images, because viewers drop inline images."""
    write_text(summary, f"# Evaluation\n\n{_facts(metrics)}\n\n```\n{table}\n```\n")


def save_report_page(folder: Path, table: str, metrics: Mapping[str, Any], page: Path) -> None:
    """Write an evaluation's table and the images in its folder as one self-contained HTML page."""
    timed = measured_or_simulated(metrics["hardware"])
    pictures = ""
    for name, text in PICTURES.items():
        title, inline = html.escape(text.format(timed=timed)), base64.b64encode((folder / name).read_bytes()).decode()
        pictures += f'<h2>{title}</h2><img alt="{title}" src="data:image/png;base64,{inline}">'
    body = f"<h1>Evaluation</h1><p>{html.escape(_facts(metrics))}</p><pre>{html.escape(table)}</pre>{pictures}"
    head = f'<meta charset="utf-8"><title>Evaluation</title><style>{_STYLE}</style>'
    write_text(page, f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n')


def _facts(metrics: Mapping[str, Any]) -> str:
    infeasible = metrics["num_infeasible"]
    return (
        f"{metrics['num_test_tasks']} held-out tasks on {metrics['hardware']}; all-to-all: "
        f"{', '.join(metrics['all_to_all'])}."
        + (f" {infeasible} were infeasible for some sharder." if infeasible else "")
    )
