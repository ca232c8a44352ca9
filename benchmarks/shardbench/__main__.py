"""ShardBench as one command.

    python -m benchmarks.shardbench

plans the cells that are missing in the journal, prices every plan by all oracles, and writes a table, a picture, a CSV
with its schema, and a page around them. The default cells are those of ``DEFAULT``, which two cores plan in half an
hour; --full is the whole grid, and --models, --hardware and --devices are any part of it. --again prices the plans of
the journal anew, and plans nothing.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.shardbench.cases import DEVICES, HARDWARE, MODELS, Cell, cells
from benchmarks.shardbench.page import table, write_page
from benchmarks.shardbench.planners import NAMES, load_planner
from benchmarks.shardbench.results import NO_PLAN, append, read_journal, results_of, with_costs, write_csv

# An annealing of minutes is by choice alone; those that are trained for each GPU are by default for H100 alone.
PLANNERS = tuple(name for name in NAMES if name != "best_known")
UNTRAINED = tuple(name for name in PLANNERS if name not in ("autoshard", "dreamshard"))
# Models, devices and planners: every model on 8 and 16 H100, one on more, and two on 8 of each other device.
DEFAULT: tuple[tuple[Sequence[str], Sequence[str], Sequence[int], Sequence[str]], ...] = (
    (MODELS, ("h100",), (8, 16), PLANNERS),
    (("mlperf_dlrm_v2",), ("h100",), (64, 128), PLANNERS),
    (("mlperf_dlrm_v2", "criteo_1tb"), tuple(gpu for gpu in HARDWARE if gpu != "h100"), (8,), UNTRAINED),
)


def main(given: Sequence[str] | None = None) -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shardbench", description=__doc__)
    parser.add_argument("--models", help=f"of {', '.join(MODELS)}, mixed_<tables>, recorded_<tables>")
    parser.add_argument("--hardware", help=f"of {', '.join(HARDWARE)}")
    parser.add_argument("--devices", help=f"of {', '.join(map(str, DEVICES))}, or others")
    parser.add_argument("--planners", help=f"of {', '.join(NAMES)}, or Python files")
    parser.add_argument("--full", action="store_true", help="the whole grid")
    parser.add_argument("--again", action="store_true", help="price the plans of the journal again")
    parser.add_argument("--journal", type=Path, default=Path("work/shardbench.jsonl"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/shardbench_202611"), help="without a suffix")
    args = parser.parse_args(given)
    chosen = selection(args)
    if args.again:
        known = read_journal(args.journal)
        args.journal.unlink(missing_ok=True)
        for one in known:
            append(args.journal, [one if one.status == NO_PLAN else replace(with_costs(one), seconds=one.seconds)])
    planners = {name: load_planner(name) for names in chosen.values() for name in names}
    done = {(one.cell, one.planner) for one in read_journal(args.journal)}
    for cell, name in () if args.again else ((cell, name) for cell, names in chosen.items() for name in names):
        if (cell, planners[name].name) not in done:
            results = results_of(cell, planners[name])
            append(args.journal, results)
            print(f"{cell}: {planners[name].name}, {len(results)} plans, {results[0].seconds} s", flush=True)
    order = [(cell, planners[name].name) for cell, names in chosen.items() for name in names]
    rows = [one for one in read_journal(args.journal) if (one.cell, one.planner) in order]
    rows.sort(key=lambda one: order.index((one.cell, one.planner)))
    write_csv(args.out.with_suffix(".csv"), rows)
    write_page(args.out)
    print("\n".join(table(rows)))


def selection(args: argparse.Namespace) -> dict[Cell, Sequence[str]]:
    """The planners of each cell that is asked for."""
    given = args.planners.split(",") if args.planners else ()
    if not (args.full or args.models or args.hardware or args.devices):
        return {cell: given or names for *part, names in DEFAULT for cell in cells(*part)}
    models = args.models.split(",") if args.models else MODELS
    gpus = args.hardware.split(",") if args.hardware else [*HARDWARE]
    devices = [int(one) for one in args.devices.split(",")] if args.devices else DEVICES
    return {cell: given or PLANNERS for cell in cells(models, gpus, devices)}


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # planners warn of every cell
    main()
