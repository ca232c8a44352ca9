"""An answer as a piece of HTML, for notebooks: its headline and a bar for each device.

Styles stand in the elements: a notebook has its own, and may be light or dark. Names are the user's own and are
escaped.
"""

from __future__ import annotations

from evenshard.planner import highlights
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.page.page import rendered
from evenshard.planner.summary import shown_devices
from evenshard.utils.units import decimals

COLOURS = ("#009e73", "#0072b2", "#6bbdec", "#efb336", "#d55e00")
"""Of the five times in a bar, in the order of a step; those of the page."""


def card(answer: PlacementAnswer) -> str:
    """The piece of HTML; the same answer gives the same text."""
    slowest, fullest = shown_devices(answer)
    longest_ms = max(one.predicted_total_ms for one in answer.devices) or 1.0
    bars = []
    for device in sorted((*slowest, *fullest)):
        times = highlights.predicted_step_times(answer.devices[device])
        widths = [100 * time_ms / longest_ms for time_ms in times]
        bars.append((device, answer.devices[device].predicted_total_ms, list(zip(widths, COLOURS, strict=True))))
    count = len(answer.request.tables)
    title = f"{count:,} table{'s' * (count > 1)}"
    return rendered(
        "card.html.j2",
        title=title,
        setting=highlights.setting_text(answer),
        headline=highlights.step_headline(answer),
        bars=bars,
        memory=answer.memory,
        num_parts=[len(held) for held in answer.parts_on_device],
        slowest=highlights.slowest_device(answer),
        digits=decimals(answer.predicted_ms),
        left_out=answer.num_devices - len(bars),
        legend=list(zip(highlights.STEP_PARTS, COLOURS, strict=True)),
        ways=highlights.sharding_texts(answer),
        notes=[*answer.notes, *highlights.advice(answer)],
        warnings=[*highlights.assumed_lookups_texts(answer), *answer.memory_warnings, *answer.warnings],
    )
