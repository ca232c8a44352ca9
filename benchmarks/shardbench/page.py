"""Page of a CSV of results: summary, picture, planners, cells in which evenshard is not the best, and dataset card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from textwrap import fill

import matplotlib

from benchmarks.shardbench.cases import TABLES_SHARE, Cell
from benchmarks.shardbench.linear import constants
from benchmarks.shardbench.planners.torchrec_swept import SETTINGS, SWEEP_S
from benchmarks.shardbench.results import FITS, ILLEGAL, NO_PLAN, ORACLES, OVER_MEMORY, Result, read_csv

OURS = "evenshard"
# Baselines: evenshard is compared with the best plan of each family, by the same oracle.
FAMILIES = {
    "TorchRec's default": ("torchrec_default",),
    "TorchRec swept": ("torchrec_default", "torchrec_swept"),
    "rules of thumb": ("greedy", "rule_of_thumb"),
    "learned": ("dreamshard", "autoshard"),
}
# Smaller differences of costs count as equal, per cent.
ALIKE_PERCENT = 0.1
# Range of ratios in the picture; ratios outside are drawn at the edge.
LEAST, MOST = 0.6, 6.0
TEMPLATE = Path(__file__).with_name("page_template.md")


def by_cell(rows: Sequence[Result]) -> dict[Cell, list[Result]]:
    """Group the plans by cell."""
    found: dict[Cell, list[Result]] = {}
    for one in rows:
        found.setdefault(one.cell, []).append(one)
    return found


def comparable(rows: Sequence[Result]) -> list[Result]:
    """Drop the timed kernels of cells in which a feasible plan was not timed, as it might be the best."""
    untimed = {one.cell for one in rows if one.status == FITS and one.kernels_ms is None}
    return [replace(one, kernels_ms=None) if one.cell in untimed else one for one in rows]


def best_of(rows: Sequence[Result], oracle: str, planners: Sequence[str] = ()) -> Result | None:
    """Return the cheapest legal plan by an oracle, of some planners or of all; the first if several are equal."""
    usable = [one for one in rows if one.ms(oracle) < float("inf") and (not planners or one.planner in planners)]
    return min(usable, key=lambda one: one.ms(oracle), default=None)


def percent_above(one: Result | None, other: Result | None, oracle: str) -> float | None:
    """Return the cost of a plan above that of another, per cent; None if a plan is missing."""
    return None if one is None or other is None else 100 * (one.ms(oracle) / other.ms(oracle) - 1)


def beaten(rows: Sequence[Result], oracle: str) -> Iterator[tuple[Cell, Result, Result, float]]:
    """Yield cells with evenshard's plan, a better plan, and the cost of evenshard's above it, per cent."""
    for cell, of_cell in by_cell(rows).items():
        ours, best = best_of(of_cell, oracle, [OURS]), best_of(of_cell, oracle)
        above = percent_above(ours, best, oracle)
        if ours is not None and best is not None and above is not None and above > ALIKE_PERCENT:
            yield cell, ours, best, above


def _with_sign(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f} %"


def _row(*texts: object) -> str:
    return f"| {' | '.join(map(str, texts))} |"


def table(rows: Sequence[Result]) -> Iterator[str]:
    """Yield Markdown: each cell by each oracle."""
    yield _row("model", "devices", "oracle", "evenshard, ms", "best planner", *FAMILIES)
    yield "|---|---|---|---:|---|" + "---:|" * len(FAMILIES)
    for cell, of_cell in by_cell(rows).items():
        for oracle in ORACLES:
            ours, best = best_of(of_cell, oracle, [OURS]), best_of(of_cell, oracle)
            if best is None and oracle == "kernels":  # none of its loads was timed
                continue
            percents = (percent_above(ours, best_of(of_cell, oracle, of), oracle) for of in FAMILIES.values())
            winner = "-" if best is None else best.planner
            if ours is not None and best is not None and ours.ms(oracle) <= best.ms(oracle) * (1 + ALIKE_PERCENT / 100):
                winner = OURS
            ms = "-" if ours is None else f"{ours.ms(oracle):.3f}"
            yield _row(cell.model, f"{cell.devices} x {cell.gpu}", oracle, ms, winner, *map(_with_sign, percents))


def summary(rows: Sequence[Result]) -> Iterator[str]:
    """Yield Markdown: each oracle over all cells, and over those in which TorchRec's planner tried all settings."""
    yield _row("oracle", "cells", "evenshard is the best", *(f"against {one}" for one in FAMILIES))
    yield "|---|---:|---:|" + "---:|" * len(FAMILIES)
    swept = swept_in_full(rows)
    for oracle, name in ORACLES.items():
        yield _summary_row(name, oracle, rows)
        if swept:
            yield _summary_row(f"{name}, TorchRec swept in full", oracle, [one for one in rows if one.cell in swept])


