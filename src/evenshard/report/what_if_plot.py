"""A picture of machines beside each other: what they train on in a second, and what that costs, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evenshard.compare.what_if.option import PredictedInterval, WhatIfOption
from evenshard.compare.what_if.result import WhatIfAnswer
from evenshard.report.what_if import heading, short_name
from evenshard.utils.atomic import atomic_path
from evenshard.utils.errors import BadConfig
from evenshard.utils.extras import require_package

PICTURE_SUFFIXES = (".png", ".svg", ".pdf")
SERIES_COLOURS = ("#1f77b4", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
# Series stand beside each other so far, as a share of the number they are at: intervals do not hide each other.
SPREAD = 0.035


def require_plot(path: Path) -> None:
    """Says before the work, not after it, that a picture cannot be drawn.

    Raises:
        BadConfig: if its suffix names no kind of picture.
        MissingPackage: if matplotlib is not installed.
    """
    if path.suffix.lower() not in PICTURE_SUFFIXES:
        raise BadConfig(
            f"{path}: a picture ends in {', '.join(PICTURE_SUFFIXES[:-1])} or {PICTURE_SUFFIXES[-1]}. Rename it."
        )
    require_package("matplotlib")


def save_plot(found: WhatIfAnswer, path: str | Path) -> None:
    """Draws samples per second, and costs where there are prices, by number of devices or size of groups.

    Raises:
        BadConfig: if the suffix names no kind of picture.
        MissingPackage: if matplotlib is not installed.
    """
    path = Path(path)
    require_plot(path)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: list[tuple[str, Callable[[WhatIfOption], PredictedInterval | None]]] = [
        ("million samples/s", lambda one: one.samples_per_s.times(1e-6))
    ]
    if any(one.price_per_hour is not None for one in found.options):
        currency = "" if found.question.prices is None else found.question.prices.currency
        panels.append((f"{currency} per 10^9 samples".strip(), lambda one: one.cost))
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(1.0 + 4.6 * len(panels), 4.2), layout="constrained", squeeze=False
    )
    for axis, (label, value) in zip(axes[0], panels, strict=True):
        _draw(axis, found, value)
        axis.set_ylabel(label)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4) or 1, frameon=False)
    figure.suptitle(heading(found).replace(". ", ".\n"), fontsize=9)
    with atomic_path(path) as draft:
        figure.savefig(draft, dpi=130, format=path.suffix[1:].lower())
    pyplot.close(figure)


def _draw(axis: Any, found: WhatIfAnswer, value: Callable[[WhatIfOption], PredictedInterval | None]) -> None:
    """A series for each kind of hardware, or each machine where groups are compared; a cross where nothing fits."""
    at: Callable[[WhatIfOption], int] = (
        (lambda one: one.group_size) if found.has_groups else lambda one: one.num_devices
    )
    series: dict[str, list[WhatIfOption]] = {}
    for one in found.options:
        name = short_name(one.hardware)
        series.setdefault(f"{one.num_devices} x {name}" if found.has_groups else name, []).append(one)
    ticks = sorted({at(one) for one in found.options})
    highest = 0.0
    for number, (name, options) in enumerate(series.items()):
        shift = 1 + SPREAD * (number - (len(series) - 1) / 2)
        points = [(at(one) * shift, drawn) for one in options if one.fits and (drawn := value(one)) is not None]
        colour = SERIES_COLOURS[number % len(SERIES_COLOURS)]
        xs, ys = [x for x, _ in points], [drawn.value for _, drawn in points]
        errors = [[drawn.value - drawn.low for _, drawn in points], [drawn.high - drawn.value for _, drawn in points]]
        axis.errorbar(xs, ys, yerr=errors, fmt="o-", color=colour, capsize=3, linewidth=1, markersize=4, label=name)
        highest = max([highest, *(drawn.high for _, drawn in points)])
        missing = [at(one) * shift for one in options if not one.fits]
        if missing:
            axis.plot(missing, [0] * len(missing), "x", color=colour, clip_on=False, label=f"{name}: does not fit")
    _scale(axis, ticks, highest)
    axis.set_xlabel("devices of a group that holds all tables" if found.has_groups else "devices")


def _scale(axis: Any, ticks: Sequence[int], highest: float) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.minorticks_off()
    axis.set_ylim(0, 1.05 * highest if highest else 1.0)
    axis.spines[["top", "right"]].set_visible(False)
