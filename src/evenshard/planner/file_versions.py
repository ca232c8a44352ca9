"""Earlier versions of placement.json, and each of them as a file of the newest one.

Up to version 3, weights and optimizer state were all that was counted, and device memory held all weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from evenshard.placement.parts import Span
from evenshard.placement.sharding import BY_COLUMNS, TABLE_WISE
from evenshard.planner.file_records import FILE_VERSION, FileRecord, PlacementFile, Shard
from evenshard.planner.request import PlacementRequest


class FileOfVersion3(PlacementFile):
    """Weights and optimizer state alone were counted."""

    schema_version: Literal[3]  # type: ignore[assignment]
    memory: None = None

    def newest(self) -> PlacementFile:
        """The same as a file of the newest version."""
        return self._newest(request=replace(self.request, **_UNCOUNTED))

    def _newest(self, **changed: Any) -> PlacementFile:
        known = {**dict(self), **changed, "schema_version": FILE_VERSION}
        return PlacementFile.model_construct(self.model_fields_set, **known)


_UNCOUNTED: dict[str, Any] = {"training_pipeline": "", "dense_bytes": 0, "reserved_share": 0.0}
"""Of a request, what earlier versions know nothing of."""


@dataclass(frozen=True, kw_only=True)
class _RequestOfVersion2(PlacementRequest):
    allow_column_split: bool = False


class _FileOfVersion2(FileOfVersion3):
    """Tables were whole or cut by columns, and parts of one table could share a device."""

    schema_version: Literal[2]  # type: ignore[assignment]
    type_of_table: None = None  # type: ignore[assignment]
    request: _RequestOfVersion2

    def newest(self) -> PlacementFile:
        """The same as a file of the newest version; its table types are left to its shards."""
        asked = {one.name: getattr(self.request, one.name) for one in fields(PlacementRequest)}
        types = BY_COLUMNS if self.request.allow_column_split else (TABLE_WISE,)
        shards = joined_shards(self.shards)
        notes = list(self.notes)
        if len(shards) < len(self.shards):
            notes.append("Parts of one table that shared a device are shown as one wider part, side by side.")
        if self.request.allow_column_split:
            notes.append("The lower bound is an older one: of the parts that tables were cut into, not of all cuts.")
        asked = {**asked, **_UNCOUNTED, "sharding_types": types}
        return self._newest(shards=shards, notes=notes, request=PlacementRequest(**asked))


class _ShardOfVersion1(FileRecord):
    table: str
    device: int
    columns: Span
    alone_ms: float
    adds_ms: float


class _FileOfVersion1(_FileOfVersion2):
    """Each shard had all rows, and one device."""

    schema_version: Literal[1]  # type: ignore[assignment]
    shards: list[_ShardOfVersion1]  # type: ignore[assignment]

    def newest(self) -> PlacementFile:
        num_rows = {table.name: table.num_rows for table in self.request.tables}
        shards = [
            Shard(
                table=one.table,
                rows=Span(0, num_rows.get(one.table, 0)),
                columns=one.columns,
                devices=(one.device,),
                alone_ms=one.alone_ms,
                adds_ms=one.adds_ms,
            )
            for one in self.shards
        ]
        return _FileOfVersion2.model_construct(self.model_fields_set, **{**dict(self), "shards": shards}).newest()


OLDER_FILES: dict[int, type[FileOfVersion3]] = {1: _FileOfVersion1, 2: _FileOfVersion2, 3: FileOfVersion3}


def joined_shards(shards: Sequence[Shard]) -> list[Shard]:
    """Parts by columns of which each device holds one of a table: those that share a device, side by side.

    Columns of a table cost the same, so that it makes no difference which ones a part has.
    """
    found: list[Shard] = []
    of_table: dict[str, list[Shard]] = {}
    for shard in shards:
        of_table.setdefault(shard.table, []).append(shard)
    for parts in of_table.values():
        held: dict[tuple[int, ...], list[Shard]] = {}
        for part in sorted(parts, key=lambda part: part.columns):
            held.setdefault(part.devices, []).append(part)
        if len(held) == len(parts):
            found += parts
            continue
        start = 0
        for together in held.values():
            columns = Span(start, start := start + sum(part.columns.size for part in together))
            alone_ms, adds_ms = max(part.alone_ms for part in together), sum(part.adds_ms for part in together)
            found.append(replace(together[0], columns=columns, alone_ms=alone_ms, adds_ms=adds_ms))
    return found
