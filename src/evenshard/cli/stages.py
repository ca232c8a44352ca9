"""The commands of the loop, one per stage, as the stages are declared."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import partial
from typing import Any, get_origin, get_type_hints

from evenshard.cli.arguments import (
    PARAMS,
    PATH,
    SOURCE,
    Commands,
    at_least,
    hardware_flag,
    measure_overrides,
    metrics_flag,
    output_flag,
    params_flag,
)
from evenshard.stages.loop import STAGES, LoopConfig
from evenshard.stages.stage import Flag, LoopSetting, Reads, Stage, Writes, declarations_of, flags, set_by
from evenshard.utils.params import load_params, section


def _run(stage: Stage, args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.stages.runner import run_stage

    missing = args.params == PARAMS and not args.params.exists()
    params = {} if missing and not stage.needs_params else load_params(args.params)
    overrides = {stage.name: _field_values(args, stage.config)}
    if stage.measures:
        overrides["measure"] = measure_overrides(args)
    settings = stage.settings(params, overrides)
    of_loop = {}
    if (names := declarations_of(stage.inputs, LoopSetting)) and (params or stage.needs_params):
        loop = section(params, "loop", LoopConfig)
        of_loop = {name: max(getattr(loop, name), args.round) for name in names}
    given = {name: value for name, value in _field_values(args, stage.inputs).items() if value is not None}
    inputs = stage.inputs(**{**set_by(params, stage.inputs), **given, **of_loop})
    outcome = run_stage(stage, settings, inputs, stage.outputs(**_field_values(args, stage.outputs)), params)
    if outcome.text:
        print(outcome.text)
    return outcome.metrics


def _field_values(args: argparse.Namespace, of: type) -> dict[str, Any]:
    values = {name: getattr(args, flag.lstrip("-").replace("-", "_")) for name, flag in flags(of).items()}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def add_commands(commands: Commands) -> None:
    """Declares the stages."""
    for stage in STAGES:
        more = " ".join(filter(None, (stage.about, stage.usage)))
        sub = commands.add(stage.command, partial(_run, stage), stage.what, more)
        params_flag(sub)
        metrics_flag(sub)
        _add_flags(sub, stage.inputs)
        if stage.measures:
            hardware_flag(sub)
        _add_flags(sub, stage.config, overrides=True)
        _add_flags(sub, stage.outputs)


def _add_flags(sub: argparse.ArgumentParser, of: type, overrides: bool = False) -> None:
    hints, of_fields, default_of = get_type_hints(of), flags(of), {one.name: one.default for one in fields(of)}
    declarations: Mapping[str, Any] = declarations_of(of, object)
    for name, declaration in declarations.items():
        if name not in of_fields:
            continue
        how = _type_of(declaration)
        if get_origin(hints[name]) is tuple:
            how["nargs"] = "+"
        if default_of[name] is MISSING and not overrides:
            how["required"] = True
        elif not overrides and not getattr(declaration, "section", ""):
            how["default"] = default_of[name]
        sub.add_argument(of_fields[name], help=declaration.help, **how)


def _type_of(declaration: Any) -> dict[str, Any]:
    match declaration:
        case Reads():
            return dict(PATH)
        case Writes(output=output):
            return output_flag(output)
        case Flag(choices=choices) if choices:
            return {"choices": choices}
        case Flag(kind=kind, least=least, metavar=metavar):
            named = {} if metavar is None else {"metavar": metavar}
            return {"type": SOURCE if kind is str else kind if least is None else at_least(least, kind), **named}
    raise AssertionError(declaration)
