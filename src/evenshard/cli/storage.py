"""The command about S3: a file or a folder goes there, whole or not at all."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from evenshard.cli.arguments import PATH, Commands
from evenshard.utils.units import size_text


def _upload(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.utils.s3 import upload

    files = upload(args.source, args.address).files
    size = size_text(sum(one.size_bytes for one in files))
    print(f"saved: {args.address} ({len(files)} {'file' if len(files) == 1 else 'files'}, {size})")
    return {}


def add_commands(commands: Commands) -> None:
    """Declares upload."""
    sub = commands.add(
        "upload",
        _upload,
        "Upload a file or a folder to S3.",
        "For what the pods of a pipeline read from there: tables, traffic, traces, placements, models. A folder can be "
        "read once all of it has arrived; files that are there already are not sent again. Endpoint and keys come from "
        "AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and so on. Exit code 0: done; 1: the endpoint does not answer; 2: bad "
        "input.",
    )
    sub.add_argument("source", **{**PATH, "metavar": "SOURCE"}, help="file or folder of this machine")
    sub.add_argument("address", metavar="ADDRESS", help="where it goes, such as s3://bucket/job/traces")
