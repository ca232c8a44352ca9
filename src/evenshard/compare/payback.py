"""When a move pays back: what it takes once, against what each step saves afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from evenshard.compare.difference import Difference
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.pricing import links_of_request
from evenshard.sharders.model import Model
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief
from evenshard.utils.units import seconds_to_ms


@dataclass(frozen=True)
class Payback:
    """A move over so many steps.

    Attributes:
        steps: that follow it.
        transfer_seconds: for the bytes that move.
        link: what they go over, in words.
        restart_seconds: that no step is made in, besides.
        saves_ms: of a step; below 0 where the new placement is slower.
        saves_low_ms, saves_high_ms: 90 % interval of that.
        break_even_steps: steps after which the move has paid back; None where it never does.
        soonest_steps, latest_steps: by the two ends of the interval; None where it never does.
        gained_seconds: after all steps; below 0 where time is lost.
        gained_low_seconds, gained_high_seconds: by the two ends.
    """

    steps: int
    transfer_seconds: float
    link: str
    restart_seconds: float
    saves_ms: float
    saves_low_ms: float
    saves_high_ms: float
    break_even_steps: float | None
    soonest_steps: float | None
    latest_steps: float | None
    gained_seconds: float
    gained_low_seconds: float
    gained_high_seconds: float


def payback(
    difference: Difference,
    new: PlacementAnswer,
    steps: int,
    model: Model | None = None,
    link_gb_s: float | None = None,
    restart_minutes: float = 0.0,
) -> Payback | None:
    """What a move brings over so many steps; None where the two placements are equal, so that no move is made.

    Args:
        difference: between the two answers.
        new: the new one, whose machine has the link.
        model: of the new answer; knows the link of a machine that names none.
        link_gb_s: what a device sends and receives, in place of that link.
        restart_minutes: minutes that the training stands still, on top of the transfer.

    Raises:
        BadConfig: if no link is known, or the two answers are of other tables, so that no saving is.
    """
    if difference.equal:
        return None
    if not difference.is_of_same_tables:
        others = [*difference.added, *difference.removed, *(one.table for one in difference.changed)]
        raise BadConfig(
            f"the two placements differ in {len(others):,} of their tables, such as {brief(others[0])}: what a step "
            f"saves is unknown. Place today's tables where the old ones are (evenshard place TABLES --near OLD "
            f"--max-move-gb 0 -o stay.json), and compare with that."
        )
    seconds, link = _transfer(difference, new, model, link_gb_s)
    times, restart_s = difference.times, restart_minutes * 60
    once_ms = seconds_to_ms(seconds + restart_s)
    ends = (times.saves_ms, times.saves_low_ms, times.saves_high_ms)
    break_even, latest, soonest = (once_ms / saves if saves > 0 else None for saves in ends)
    gained, low, high = ((steps * saves - once_ms) / seconds_to_ms(1.0) for saves in ends)
    return Payback(
        steps, seconds, link, restart_s, *ends, break_even, soonest, latest, gained, low, high
    )  # fmt: skip


def _transfer(
    difference: Difference, new: PlacementAnswer, model: Model | None, link_gb_s: float | None
) -> tuple[float, str]:
    """Seconds of the transfer, and what it goes over."""
    traffic = difference.traffic
    if link_gb_s is not None:
        return traffic.seconds or 0.0, f"{link_gb_s:.3g} GB/s"
    if model is None:
        raise BadConfig("without a model no link is known for the move. Say what it has: --link-gb-s 50.")
    machine, links = new.request.nodes, links_of_request(new.request, model)
    # Between hosts each device has a link of its own, which is the slow one: all bytes are taken to go over it.
    between = links.inter
    name = machine.inter if between is not None else machine.intra or model.link
    busiest = float(traffic.busiest_bytes)
    time_ms = float(
        (between or links.intra).bytes_ms(busiest, busiest, float(traffic.moved_bytes), machine.num_devices)
    )
    return time_ms / seconds_to_ms(1.0), name or "the link of the model's training data"