def swept_in_full(rows: Sequence[Result]) -> set[Cell]:
    """Return the cells in which TorchRec's planner tried all settings."""
    return {one.cell for one in rows if one.planner == "torchrec_swept" and one.seconds < SWEEP_S}


def cut_off(rows: Sequence[Result]) -> Iterator[str]:
    """Yield a sentence with the cells whose sweep was cut off; empty if there are none."""
    asked = by_cell([one for one in rows if one.planner == "torchrec_swept"])
    cells = [str(cell) for cell in asked if cell not in swept_in_full(rows)]
    yield f"Its sweep was cut off in: {'; '.join(cells)}." if cells else ""


def timed_plans(rows: Sequence[Result]) -> Iterator[str]:
    """Yield the number of timed plans and their GPUs."""
    known = [one for one in rows if one.ms("kernels") < float("inf")]
    gpus = " and ".join(dict.fromkeys(one.gpu.upper() for one in known)) or "no GPU"
    yield f"{len(known)} plans of {len({one.cell for one in known})} cells, on {gpus}"


def _summary_row(name: str, oracle: str, rows: Sequence[Result]) -> str:
    cells = by_cell(rows)
    own = sum(best_of(of_cell, oracle, [OURS]) is not None for of_cell in cells.values())
    won = own - len(list(beaten(rows, oracle)))
    texts = []
    for planners in FAMILIES.values():
        pairs = ((best_of(one, oracle, [OURS]), best_of(one, oracle, planners)) for one in cells.values())
        known = [above for pair in pairs if (above := percent_above(*pair, oracle)) is not None]
        texts.append(f"{fmean(known):+.1f} % ({min(known):+.1f} to {max(known):+.1f})" if known else "-")
    return _row(name, own, won, *texts)


def planners(rows: Sequence[Result]) -> Iterator[str]:
    """Yield Markdown: counts of plans and problems by planner."""
    yield _row(
        "planner", "its own oracle", "cells", "plans", OVER_MEMORY, ILLEGAL, f"cells with {NO_PLAN}", "seconds a cell"
    )
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for name in dict.fromkeys(one.planner for one in rows):
        own = [one for one in rows if one.planner == name]
        count, seconds = Counter(one.status for one in own), {one.cell: one.seconds for one in own}
        plans = sum(count[status] for status in (FITS, OVER_MEMORY, ILLEGAL))
        middle = f"{median(seconds.values()):.1f}"
        yield _row(
            name,
            own[0].own_oracle or "-",
            len(seconds),
            plans,
            count[OVER_MEMORY],
            count[ILLEGAL],
            count[NO_PLAN],
            middle,
        )


def losses(rows: Sequence[Result]) -> Iterator[str]:
    """Yield Markdown: the number of cells with a better plan of another planner; by timed kernels each cell."""
    for oracle, name in ORACLES.items():
        found = sorted(beaten(rows, oracle), key=lambda one: -one[3])
        judged = sum(best_of(of_cell, oracle, [OURS]) is not None for of_cell in by_cell(rows).values())
        yield f"By {name}: {len(found)} of {judged} cells."
        yield ""
        if found and oracle == "kernels":
            yield _row("cell", "evenshard, ms", "best, ms", "whose plan", "evenshard above it")
            yield "|---|---:|---:|---|---:|"
            for cell, ours, best, above in found:
                whose = f"{best.planner}: {best.variant}" if best.variant else best.planner
                yield _row(cell, f"{ours.ms(oracle):.3f}", f"{best.ms(oracle):.3f}", whose, f"{above:.1f} %")
            yield ""


