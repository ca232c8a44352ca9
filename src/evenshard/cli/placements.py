"""Commands for placements: explain a placement, compare two placements, and verify a plan of any planner."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from evenshard.base.console import plain_console
from evenshard.base.errors import BadConfig, BadInput
from evenshard.base.messages import count_text, cut, printable, reason_of
from evenshard.base.units import size_text
from evenshard.cli.arguments import HARDWARE_NAME, OUTPUT, PATH, Commands, at_least

if TYPE_CHECKING:
    from evenshard.planner.answer import PlacementAnswer
    from evenshard.sharders.model import Model

MODEL_HELP = "model instead of the file's: a round's folder such as work/round_3, or models:/evenshard-cost@champion"


def _explain(args: argparse.Namespace) -> None:
    from evenshard.planner.explain import explain
    from evenshard.planner.file import load_answer
    from evenshard.report.comparisons import print_explanation

    answer = load_answer(args.placement)
    found = explain(answer, _model(args, answer), args.table)
    if args.json:
        print(json.dumps(asdict(found), indent=1))
    else:
        print_explanation(found)


def _diff(args: argparse.Namespace) -> None:
    from evenshard.planner.diff import diff, rename_devices
    from evenshard.planner.difference import payback
    from evenshard.planner.file import load_answer, save_answer
    from evenshard.report.comparisons import difference_markdown, print_difference

    if args.restart_minutes and args.steps is None:
        raise BadConfig("--restart-minutes needs the number of steps. Add --steps, such as --steps 100000.")
    if args.link_gb_s is not None and not 0 < args.link_gb_s < float("inf"):
        raise BadConfig(f"--link-gb-s is {args.link_gb_s}. Set a bandwidth above 0 GB/s.")
    old, new = load_answer(args.old), load_answer(args.new)
    if args.reshard_delta:
        _reshard_delta(args, old, new)
        return
    if args.out is not None or args.partial:
        raise BadConfig("-o and --partial need --reshard-delta. Add it, or omit them.")
    try:
        model = _model(args, new)
    except BadInput as error:
        if args.model is not None:  # only the file's own model is optional
            raise
        model = None  # bytes to move need no model, and the comparison names the models of its times
        print(f"evenshard diff: warning: {error}", file=sys.stderr)
    difference = diff(old, new, model, args.link_gb_s)
    paid = None
    if args.steps is not None:
        paid = payback(difference, new, args.steps, model, args.link_gb_s, args.restart_minutes)
    if args.renamed is not None:
        if difference.renaming is not None:
            if model is None:
                raise BadConfig("--renamed needs a model to predict the renamed placement. Name a model with --model.")
            new = rename_devices(new, difference.renaming.new_names, model)
        save_answer(new, args.renamed)
    if args.json:
        asked = {} if args.steps is None else {"payback": None if paid is None else asdict(paid)}
        print(json.dumps(asdict(difference) | asked, indent=1))
    elif args.markdown:
        print(difference_markdown(difference, old, new, args.title, paid), end="")
    else:
        print_difference(difference, paid=paid)


def _reshard_delta(args: argparse.Namespace, old: PlacementAnswer, new: PlacementAnswer) -> None:
    from evenshard.planner.diff import diff
    from evenshard.report.comparisons import READ_BY_POSITION
    from evenshard.torchrec.running.delta_file import group_reasons, reshard_delta, save_delta

    if args.out is None:
        raise BadConfig("--reshard-delta needs an output file. Add -o delta.json.")
    delta = reshard_delta(old, new, args.partial)
    save_delta(delta, args.out)
    console = plain_console(None)
    weights, state = size_text(delta.weight_bytes), size_text(delta.state_bytes)
    count = count_text(len(delta.tables), "table")
    console.print(f"{args.out}: {count} to move, {weights} of weights and {state} of optimizer state", soft_wrap=True)
    inexact = [name for name, table in delta.tables.items() if not table.state_is_exact]
    if inexact:
        console.print(
            f"each new shard of {cut(', '.join(inexact))} gets a copy of the old shard's row-wise Adagrad state",
            soft_wrap=True,
        )
    for note in diff(old, new).reordered:
        print(f"evenshard diff: warning: {printable(note.text)} {READ_BY_POSITION}", file=sys.stderr)
    for reason in group_reasons(delta.left):
        console.print(f"not moved: {reason}", soft_wrap=True)


def _model(args: argparse.Namespace, answer: PlacementAnswer) -> Model:
    """Load the model of --model, or else of the file; warn if it is not the model that made the placement."""
    from evenshard.planner.pricing import find_model_source, model_of, note_other_model

    if args.model is not None:
        model = model_of(args.model, answer.request.hardware)
    else:
        source = find_model_source(answer)
        try:
            model = model_of(source)
        except BadInput as error:
            raise BadConfig(f"the file's model cannot be loaded: {error} Or name another model with --model.") from None
    warning = note_other_model(answer, model)
    if warning is not None:
        print(f"evenshard {args.command}: warning: {warning}", file=sys.stderr)
    return model


def _verify(args: argparse.Namespace) -> int:
    from evenshard.torchrec.plan.verify import Job, verify, world_size_of_process

    sizes = args.sharding_group_size, args.node_group_size
    if sizes != (None, None) and not args.job:
        raise BadConfig("2D groups are groups of a job's ranks. Add --job.")
    job = Job.of(world_size_of_process(), *sizes) if args.job else None
    model = None if args.model is None else _build_model(args.model)
    given = {key: getattr(args, key) for key in ("against", "memory_cap_gb", "hardware", "dense_optimizer")}
    found = verify(args.plan, model, job, **given)
    count = count_text(len(found.problems), "problem") if found.problems else "no problems"
    lines = [f"{args.plan}: {count} in {count_text(found.num_tables, 'table')}"]
    for what, listed in (("problem", found.problems), ("checked", found.checked), ("not checked", found.unchecked)):
        lines += [f"{what:<12} {line}" for line in listed]
    print(json.dumps(asdict(found), indent=1) if args.json else "\n".join(map(printable, lines)))
    return 1 if found.problems else 0


def _build_model(where: str) -> Any:
    """Call the user's function, such as train.py:build or package.module:build, and return its model."""
    home, _, name = where.rpartition(":")
    try:
        sys.path.insert(0, os.getcwd())
        return (runpy.run_path if home.endswith(".py") else runpy.run_module)(home)[name]()
    except Exception as error:  # the user's code may fail in any way
        problem = f"--model is {where}: {type(error).__name__}: {reason_of(error)}"
        raise BadConfig(f"{problem}. Name a function without arguments, such as train.py:build.") from error


