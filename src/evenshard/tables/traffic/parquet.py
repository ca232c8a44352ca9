"""Recorded lookups in Parquet files: one row per sample, one column per feature.

A column has a list of row numbers, or one row number, per sample. A null or an empty list means no lookups. Columns
without row numbers are listed in ``ParquetSample.non_features``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from evenshard.base.errors import BadFile
from evenshard.base.messages import brief, cut, reason_of
from evenshard.tables.traffic.features import DENSE_COLUMN, LABEL_COLUMN, TIME_COLUMN, classify_column
from evenshard.tables.traffic.sample import Block, Part, Survey, TableLookups, check_same_tables

# Buffer from which pyarrow decodes pages. Without it, or with pre-buffering, pyarrow loads whole column chunks of a row
# group into memory.
READ_BUFFER_BYTES = 1 << 20
_REMEDY = "A column must contain row numbers or lists of them; write it again or remove it."


class ParquetSample:
    """Sample in Parquet files; see ``Sample``. Raises BadFile if the first file is damaged or has no column."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        with _open_parquet(self._paths[0]) as file:
            self.names = _names(self._paths[0], file)
            self.non_features = _unlike_features(self.names, file)

    def survey(self, names: Sequence[str]) -> Survey:
        """Return the sizes; see ``Sample.survey``."""
        parts: list[Part] = []
        num_samples, num_lookups = 0, dict.fromkeys(names, 0)
        for path in self._paths:
            with _open_parquet(path) as file:
                check_same_tables(path, _names(path, file), self.names, self._paths[0])
                for name in names:
                    _check_type(path, name, file.schema_arrow.field(name).type)
                num_samples += file.metadata.num_rows
                parts += [Part(path, number) for number in range(file.metadata.num_row_groups)]
                for name, num_values in _num_values(file).items():
                    if name in num_lookups:
                        num_lookups[name] += num_values
        return Survey(num_samples, num_lookups, tuple(parts))

    def blocks(self, part: Part, names: Sequence[str], max_samples: int) -> Iterator[Block]:
        """Yield blocks; see ``Sample.blocks``."""
        with _open_parquet(part.path) as file:
            try:
                for batch in file.iter_batches(max_samples, row_groups=[part.row_group], columns=list(names)):
                    yield Block(batch.num_rows, {name: _lookups(part.path, name, batch.column(name)) for name in names})
            except (pa.ArrowException, OSError) as error:
                raise _read_error(part.path, error) from error


@contextmanager
def _open_parquet(path: Path) -> Iterator[Any]:
    try:
        file = pq.ParquetFile(path, buffer_size=READ_BUFFER_BYTES, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise _read_error(path, error) from error
    with file:
        yield file


def _read_error(path: Path, error: Exception) -> BadFile:
    return BadFile(path, f"cannot be read as Parquet ({reason_of(error)})", "Write or download the file again.")


def _names(path: Path, file: Any) -> tuple[str, ...]:
    names = tuple(file.schema_arrow.names)
    if not names:
        raise BadFile(path, "has no column", "Give it one column per table.")
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise BadFile(path, f"has several columns {brief(twice)}", "Give each table its own name.")
    return names


def _unlike_features(names: Sequence[str], file: Any) -> Mapping[str, str]:
    """Return the kind of each column without row numbers, judged by its type, or by its name and values."""
    found = {}
    for name in names:
        kind = file.schema_arrow.field(name).type
        value = _value_type(kind)
        if pt.is_floating(value) or pt.is_decimal(value):
            found[name] = DENSE_COLUMN
        elif pt.is_boolean(value):
            found[name] = LABEL_COLUMN
        elif pt.is_temporal(value):
            found[name] = TIME_COLUMN
        elif pt.is_integer(kind) and (sort := classify_column(name, _only_0_and_1(name, file.metadata))):
            found[name] = sort
    return found


def _only_0_and_1(name: str, metadata: Any) -> bool:
    """Return True if the column's statistics, which most writers store, show only the values 0 and 1."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    ranges = [column.statistics for column in columns if column.path_in_schema == name]
    return bool(ranges) and all(
        stats is not None and stats.has_min_max and stats.min >= 0 and stats.max <= 1 for stats in ranges
    )


def _value_type(kind: Any) -> Any:
    return kind.value_type if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind) else kind


def _check_type(path: Path, name: str, kind: Any) -> None:
    value = _value_type(kind)
    # A column with only nulls or empty lists is written without a specific type.
    if pt.is_integer(value) or pt.is_null(value):
        return
    hint = " pandas stores integers with nulls as floats; use its Int64 type." if pt.is_floating(value) else ""
    remedy = f"{_REMEDY} Or ignore it: --columns {cut(name)}=.{hint}"
    raise BadFile(path, f"has type {kind}, not row numbers", remedy, f"column {brief(name)}")


def _num_values(file: Any) -> dict[str, int]:
    metadata, names = file.metadata, set(file.schema_arrow.names)
    column_of_leaf: list[str | None] = []
    for number in range(metadata.num_columns):
        path = metadata.schema.column(number).path  # "ads" or "ads.list.element"; the name itself may have dots
        while path and path not in names:
            path = path.rpartition(".")[0]
        column_of_leaf.append(path or None)
    num_values = dict.fromkeys(names, 0)
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for number, name in enumerate(column_of_leaf):
            if name is not None:
                num_values[name] += row_group.column(number).num_values
    return num_values


def _lookups(path: Path, name: str, column: Any) -> TableLookups:
    where = f"column {brief(name)}"
    if pt.is_integer(column.type) or pt.is_null(column.type):
        lengths, values = column.is_valid(), column.drop_null()
    else:
        lengths, values = pc.fill_null(pc.list_value_length(column), 0), column.flatten()
        if values.null_count:
            raise BadFile(path, "a list contains a null", "Remove the nulls from the lists.", where)
    try:
        rows = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:
        raise BadFile(path, f"row numbers exceed 2**63 - 1 ({reason_of(error)})", _REMEDY, where) from error
    return TableLookups.of_lengths(rows, lengths.to_numpy(zero_copy_only=False).astype(np.int64))