def draw(rows: Sequence[Result], path: Path) -> None:
    """Draw a panel for each oracle: the best plan of every planner in each cell, relative to evenshard's."""
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "shardbench", "svg.fonttype": "none"})
    from matplotlib import pyplot

    cells = by_cell(rows)
    names = [name for name in dict.fromkeys(one.planner for one in rows) if name != OURS]
    markers = dict(zip(names, "osD^v<>Ph*" * len(names), strict=False))
    figure, panels = pyplot.subplots(
        1, len(ORACLES), sharey=True, figsize=(3.8 * len(ORACLES), 1.6 + 0.21 * len(cells)), layout="constrained"
    )
    for panel, (oracle, title) in zip(panels, ORACLES.items(), strict=True):
        for name, marker in markers.items():
            points = []
            for y, of_cell in enumerate(cells.values()):
                ours, one = best_of(of_cell, oracle, [OURS]), best_of(of_cell, oracle, [name])
                if ours is not None and one is not None:
                    points.append((min(max(one.ms(oracle) / ours.ms(oracle), LEAST), MOST), y))
            panel.scatter(
                *zip(*points, strict=True) if points else ((), ()), s=18, marker=marker, label=name, alpha=0.8
            )
        panel.axvline(1.0, color="black", linewidth=0.8)
        panel.set_xscale("log")
        panel.set_xlim(LEAST * 0.97, MOST * 1.03)
        panel.set_xticks([0.6, 0.8, 1, 1.5, 2, 3, 4, 6], ["0.6", "0.8", "1", "1.5", "2", "3", "4", "6+"])
        panel.minorticks_off()
        panel.grid(axis="both", linewidth=0.3)
        panel.set_axisbelow(True)
        panel.set_title(title, fontsize=10)
    panels[0].set_yticks(range(len(cells)), [str(cell) for cell in cells], fontsize=8)
    panels[0].invert_yaxis()
    figure.suptitle(
        "cost of the planner's best plan relative to evenshard's; evenshard is worse left of the line", fontsize=10
    )
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(names), fontsize=9)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


PARTS = (summary, timed_plans, planners, cut_off, losses)


def page(rows: Sequence[Result], name: str) -> str:
    """Format the page of results for a CSV with this name."""
    known = constants()
    scales = (f"{gpu} {of['scale']:.2f} ({of['scale_from']['points']})" for gpu, of in known["gpus"].items())
    text = TEMPLATE.read_text().format(
        cells=len(by_cell(rows)),
        rows=f"{len(rows):,}",
        share=round(100 * TABLES_SHARE),
        **known["shards"],
        **known["held_out_error_percent"],
        scales=", ".join(scales),
        alike=ALIKE_PERCENT,
        settings=len(SETTINGS),
        sweep=SWEEP_S,
        name=name,
        **{part.__name__: "\n".join(part(rows)).strip() for part in PARTS},
    )
    return "\n\n".join(_wrap(block) for block in text.strip().split("\n\n")) + "\n"


def _wrap(block: str) -> str:
    """Wrap a paragraph or a list at 120 columns after the figures are filled in; other blocks are unchanged."""
    if block.startswith(("|", "!", "#", "    ")):
        return block
    items = block.removeprefix("- ").split("\n- ") if block.startswith("- ") else [block]
    first, later = ("- ", "  ") if block.startswith("- ") else ("", "")
    return "\n".join(
        fill(" ".join(one.split()), 120, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
        for one in items
    )


def write_page(out: Path) -> None:
    """Write the page and the picture beside the CSV of this path, which has no suffix."""
    rows = comparable(list(read_csv(out.with_suffix(".csv"))))
    draw(rows, out.with_suffix(".svg"))
    out.with_suffix(".md").write_text(page(rows, out.name))
