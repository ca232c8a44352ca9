"""The command that gives TorchRec's planner evenshard's costs."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evenshard.cli.arguments import HARDWARE_NAME, LINK_NAME, OUTPUT, Commands, at_least
from evenshard.cli.options import add_option
from evenshard.planner.knobs import place_knob

INTER = "infiniband_ndr"
# Arguments that mean the same as those of ``evenshard.place``; without tables, the optimizer has a default.
SHARED = ("model", "intra", "batch_size", "optimizer", "seed")

OF_OPTIMIZER = "optimizer of the tables, whose backward pass is priced: sgd, rowwise_adagrad, adagrad, adam, ..."


def _export(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.torchrec.estimator import export_estimator

    shared = {name: getattr(args, name) for name in SHARED}
    if args.devices_per_node is not None:
        shared["devices_per_node"] = args.devices_per_node
    fit = export_estimator(
        args.out,
        args.hardware,
        inter=args.inter,
        command=_command(args),
        **shared,
    )
    error = fit["error"]
    print(f"saved: {args.out}")
    print(f"fitted to {fit['fitted_to']}")
    print(
        f"ratings of {error['placements']} placements of {error['sets_of_tables']} other sets of tables: "
        f"{error['median_percent']} % off in the median, {error['p90_percent']} % at the 90th percentile, rank "
        f"correlation {error['mean_rank_correlation']}"
    )
    return {}


def _command(args: argparse.Namespace) -> str:
    """What was asked for, with all defaults."""
    flags = {name.replace("_", "-"): getattr(args, name) for name in ("hardware", "devices_per_node", "inter", *SHARED)}
    words = [f"--{name}={value}" for name, value in flags.items() if value not in (None, "")]
    return shlex.join(["evenshard", "export-estimator", *words, "-o", args.out.name])


def add_commands(commands: Commands) -> None:
    """Declares export-estimator."""
    sub = commands.add(
        "export-estimator",
        _export,
        "Write an estimator for TorchRec's planner, fitted to evenshard's costs.",
        "For EmbeddingShardingPlanner of TorchRec 1.8: a .py file works without evenshard, a .json file is for "
        "evenshard.torchrec.estimator.load_estimator.",
    )
    add = sub.add_argument
    add("-o", "--out", **OUTPUT, required=True, help="estimator.py or estimator.json to write")
    add("--hardware", type=HARDWARE_NAME, metavar="NAME",
        help="simulated:<profile>, whose device model prices placements (default: that of --model)")  # fmt: skip
    add("--devices-per-node", type=at_least(1), metavar="N",
        help="devices of a host (default: 8)")  # fmt: skip
    add("--inter", type=LINK_NAME, metavar="LINK", default=INTER, help=f"link between hosts (default: {INTER})")
    for name in SHARED:
        knob = place_knob(name)
        add_option(sub, replace(knob, default="sgd", help=OF_OPTIMIZER) if name == "optimizer" else knob)
