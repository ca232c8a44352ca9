"""ShardBench as one command.

    python -m benchmarks shardbench

plans the cells that the journal lacks, prices every plan by all oracles, and writes a table, a picture, a CSV with its
schema, and a page around them. The default cells are those of ``DEFAULT``.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.shardbench.cases import DEVICES, HARDWARE, MODELS, Cell, cells
from benchmarks.shardbench.page import comparable, table, write_page
from benchmarks.shardbench.planners import NAMES, load_planner
from benchmarks.shardbench.results import (
    NO_PLAN,
    Result,
    append,
    check_times,
    read_journal,
    results_of,
    with_costs,
    write_csv,
    write_journal,
)
from evenshard.cli.arguments import Commands, at_least

# Planners that take minutes run only where asked for, those that are trained for each GPU on the H100 alone.
PLANNERS = tuple(name for name in NAMES if name != "evenshard_long")
UNTRAINED = tuple(name for name in PLANNERS if name not in ("autoshard", "dreamshard"))
# Models, devices and planners: every model on 8 and 16 H100, one on more, two on 8 of each other device, and some more
# on 8 H200, whose kernels were timed, too.
DEFAULT: tuple[tuple[Sequence[str], Sequence[str], Sequence[int], Sequence[str]], ...] = (
    (MODELS, ("h100",), (8, 16), PLANNERS),
    (("mlperf_dlrm_v2",), ("h100",), (64, 128), PLANNERS),
    (("mlperf_dlrm_v2", "criteo_1tb"), tuple(gpu for gpu in HARDWARE if gpu != "h100"), (8,), UNTRAINED),
    (("criteo_kaggle", "nvidia_tiny", "primus", "recorded_100"), ("h200",), (8,), UNTRAINED),
)


def add_shardbench(commands: Commands) -> None:
    """Add the command."""
    sub = commands.add(
        "shardbench",
        _bench,
        "Plan public models with every planner, and price each plan by four oracles.",
        "Plans in the journal are not repeated.",
    )
    sub.add_argument("--models", type=_names, help=f"of {', '.join(MODELS)}, mixed_<tables>, recorded_<tables>")
    sub.add_argument("--hardware", type=_names, help=f"of {', '.join(HARDWARE)}")
    sub.add_argument("--devices", type=_counts, help=f"of {', '.join(map(str, DEVICES))}, or others")
    sub.add_argument("--planners", type=_names, default=(), help=f"of {', '.join(NAMES)}, or Python files")
    sub.add_argument("--full", action="store_true", help="plan the whole grid")
    sub.add_argument("--again", action="store_true", help="only reprice the journal's plans")
    sub.add_argument("--journal", type=Path, default=Path("work/shardbench.jsonl"))
    sub.add_argument("--out", type=Path, default=Path("benchmarks/shardbench_202611"), help="output without a suffix")


def _names(text: str) -> Sequence[str]:
    return text.split(",")


def _counts(text: str) -> Sequence[int]:
    return [at_least(1)(one) for one in text.split(",")]


def _bench(args: argparse.Namespace) -> Mapping[str, float]:
    with _without_warnings():
        chosen = selection(args)
        planners = {name: load_planner(name) for names in chosen.values() for name in names}
        if args.again:
            known = read_journal(args.journal)
            write_journal(args.journal, [one if one.status == NO_PLAN else _price_again(one) for one in known])
        else:
            done = {(one.cell, one.planner) for one in read_journal(args.journal)}
            for cell, name in ((cell, name) for cell, names in chosen.items() for name in names):
                if (cell, planners[name].name) not in done:
                    results = results_of(cell, planners[name])
                    append(args.journal, results)
                    print(f"{cell}: {planners[name].name}, {len(results)} plans, {results[0].seconds} s", flush=True)
    order = ((cell, planners[name].name) for cell, names in chosen.items() for name in names)
    places = {key: place for place, key in enumerate(order)}
    rows = [one for one in read_journal(args.journal) if (one.cell, one.planner) in places]
    rows.sort(key=lambda one: places[one.cell, one.planner])
    check_times(rows)
    write_csv(args.out.with_suffix(".csv"), rows)
    write_page(args.out)
    print("\n".join(table(comparable(rows))))
    return {}


def _price_again(known: Result) -> Result:
    return replace(with_costs(known), seconds=known.seconds)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppress the warnings that planners log for every cell."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def selection(args: argparse.Namespace) -> dict[Cell, Sequence[str]]:
    """Return the planners of each requested cell."""
    if not (args.full or args.models or args.hardware or args.devices):
        return {cell: args.planners or names for *part, names in DEFAULT for cell in cells(*part)}
    asked = (args.models or MODELS, args.hardware or HARDWARE, args.devices or DEVICES)
    return {cell: args.planners or PLANNERS for cell in cells(*asked)}
