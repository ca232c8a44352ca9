"""``python -m benchmarks``, from a checkout: ``study`` compares sharders of whole tables, ``shardbench`` planners."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.shardbench.command import add_shardbench
from benchmarks.studies.rows import ROWS
from benchmarks.studies.settings import Setting
from benchmarks.studies.study import BenchConfig, run_study
from benchmarks.studies.table import markdown, study_text
from evenshard.base.errors import BadConfig
from evenshard.base.outputs import File, FilesInside, write_text
from evenshard.cli import run_command
from evenshard.cli.arguments import HARDWARE_NAME, Commands, OneLineParser, at_least, output_flag
from evenshard.tracking import stage_run


def _study(args: argparse.Namespace) -> Mapping[str, Any]:
    report = args.json.with_suffix(".md")
    if report == args.json:
        raise BadConfig(f"--json is {args.json}, the path of the Markdown report. Use another suffix, such as .json.")
    settings = None if args.settings is None else tuple(Setting.of(part) for part in args.settings.split(","))
    config = BenchConfig(
        study=args.study,
        hardware=args.hardware,
        num_seeds=args.seeds,
        folder=args.folder,
        settings=settings,
        train_tasks=args.train_tasks,
        test_tasks=args.test_tasks,
        num_jobs=args.jobs,
        skip=tuple(args.skip),
        fresh=args.fresh,
    )
    flags = {key: value for key, value in vars(args).items() if key not in ("call", "command")}
    with stage_run(f"bench_{args.study}", None, flags) as run:
        study = run_study(config)
        write_text(args.json, json.dumps(study, indent=1, allow_nan=False) + "\n")
        write_text(report, markdown(study, shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])))
        run.metrics(_headline(study))
        run.artifact(args.json)
        run.artifact(report)
    print(study_text(study))
    print(f"\nsaved: {args.json}, {report}")
    return {}


def _headline(study: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics for MLflow, such as ``40x4.evenshard.mean_ms``."""
    shown = ("mean_ms", "speedup_over_random_pct", "difference_to_best_heuristic_pct")
    return {
        f"{setting}.{sharder}.{name}": row[name]
        for setting, compared in study["settings"].items()
        for sharder, row in compared["sharders"].items()
        for name in shown
        if row[name] is not None
    }


def main(argv: list[str] | None = None) -> int:
    """Run one command of ``python -m benchmarks`` and return its exit code."""
    parser = OneLineParser(prog="python -m benchmarks", description="Compare sharders and planners.")
    commands = Commands(parser)
    add_shardbench(commands)
    sub = commands.add(
        "study",
        _study,
        "Train and compare all sharders on many settings.",
        "dlrm and mixed reproduce DreamShard's comparison with tables of one dim and of mixed dims. generalize tests "
        "networks trained on 50 tables x 4 devices at other sizes. autoshard reproduces AutoShard's MetaSyn and its "
        "80 -> 800 tables. Finished units are kept in --folder, so that a killed study continues.",
    )
    sub.add_argument("study", choices=tuple(ROWS), help="name of the study")
    sub.add_argument("--hardware", type=HARDWARE_NAME, default="simulated:h200",
                     help="cpu, cuda, auto, or simulated:<profile> (default: simulated:h200)")  # fmt: skip
    sub.add_argument("--seeds", type=at_least(1), default=3, help="trainings of each learned sharder (default: 3)")
    sub.add_argument("--settings", metavar="TxD,...", help="tables x devices of the tasks, such as 40x4,80x8 "
                     "(default: those of the paper)")  # fmt: skip
    sub.add_argument("--train-tasks", type=at_least(1), metavar="N", help="per setting (default: those of the paper)")
    sub.add_argument("--test-tasks", type=at_least(1), metavar="N", help="per setting (default: those of the paper)")
    sub.add_argument("--jobs", type=at_least(1), metavar="N", help="parallel processes (default: one per core); "
                     "real hardware always uses a single process")  # fmt: skip
    sub.add_argument("--skip", action="append", default=[], metavar="NAME", help="omit this row; repeatable")
    sub.add_argument("--folder", **output_flag(FilesInside()), default=Path("work/bench"),
                     help="folder of finished units (default: work/bench)")  # fmt: skip
    sub.add_argument("--fresh", action="store_true", help="repeat all units of this study")
    sub.add_argument(
        "--json",
        **output_flag(File(beside=".md")),
        required=True,
        help="output file; the tables are written beside it, as .md",
    )
    return run_command(parser, argv)


if __name__ == "__main__":
    sys.exit(main())
