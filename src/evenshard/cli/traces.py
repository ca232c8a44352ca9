"""The command about traces: what a training's embedding tables take."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from textwrap import fill
from typing import Any

from evenshard.cli.arguments import OUTPUT, Commands, add_flags, flag_values
from evenshard.measure.traces import RECORDING
from evenshard.stages.commands import ObserveInputs


def _observe(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.stages import observe as stage
    from evenshard.stages.observe_text import observation_text

    inputs = ObserveInputs(**flag_values(args, ObserveInputs))
    observation, comparison = stage.run(inputs, args.costs_out, args.tables_out)
    if args.json:
        compared = None if comparison is None else asdict(comparison)
        print(json.dumps({**asdict(observation), "comparison": compared}, indent=1))
    else:
        print(observation_text(observation, comparison))
        if args.costs_out is not None:
            print(f"saved: {args.costs_out}")
    return {}


def add_commands(commands: Commands) -> None:
    """Declares observe."""
    sub = commands.add(
        "observe",
        _observe,
        "Show how long embedding tables take in a training step, from profiler traces.",
        "Reads traces of torch.profiler, one file per rank, of a training with TorchRec or FBGEMM modules. Prints each "
        "rank's input dist, forward, communication, backward and waiting with their shares of a step, the rank that a "
        "step waits for, and the most that balance alone could save.",
    )
    sub.formatter_class = argparse.RawDescriptionHelpFormatter  # the recording is code
    sub.description = fill(sub.description or "", 80)
    sub.epilog = f"How every rank records a trace:\n\n{RECORDING}"
    add = sub.add_argument
    add_flags(sub, ObserveInputs)
    add("--costs-out", **OUTPUT, help="cost dataset to write (.parquet): needs all ranks, and --placement")
    add("--tables-out", **OUTPUT, help="tables of that dataset to write; parts of split tables are tables of their own")
    add("--json", action="store_true", help="print JSON")
