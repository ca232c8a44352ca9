"""The columns of a table file as its author calls them: aliases of ours, names that the user maps, and extra ones.

A record may also be a configuration of TorchRec: what ``dataclasses.asdict`` makes of an ``EmbeddingBagConfig`` or an
``EmbeddingConfig``, or its JSON, where types and poolings are texts such as "DataType.FP16", "FP16" and
"PoolingType.MEAN".
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief, cut, names_text
from evenshard.tables.assumptions import Assumption
from evenshard.tables.records import KNOWN_COLUMNS, MAX_NAMED, BadRecord, RawTable, is_blank
from evenshard.tables.table import SEQUENCE

# Other names of columns. ``pooling`` is ``pooling_factor`` too where it is a number, and not sum, mean or none.
COLUMN_ALIASES = {
    "hash_size": "num_rows",
    "num_embeddings": "num_rows",
    "rows": "num_rows",
    "dim": "embedding_dim",
    "avg_pooling": "pooling_factor",
    "table_name": "name",
    "table": "name",
}
_NO_TIME = "initial weights take no time of a step"
# Fields that change nothing in an answer, and why.
UNUSED_FIELDS = {
    "weight_init_max": _NO_TIME,
    "weight_init_min": _NO_TIME,
    "init_fn": _NO_TIME,
    "num_embeddings_post_pruning": "all rows are placed, as in training",
    "need_pos": "weights by position are not timed",
    "input_dim": "rows and lookups are those of the table",
    "total_num_buckets": "rows are cut into equal blocks, not at buckets",
    "use_virtual_table": "all rows count as memory of a device",
    "virtual_table_eviction_policy": "rows stay where they are",
    "enable_embedding_update": "updates from outside are not timed",
    "stash_weights": "weights count as memory of a device all the time",
}


@dataclass
class ColumnNames:
    """Our name of each column of one file.

    Attributes:
        given: the user's own mapping: a column of the file -> one of ours; empty to leave it out.
        extra: columns that say nothing to us, in the order in which they came.
        found: columns of the mapping that some record has.

    Raises:
        BadConfig: when a column of the file is mapped to one that does not exist.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    extra: dict[str, None] = field(default_factory=dict)
    found: set[str] = field(default_factory=set)

    def ours(self, record: RawTable) -> RawTable:
        """A record with our columns alone.

        Raises:
            BadRecord: if two of its columns are the same one of ours, and differ.
        """
        known: RawTable = {}
        came_from: dict[str, str] = {}
        config = is_config(record)
        for column, value in record.items():
            name = "" if column is None else str(column).strip()
            if (target := self._target(name, value)) is None:
                if name not in self.given and not (config and name in UNUSED_FIELDS):
                    self.extra[name] = None
            elif target not in known or is_blank(known[target]) or name in self.given:
                if target in came_from and came_from[target] not in self.given and name in self.given:
                    self.extra[came_from[target]] = None
                known[target], came_from[target] = value, name
            elif came_from[target] in self.given:
                self.extra[name] = None
            elif not is_blank(value) and value != known[target]:
                raise BadRecord(
                    f"has both {came_from[target]} and {name}, and both are {target}",
                    f"Keep one, or leave one out (--columns {name}=).",
                )
        if (pooling := implied_pooling(record)) is not None:
            known.setdefault("pooling", pooling)
        return known

    def _target(self, name: str, value: Any) -> str | None:
        """Return our column, or None for one that is extra or left out."""
        if name in self.given:
            self.found.add(name)
            return _resolve_target(name, self.given[name])
        if name == "pooling" and _is_number(value):
            return "pooling_factor"
        name = COLUMN_ALIASES.get(name, name)
        return name if name in KNOWN_COLUMNS else None

    def absent_columns(self) -> tuple[str, ...]:
        """Columns of the mapping that no record has."""
        return tuple(name for name in self.given if name not in self.found)

    def note(self, where: str) -> str | None:
        """Name the columns of a file that are not used, in a sentence; None where all are."""
        if not self.extra:
            return None
        names = [brief(name) if name else "one without a name" for name in self.extra]
        columns = f"{len(names):,} columns are" if len(names) > 1 else "1 column is"
        text = f"{where}: {columns} not used: {names_text(names, MAX_NAMED)}."
        meant = [(name, close) for name in self.extra if (close := close_column(name, KNOWN_COLUMNS)) is not None]
        hints = ", ".join(f"--columns {cut(name)}={close}" for name, close in meant[:MAX_NAMED])
        return f"{text} If meant: {hints}." if hints else text


def close_column(name: str, known: Collection[str]) -> str | None:
    """The column that a name is likely to mean; None where none is like it."""
    plain = {one.replace("_", ""): one for one in known}
    found = difflib.get_close_matches(cut(name.lower().replace("_", "")), plain, n=1, cutoff=0.8)
    return plain[found[0]] if found else None


def _resolve_target(name: str, target: str) -> str | None:
    if not target:
        return None
    target = COLUMN_ALIASES.get(target, target)
    if target not in KNOWN_COLUMNS:
        closest: Sequence[str] = difflib.get_close_matches(cut(target), KNOWN_COLUMNS, n=1, cutoff=0.0)
        raise BadConfig(
            f"columns maps {brief(name)} to {brief(target)}, which is not a column of a table; the closest is "
            f"{closest[0]!r}. Correct it, or leave the column out ({cut(name)}=)."
        )
    return target


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value) is not None
        return False
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_config(record: Mapping[Any, Any]) -> bool:
    """True if a record has fields that only TorchRec's configurations have."""
    return "num_embeddings" in record and any(name in record for name in UNUSED_FIELDS)


def implied_pooling(record: Mapping[Any, Any]) -> str | None:
    """The pooling that a configuration does not state: an ``EmbeddingConfig`` has none, its table holds sequences."""
    return SEQUENCE if is_config(record) and "pooling" not in record else None


def unused_in(table: str, record: Mapping[Any, Any]) -> Iterator[Assumption]:
    """Return the fields of a configuration that the answer does not use; ``init_fn`` is always set."""
    if implied_pooling(record) is not None:
        yield Assumption(table, "pooling", f"{SEQUENCE}, as of an EmbeddingConfig: TorchRec's fields, and no pooling")
    for name, why in UNUSED_FIELDS.items():
        if name != "init_fn" and record.get(name) not in (None, "", False, "False"):
            yield unused_field(table, name, why)


def unused_field(table: str, name: str, why: str) -> Assumption:
    """The note that a configuration sets a field in vain."""
    return Assumption(table, name, f"it changes nothing in the answer: {why}")
