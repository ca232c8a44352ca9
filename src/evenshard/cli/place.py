"""The command ``place``, and the commands that ask about its answers."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evenshard.cli import answers as asking
from evenshard.cli.arguments import A_MODEL, HARDWARE, OUTPUT, PATH, SOURCE, Commands, at_least
from evenshard.utils.messages import shown

if TYPE_CHECKING:
    from evenshard.planner.request import Rules


def _place(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.planner.file import json_schema, save_answer

    if args.schema:
        print(json.dumps(json_schema(), indent=1))
        return {}
    from evenshard.planner import api
    from evenshard.planner.rivals import HEURISTICS, SPLITTING
    from evenshard.planner.summary import print_answer
    from evenshard.utils.errors import BadConfig

    if args.tables is None:
        raise BadConfig("TABLES is missing. Name a table file, a public set such as mlperf_dlrm_v2, or traffic.")
    _check_format(args)
    rules = _rules(args)
    torchrec, missing = ((), "") if args.report is None else _torchrec()
    answer = api.place(
        args.tables,
        args.devices,
        args.memory_cap_gb,
        batch_size=args.batch_size,
        hardware=args.hardware,
        model=args.model,
        optimizer=args.optimizer,
        reserved_gb=args.reserved_gb,
        pinned=rules.pinned,
        forbidden=rules.forbidden,
        forbidden_devices=rules.forbidden_devices,
        together=rules.together,
        apart=rules.apart,
        allow_column_split=args.allow_column_split,
        traffic=args.traffic,
        embedding_dim=args.embedding_dim,
        weight_bits=args.weight_bits,
        default_pooling_factor=args.default_pooling_factor,
        compare=(*HEURISTICS, *torchrec, *([SPLITTING] if torchrec and args.allow_column_split else ())),
        num_measured=args.measure,
        seed=args.seed,
    )
    if args.format == "torchrec":
        from evenshard.planner.torchrec import save_plan

        save_plan(answer, args.out, args.local_world_size, "cpu" if args.hardware == "cpu" else "cuda")
    elif args.out is not None:
        save_answer(answer, args.out)
    if args.report is not None:
        from evenshard.planner.page.page import save_page

        save_page(answer, args.report, missing)
    print_answer(answer, missing=missing)
    return {}


def _torchrec() -> tuple[tuple[str, ...], str]:
    """TorchRec's planners to compare with; where TorchRec is not installed, why."""
    from evenshard.planner.rivals import TORCHREC
    from evenshard.sharders.torchrec_planner import require_torchrec
    from evenshard.utils.errors import BadConfig

    try:
        require_torchrec()
    except BadConfig as error:
        return (), str(error)
    return TORCHREC, ""


def _check_format(args: argparse.Namespace) -> None:
    """A TorchRec plan needs a file; only it knows nodes."""
    from evenshard.utils.errors import BadConfig

    if args.format == "torchrec" and args.out is None:
        raise BadConfig("--format torchrec writes a file. Name it: -o plan.json.")
    if args.format != "torchrec" and args.local_world_size is not None:
        raise BadConfig("--local-world-size is for TorchRec plans. Add --format torchrec, or leave it out.")


def _rules(args: argparse.Namespace) -> Rules:
    """Those of the file and of the flags together."""
    from evenshard.planner.request import Rules
    from evenshard.planner.rules_file import load_rules

    rules = Rules() if args.rules is None else load_rules(args.rules)
    return Rules(
        pinned=_pinned([*rules.pinned.items(), *args.pin]),
        forbidden=_forbidden([*rules.forbidden.items(), *args.forbid]),
        forbidden_devices=(*rules.forbidden_devices, *args.forbid_device),
        together=(*rules.together, *args.together),
        apart=(*rules.apart, *args.apart),
    )


