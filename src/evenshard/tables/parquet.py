"""Records of tables in Parquet; whoever imports this module needs pyarrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from evenshard.tables.records import COLUMN_TYPES, MAX_COLUMNS, WRITE_AGAIN, RawTable, columns_of
from evenshard.utils.errors import BadFile
from evenshard.utils.limits import MAX_DECODED_BYTES, MAX_TABLES, MAX_VALUES
from evenshard.utils.messages import brief, cut, reason_of

# Most parts of a Parquet file's description of itself; pyarrow recurses for columns that stand in each other.
MAX_PARTS = 10_000


def read_parquet(path: Path) -> list[Any]:
    """The records of a Parquet file.

    Raises:
        BadFile: if it is torn, holds more than tables do, or columns that no table has.
    """
    records: list[Any] = []
    try:
        with pq.ParquetFile(path, pre_buffer=False, thrift_container_size_limit=MAX_PARTS) as file:
            _check_size(path, file.metadata)
            plain = pa.schema([(one.name, _plain_type(path, one)) for one in file.schema_arrow])
            num_bytes = 0
            for coded in file.iter_batches(_rows_at_a_time(file.metadata), use_threads=False):
                batch = coded.cast(plain)
                num_bytes += batch.nbytes
                if num_bytes > MAX_DECODED_BYTES:
                    raise _too_large(path)
                records += batch.to_pylist()
    # Texts that are not UTF-8, and dates that Python does not have, are found when they become Python's.
    except (pa.ArrowException, OSError, ValueError, ArithmeticError) as error:
        raise BadFile(path, f"is not whole Parquet: {reason_of(error)}", "Write the file again.") from error
    return records


def _check_size(path: Path, metadata: Any) -> None:
    """Count values first, because a few bytes of Parquet may stand for billions."""
    if metadata.num_rows > MAX_TABLES:
        raise BadFile(path, f"holds {metadata.num_rows:,} tables, more than {MAX_TABLES:,}", "Give fewer.")
    if metadata.num_columns > MAX_COLUMNS:
        raise BadFile(path, f"has {metadata.num_columns:,} columns, more than {MAX_COLUMNS:,}", WRITE_AGAIN)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    num_values = sum(group.column(number).num_values for group in groups for number in range(group.num_columns))
    if num_values > MAX_VALUES or _num_bytes(metadata) > MAX_DECODED_BYTES:
        raise _too_large(path)


def value_type(kind: Any) -> Any:
    """The type of the values of a column, whether they stand in lists or alone."""
    return kind.value_type if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind) else kind


def _plain_type(path: Path, field: Any) -> Any:
    """Drop a dictionary, behind which a value may stand any number of times."""
    kind = field.type.value_type if pt.is_dictionary(field.type) else field.type
    inner = value_type(kind)
    if pt.is_nested(inner) or pt.is_dictionary(inner):
        raise BadFile(path, f"holds {cut(str(field.type))}", WRITE_AGAIN, f"column {brief(field.name)}")
    return kind


def _rows_at_a_time(metadata: Any) -> int:
    """Return few for long texts, because each row may repeat the longest."""
    return max(8, min(4096, 2**28 // max(1, _num_bytes(metadata))))


def _num_bytes(metadata: Any) -> int:
    """Return the uncompressed size."""
    return sum(int(metadata.row_group(number).total_byte_size) for number in range(metadata.num_row_groups))


def _too_large(path: Path) -> BadFile:
    problem = f"holds more than {MAX_VALUES:,} values, or {MAX_DECODED_BYTES / 2**20:,.0f} MB of them"
    return BadFile(path, problem, WRITE_AGAIN)


def write_parquet(records: list[RawTable], path: Path) -> None:
    """Writes records with the columns that some of them have."""
    types = {
        "str": pa.string(),
        "bool": pa.bool_(),
        "int": pa.int64(),
        "float": pa.float64(),
        "tuple[str, ...]": pa.list_(pa.string()),
        "tuple[float, ...]": pa.list_(pa.float64()),
    }
    type_of = {column: types[kind] for column, kind in COLUMN_TYPES.items()} | {"weight_bits": pa.int32()}
    schema = pa.schema([(column, type_of[column]) for column in columns_of(records)])
    pq.write_table(pa.Table.from_pylist(records, schema=schema), path)
