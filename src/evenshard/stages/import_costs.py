"""A cost dataset of shards that others have measured, one after another on one device.

They come as a CSV file, one line per shard: ``tables``, the numbers of its tables (their lines in the table file, from
0); ``dims``, their embedding dims, where the table file has none; ``fwd_bwd_ms``, forward and backward together. The
dataset says no more than that: how long each of the two took stays unknown, and nothing is exchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evenshard.measure.cost_dataset import save_costs
from evenshard.measure.costs import RANDOM_SHARD, DeviceCost, MeasuredPlacement, PlacementCost, Provenance, time_problem
from evenshard.measure.hardware import provenance_problem
from evenshard.measure.link import NO_LINK
from evenshard.placement.optimizer_state import SGD, optimizer_problem
from evenshard.placement.placement import alone
from evenshard.placement.task import ShardingTask
from evenshard.placement.tasks import distinct_tables
from evenshard.tables.files import load_numbered_tables, records_in, save_tables
from evenshard.tables.formats import read_csv
from evenshard.tables.table import WEIGHT_BITS, Table
from evenshard.utils.errors import BadConfig, BadFile
from evenshard.utils.limits import RANGES
from evenshard.utils.messages import brief, reason_of
from evenshard.utils.provenance import UNKNOWN, Lineage, git_commit

_TABLES, _DIMS, _TIME = "tables", "dims", "fwd_bwd_ms"
_OF_SHARDS = (_TABLES, _DIMS, _TIME)
_COLUMNS = f"{_TABLES}, {_DIMS} (where the table file has none) and {_TIME}"

_REMEDY = (
    f"Its columns are {_COLUMNS}. Name others with --columns, such as time_ms={_TIME}, or owner= to leave one out."
)


@dataclass(frozen=True)
class ImportCostsConfig:
    """What the file does not say.

    Attributes:
        hardware: kind of hardware, a colon and its name, such as "cuda: RTX 2080 Ti".
        batch_size: samples of one step.
        weight_bits: bits per weight.
        optimizer: sgd, rowwise_adagrad, adagrad, adam, ..., which the backward passes updated the weights with.

    Raises:
        BadConfig: one of them makes no sense.
    """

    hardware: str
    batch_size: int
    weight_bits: int = 32
    optimizer: str = SGD

    def __post_init__(self) -> None:
        if problem := provenance_problem(self.hardware):
            raise BadConfig(f"{problem}. Write it as 'cuda: RTX 2080 Ti'.")
        if problem := RANGES["batch_size"].problem(self.batch_size):
            raise BadConfig(f"batch_size {problem}. Correct it.")
        if problem := optimizer_problem(self.optimizer):
            raise BadConfig(f"{problem}. Choose one of these.")
        if self.weight_bits not in WEIGHT_BITS:
            raise BadConfig(f"weight_bits is {self.weight_bits}, not one of {WEIGHT_BITS}. Correct it.")


def run(
    config: ImportCostsConfig,
    shards: Path,
    tables: Path,
    columns: Mapping[str, str] | None,
    costs_out: Path,
    tables_out: Path,
) -> dict[str, float]:
    """Writes the shards as a cost dataset, and the tables that it names; returns metrics.

    The other arguments, and what they raise, are those of ``read_shards``; nothing is written then.
    """
    measured = read_shards(shards, tables, config, columns)
    named = distinct_tables([one.task for one in measured])
    save_tables(named, tables_out)
    save_costs(measured, costs_out, Lineage(git_commit()))
    return {"num_shards": float(len(measured)), "num_tables": float(len(named))}


def read_shards(
    path: Path, tables: Path, config: ImportCostsConfig, columns: Mapping[str, str] | None = None
) -> tuple[MeasuredPlacement, ...]:
    """The shards of a file as measured placements, one on one device each.

    A table of several dims is a table per dim, called after both, and one that a shard holds twice is two.

    Args:
        path: the shards.
        tables: their table file, which may lack names, and dims if the shards give them.
        config: what the files do not say.
        columns: columns of both files that are called otherwise, each with evenshard's; empty to leave one out.

    Raises:
        BadConfig: if ``columns`` names what is not there.
        BadFile: if a file cannot be read or holds an impossible value; the message names the line.
    """
    if_none = f"Its columns are {_COLUMNS}, one shard per line."
    records = records_in(path, read_csv, "shard", if_none, "Import it in parts.")
    of_shards, of_tables = _split(columns or {}, records[0])
    records = [_rename_columns(record, of_shards) for record in records]
    _check_columns(path, records[0])
    numbered = load_numbered_tables(tables, _DIMS in records[0], of_tables or None)
    pool = [replace(table, weight_bits=config.weight_bits) for table in numbered]
    return tuple(
        _measurement_of(path, number, _shard(path, number, record, pool), record[_TIME], config)
        for number, record in enumerate(records, start=1)
    )


def _split(columns: Mapping[str, str], record: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    of_shards = {
        theirs: ours for theirs, ours in columns.items() if ours in _OF_SHARDS or (not ours and theirs in record)
    }
    missing = next((theirs for theirs in of_shards if theirs not in record), None)
    if missing is not None:
        raise BadConfig(f"columns names {brief(missing)}, which the shards lack. They have {', '.join(record)}.")
    return of_shards, {theirs: ours for theirs, ours in columns.items() if theirs not in of_shards}


def _rename_columns(record: Mapping[str, str], columns: Mapping[str, str]) -> dict[str, str]:
    return {columns.get(name, name): value for name, value in record.items() if columns.get(name, name)}


def _check_columns(path: Path, record: dict[str, str]) -> None:
    for column in record:
        if column not in _OF_SHARDS:
            raise BadFile(path, f"unknown column {brief(column)}", _REMEDY)
    for needed in (_TABLES, _TIME):
        if needed not in record:
            raise BadFile(path, f"column {needed!r} is missing", _REMEDY)


def _shard(path: Path, number: int, record: dict[str, str], pool: Sequence[Table]) -> tuple[Table, ...]:
    where = f"shard {number}"

    def numbers(column: str, what: str, most: int) -> list[int]:
        found = record[column].split()
        for text in found:
            if not text.isdecimal() or len(text) > 9 or int(text) > most:
                raise BadFile(path, f"{column} holds {brief(text)}, not {what}", "Correct it.", where)
        return [int(text) for text in found]

    lines = numbers(_TABLES, f"the number of a table, 0 to {len(pool) - 1:,}", len(pool) - 1)
    if not lines:
        raise BadFile(path, f"{_TABLES} is empty", "Name the tables by their numbers, as in 7 12.", where)
    tables = [pool[line] for line in lines]
    if _DIMS in record:
        dims = numbers(_DIMS, "an embedding dim", int(RANGES["embedding_dim"].most))
        if len(dims) != len(lines):
            counts = f"{_DIMS} holds {len(dims)} values for {len(lines)} tables"
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
    return MeasuredPlacement.whole(
        measurement_id=name,
        round=1,
        proposed_by=RANDOM_SHARD,
        task=task,
        placement=alone(task),
        cost=PlacementCost((DeviceCost.of_total(total_ms),), "modelled"),
        provenance=Provenance(*unknown, seed=0, repeats=0, optimizer=optimizer),
    )
