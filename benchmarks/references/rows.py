"""Rows of data files, CSV or JSON lines; a file with fewer rows than published results were made of is an error."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evenshard.base.errors import BadFile, EvenshardError

GZIP = b"\x1f\x8b"
# Least number of rows, by file; files may grow.
LEAST_ROWS = {
    "collectives_2026.csv": 129,
    "dlrm_2021_tables.csv": 856,
    "gemm_bf16.csv": 4435,
    "gpu_points.csv": 216,
    "nccl.csv": 1360,
    "points_2026_11.csv": 31,
    "rtx_2080_ti_all_to_all.csv": 3000,
    "rtx_2080_ti_shards.csv": 8000,
    "h100.jsonl.gz": 2130,
    "h100_second.jsonl.gz": 663,
    "h200.jsonl.gz": 1008,
    "shardbench_h100.jsonl.gz": 2342,
    "shardbench_h200.jsonl.gz": 873,
    "shardbench_plans.jsonl.gz": 434,
}


def read_rows(path: Path, least: int = 1) -> list[dict[str, Any]]:
    """Read the rows of a CSV file, or the lines of a file of JSON lines, which may be gzipped.

    Args:
        least: number of rows of files that are not in ``LEAST_ROWS``; with 0, the file may be missing.

    Raises:
        BadFile: the file has too few rows.
    """
    least, rows, problem = LEAST_ROWS.get(path.name, least), list[dict[str, Any]](), ""
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if content.startswith(GZIP) else content).decode()
        lines = io.StringIO(text, newline="")
        rows += csv.DictReader(lines) if path.suffix == ".csv" else map(json.loads, lines)
    except FileNotFoundError:
        problem = ": no such file" if least else ""
    except (EOFError, ValueError, zlib.error) as error:
        problem = f": damaged ({error})"
    if problem or len(rows) < least:
        where = "Name the folder of the measurements (--truth, EVENSHARD_TRUTH)"
        remedy = where if path.suffix == ".csv" else "Fetch it with `dvc pull data.dvc`"
        raise BadFile(path, f"{len(rows):,} of at least {least:,} rows{problem}", f"{remedy}.")
    return rows


def run_script(main: Callable[[], None]) -> None:
    """Run a script; exit with 1 and one line on an error of evenshard."""
    try:
        main()
    except EvenshardError as error:
        sys.exit(f"error: {error}")
