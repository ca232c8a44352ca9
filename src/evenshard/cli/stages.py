"""Commands of the loop, one per stage."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any

from evenshard.base.documents import load_params
from evenshard.base.typed import section
from evenshard.cli.arguments import OUTPUT, PARAMS, Commands, add_flags, add_params_flag, flag_values
from evenshard.loop.loop import STAGES, LoopConfig
from evenshard.loop.stage import Stage, loop_settings, read_inputs
from evenshard.measure.config import MeasureConfig


def _run(stage: Stage, args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.loop.runner import run_stage

    missing = args.params == PARAMS and not args.params.exists()  # a file that the user names must exist
    params = {} if missing and not stage.needs_params else load_params(args.params)
    overrides = {stage.name: flag_values(args, stage.config, stage.name)}
    if stage.measures:
        overrides["measure"] = flag_values(args, MeasureConfig, "measure")
    settings = stage.settings(params, overrides)
    of_loop = {}
    if (names := loop_settings(stage.inputs)) and (params or stage.needs_params):
        loop = section(params, "loop", LoopConfig)
        of_loop = {name: max(getattr(loop, name), args.round) for name in names}  # an extra round extends the loop
    given = {name: value for name, value in flag_values(args, stage.inputs).items() if value is not None}
    inputs = stage.inputs(**{**read_inputs(params, stage.inputs), **given, **of_loop})
    outcome = run_stage(stage, settings, inputs, stage.outputs(**flag_values(args, stage.outputs)), params)
    if outcome.text:
        print(outcome.text)
    return outcome.metrics


def add_commands(commands: Commands) -> None:
    """Declare the stages."""
    for stage in STAGES:
        more = " ".join(filter(None, (stage.about, stage.usage)))
        sub = commands.add(stage.command, partial(_run, stage), stage.what, more)
        add_params_flag(sub)
        sub.add_argument("--metrics", **OUTPUT, help="also write the stage's metrics to this JSON file")
        add_flags(sub, stage.inputs)
        if stage.measures:
            add_flags(sub, MeasureConfig, "measure")
        add_flags(sub, stage.config, stage.name)
        add_flags(sub, stage.outputs)
