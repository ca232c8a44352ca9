"""Command ``place``, which places a user's tables."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenshard.api import place
from evenshard.base.console import best_so_far, without_progress
from evenshard.base.errors import BadConfig, MissingPackage
from evenshard.base.outputs import STDOUT, check_distinct, write_text
from evenshard.cli import arguments
from evenshard.planner.knobs import groups, place_knobs
from evenshard.price.hardware import HardwareName

if TYPE_CHECKING:
    from evenshard.planner.answer import PlacementAnswer

CONSTRAINTS = "torchrec-constraints"
PLACE_EXAMPLE = "Example: evenshard place tables.yaml --devices 8 --hardware h100 --report page.html -o placement.json"
GROUP_HINTS = {"table_rules": "Each of these flags can be repeated."}
# Arguments that may be files, which outputs must not replace.
_PATHS = ("tables", "model", "hosts", "traffic", "near", "hardware", "intra", "inter")


def _place(args: argparse.Namespace) -> None:
    from evenshard.planner.file import json_schema, json_text

    if args.schema:
        print(json.dumps(json_schema(), indent=1))
        return
    from evenshard.planner.baselines import FULL_SPACE, RULE
    from evenshard.report.answer import print_answer
    from evenshard.sharders.catalog import HEURISTICS

    tables, chosen = _request(args)
    if args.print_config:
        from evenshard.planner.config_file import config_text

        print(config_text(tables, chosen), end="")
        return
    _check_output(args)
    torchrec, missing = ((), "") if args.report is None else _torchrec()
    more = () if args.report is None else (RULE, *torchrec, *([FULL_SPACE] if torchrec else ()))
    compare = (*HEURISTICS, *more)
    with without_progress() if args.quiet else nullcontext(), best_so_far() as progress:
        answer = place(tables, **chosen, compare=compare, progress=progress)
    if args.out is not None:
        text = _contents(args, answer)
        print(text, end="") if args.out == STDOUT else write_text(args.out, text)
    if args.report is not None:
        from evenshard.report.page.page import save_page

        save_page(answer, args.report, missing)
    if args.json:
        print(json_text(answer), end="")
    elif not args.quiet and args.out != STDOUT:
        print_answer(answer, missing=missing, verbose=args.verbose)


def _request(args: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Return the tables and the arguments of ``evenshard.place``; flags take precedence over the request file."""
    from evenshard.planner.rules import RULES, Rules, load_rules

    tables: Any = arguments.tables_of(args)
    rules = list[Rules]()
    asked: dict[str, Any] = {}
    if args.config is not None:
        from evenshard.planner.config_file import load_config

        named, asked = load_config(args.config)
        tables = named if tables is None else tables
        rules.append(Rules(**{name: asked.pop(name) for name in RULES if name in asked}))
        paths = {"tables": tables, **asked}
        inputs = {
            f"{name} of {args.config}": (Path(paths[name]),) for name in _PATHS if isinstance(paths.get(name), str)
        }
        outputs = {flag: (path,) for flag, path in (("-o", args.out), ("--report", args.report)) if path is not None}
        check_distinct(outputs, inputs)
    if args.rules is not None:
        rules.append(load_rules(args.rules))
    if tables is None:
        raise BadConfig("TABLES is missing. Name a table file, a public set such as mlperf_dlrm_v2, or traffic.")
    return tables, arguments.join_rules({**asked, **arguments.flag_values(args, place_knobs())}, *rules)


def _contents(args: argparse.Namespace, answer: PlacementAnswer) -> str:
    if args.format == "torchrec":
        from evenshard.torchrec.plan.file import plan_text

        kind = HardwareName.parse(answer.request.hardware).kind
        return plan_text(answer, args.local_world_size, kind.compute_device)
    if args.format == CONSTRAINTS:
        from evenshard.torchrec.plan.file import constraints_text

        return constraints_text(answer, args.out)
    from evenshard.planner.file import json_text

    return json_text(answer)


def _torchrec() -> tuple[tuple[str, ...], str]:
    from evenshard.planner.baselines import TORCHREC
    from evenshard.torchrec.baseline.topology import require_torchrec

    try:
        require_torchrec()
    except MissingPackage as error:
        return (), str(error)
    return TORCHREC, ""


def _check_output(args: argparse.Namespace) -> None:
    files = {"torchrec": "plan.json", CONSTRAINTS: "constraints.py, or constraints.json"}
    if args.format in files and args.out is None:
        raise BadConfig(f"--format {args.format} writes a file. Name it: -o {files[args.format]}.")
    if args.format != "torchrec" and args.local_world_size is not None:
        raise BadConfig("--local-world-size is for TorchRec plans. Add --format torchrec, or leave it out.")
    if args.json and args.out == STDOUT:
        raise BadConfig("--json and -o - both write to standard output. Give one of them, or -o a file.")


def add_commands(commands: arguments.Commands) -> None:
    """Declare place."""
    sub = commands.add(
        "place",
        _place,
        "Place your own tables.",
        "Answers in seconds with a simulated device or your own model (--model). Exit code 0: placed; "
        "2: bad input, or no placement is possible; the message says what is missing. Ctrl-C stops the search "
        "and takes the best placement so far.",
    )
    add = sub.add_argument
    what = (
        "table file (.yaml, .json, .csv, .parquet), file of TorchEasyRec, HugeCTR or Merlin, file of sizes, public set "
        "such as mlperf_dlrm_v2, folder of traffic (.parquet or .pt), or DLRM batch file; also s3://bucket/file"
    )
    arguments.add_tables(sub, what, required=False)
    add("-o", "--out", **arguments.OUTPUT_OR_STDOUT, help="file to write: placement.json or a TorchRec plan; - writes "
        "only this to standard output")  # fmt: skip
    add("--json", action="store_true", help="print placement.json instead of the summary")
    add("-q", "--quiet", action="store_true", help="print no summary and no progress, only errors")
    add("-v", "--verbose", action="store_true", help="also print baselines' settings, reserved memory and assumptions")
    add("--report", **arguments.OUTPUT, help="HTML page to write; also compares with TorchRec's planner, if installed")
    add("--schema", action="store_true", help="print the JSON schema of placement.json, and nothing else")
    add("--config", **arguments.PATH, help="YAML file with a whole request: tables, and arguments of evenshard.place; "
        "flags take precedence")  # fmt: skip
    add("--print-config", action="store_true", help="print the request as a file for --config, without placing tables")
    add("--rules", **arguments.PATH, help="YAML file with placement rules: pinned, forbidden, together, apart, ...")
    add("--format", choices=("json", "torchrec", CONSTRAINTS), default="json",
        help="placement.json, a plan for evenshard.torchrec.load_plan, or ParameterConstraints for TorchRec's "
        "own planner, as .py or .json (default: json)")  # fmt: skip
    add("--local-world-size", type=arguments.at_least(1), metavar="N",
        help="ranks of a node, for a TorchRec plan (default: all ranks)")  # fmt: skip
    sub.epilog = PLACE_EXAMPLE
    for group in groups():
        section = sub.add_argument_group(group.heading, GROUP_HINTS.get(group.name))
        arguments.add_flags(section, group.kind, default=argparse.SUPPRESS)
