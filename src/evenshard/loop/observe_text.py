"""A training's observation as text for the terminal: each rank's times, which rank a step waits for, predictions."""

from __future__ import annotations

from statistics import fmean

import numpy as np

from evenshard.base.messages import printable, text_table
from evenshard.loop.observe import ObservedAndPredicted
from evenshard.measure.traces.ranks import ObservedTraining, RankTimes
from evenshard.price.step import predicted_phases

NOT_SEEN = "not seen"
_HEADS = ["rank", "input dist", "forward", "forward communication", "backward communication", "backward"]


def observation_text(observation: ObservedTraining, comparison: ObservedAndPredicted | None) -> str:
    """All of it, as lines."""
    heads = [*_HEADS, "other collectives", "waiting", "step, ms"]
    lines = [_title(observation), text_table([heads, *map(_row, observation.ranks)], ">", "  ")]
    lines += _waits(observation)
    if (balance := observation.balance) is not None:
        share = balance.total_ms / observation.step_ms
        lines.append(
            f"Balance alone saves at most {_time(balance.total_ms)} of a step ({share:.1%}): forward "
            f"{_time(balance.forward_ms)}, backward {_time(balance.backward_ms)}, communication "
            f"{_time(balance.exchanges_ms)}."
        )
    lines += [f"Note: {note}" for note in observation.notes]
    if comparison is not None:
        lines += _comparison_lines(observation, comparison)
    return "\n".join(printable(line) for line in "\n".join(lines).splitlines())  # names come from files


def _title(observation: ObservedTraining) -> str:
    ranks, first = observation.ranks, observation.ranks[0]
    given = f"{len(ranks)} of {observation.world_size} ranks" if observation.world_size > 1 else "1 rank"
    kinds = ", ".join(dict.fromkeys(one.gpu or "CPU" for one in ranks))
    return (
        f"{given} on {kinds}, a step takes {observation.step_ms:.2f} ms. Times in ms (shares of a step), medians of "
        f"{first.num_steps} step{'s' * (first.num_steps > 1)}:"
    )


def _row(rank: RankTimes) -> list[str]:
    cells = [_share(one, rank.step_ms) for one in (*rank.phases_ms, rank.exchange_ms["other"])]
    if rank.num_tables == 0:
        cells[1] = cells[4] = "none"
    with_waiting = rank.waiting_ms is None and any(one is not None for one in rank.exchange_ms.values())
    waiting = "in them" if with_waiting else _share(rank.all_waiting_ms, rank.step_ms)
    return [str(rank.rank), *cells, waiting, f"{rank.step_ms:.2f}"]


def _share(time_ms: float | None, step_ms: float) -> str:
    return NOT_SEEN if time_ms is None else f"{time_ms:.3f} ({time_ms / step_ms:.1%})"


def _time(time_ms: float | None) -> str:
    return NOT_SEEN if time_ms is None else f"{time_ms:.3f} ms"


def _waits(observation: ObservedTraining) -> list[str]:
    waiting = {one.rank: one.all_waiting_ms or 0.0 for one in observation.ranks}
    last = observation.waits_for
    if last is None:
        return []
    others = fmean(ms for rank, ms in waiting.items() if rank != last)
    slowest = max(observation.ranks, key=lambda one: one.compute_ms)
    return [
        f"The step waits for rank {last}: it waits {waiting[last]:.3f} ms itself, the others {others:.3f} ms on "
        f"average. The slowest embedding tables are those of rank {slowest.rank}: forward and backward take "
        f"{slowest.compute_ms:.3f} ms."
    ]


def _comparison_lines(observation: ObservedTraining, comparison: ObservedAndPredicted) -> list[str]:
    observed, predicted = comparison.observed_ms, comparison.predicted_ms
    interval = f"90 %: {comparison.low_ms:.3f} to {comparison.high_ms:.3f}"
    of_device = [f"{comparison.device}."] if comparison.device else []
    unseen = f", without {', '.join(observation.unseen)}, which the traces do not show" if observation.unseen else ""
    if comparison.devices is None:
        return [
            f"Embedding tables take {observed:.3f} ms of a step{unseen}. Placed by evenshard, those of "
            f"{comparison.source} are predicted to take {predicted:.3f} ms ({interval}) by {comparison.predicted_by}.",
            *of_device,
        ]
    inside = "inside the interval" if comparison.low_ms <= observed <= comparison.high_ms else "outside the interval"
    verdict = f"not comparable{unseen}" if unseen else inside
    rows = [[*_HEADS, "together"]]
    totals = [device.predicted_total_ms for device in comparison.devices]
    predicted_D6 = np.array([*predicted_phases(comparison.devices), totals]).T
    for one, together_ms in zip(observation.ranks, comparison.observed_devices_ms, strict=True):
        rows.append([str(one.rank), *map(_pair, (*one.phases_ms, together_ms), predicted_D6[one.rank].tolist())])
    return [
        f"Observed / predicted for {comparison.source} by {comparison.predicted_by}, ms:",
        text_table(rows, ">", "  "),
        f"Embedding tables take {observed:.3f} ms of a step, {predicted:.3f} ms predicted ({interval}): {verdict}.",
        *of_device,
        *(f"Note: {note}" for note in comparison.notes),
    ]


def _pair(seen_ms: float | None, expected_ms: float) -> str:
    return f"{NOT_SEEN if seen_ms is None else f'{seen_ms:.3f}'} / {expected_ms:.3f}"
