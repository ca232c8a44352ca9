"""Commands for decisions: promote a model, and check if retraining is due."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path

from evenshard.base.documents import replace_non_finite
from evenshard.base.errors import BadConfig, InfeasibleTask
from evenshard.base.outputs import PROMOTION
from evenshard.base.provenance import Lineage, params_hash
from evenshard.base.typed import section
from evenshard.cli import arguments
from evenshard.loop.commands import DriftRequest, PromoteInputs
from evenshard.loop.loop import EvaluateConfig
from evenshard.measure.config import MeasureConfig
from evenshard.planner.knobs import place_knob

REFUSED, BAD_INPUT, RETRAIN = 1, 2, 3  # exit codes


def _promote(args: argparse.Namespace) -> int:
    from evenshard.loop.decisions import promote
    from evenshard.measure.distributed import collective
    from evenshard.sharders.cost_model.sharder import SearchConfig
    from evenshard.tracking import log_backlog, stage_run
    from evenshard.tracking.pyfunc import build_serving_code
    from evenshard.tracking.tags import PARAMS_HASH

    params = arguments.load_params_file(args)
    measure = section(params, "measure", MeasureConfig, **arguments.flag_values(args, MeasureConfig, "measure"))
    evaluate = section(params, "evaluate", EvaluateConfig)
    if collective.is_follower():  # only rank 0 decides; the other ranks measure what it requests
        collective.serve(measure)
        return 0
    search = SearchConfig(scores_per_table=evaluate.scores_per_table, seed=evaluate.seed)
    log_backlog(build_serving_code)  # registers models that MLflow missed; one of them may be the newest version
    inputs = PromoteInputs(**arguments.flag_values(args, PromoteInputs))
    done = promote.promote(inputs, args.out, measure, search, Lineage.current(params))
    settings = {"candidate": done.candidate, "champion": done.champion, **asdict(measure)}
    with stage_run("promote", None, settings) as run:
        run.tags({"evenshard.promotion": done.outcome.value, "evenshard.promotion_reason": done.reason})
        run.tags({PARAMS_HASH: params_hash(params)})
        if done.decision is not None:
            run.tables(inputs.tables)
            run.costs([args.out / promote.COSTS], "evaluation")
            found = {"difference_pct": done.decision.difference_pct.mean, "noise_pct": done.decision.noise_pct}
            run.metrics({key: value for key, value in found.items() if math.isfinite(value)})
            run.artifact(args.out / promote.COSTS)
        run.artifact(args.out / promote.PROMOTION_REPORT)
    if args.json:
        print(json.dumps(promote.as_json(done), indent=1))
    else:
        promote.print_promotion(done)
    return REFUSED if done.outcome is promote.PromotionOutcome.REFUSED else 0


def _drift(args: argparse.Namespace) -> int:
    from evenshard.loop.decisions.drift import compute_drift, print_drift
    from evenshard.planner.diff import diff
    from evenshard.planner.file import load_answer, save_answer
    from evenshard.planner.pricing import load_learned_model
    from evenshard.report.comparisons import print_difference
    from evenshard.tables.sources import tables_from

    if args.placement is None and (args.out is not None or args.link_gb_s is not None):
        raise BadConfig("--out and --link-gb-s need a current placement. Name it with --placement.")
    model = load_learned_model(args.against, None)
    old = None if args.placement is None else load_answer(args.placement)
    asked = DriftRequest(**arguments.flag_values(args, DriftRequest))
    # batch_size[1] is the largest batch size in the training data
    batch_size = asked.batch_size or (int(model.trained_on.batch_size[1]) if old is None else old.request.batch_size)
    settings = {name: getattr(asked, name) for name in ("embedding_dim", "default_pooling_factor", "columns")}
    tables = tables_from(args.tables, batch_size, args.traffic, **settings)
    for note in tables.notes:
        print(f"evenshard drift: {note}", file=sys.stderr)
    num_devices = asked.num_devices or (None if old is None else old.num_devices)
    drift = compute_drift(model.trained_on, tables.tables, batch_size, num_devices, asked.tolerated_pct)
    difference, problem = None, ""
    if old is not None:
        from evenshard.loop.decisions.watch import replan

        try:
            new = replan(old, tables, model, batch_size, tables_from=str(args.tables))  # with the old devices and rules
            difference = diff(old, new, model, args.link_gb_s)
            if args.out is not None:
                save_answer(new, args.out)
        except InfeasibleTask as error:
            problem = str(error)
    if args.json:
        content = {"model": {"source": model.source, "sha256": model.digest}, **asdict(drift)}
        content |= {"difference": None if difference is None else asdict(difference), "no_placement": problem or None}
        print(json.dumps(replace_non_finite(content), indent=1))
    else:
        print_drift(drift, model.source)
        if difference is not None:
            print()
            print_difference(difference)
        elif problem:
            print(f"\nNo new placement: {problem}")
    if drift.retrain_due:
        return RETRAIN
    return BAD_INPUT if problem else 0


def add_commands(commands: arguments.Commands) -> None:
    """Declare promote and drift."""
    sub = commands.add(
        "promote",
        _promote,
        "Make a model the champion if it is better.",
        "Candidate and champion place the same held-out tasks, and one run measures both. The alias moves if the "
        "candidate is faster, beyond noise and with 95 % confidence, or as fast and trained on fewer placements. "
        "The first champion needs no comparison. Exit code 0: promoted, or already the champion; 1: refused; 2: bad "
        "input.",
    )
    add = sub.add_argument
    arguments.add_params_flag(sub)
    arguments.add_flags(sub, PromoteInputs)
    arguments.add_flags(sub, MeasureConfig, "measure")
    add("--out", **arguments.output_flag(PROMOTION), default=Path("work/promotion"),
        help="folder of promotion.json and the costs (default: work/promotion)")  # fmt: skip
    add("--json", action="store_true", help="print JSON")

    sub = commands.add(
        "drift",
        _drift,
        "Check if a model still covers today's tables.",
        "Compares rows, dims, lookups and reuse with the training data. With --placement, places the tables again, and "
        "shows which tables move and the time saved. Exit code 0: covered; 3: retraining is due; 2: bad input, or "
        "tables that are covered but too large for the devices of the placement.",
    )
    add = sub.add_argument
    add(
        "--tables",
        type=arguments.SOURCE,
        required=True,
        metavar="TABLES",
        help="today's tables: table file, public set, or traffic, as for `evenshard place`",
    )
    add("--against", type=arguments.A_MODEL, required=True, metavar="MODEL", help="models:/evenshard-cost@champion, or "
        "a round's folder such as work/round_3")  # fmt: skip
    add(
        "--placement",
        **arguments.PATH,
        help="current placement.json: place the tables again with its devices and rules",
    )
    add("-o", "--out", **arguments.OUTPUT, help="placement.json to write for the new placement")
    add("--link-gb-s", type=arguments.at_least(1e-9, float), metavar="X",
        help="bandwidth per device, GB/s (1 GB = 1024**3 bytes), to show the time of the move")  # fmt: skip
    arguments.add_flag(sub, place_knob("traffic"))
    arguments.add_flags(sub, DriftRequest)
    add("--json", action="store_true", help="print JSON")
