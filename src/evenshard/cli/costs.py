"""Commands for measurements: hardware, cost datasets, traces of training jobs, calibration."""

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
from evenshard.measure.local_hardware import identify_hardware
from evenshard.measure.traces import RECORDING
from evenshard.planner.knobs import place_knob

ADD = "add"  # `evenshard hardware add`, in place of the name of hardware


def _describe(args: argparse.Namespace) -> None:
    from evenshard.cli.describe import describe_file, file_text
    from evenshard.measure.describe import describe, format_description

    costs = [path for path in args.files if path.suffix == ".parquet"]
    others = [describe_file(path, args.embedding_dim) for path in args.files if path not in costs]
    if args.max_noise is not None and not costs:
        raise BadConfig("--max-noise needs a cost dataset (.parquet). Name one.")
    description = describe(costs) if costs else {}
    if args.json:
        print(json.dumps({**description, "files": others}, indent=1))
    else:
        print("\n\n".join([*map(file_text, others), *([format_description(description)] if costs else [])]))
    spread_pct = description["noise"]["within_run_pct"] if costs else None  # None without repeated measurements
    if args.max_noise is not None and (spread_pct or 0.0) > args.max_noise:
        raise DatasetRefused(
            f"repeated measurements of a placement spread by {spread_pct:.1f} %, more than {args.max_noise:g} %. "
            "Measure on a quieter machine, or raise --max-noise."
        )


def _hardware(args: argparse.Namespace) -> None:
    from evenshard.measure import inventory

    if (args.name == ADD) != (args.sheet is not None) or (args.out and not args.sheet):
        raise BadConfig(f"Use {ADD} and --spec together: `evenshard hardware {ADD} --spec gpu.yaml`.")
    if args.sheet is not None:
        out = args.out or Path(f"{args.sheet.stem}_profile.yaml")
        print(inventory.format_confirmation(inventory.add_hardware(args.sheet, out)))
        print(f"saved: {out} (use it as hardware: simulated:{out})")
    elif args.here is not None:
        here = identify_hardware(section(load_params_file(args), "measure", MeasureConfig))
        write_text(args.here, json.dumps(here, indent=1) + "\n")
    elif args.name is None:
        print(json.dumps(inventory.inventory(), indent=1) if args.json else inventory.format_inventory())
    else:
        hardware = inventory.find_hardware(args.name)
        print(json.dumps(asdict(hardware), indent=1) if args.json else inventory.format_hardware(hardware))


def _calibrate_link(args: argparse.Namespace) -> None:
    from evenshard.measure.calibrate.link import calibrate_link
    from evenshard.measure.distributed import collective

    measure = section(load_params_file(args), "measure", MeasureConfig, **flag_values(args, MeasureConfig, "measure"))
    if collective.is_follower():  # only rank 0 fits and writes; the other ranks measure what it requests
        collective.serve(measure)
        return
    for path, fit in calibrate_link(measure, args.out, args.max_mb).items():
        print(fit.text())
        print(f"saved: {path} (use it as measure.link: {path})")


def _calibrate_device(args: argparse.Namespace) -> None:
    from evenshard.loop import calibrate_device as stage

    print(stage.run(args.tables, args.costs, args.profile, args.out))
    print(f"saved: {args.out} (use it as hardware: simulated:{args.out})")


