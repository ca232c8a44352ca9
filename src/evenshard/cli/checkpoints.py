"""The command about checkpoints of TorchRec: one that loads under another plan."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from evenshard.cli.arguments import PATH, Commands, output_flag
from evenshard.utils.console import plain_console
from evenshard.utils.messages import cut
from evenshard.utils.outputs import CHECKPOINT_FOLDER
from evenshard.utils.units import size_text


def _convert(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.torchrec.running.checkpoint import convert_checkpoint

    done = convert_checkpoint(
        args.checkpoint, args.old, args.new, args.out, args.optimizer, args.tables_state, args.dense_state
    )
    if args.json:
        print(json.dumps(asdict(done), indent=1))
        return {}
    console = plain_console(None)

    def say(what: str, tables: tuple[str, ...]) -> None:
        if tables:
            console.print(f"{len(tables)} {what}: {cut(', '.join(tables))}", soft_wrap=True)

    console.print(f"{args.out}: loads under {args.new}, {size_text(done.written_bytes)} new", soft_wrap=True)
    say("with their optimizer state converted", done.converted)
    say("of which a part is cut, and its new parts each begin with its row-wise state", done.inexact)
    say("whose optimizer state begins anew, as that of tables and that of replicas differ", done.begun_anew)
    return {}


def add_commands(commands: Commands) -> None:
    """Declares convert-checkpoint."""
    sub = commands.add(
        "convert-checkpoint",
        _convert,
        "Make a checkpoint of TorchRec load under another plan.",
        "Needs no GPU and no ranks; the new folder shares the files of tensors with the old one. Exit code 0, or 2: "
        "bad input.",
    )
    add = sub.add_argument
    add("checkpoint", **{**PATH, "metavar": "CHECKPOINT"}, help="folder that torch.distributed.checkpoint wrote")
    add("--from", dest="old", required=True, **PATH, help="placement.json or TorchRec plan that it was written under")
    add("--to", dest="new", required=True, **PATH, help="placement.json or TorchRec plan that it shall load under")
    add("-o", "--out", required=True, **output_flag(CHECKPOINT_FOLDER), help="folder to write")
    add("--optimizer", metavar="NAME", help="of the tables, where the checkpoint does not tell")
    add(
        "--tables-state",
        metavar="PLACE",
        help="where its state belongs, such as optimizer.state, if it has none yet",
    )
    add("--dense-state", metavar="PLACE", help="where that of the dense model belongs, if it has none yet")
    add("--json", action="store_true", help="print JSON")
