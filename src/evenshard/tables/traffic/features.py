"""Selection of a sample's feature columns, with the user's names, without dense, label and time columns."""

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

DENSE_COLUMN, LABEL_COLUMN, TIME_COLUMN, NOT_ASKED = "dense", "label", "time", "not asked for"
_DENSE_NAME = re.compile(r"I\d+|(?i:int|integer|dense|num|numeric|float|cont)_?\d+|(?i:.*dense.*)")
_LABEL_WORDS = {"label", "labels"}
_FLAG_WORDS = {"target", "targets", "click", "clicked", "conversion", "converted", "y"}
_TIME_WORDS = {"timestamp", "ts", "datetime", "date", "time"}


def sort_of_integers(name: str, only_0_and_1: bool) -> str | None:
    """Classify a column with one integer per sample by its name; None for row numbers.

    Names such as ``I7`` or ``int_3`` are dense, ``label`` or, if 0 or 1, ``is_click`` are labels, ``event_time`` is a
    time.
    """
    words = re.split(r"[\W_]+", name.lower())
    if _LABEL_WORDS & {*words} or (only_0_and_1 and _FLAG_WORDS & {*words}):
        return LABEL_COLUMN
    if words[-1] in _TIME_WORDS:
        return TIME_COLUMN
    return DENSE_COLUMN if _DENSE_NAME.fullmatch(name) else None


@dataclass(frozen=True)
class Features:
    """Features of a sample; a ``Sample`` of feature columns only.

    Attributes:
        left_out: other columns, and the reasons.
        missed: columns that the user maps but the sample lacks.
    """

    sample: Sample
    column_of: Mapping[str, str]
    left_out: Mapping[str, str]
    missed: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the features."""
        return tuple(self.column_of)

    @property
    def unlike_features(self) -> Mapping[str, str]:
        """Return an empty mapping: all columns are features."""
        return {}

    def survey(self, names: Sequence[str]) -> Survey:
        """Return the survey; see ``Sample.survey``."""
        found = self.sample.survey([self.column_of[name] for name in names])
        return replace(found, num_lookups={name: found.num_lookups[self.column_of[name]] for name in names})

    def blocks(self, part: Part, names: Sequence[str], max_samples: int) -> Iterator[Block]:
        """Yield blocks; see ``Sample.blocks``."""
        for block in self.sample.blocks(part, [self.column_of[name] for name in names], max_samples):
            yield replace(block, lookups={name: block.lookups[self.column_of[name]] for name in names})

    def notes(self, source: Path) -> Iterator[str]:
        """Name the columns that are left out, and explain how to keep one."""
        if not self.left_out:
            return
        sorts = {sort: [name for name, why in self.left_out.items() if why == sort] for sort in self.left_out.values()}
        texts = [f"{len(names):,} {sort} ({names_text(names, write=brief)})" for sort, names in sorts.items()]
        one = next(iter(self.left_out))
        yield f"{source}: columns left out: {', '.join(texts)}. To keep one: --columns {cut(one)}={cut(one)}."


def features_of(source: Path, sample: Sample, columns: Mapping[str, str], wanted: Collection[str] | None) -> Features:
    """Select the features of a sample from its columns.

    Args:
        source: the sample's name in errors.
        columns: the user's names for columns; an empty one leaves a column out.
        wanted: features of the known tables; None makes a table of each. A column that does not look like a feature is
            still one if it is wanted, or named in ``columns``.

    Raises:
        BadConfig: if a column is mapped to an unknown feature, or two have the same name.
        BadFile: if no column is a feature.
    """
    here = [column for column in sample.names if column in columns]
    column_of: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for column in sample.names:
        name = columns.get(column, column)
        sort = sample.unlike_features.get(column)
        if not name:
            left_out[column] = NOT_ASKED
        elif sort is not None and column not in columns and name not in (wanted or ()):
            left_out[column] = sort
        elif name in column_of:
            raise BadConfig(
                f"{source} has two columns for {brief(name)}: {brief(column_of[name])} and {brief(column)}. "
                f"Leave one out: columns {cut(column)}=."
            )
        else:
            column_of[name] = column
    for column in here:
        _check_known(column, columns[column], wanted)
    if not column_of:
        sorts = names_text([f"{brief(name)} is {sort}" for name, sort in left_out.items()])
        raise BadFile(source, f"holds no feature: {sorts}", "Name those that are: --columns NAME=NAME.")
    return Features(sample, column_of, left_out, tuple(column for column in columns if column not in sample.names))


def _check_known(column: str, name: str, wanted: Collection[str] | None) -> None:
    if wanted is None or not name or name in wanted or name in KNOWN_COLUMNS:
        return
    close = difflib.get_close_matches(cut(name), wanted, n=1, cutoff=0.0)
    raise BadConfig(
        f"columns calls {brief(column)} {brief(name)}, which is not a feature of the tables; the closest is "
        f"{brief(close[0])}. Correct it."
    )