def _merge_costs(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.loop.import_costs import merge_parts

    found = merge_parts(args.costs, args.out)
    print(f"saved: {args.out} ({found['num_placements']:.0f} placements from {found['num_parts']:.0f} parts)")
    return found


def _import_costs(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.loop import import_costs as stage

    config = ImportCostsConfig(**flag_values(args, ImportCostsConfig))
    found = stage.run(config, args.shards, args.tables, args.columns, args.out, args.tables_out)
    print(f"saved: {args.out} ({found['num_shards']:,.0f} shards), {args.tables_out}")
    return found


def _observe(args: argparse.Namespace) -> None:
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


def add_commands(commands: Commands) -> None:
    """Declare hardware, import-costs, merge-costs, describe, observe, calibrate-link and calibrate-device."""
    sub = commands.add(
        "import-costs",
        _import_costs,
        "Convert your own measurements to a cost dataset.",
        "Reads a CSV file with one shard per line: tables (their lines in the table file, from 0), dims (if the table "
        "file has none) and fwd_bwd_ms (sum of forward and backward). --columns renames columns of both files. "
        "`evenshard train-cost` learns from the dataset.",
    )
    sub.add_argument("shards", **PATH, help="measured shards (.csv)")
    sub.add_argument("--tables", **PATH, required=True, help="table file of the shards; names and dims may be missing")
    add_flag(sub, place_knob("columns"))
    add_flags(sub, ImportCostsConfig)
    sub.add_argument("--out", **OUTPUT, required=True, help="cost dataset to write (.parquet)")
    sub.add_argument("--tables-out", **OUTPUT, required=True, help="table file of the dataset to write")

    sub = commands.add(
        "hardware",
        _hardware,
        "List the supported hardware and the evidence for its times.",
        "Lists hardware, simulated devices and links: the data that each was fitted to, number of measurements, and "
        "its error on other measurements. With a name, lists each constant with its unit and source: measured, fitted, "
        "data sheet or guess. `hardware add --spec gpu.yaml` converts a data sheet to a profile.",
    )
    add_params_flag(sub)
    sub.add_argument(
        "name",
        type=SOURCE,
        metavar="NAME",
        nargs="?",
        help="simulated device or link, such as h200 or nvlink_a100, or its YAML file; or `add`, with --spec",
    )
    sub.add_argument("--spec", **PATH, dest="sheet", help=f"with {ADD}: values from the data sheet of a GPU (.yaml)")
    sub.add_argument("--out", **OUTPUT, help=f"with {ADD}: profile to write (default: SPEC_profile.yaml)")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub.add_argument(
        "--here",
        **OUTPUT,
        help="only write the hardware that measure.hardware selects on this machine: device, libraries and a hash of "
        "the machine (.json)",
    )

    sub = commands.add(
        "merge-costs",
        _merge_costs,
        "Merge the parts of a round into one cost dataset.",
        "Each part was measured with `evenshard benchmark --part I --num-parts N`, on machines of the same kind.",
    )
    sub.add_argument("costs", **PATH, nargs="+", help="cost datasets of all parts (.parquet)")
    sub.add_argument("--out", **OUTPUT, required=True, help="cost dataset to write (.parquet)")

    sub = commands.add(
        "describe",
        _describe,
        "Show the kind and origin of a file.",
        "For a placement, prints its model and the costs used to fit it; for tables, sizes and what is assumed, also "
        "from files of TorchEasyRec, HugeCTR, NVTabular and Merlin; for a model or journal, hardware, versions "
        "and commit; for a cost dataset, origin, counts, times, spread of repeated measurements, and control "
        "placements with their drift. For several datasets, one per run, also prints the noise between runs. "
        "Exit code 0: done; 1: noisier than --max-noise; 2: bad input.",
    )
    sub.add_argument("files", **{**PATH, "metavar": "FILE"}, nargs="+",
        help="placement.json, table file or another tool's file, cost dataset (.parquet), journal, or a model's folder "
        "such as work/round_3")  # fmt: skip
    add_flag(sub, place_knob("embedding_dim"))
    sub.add_argument("--max-noise", type=at_least(0, float), metavar="PCT",
        help="fail if the standard deviation of repeated measurements of a placement is larger")  # fmt: skip
    sub.add_argument("--json", action="store_true", help="print JSON")

    sub = commands.add(
        "observe",
        _observe,
        "Show the time of embedding tables in a training step, from profiler traces.",
        "Reads torch.profiler traces, one file per rank, of a job with TorchRec or FBGEMM modules. Prints each "
        "rank's input dist, forward, communication, backward and waiting with their shares of a step, the rank that a "
        "step waits for, and the time that perfect balance would save.",
    )
    sub.formatter_class = argparse.RawDescriptionHelpFormatter  # RECORDING is code, whose lines must not be wrapped
    sub.description = fill(sub.description or "", 80)
    sub.epilog = f"Record a trace on every rank:\n\n{RECORDING}"
    add = sub.add_argument
    add_flags(sub, ObserveInputs)
    add("--costs-out", **OUTPUT, help="cost dataset to write (.parquet); needs the traces of all ranks and --placement")
    add("--tables-out", **OUTPUT, help="table file to write for that dataset; each shard is listed as a table")
    add("--json", action="store_true", help="print JSON")

    sub = commands.add(
        "calibrate-link",
        _calibrate_link,
        "Measure all-to-all communication and fit the link model.",
        "Run it with `torchrun --nproc-per-node N -m evenshard calibrate-link`, which uses NCCL between GPUs and gloo "
        "between CPUs. Prints latency, bandwidth per device and goodness of fit, and saves them for measure.link. On "
        "several hosts with several devices each, it writes two files: link_intra.yaml within a host, link_inter.yaml "
        "between hosts.",
    )
    add_params_flag(sub)
    add_flags(sub, MeasureConfig, "measure")
    sub.add_argument("--max-mb", type=at_least(0.001, float), default=64.0, metavar="MB",
                     help="largest message per device (default: 64)")  # fmt: skip
    sub.add_argument("--out", **OUTPUT, default=Path("link.yaml"), help="link profile to write (default: link.yaml)")

    sub = commands.add(
        "calibrate-device",
        _calibrate_device,
        "Fit a simulated device's free constants to measured costs.",
        "Fits to half of the shards, and prints errors of forward and backward on the other half, before and after.",
    )
    sub.add_argument("--costs", **PATH, nargs="+", required=True, help="cost datasets of the same hardware (.parquet)")
    sub.add_argument("--tables", **PATH, required=True, help="table file of the cost datasets")
    sub.add_argument(
        "--profile",
        type=SOURCE,
        required=True,
        help="profile to start from: a simulated device (see `evenshard hardware`) or its YAML file",
    )
    sub.add_argument("--out", **OUTPUT, required=True, help="profile to write (.yaml)")
