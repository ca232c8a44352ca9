"""Selection of a sample's sparse feature columns, under the user's names; dense, label and time columns are ignored."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.messages import brief, cut, names_text
from evenshard.tables.records import KNOWN_COLUMNS
from evenshard.tables.traffic.sample import Block, Part, Sample, Survey

DENSE_COLUMN, LABEL_COLUMN, TIME_COLUMN, EXCLUDED = "dense", "label", "time", "excluded"
_DENSE_NAME = re.compile(r"I\d+|(?i:int|integer|dense|num|numeric|float|cont)_?\d+|(?i:.*dense.*)")
# Words in the names of label and time columns; flags are labels only if all values are 0 or 1.
_LABEL_WORDS = {"label", "labels"}
_FLAG_WORDS = {"target", "targets", "click", "clicked", "conversion", "converted", "y"}
_TIME_WORDS = {"timestamp", "ts", "datetime", "date", "time"}


def classify_column(name: str, only_0_and_1: bool) -> str | None:
    """Classify an integer column by its name as dense, label or time; None if it probably has row numbers.

    ``I7`` and ``int_3`` are dense, ``label`` is a label, as is ``is_click`` if it is 0 or 1, and ``event_time`` a time.
    """
    words = re.split(r"[\W_]+", name.lower())
    if _LABEL_WORDS & {*words} or (only_0_and_1 and _FLAG_WORDS & {*words}):
        return LABEL_COLUMN
    if words[-1] in _TIME_WORDS:
        return TIME_COLUMN
    return DENSE_COLUMN if _DENSE_NAME.fullmatch(name) else None


@dataclass(frozen=True)
class Features:
    """A sample that is restricted to feature columns."""

    sample: Sample
    column_of: Mapping[str, str]  # column of each feature
    left_out: Mapping[str, str]  # reason for each ignored column
    missed: tuple[str, ...] = ()  # columns that the user maps but the sample lacks

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the features."""
        return tuple(self.column_of)

    def survey(self, names: Sequence[str]) -> Survey:
        """Return the sizes; see ``Sample.survey``."""
        found = self.sample.survey([self.column_of[name] for name in names])
        return replace(found, num_lookups={name: found.num_lookups[self.column_of[name]] for name in names})

    def blocks(self, part: Part, names: Sequence[str], max_samples: int) -> Iterator[Block]:
        """Yield blocks; see ``Sample.blocks``."""
        for block in self.sample.blocks(part, [self.column_of[name] for name in names], max_samples):
            yield replace(block, lookups={name: block.lookups[self.column_of[name]] for name in names})

    def notes(self, source: Path) -> Iterator[str]:
        """Yield a note that lists the ignored columns and explains how to keep one."""
        if not self.left_out:
            return
        sorts = {sort: [name for name, why in self.left_out.items() if why == sort] for sort in self.left_out.values()}
        texts = [f"{len(names):,} {sort} ({names_text(names, write=brief)})" for sort, names in sorts.items()]
        first = cut(next(iter(self.left_out)))
        yield f"{source}: ignored columns: {', '.join(texts)}. To keep one: --columns {first}={first}."


def pick_features(source: Path, sample: Sample, columns: Mapping[str, str], wanted: Collection[str] | None) -> Features:
    """Select the features of a sample from its columns.

    Args:
        source: the sample's name in errors.
        columns: the user's names for columns; "" ignores a column.
        wanted: features of the known tables; None if each feature makes a table. A column that does not look like a
            feature is nevertheless a feature if it is in ``wanted`` or ``columns``.

    Raises:
        BadConfig: if a column is mapped to an unknown feature, or two columns to the same feature.
        BadFile: if no column is a feature.
    """
    mapped = [column for column in sample.names if column in columns]
    column_of: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for column in sample.names:
        name = columns.get(column, column)
        sort = sample.non_features.get(column)
        if not name:
            left_out[column] = EXCLUDED
        elif sort is not None and column not in columns and name not in (wanted or ()):
            left_out[column] = sort
        elif name in column_of:
            raise BadConfig(
                f"{source} has two columns for {brief(name)}: {brief(column_of[name])} and {brief(column)}. "
                f"Ignore one of them by renaming it to nothing, such as --columns {cut(column)}="
            )
        else:
            column_of[name] = column
    for column in mapped:
        _check_known(column, columns[column], wanted)
    if not column_of:
        sorts = names_text([f"{brief(name)} is {sort}" for name, sort in left_out.items()])
        raise BadFile(source, f"contains no feature: {sorts}", "Name the features: --columns NAME=NAME.")
    return Features(sample, column_of, left_out, tuple(column for column in columns if column not in sample.names))


def _check_known(column: str, name: str, wanted: Collection[str] | None) -> None:
    if wanted is None or not name or name in wanted or name in KNOWN_COLUMNS:
        return
    close = difflib.get_close_matches(cut(name), wanted, n=1, cutoff=0.0)
    raise BadConfig(
        f"the setting columns renames {brief(column)} to {brief(name)}, which is not a feature of the tables; "
        f"the closest is {brief(close[0])}. Correct it."
    )
