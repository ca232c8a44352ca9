"""Import of measured costs: merges the parts of a round, and converts shards that users measured on one device.

The shards are in a CSV file with one shard per line. Column ``tables`` lists the shard's tables (lines of the
table file, from 0), ``dims`` their embedding dims, if the table file has none, and ``fwd_bwd_ms`` the sum of forward
and backward time. The cost dataset has only this sum, and no communication times.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from evenshard.base.errors import BadConfig, BadFile, require
from evenshard.base.knobs import RANGES
from evenshard.base.messages import UNKNOWN, brief, reason_of
from evenshard.base.provenance import Lineage, git_commit
from evenshard.loop.commands import ImportCostsConfig
from evenshard.measure.cost_dataset import save_costs
from evenshard.measure.cost_rows import read_lineage, read_rows, save_rows
from evenshard.placement.placement import place_on_one_device
from evenshard.placement.task import ShardingTask, distinct_tables
from evenshard.price.costs import RANDOM_SHARD, DeviceCost, MeasuredPlacement, PlacementCost, Provenance, time_problem
from evenshard.price.link import NO_LINK
from evenshard.tables.files import load_numbered_tables, records_in, save_tables
from evenshard.tables.formats import read_csv
from evenshard.tables.table import Table

log = logging.getLogger(__name__)
# The parts of a round must agree in these columns, because their costs are compared with each other.
_COMMON_COLUMNS = ("hardware", "versions", "link", "optimizer")
_TABLES, _DIMS, _TIME = "tables", "dims", "fwd_bwd_ms"
_SHARD_COLUMNS = (_TABLES, _DIMS, _TIME)
_COLUMNS = f"{_TABLES}, {_DIMS} (if the table file has none) and {_TIME}"
_REMEDY = f"Use the columns {_COLUMNS}. Rename a column (--columns time_ms={_TIME}) or drop it (--columns owner=)."


def run(
    config: ImportCostsConfig,
    shards: Path,
    tables: Path,
    columns: Mapping[str, str] | None,
    costs_out: Path,
    tables_out: Path,
) -> dict[str, float]:
    """Write the shards (``read_shards``) as a cost dataset, and its tables; return metrics."""
    measured = read_shards(shards, tables, config, columns)
    named = distinct_tables([shard.task for shard in measured])
    save_tables(named, tables_out)
    save_costs(measured, costs_out, Lineage(git_commit()))
    return {"num_shards": float(len(measured)), "num_tables": float(len(named))}


def read_shards(
    path: Path, tables: Path, config: ImportCostsConfig, columns: Mapping[str, str] | None = None
) -> tuple[MeasuredPlacement, ...]:
    """Read the shards of a file as measured placements, each on one device.

    A table with several dims becomes one table per dim. A table that occurs twice in a shard becomes two tables.

    Args:
        tables: table file, which may lack names, and dims if the shards give them.
        columns: new names of columns in both files, by old name; "" drops the column.

    Raises:
        BadConfig: if ``columns`` names a missing column.
        BadFile: if a file cannot be read or holds an impossible value; the message names the line.
    """
    if_none = f"Write one shard per line, with the columns {_COLUMNS}."
    records = records_in(path, read_csv, "shard", if_none, "Split the file.")
    of_shards, of_tables = _split(columns or {}, records[0])
    records = [{name: each[old] for old in each if (name := of_shards.get(old, old))} for each in records]
    for column in records[0]:
        if column not in _SHARD_COLUMNS:
            raise BadFile(path, f"unknown column {brief(column)}", _REMEDY)
    for needed in (_TABLES, _TIME):
        if needed not in records[0]:
            raise BadFile(path, f"column {needed!r} is missing", _REMEDY)
    numbered = load_numbered_tables(tables, _DIMS in records[0], of_tables or None)
    pool = [replace(table, weight_bits=config.weight_bits) for table in numbered]
    return tuple(
        _measurement_of(path, number, _shard(path, number, record, pool), record[_TIME], config)
        for number, record in enumerate(records, start=1)
    )


def _split(columns: Mapping[str, str], record: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    of_shards = {
        theirs: ours for theirs, ours in columns.items() if ours in _SHARD_COLUMNS or (not ours and theirs in record)
    }
    missing = next((theirs for theirs in of_shards if theirs not in record), None)
    if missing is not None:
        raise BadConfig(f"--columns renames {brief(missing)}, but the shard file only has {', '.join(record)}.")
    return of_shards, {theirs: ours for theirs, ours in columns.items() if theirs not in of_shards}


def _shard(path: Path, number: int, record: dict[str, str], pool: Sequence[Table]) -> tuple[Table, ...]:
    where = f"shard {number}"

    def numbers(column: str, what: str, most: int) -> list[int]:
        found = record[column].split()
        for text in found:
            if not text.isdecimal() or len(text) > 9 or int(text) > most:  # int() raises above 4,300 digits
                raise BadFile(path, f"{column} contains {brief(text)}, not {what}", "Correct it.", where)
        return [int(text) for text in found]

    lines = numbers(_TABLES, f"a table number from 0 to {len(pool) - 1:,}", len(pool) - 1)
    if not lines:
        raise BadFile(path, f"{_TABLES} is empty", "Write the shard's table numbers, such as 7 12.", where)
    tables = [pool[line] for line in lines]
    if _DIMS in record:
        dims = numbers(_DIMS, "an embedding dim", int(RANGES["embedding_dim"].most))
        if len(dims) != len(lines):
            counts = f"{_DIMS} has {len(dims)} values for {len(lines)} tables"
            raise BadFile(path, counts, "Give one dim for each table.", where)
        tables = [
            replace(table, name=f"{table.name}-dim-{dim}", embedding_dim=dim)
            for table, dim in zip(tables, dims, strict=True)
        ]
    copies: Counter[str] = Counter()
    for position, table in enumerate(tables):
        if problem := table.problem():
            raise BadFile(path, f"table {brief(table.name)}: {problem}", "Correct it.", where)
        copies[table.name] += 1
        if (copy := copies[table.name]) > 1:
            tables[position] = replace(table, name=f"{table.name}-copy-{copy}")
    return tuple(tables)


def _measurement_of(
    path: Path, number: int, tables: tuple[Table, ...], time: str, config: ImportCostsConfig
) -> MeasuredPlacement:
    try:
        total_ms = float(time)
    except ValueError:
        total_ms = 0.0
    if total_ms == 0 or time_problem(_TIME, total_ms):
        raise BadFile(path, f"{_TIME} is {brief(time)}, not a time above 0 ms", "Correct it.", f"shard {number}")
    name = f"shard-{number:05d}"
    size_bytes = sum(table.size_bytes for table in tables)
    try:
        task = ShardingTask.whole(name, tables, 1, size_bytes, config.batch_size)
    except BadConfig as error:
        raise BadFile(path, reason_of(error), "Correct it.", f"shard {number}") from None
    unknown, optimizer = (config.hardware, UNKNOWN, UNKNOWN, NO_LINK), config.optimizer
    return MeasuredPlacement(
        measurement_id=name,
        round=1,
        proposed_by=RANDOM_SHARD,
        task=task,
        parts=place_on_one_device(task).parts(task.tables),
        cost=PlacementCost((DeviceCost.of_total(total_ms),), "modelled"),
        provenance=Provenance(*unknown, seed=0, repeats=0, optimizer=optimizer),
    )


def merge_parts(parts: Sequence[Path], costs: Path) -> dict[str, float]:
    """Merge the rows of all parts of a round, sorted by measurement id, into one dataset; return metrics.

    Raises:
        BadFile: if a part cannot be read, was measured on other hardware or with other settings than the first, or
            repeats a measurement of another part.
    """
    require(bool(parts), "no parts to merge. Name the cost datasets of the parts.")
    found = [read_rows(path) for path in parts]
    for path, rows in zip(parts, found, strict=True):
        if not rows:
            raise BadFile(path, "holds no measurement", "Measure this part again.")
    first, part_of = read_lineage(parts[0]), dict[str, int]()
    for number, (path, rows) in enumerate(zip(parts, found, strict=True)):
        for row, name in product(rows, _COMMON_COLUMNS):
            if row[name] != found[0][0][name]:
                values = f"{brief(row[name], 300)}, but {brief(found[0][0][name], 300)} in the first part"
                remedy = "Measure all parts of a round with the same settings, on the same kind of device."
                raise BadFile(path, f"{name} is {values}", remedy)
        lineage = read_lineage(path)
        for name in ("params_hash", "evenshard_version"):
            if lineage.get(name) != first.get(name):
                problem = f"{name} is {lineage.get(name)}, but {first.get(name)} in {parts[0]}"
                raise BadFile(path, problem, "Measure all parts with the same settings and version.")
        for row in rows:
            other = part_of.setdefault(row["measurement_id"], number)
            if other != number:
                problem = f"measurement {row['measurement_id']} is also in {parts[other]}"
                raise BadFile(path, problem, "Merge each part once, and only parts of one round.")
    merged = sorted((row for rows in found for row in rows), key=lambda row: (row["measurement_id"], row["device_id"]))
    save_rows(merged, first, costs)
    log.info("%d placements from %d parts", len(part_of), len(found))
    return {"num_placements": float(len(part_of)), "num_parts": float(len(found))}
