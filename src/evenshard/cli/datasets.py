"""The command for the team's cost datasets: add one to data/, checked and named."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evenshard.cli.arguments import PATH, Commands, at_least

if TYPE_CHECKING:
    from evenshard.tracking.datasets import AddedDataset


def _add(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.tracking.datasets.add import AddRequest, add, repository_root
    from evenshard.tracking.datasets.partition import Partition

    request = AddRequest(
        costs=tuple(args.costs),
        tables=args.tables,
        partition=Partition.of(args.hardware, args.collection),
        tasks=args.tasks,
        max_noise_pct=args.max_noise_pct,
        max_drift_pct=args.max_drift_pct,
    )
    root = repository_root()
    print("\n".join(_report(add(request, root), tracked=(root / "data.dvc").exists())))
    return {}


def _report(added: AddedDataset, tracked: bool) -> list[str]:
    """What the command prints.

    Args:
        tracked: DVC knows data/ already.
    """

    def pct(value: float | None, sign: str = "") -> str:
        return "unknown" if value is None else f"{value:{sign}.1f} %"

    noise, drift = added.noise, added.drift
    lines = [
        f"{added.partition}: {added.num_measured:,} placements and shards",
        f"noise    repeats spread by {pct(noise.within_run_pct)} within a run, {pct(noise.between_run_pct)} more from "
        f"file to file; drift through a run {pct(noise.drift_pct, '+')}",
    ]
    if not added.changed:
        return [*lines, "nothing to do: data/ has these very files"]
    if drift is None:
        lines.append("drift    none known: this is the first version")
    else:
        lines.append(
            f"drift    {drift.num_shards:,} shards of the version before timed again: {pct(drift.cost_pct, '+')}; "
            f"placements {drift.num_measured[0]:,} -> {drift.num_measured[1]:,}"
        )
        lines += [f"         {line}" for line in drift.changed]
        lines += [
            f"         median {name} {old:g} -> {new:g}" for name, (old, new) in drift.medians.items() if old != new
        ]
    folder = added.partition.folder.as_posix()
    return [
        *lines,
        f"added    {folder}",
        f"next     dvc add {folder if tracked else 'data'} && dvc push {folder}",
        f'         git add data.dvc && git commit -m "Dataset {added.partition}"',
    ]


def add_commands(commands: Commands) -> None:
    """Declares dataset add."""
    dataset = commands.add(
        "dataset", None, "Add to the team's cost datasets.", "They lie in data/; DVC and git keep their versions."
    )
    own = Commands(dataset, "dataset_command")
    sub = own.add(
        "add",
        _add,
        "Check a cost dataset and put it into data/.",
        "Prints the commands of DVC and git that publish it. Exit code 0: added; 1: refused (noise, drift); 2: bad "
        "input. What is not added leaves data/ as it was.",
    )
    add = sub.add_argument
    add("costs", **{**PATH, "metavar": "COSTS"}, nargs="+", help="costs.parquet of one or several runs")
    add("--tables", **PATH, required=True, help="the table file of the costs")
    add("--tasks", **PATH, help="tasks.json, to come along")
    add("--hardware", required=True, metavar="NAME", help="such as h200, cpu or simulated:h200; must fit the costs")
    add("--collection", required=True, metavar="NAME", help="such as shards-2026-11; an older version is replaced")
    add("--max-noise-pct", type=at_least(0, float), default=15.0, metavar="X",
        help="refuse where repeats spread by more (default: 15)")  # fmt: skip
    add("--max-drift-pct", type=at_least(0, float), default=10.0, metavar="X",
        help="refuse where shards of the version before now take so much more or less time (default: 10)")  # fmt: skip