def add_commands(commands: Commands) -> None:
    """Declare explain, diff and verify."""
    sub = commands.add(
        "explain",
        _explain,
        "Show why the slowest device is slow, and the best changes.",
        "Compares the slowest device with the average device, and lists the three best legal changes of its tables, or "
        "of the table that --table names. Exit code 0: done; 2: bad input.",
    )
    add = sub.add_argument
    add("placement", **{**PATH, "metavar": "PLACEMENT"}, help="placement.json of `evenshard place -o`")
    add("--table", default="", metavar="NAME", help="table to change, or a shard of it such as 'clicks[64:128]'")
    add("--model", metavar="PATH|URI", help=MODEL_HELP)
    add("--json", action="store_true", help="print JSON")
    sub = commands.add(
        "diff",
        _diff,
        "Compare two placements: tables to move and time saved.",
        "Predicts both placements with the model and the request of the new file. Exit code 0: done; 2: bad input.",
    )
    add = sub.add_argument
    add("old", **{**PATH, "metavar": "OLD"}, help="current placement.json")
    add("new", **{**PATH, "metavar": "NEW"}, help="new placement.json")
    add("--model", metavar="PATH|URI", help=MODEL_HELP)
    add(
        "--link-gb-s",
        type=at_least(0, float),
        metavar="X",
        help="bandwidth of a device in each direction, GB/s (1 GB = 1024**3 bytes), to show the time of the move",
    )
    add("--steps", type=at_least(1), metavar="N", help="show when the move pays back, and the time saved in N steps")
    add("--restart-minutes", type=at_least(0, float), default=0.0, metavar="X",
        help="with --steps: downtime of the move besides the transfer, minutes")  # fmt: skip
    add("--markdown", action="store_true", help="print Markdown, for a comment on a pull request")
    add("--title", default="", help="with --markdown: title (default: the table file of the new placement)")
    add("--renamed", **OUTPUT, help="placement.json to write: the new placement, renumbered so that fewer bytes move")
    add("--reshard-delta", action="store_true", help="write the moves for a running TorchRec job to the file of -o")
    add("--partial", action="store_true", help="with --reshard-delta: skip tables that cannot move while a job runs")
    add("-o", "--out", **OUTPUT, help="file to write")
    add("--json", action="store_true", help="print JSON")
    sub = commands.add(
        "verify",
        _verify,
        "Check a plan before a job starts: ranks, kernels, optimizers, memory.",
        "Lists all problems of a plan of any planner, and what was not checked. Exit code 0: no problems; 1: problems; "
        "2: bad input.",
    )
    add = sub.add_argument
    add("plan", **{**PATH, "metavar": "PLAN"},
        help="placement.json, evenshard's or TorchRec's plan as JSON, or the folder of a checkpoint")  # fmt: skip
    add("--model", metavar="CODE", help="function that returns the unsharded model, which is run: train.py:build")
    add("--against", **PATH, help="plan whose order of pooled outputs should stay, or checkpoint that should load")
    add("--job", action="store_true", help="check against WORLD_SIZE, LOCAL_WORLD_SIZE, ... of this environment")
    add("--sharding-group-size", type=at_least(1), metavar="N", help="with --job: ranks of a 2D sharding group")
    add("--node-group-size", type=at_least(1), metavar="N", help="with --job: node_group_size of 2D parallelism")
    add("--memory-cap-gb", type=at_least(0, float), metavar="X", help="memory of each device, GB of 1024**3 bytes")
    add("--hardware", type=HARDWARE_NAME, help="hardware whose memory the devices have, such as simulated:h100")
    add("--dense-optimizer", default="", help="optimizer of the dense model, if its settings are those of the tables")
    add("--json", action="store_true", help="print JSON")