def _pinned(pins: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    """Two pins of a table could mean either, or both: ask instead of dropping one."""
    from evenshard.utils.errors import BadConfig

    pinned: dict[str, tuple[int, ...]] = {}
    for name, devices in pins:
        if set(pinned.setdefault(name, devices)) != set(devices):
            both = sorted({*pinned[name], *devices})
            raise BadConfig(
                f"table {shown(name)} is pinned twice, to different devices. Say it once: --pin {name}=DEVICE, or "
                f"--pin {name}={','.join(map(str, both))} for any of them."
            )
    return pinned


def _forbidden(rules: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    """All devices that any of them forbids."""
    forbidden: dict[str, tuple[int, ...]] = {}
    for name, devices in rules:
        forbidden[name] = (*forbidden.get(name, ()), *devices)
    return forbidden


def _numbers(text: str) -> Sequence[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a number, or several separated by commas") from None


def _table_devices(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, devices = text.rpartition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{shown(text)} is not TABLE=DEVICE or TABLE=DEVICE,DEVICE")
    try:
        return name, tuple(int(device) for device in devices.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{shown(devices)} in {shown(text)} is neither a device id nor several"
        ) from None


def _group(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def add_commands(commands: Commands) -> None:
    """Declares place, explain and diff."""
    sub = commands.add(
        "place",
        _place,
        "Place your own tables.",
        "Answers in seconds with a model that comes with evenshard, or with one of your own (--model). Exit code 0: "
        "placed; 2: bad input, or no placement can exist, with what is missing.",
    )
    add = sub.add_argument
    add(
        "tables",
        type=SOURCE,
        metavar="TABLES",
        nargs="?",
        help="table file (.yaml, .json, .csv, .parquet), public set such as mlperf_dlrm_v2, folder of traffic "
        "(.parquet or .pt), or DLRM batch file; s3://bucket/file too",
    )
    add("-o", "--out", **OUTPUT, help="placement.json, or TorchRec plan, to write")
    add("--report", **OUTPUT, help="HTML page to write; compares with TorchRec's planner too, where it is installed")
    add("--schema", action="store_true", help="print the JSON schema of placement.json, and nothing else")
    about = sub.add_argument_group("devices")
    add = about.add_argument
    add("--devices", type=at_least(1), default=8, metavar="N", help="how many (default: 8)")
    add(
        "--memory-cap-gb",
        type=_numbers,
        default=[64.0],
        metavar="GB[,GB...]",
        help="memory of a device, GB of 1024**3 bytes; one number, or one for each device (default: 64)",
    )
    add(
        "--reserved-gb",
        type=at_least(0, float),
        default=0.0,
        metavar="GB",
        help="GB of each device kept for everything besides tables (default: 0)",
    )
    add(
        "--hardware",
        type=HARDWARE,
        default="simulated:h200",
        help="that the answer is for: cpu, cuda, or simulated:<profile>, a device model (default: simulated:h200)",
    )
    add(
        "--model",
        type=A_MODEL,
        metavar="PATH|URI",
        help="a round's folder such as work/round_3, s3://bucket/folder, or models:/evenshard-cost@champion (default: "
        "the one that comes with evenshard)",
    )
    about = sub.add_argument_group("training")
    add = about.add_argument
    add(
        "--batch-size",
        type=at_least(1),
        default=65_536,
        metavar="N",
        help="samples of a step over all devices (default: 65536)",
    )
    add(
        "--optimizer",
        metavar="NAME",
        default="sgd",
        help="sgd, rowwise_adagrad, adagrad or adam: its state takes memory (default: sgd)",
    )
    add("--weight-bits", type=int, choices=(8, 16, 32), help="of all tables, whatever their own (default: their own)")
    about = sub.add_argument_group("tables")
    add = about.add_argument
    add("--traffic", **PATH, help="a sample that tells pooling factors and histograms of the tables")
    add("--embedding-dim", type=at_least(1), metavar="N", help="of all tables, where TABLES is traffic")
    add(
        "--default-pooling-factor",
        type=at_least(0, float),
        default=1.0,
        metavar="X",
        help="of tables that have none (default: 1)",
    )
    add("--allow-column-split", action="store_true", help="split tables by columns where that helps")
    about = sub.add_argument_group("rules")
    add = about.add_argument
    add("--rules", **PATH, help="YAML file with pinned, forbidden, forbidden_devices, together, apart")
    add(
        "--pin",
        type=_table_devices,
        action="append",
        default=[],
        metavar="TABLE=D[,D]",
        help="the devices a table may live on; repeatable, as are the others",
    )
    add(
        "--forbid",
        type=_table_devices,
        action="append",
        default=[],
        metavar="TABLE=D[,D]",
        help="devices it may not live on",
    )
    add(
        "--forbid-device",
        type=at_least(0),
        action="append",
        default=[],
        metavar="D",
        help="a device that no table may live on",
    )
    add(
        "--together",
        type=_group,
        action="append",
        default=[],
        metavar="TABLE,TABLE",
        help="tables that live on one device",
    )
    add(
        "--apart",
        type=_group,
        action="append",
        default=[],
        metavar="TABLE,TABLE",
        help="tables that live on different devices",
    )
    about = sub.add_argument_group("answer")
    add = about.add_argument
    add(
        "--measure",
        type=at_least(0),
        default=0,
        metavar="N",
        help="time the N best candidates on --hardware, kernels or device model; take the fastest (default: 0)",
    )
    add("--seed", type=int, default=0, help="of the search (default: 0)")
    add(
        "--format",
        choices=("json", "torchrec"),
        default="json",
        help="of the file: placement.json, or a plan for evenshard.planner.torchrec.load_plan (default: json)",
    )
    add(
        "--local-world-size",
        type=at_least(1),
        metavar="N",
        help="ranks of a node, for a TorchRec plan (default: all ranks)",
    )
    asking.add_commands(commands)
