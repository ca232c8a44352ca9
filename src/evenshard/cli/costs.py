"""Commands for measurements: hardware, imported costs, cost datasets, traces of a training, calibration."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import Any

from evenshard.base.errors import BadConfig, DatasetRefused
from evenshard.base.outputs import write_text
from evenshard.base.typed import section
from evenshard.cli.arguments import (
    OUTPUT,
    PATH,
    SOURCE,
    Commands,
    add_flag,
    add_flags,
    add_params_flag,
    at_least,
    flag_values,
    load_params_file,
)
from evenshard.loop.commands import ImportCostsConfig, ObserveInputs
from evenshard.measure.config import MeasureConfig
from evenshard.measure.local_hardware import hardware_here
from evenshard.measure.traces import RECORDING
from evenshard.planner.knobs import place_knob

# Alternatives to the name of hardware.
ADD = "add"


def _describe(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.cli.describe import describe_file, file_text
    from evenshard.measure.describe import describe, text

    costs = [path for path in args.files if path.suffix == ".parquet"]
    others = [describe_file(path) for path in args.files if path not in costs]
    if args.max_noise is not None and not costs:
        raise BadConfig("--max-noise is for cost datasets. Name one (.parquet).")
    description = describe(costs) if costs else {}
    if args.json:
        print(json.dumps({**description, "files": others}, indent=1))
    else:
        print("\n\n".join([*map(file_text, others), *([text(description)] if costs else [])]))
    spread_pct = description["noise"]["within_run_pct"] if costs else None
    if args.max_noise is not None and (spread_pct or 0.0) > args.max_noise:
        raise DatasetRefused(
            f"repeats of one placement spread by {spread_pct:.1f} %, more than {args.max_noise:g} %. Measure on a "
            "quieter machine, or raise --max-noise."
        )
    return {}


def _hardware(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.measure.inventory import hardware_text, inventory, inventory_text, known_hardware

    if (args.name == ADD) != (args.sheet is not None) or (args.out and not args.sheet):
        raise BadConfig(f"a data sheet is added with `evenshard hardware {ADD} --spec gpu.yaml`. Name both.")
    if args.sheet is not None:
        _add_hardware(args.sheet, args.out or Path(f"{args.sheet.stem}_profile.yaml"))
    elif args.here is not None:
        _hardware_here(args)
    elif args.name is None:
        print(json.dumps(inventory(), indent=1) if args.json else inventory_text())
    else:
        one = known_hardware(args.name)
        print(json.dumps(asdict(one), indent=1) if args.json else hardware_text(one))
    return {}


def _add_hardware(sheet: Path, out: Path) -> None:
    from evenshard.measure.inventory import add_hardware, confirmation_text

    print(confirmation_text(add_hardware(sheet, out)))
    print(f"saved: {out} (hardware: simulated:{out} uses it)")


def _hardware_here(args: argparse.Namespace) -> None:
    text = json.dumps(hardware_here(section(load_params_file(args), "measure", MeasureConfig)), indent=1)
    write_text(args.here, text + "\n")


def _calibrate_link(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.measure.calibrate.link import calibrate_link
    from evenshard.measure.distributed import collective

    measure = section(load_params_file(args), "measure", MeasureConfig, **flag_values(args, MeasureConfig, "measure"))
    if collective.is_follower():
        collective.serve(measure)
        return {}
    for path, fit in calibrate_link(measure, args.out, args.max_mb).items():
        print(fit.text())
        print(f"saved: {path} (measure.link: {path} uses it)")
    return {}


def _calibrate_device(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.loop import calibrate_device as stage

    print(stage.run(args.tables, args.costs, args.profile, args.out))
    print(f"saved: {args.out} (hardware: simulated:{args.out} uses it)")
    return {}


def _merge_costs(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.loop.import_costs import merge_parts

    found = merge_parts(args.costs, args.out)
    print(f"saved: {args.out} ({found['num_placements']:.0f} placements of {found['num_parts']:.0f} parts)")
    return found


def _import_costs(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.loop import import_costs as stage

    config = ImportCostsConfig(**flag_values(args, ImportCostsConfig))
    found = stage.run(config, args.shards, args.tables, args.columns, args.out, args.tables_out)
    print(f"saved: {args.out} ({found['num_shards']:,.0f} shards), {args.tables_out}")
    return found


def _observe(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.loop import observe as stage

    inputs = ObserveInputs(**flag_values(args, ObserveInputs))
    observation, comparison = stage.run(inputs, args.costs_out, args.tables_out)
    if args.json:
        compared = None if comparison is None else asdict(comparison)
        print(json.dumps({**asdict(observation), "comparison": compared}, indent=1))
    else:
        print(stage.observation_text(observation, comparison))
        if args.costs_out is not None:
            print(f"saved: {args.costs_out}")
    return {}


def add_commands(commands: Commands) -> None:
    """Declare hardware, import-costs, merge-costs, describe, observe, calibrate-link and calibrate-device."""
    sub = commands.add(
        "import-costs",
        _import_costs,
        "Make a cost dataset of shards that others have measured.",
        "Of a CSV file with one shard per line: tables (their lines in the table file, from 0), dims (where the table "
        "file has none) and fwd_bwd_ms (forward and backward together); --columns renames those of both files. "
        "`evenshard train-cost` learns from the sum.",
    )
    sub.add_argument("shards", **PATH, help="the shards (.csv)")
    sub.add_argument("--tables", **PATH, required=True, help="their tables; names and dims may be missing")
    add_flag(sub, place_knob("columns"))
    add_flags(sub, ImportCostsConfig)
    sub.add_argument("--out", **OUTPUT, required=True, help="cost dataset to write (.parquet)")
    sub.add_argument("--tables-out", **OUTPUT, required=True, help="the tables of the dataset to write")

    sub = commands.add(
        "hardware",
        _hardware,
        "List the hardware to place for, and what confirms its times.",
        "Kinds of hardware, simulated devices and links: what each was fitted to, how many measurements, and its error "
        "on others. With a name, each constant with its unit and source: measured, fitted, of a data sheet or a guess. "
        "`hardware add --spec gpu.yaml` makes a profile of a data sheet. With --here, what the loop measures on.",
    )
    add_params_flag(sub)
    sub.add_argument(
        "name",
        type=SOURCE,
        metavar="NAME",
        nargs="?",
        help="a simulated device or a link, such as h200 or nvlink_a100, or a YAML file of one; add, with --spec",
    )
    sub.add_argument(
        "--spec",
        **PATH,
        dest="sheet",
        help=f"with {ADD}: what the data sheet of a GPU says (.yaml), to make a profile of",
    )
    sub.add_argument("--out", **OUTPUT, help=f"with {ADD}: profile to write (default: that name and _profile.yaml)")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub.add_argument(
        "--here",
        **OUTPUT,
        help="instead, write what measure.hardware of the settings means on this machine: device, libraries and a hash "
        "that tells the machine from others (.json)",
    )

    sub = commands.add(
        "merge-costs",
        _merge_costs,
        "Make one cost dataset of the parts of a round.",
        "The parts that `evenshard benchmark --part I --num-parts N` measured on machines of one kind.",
    )
    sub.add_argument("costs", **PATH, nargs="+", help="cost datasets of all parts (.parquet)")
    sub.add_argument("--out", **OUTPUT, required=True, help="cost dataset to write (.parquet)")

    sub = commands.add(
        "describe",
        _describe,
        "Show what a file is and where it comes from.",
        "A placement: its model, and the costs that it learned from. A model or a journal: hardware, versions, commit. "
        "A cost dataset: origin, counts, times, spread of repeats, repeated control placements and their drift. "
        "Several datasets are taken as several runs, whose controls show the spread from run to run. Exit code 0; 1: "
        "noisier than --max-noise; 2: bad input.",
    )
    sub.add_argument("files", **{**PATH, "metavar": "FILE"}, nargs="+",
        help="placement.json, cost dataset (.parquet), journal, or a model's folder such as work/round_3")  # fmt: skip
    sub.add_argument("--max-noise", type=at_least(0, float), metavar="PCT",
        help="fail where repeats of a placement spread by more (standard deviation)")  # fmt: skip
    sub.add_argument("--json", action="store_true", help="print JSON")

    sub = commands.add(
        "observe",
        _observe,
        "Show how long embedding tables take in a training step, from profiler traces.",
        "Reads traces of torch.profiler, one file per rank, of a training with TorchRec or FBGEMM modules. Prints each "
        "rank's input dist, forward, communication, backward and waiting with their shares of a step, the rank that a "
        "step waits for, and the most that balance alone could save.",
    )
    sub.formatter_class = argparse.RawDescriptionHelpFormatter  # the description of how to record is code
    sub.description = fill(sub.description or "", 80)
    sub.epilog = f"How every rank records a trace:\n\n{RECORDING}"
    add = sub.add_argument
    add_flags(sub, ObserveInputs)
    add("--costs-out", **OUTPUT, help="cost dataset to write (.parquet): needs all ranks, and --placement")
    add("--tables-out", **OUTPUT, help="tables of that dataset to write; parts of split tables are tables of their own")
    add("--json", action="store_true", help="print JSON")

    sub = commands.add(
        "calibrate-link",
        _calibrate_link,
        "Measure all-to-all exchanges and fit the link model.",
        "Start it under `torchrun --nproc-per-node N -m evenshard calibrate-link`: NCCL between GPUs, gloo between "
        "CPUs. Prints latency, bandwidth per device and goodness of fit, and saves them for measure.link. Of several "
        "hosts of several devices each, the link within a host and that between hosts are two files, link_intra.yaml "
        "and link_inter.yaml.",
    )
    add_params_flag(sub)
    add_flags(sub, MeasureConfig, "measure")
    sub.add_argument("--max-mb", type=at_least(0.001, float), default=64.0, metavar="MB",
                     help="largest exchange per device (default: 64)")  # fmt: skip
    sub.add_argument("--out", **OUTPUT, default=Path("link.yaml"), help="link profile to write (default: link.yaml)")

    sub = commands.add(
        "calibrate-device",
        _calibrate_device,
        "Fit a simulated device's free constants to measured costs.",
        "Half of the shards are fitted, the other half judges: errors of forward and backward, before and after.",
    )
    sub.add_argument("--costs", **PATH, nargs="+", required=True, help="cost datasets of one hardware (.parquet)")
    sub.add_argument("--tables", **PATH, required=True, help="the tables that the costs were measured with")
    sub.add_argument(
        "--profile",
        type=SOURCE,
        required=True,
        help="where to start: a simulated device (`evenshard hardware` lists them) or a YAML file of one",
    )
    sub.add_argument("--out", **OUTPUT, required=True, help="profile to write (.yaml)")
