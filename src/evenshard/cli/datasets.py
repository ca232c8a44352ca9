"""The commands for the team's cost datasets: publish, pull, list."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evenshard.cli.arguments import PATH, Commands, at_least

if TYPE_CHECKING:
    from evenshard.tracking.datasets import Known, Published


def _publish(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.tracking.datasets import Partition, PublishRequest, publish
    from evenshard.tracking.datasets.repository import Repository

    request = PublishRequest(
        costs=tuple(args.costs),
        tables=args.tables,
        partition=Partition.of(args.hardware, args.collection),
        tasks=args.tasks,
        remote=args.remote,
        max_noise_pct=args.max_noise_pct,
        max_drift_pct=args.max_drift_pct,
        commit=not args.no_commit,
    )
    print("\n".join(_report(publish(request, Repository.here()))))
    return {}


def _report(published: Published) -> list[str]:
    def pct(value: float | None, sign: str = "") -> str:
        return "unknown" if value is None else f"{value:{sign}.1f} %"

    noise, drift = published.noise, published.drift
    lines = [
        f"{published.partition}: {published.num_measured:,} placements and shards",
        f"noise    repeats spread by {pct(noise.within_run_pct)} within a run, {pct(noise.between_run_pct)} more from "
        f"file to file; drift through a run {pct(noise.drift_pct, '+')}",
    ]
    if not published.changed:
        return [*lines, "nothing to do: the published version is this one"]
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
    lines.append(f"pushed   to remote {published.remote}")
    if published.tag is None:
        return [*lines, f"next     git add {' '.join(published.to_commit)} && git commit"]
    return [*lines, f"tagged   {published.tag}", f"next     git push origin HEAD {published.tag}"]


def _pull(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.tracking.datasets import pull
    from evenshard.tracking.datasets.repository import Repository

    _print(pull(Repository.here(), args.hardware, args.collection, args.remote))
    return {}


def _list(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.tracking.datasets import known
    from evenshard.tracking.datasets.repository import Repository

    _print(known(Repository.here()))
    return {}


def _print(datasets: list[Known]) -> None:
    for one in datasets:
        where = one.partition.folder.as_posix() if one.here else "not here: evenshard dataset pull"
        marked = "simulated" if one.partition.simulated else "measured"
        print(f"{one.partition!s:<36}{marked:<12}{where}")


def add_commands(commands: Commands) -> None:
    """Declares dataset publish, pull and list."""
    dataset = commands.add(
        "dataset", None, "Publish, pull and list the team's cost datasets.", "They lie in data/, versioned by DVC."
    )
    own = Commands(dataset, "dataset_command")
    sub = own.add(
        "publish",
        _publish,
        "Check a cost dataset, add it to data.dvc, push and tag it.",
        "Exit code 0: published; 1: refused (noise, drift) or failed, with everything as it was; 2: bad input.",
    )
    add = sub.add_argument
    add("costs", **{**PATH, "metavar": "COSTS"}, nargs="+", help="costs.parquet of one or several runs")
    add("--tables", **PATH, required=True, help="the table file of the costs")
    add("--tasks", **PATH, help="tasks.json, to come along")
    add("--hardware", required=True, metavar="NAME", help="such as h200, cpu or simulated:h200; must fit the costs")
    add("--collection", required=True, metavar="NAME", help="such as shards-2026-11; an older version is replaced")
    add("--remote", metavar="NAME", help="DVC's, such as s3 (default: DVC's default remote)")
    add("--max-noise-pct", type=at_least(0, float), default=15.0, metavar="X",
        help="refuse where repeats spread by more (default: 15)")  # fmt: skip
    add("--max-drift-pct", type=at_least(0, float), default=10.0, metavar="X",
        help="refuse where shards of the version before now take so much more or less time (default: 10)")  # fmt: skip
    add("--no-commit", action="store_true", help="leave git alone: neither commit data.dvc nor tag")
    sub = own.add(
        "pull", _pull, "Bring datasets to data/ and check them.", "Exit code 0, 1: failed, 2: no such dataset."
    )
    add = sub.add_argument
    add("--hardware", metavar="NAME", help="such as h200 or simulated:h200 (default: all)")
    add("--collection", metavar="NAME", help="(default: all)")
    add("--remote", metavar="NAME", help="DVC's (default: its default remote, then the others)")
    own.add("list", _list, "Say which datasets the checked-out version has.", "")
