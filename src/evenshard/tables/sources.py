"""Sources of a user's tables: a table file, a public set, or a sample of traffic (recorded lookups).

================  =======================================================  =================================
source            name                                                     separate ``traffic`` possible
================  =======================================================  =================================
public set        a name of ``catalog_names()``                            yes
table file        .yaml, .yml, .json, .csv, .parquet                       yes
DLRM batch file   .pt, .pt.gz                                              no, it is traffic
traffic folder    a folder of .parquet files or of .pt files               no, it is traffic
file of a tool    TorchEasyRec, HugeCTR, NVTabular, Merlin; see ``tools``  yes
list of sizes     45833188-36746-17245, or a file with these numbers       yes
================  =======================================================  =================================

A single Parquet file is read as a table file. A sample of traffic in one Parquet file needs a folder of its own, or is
given as the ``traffic`` of a table file.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.installation import require_package
from evenshard.base.knobs import check_ranges
from evenshard.base.messages import brief, cut, did_you_mean
from evenshard.tables.assumptions import Assumption, TableSet, assume_reuse_bins, assume_weight_bits
from evenshard.tables.files import load_tables_with_assumptions, missing_columns_error, tables_of_records
from evenshard.tables.formats import NO_TABLES, TABLE_SUFFIXES
from evenshard.tables.records import COLUMN_ALIASES, KNOWN_COLUMNS, TABLE_COLUMNS, table_of
from evenshard.tables.reuse import feasible_reuse_bins, power_law_reuse_bins
from evenshard.tables.table import Table, check_weight_bits

BATCH_SUFFIXES = (".pt", ".pt.gz")
# Columns that a sample of traffic provides.
_COUNTED = ("pooling_factor", "feature_pooling_factors", "reuse_bins")
_PRECISION = ("weight_bits", "data_type")
# Public table sets; each has a data file that cites the source of its numbers.
_CATALOG = resources.files("evenshard.tables").joinpath("catalog")
_SUFFIX = ".json"


class SourceKind(Enum):
    """Kind of a source of tables."""

    CATALOG = "public set"
    TABLE_FILE = "table file"
    BATCH_FILE = "DLRM batch file"
    TRAFFIC_FOLDER = "traffic folder"


def catalog_names() -> tuple[str, ...]:
    """Return the names of the public table sets, sorted."""
    files = (entry.name for entry in _CATALOG.iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in files if name.endswith(_SUFFIX)))


def load_catalog(name: str, batch_size: int, embedding_dim: int | None = None) -> tuple[Table, ...]:
    """Return the tables of a public set.

    Args:
        batch_size: samples per batch of the reuse histograms.
        embedding_dim: dim of every table; None keeps the dim of the data file.

    Raises:
        BadConfig: if the name is unknown, a number is invalid, or a dim is given for a set with its own dims.
    """
    check_ranges(batch_size=batch_size)
    if embedding_dim is not None:
        check_ranges(embedding_dim=embedding_dim)
    content = _read_set(name)
    if embedding_dim is not None and "embedding_dim" not in content:
        raise BadConfig(f"{name} publishes an embedding dim for each table. Leave embedding_dim ({embedding_dim}) out.")
    common = {column: content[column] for column in TABLE_COLUMNS if column in content}
    common |= {} if embedding_dim is None else {"embedding_dim": embedding_dim}
    tables: list[Table] = []
    for record in content["tables"]:
        table = table_of({"name": "unnamed", **common, **record})
        lookups = table.pooling_factor * batch_size
        if "power_law_alpha" in content:
            table = replace(table, reuse_bins=power_law_reuse_bins(table.num_rows, lookups, content["power_law_alpha"]))
        elif not table.is_sequence:  # index reuse of these sets is not published, so it is the default
            table = replace(table, reuse_bins=feasible_reuse_bins(table.num_rows, lookups))
        for _ in range(record.get("count", 1)):
            tables.append(table if "name" in record else replace(table, name=f"t{len(tables):03d}"))
    return tuple(tables)


def _read_set(name: str) -> dict[str, Any]:
    known = catalog_names()
    if name not in known:
        closest = difflib.get_close_matches(cut(name), known, n=len(known), cutoff=0.0)
        raise BadConfig(f"There is no public table set {brief(name)}. Choose one of: {', '.join(closest)}.")
    content: dict[str, Any] = json.loads(_CATALOG.joinpath(name + _SUFFIX).read_text(encoding="utf-8"))
    return content


def kind_of_source(source: str | PathLike[str]) -> SourceKind | None:
    """Classify a source by its name and suffix, or as a folder, without reading it; None if unknown."""
    if str(source) in catalog_names():
        return SourceKind.CATALOG
    # Checked before the suffix, because Spark writes folders named sample.parquet. An empty path would be the working
    # directory.
    if str(source) and Path(source).is_dir():
        return SourceKind.TRAFFIC_FOLDER
    name = Path(source).name
    if name.lower().endswith(TABLE_SUFFIXES):
        return SourceKind.TABLE_FILE
    return SourceKind.BATCH_FILE if name.endswith(BATCH_SUFFIXES) else None


def tables_from(
    source: str | PathLike[str],
    batch_size: int,
    traffic: str | PathLike[str] | None = None,
    embedding_dim: int | None = None,
    weight_bits: int | None = None,
    default_pooling_factor: float = 1.0,
    columns: Mapping[str, str] | None = None,
) -> TableSet:
    """Load the user's tables from any source, with a reported default for each missing value.

    Args:
        source: name of a public set, a table file, another tool's file, sizes, a DLRM batch file, or traffic.
        batch_size: samples per batch of the reuse histograms.
        traffic: a sample whose pooling factors and histograms replace those of a table file or a public set. Tables
            without traffic keep their values, and traffic without a table is ignored.
        embedding_dim: dim of all tables; required for traffic and sizes, allowed for a set of one dim and a schema.
        weight_bits: 4, 8, 16 or 32, overrides the source; None keeps the source's precision.
        default_pooling_factor: lookups per sample if neither the file nor the traffic has them.
        columns: column name in the table file or the traffic -> field of ``Table`` or feature; "" ignores the column.

    Raises:
        BadConfig: if there is no such source, or settings contradict it.
        BadFile: if a file cannot be used.
    """
    check_ranges(batch_size=batch_size)
    if embedding_dim is not None:
        check_ranges(embedding_dim=embedding_dim)
    if weight_bits is not None:
        check_weight_bits(weight_bits)  # before counting a long sample
    kind, found = kind_of_source(source), None
    if kind in (SourceKind.TABLE_FILE, None):
        from evenshard.tables.tools.reader import load_tool_tables  # most requests name a public set

        found = load_tool_tables(str(source), batch_size, embedding_dim, default_pooling_factor, columns)
    match kind:
        case SourceKind.CATALOG:
            table_set = replace(_public_set(str(source), batch_size, embedding_dim), missed=tuple(columns or ()))
        case _ if found is not None:
            table_set = found
        case SourceKind.TABLE_FILE:
            if embedding_dim is not None:
                raise BadConfig(f"{source} states each table's dim. Leave embedding_dim ({embedding_dim}) out.")
            if str(source).lower().endswith(".parquet"):
                _check_is_no_traffic(Path(source), columns or {})
            table_set = load_tables_with_assumptions(Path(source), default_pooling_factor, columns)
        case SourceKind.BATCH_FILE | SourceKind.TRAFFIC_FOLDER:
            if traffic is not None:
                raise BadConfig(f"{source} is a sample of traffic itself. Leave traffic ({traffic}) out.")
            table_set = _of_traffic(Path(source), batch_size, embedding_dim, columns)
        case None if Path(source).is_file():
            raise BadFile(source, *NO_TABLES)
        case None:
            raise _no_such_source(source)
    return complete_tables(table_set, batch_size, traffic, weight_bits, columns, str(source))


def tables_in_python(
    tables: Any,
    batch_size: int,
    traffic: str | PathLike[str] | None = None,
    weight_bits: int | None = None,
    default_pooling_factor: float = 1.0,
    columns: Mapping[str, str] | None = None,
) -> TableSet | None:
    """Convert a data frame or a list of dicts with the columns of a table file; None for any other type.

    For the other arguments see ``tables_from``.
    """
    if (records := _records_of(tables)) is None:
        return None
    table_set = tables_of_records(records, default_pooling_factor, columns)
    return complete_tables(table_set, batch_size, traffic, weight_bits, columns)


def _records_of(tables: Any) -> list[Any] | None:
    if hasattr(tables, "to_dict") and hasattr(tables, "columns") and hasattr(tables, "notna"):  # pandas, not imported
        records = tables.astype(object).where(tables.notna(), None).to_dict("records")
    elif isinstance(tables, Sequence) and not isinstance(tables, str) and any(isinstance(row, dict) for row in tables):
        records = list(tables)
    else:
        return None
    return [{key: _plain(value) for key, value in each.items()} if isinstance(each, dict) else each for each in records]


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def complete_tables(
    table_set: TableSet,
    batch_size: int,
    traffic: str | PathLike[str] | None,
    weight_bits: int | None = None,
    columns: Mapping[str, str] | None = None,
    source: str = "tables",
) -> TableSet:
    """Add the statistics of a sample of traffic to tables, and set the weight precision if requested.

    Args:
        traffic: a sample; tables without traffic stay unchanged.
        source: name of the tables' source in errors.

    Raises:
        BadConfig: if two tables have the same name, or neither source nor traffic has one of ``columns``.
        BadFile: if the sample cannot be read, contradicts the tables, or has none of them.
    """
    if traffic is not None:
        table_set = _count_lookups(table_set, traffic, batch_size, columns)
        source = f"{source} or {traffic}"
    if table_set.missed:
        raise missing_columns_error(source, table_set.missed)
    return table_set if weight_bits is None else with_weight_bits(table_set, weight_bits)


def _count_lookups(
    table_set: TableSet, traffic: str | PathLike[str], batch_size: int, columns: Mapping[str, str] | None
) -> TableSet:
    from evenshard.tables.traffic import tables_from_traffic  # takes 20 ms, and most requests have no sample

    found = tables_from_traffic(traffic, batch_size, table_set.tables, columns=columns)
    counted = {table.name for table in found.tables}
    # The pooling factor is an assumption only for a table that the sample lacks.
    counted -= {assumption.table for assumption in found.assumptions if assumption.column == "pooling_factor"}
    before = [known for known in table_set.assumptions if known.table not in counted or known.column not in _COUNTED]
    # For a value that the file lacks too, the assumption "as given" would be wrong.
    open_before = {(known.table, known.column) for known in before}
    after = [new for new in found.assumptions if (new.table, new.column) not in open_before]
    position = {table.name: number for number, table in enumerate(found.tables)}
    rank = {column: number for number, column in enumerate(TABLE_COLUMNS)}
    ordered = sorted(
        before + after, key=lambda one: (position.get(one.table, len(position)), rank.get(one.column, len(rank)))
    )
    missed = tuple(name for name in table_set.missed if name in found.missed)
    notes = (*table_set.notes, *found.notes)
    return TableSet(found.tables, tuple(ordered), notes, missed, table_set.dense)


def with_weight_bits(table_set: TableSet, weight_bits: int) -> TableSet:
    """Set the weight precision of all tables; a data type with the same number of bits is kept."""
    check_weight_bits(weight_bits)
    tables = tuple(
        table if table.weight_bits == weight_bits else replace(table, weight_bits=weight_bits, data_type="")
        for table in table_set.tables
    )
    assumptions = tuple(known for known in table_set.assumptions if known.column not in _PRECISION)
    return replace(table_set, tables=tables, assumptions=assumptions)


def _public_set(name: str, batch_size: int, embedding_dim: int | None) -> TableSet:
    tables, content = load_catalog(name, batch_size, embedding_dim), _read_set(name)
    assumptions: list[Assumption] = []
    for table in tables:
        if table.reuse_bins is None or table.reuse_bins == feasible_reuse_bins(
            table.num_rows, table.pooling_factor * batch_size
        ):
            assumptions.append(assume_reuse_bins(table.name))
        if "weight_bits" not in content:
            assumptions.append(assume_weight_bits(table.name, table.weight_bits))
    return TableSet(tables, tuple(assumptions), dense=content.get("dense"))


def _check_is_no_traffic(path: Path, given: Mapping[str, str]) -> None:
    """Raise BadFile, before the whole file is read, if a Parquet file has none of a table file's columns."""
    require_package("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        columns = set(pq.read_schema(path).names)
    except (pa.ArrowException, OSError, ValueError):
        return  # load_tables reports the problem
    if columns and not columns & {*KNOWN_COLUMNS, *COLUMN_ALIASES, *given}:
        problem = f"has none of a table file's columns ({', '.join(TABLE_COLUMNS)})"
        remedy = "If it is a sample of traffic, move it to a folder of its own, or give it as traffic of a table file."
        raise BadFile(path, problem, remedy)


def _of_traffic(path: Path, batch_size: int, embedding_dim: int | None, columns: Mapping[str, str] | None) -> TableSet:
    if embedding_dim is None:
        raise BadConfig(
            f"{path} is a sample of traffic, which has no embedding dims. "
            "Give embedding_dim, or a table file with the sample as its traffic."
        )
    from evenshard.tables.traffic import tables_from_traffic

    return tables_from_traffic(path, batch_size, embedding_dim=embedding_dim, columns=columns)


def _no_such_source(source: str | PathLike[str]) -> BadConfig:
    known = catalog_names()
    meant = did_you_mean(str(source), known)
    kinds = f"a table file ({', '.join(TABLE_SUFFIXES)}), a DLRM batch file ({', '.join(BATCH_SUFFIXES)})"
    return BadConfig(
        f"{brief(str(source))} is not a source of tables.{meant} Give {kinds}, a folder of traffic, "
        f"sizes such as 1460-583, or one of {', '.join(known)}."
    )
