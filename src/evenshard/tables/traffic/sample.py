"""Files of recorded lookups: their tables, a first look at their sizes, and blocks of samples; and ``.pt`` files.

Legend: B samples of a block, L lookups of one table in a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from evenshard.base.console import progress
from evenshard.base.errors import BadFile
from evenshard.base.messages import brief
from evenshard.tables.dlrm_batch import DlrmBatch, mapped_batch

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TableLookups:
    """Lookups of one table in a block; sample b reads ``rows[offsets[b] : offsets[b+1]]``, of [L] and [B+1]."""

    rows: IntArray
    offsets: IntArray

    @staticmethod
    def of_lengths(rows: IntArray, lengths: npt.NDArray[Any]) -> TableLookups:
        """The lookups by the [B] number of lookups of each sample."""
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return TableLookups(rows, offsets)


@dataclass(frozen=True, eq=False)
class Block:
    """Some successive samples, with their lookups by table name."""

    num_samples: int
    lookups: dict[str, TableLookups]


@dataclass(frozen=True)
class Part:
    """A stretch of samples that is read as one step of the progress bar; a row group of Parquet, or a file."""

    path: Path
    row_group: int = 0


@dataclass(frozen=True)
class Survey:
    """Sizes that are known before the lookups are read; a null or an empty list may count as one lookup."""

    num_samples: int
    num_lookups: dict[str, int]
    parts: tuple[Part, ...]


class Sample(Protocol):
    """Files of recorded lookups. Every file holds the same tables."""

    @property
    def names(self) -> tuple[str, ...]:
        """The tables, in the order of the first file."""
        ...

    @property
    def unlike_features(self) -> Mapping[str, str]:
        """Names that look like something else than a feature, and what: dense, label or time."""
        ...

    def survey(self, names: Sequence[str]) -> Survey:
        """Looks at all files without reading the lookups.

        Raises:
            BadFile: a file is torn, does not hold the tables of the first, or a named table is of a wrong type.
        """
        ...

    def blocks(self, part: Part, names: Sequence[str], max_samples: int) -> Iterator[Block]:
        """The samples of a part, in order, at most ``max_samples`` at a time, with the named tables only.

        Raises:
            BadFile: the part is torn or its values contradict each other.
        """
        ...


def check_same_tables(path: Path, names: Sequence[str], expected: Sequence[str], first: Path) -> None:
    """Raises BadFile unless a file holds exactly the tables of the first file."""
    missing = [name for name in expected if name not in set(names)]
    extra = [name for name in names if name not in set(expected)]
    if missing or extra:
        problem = f"lacks table {brief(missing[0])}" if missing else f"holds table {brief(extra[0])}"
        relation = "which stands in" if missing else "which is not in"
        raise BadFile(path, f"{problem}, {relation} {first.name}", "All files of a sample must hold the same tables.")


class TorchSample:
    """Traffic in ``.pt`` files, one batch each; see ``dlrm_batch``.

    If the only file is gzipped, ``unpacked`` is the copy to read.

    Raises:
        BadFile: the first file is torn or holds something else.
    """

    def __init__(self, paths: Sequence[Path], unpacked: Path | None = None) -> None:
        self._paths, self._unpacked = tuple(paths), unpacked
        self._begins: dict[Path, list[int]] = {}
        self.names = self._load(self._paths[0]).names
        self.unlike_features: Mapping[str, str] = {}  # such a file holds lookups alone

    def _load(self, path: Path) -> DlrmBatch:
        return mapped_batch(path, self._unpacked or path)

    def survey(self, names: Sequence[str]) -> Survey:
        """See ``Sample.survey``."""
        num_samples, num_lookups = 0, dict.fromkeys(names, 0)
        for path in progress(self._paths, "looking at the files"):
            batch = self._load(path)
            check_same_tables(path, batch.names, self.names, self._paths[0])
            num_samples += batch.batch_size
            begins = self._begins[path] = batch.begins(path)
            for name, (begin, end) in zip(batch.names, pairwise(begins), strict=True):
                if name in num_lookups:
                    num_lookups[name] += end - begin
        return Survey(num_samples, num_lookups, tuple(map(Part, self._paths)))

    def blocks(self, part: Part, names: Sequence[str], max_samples: int) -> Iterator[Block]:
        """See ``Sample.blocks``."""
        whole = self._load(part.path)
        number_of = {name: whole.names.index(name) for name in names}
        begins = {name: self._begins[part.path][number] for name, number in number_of.items()}
        num_samples = whole.batch_size
        del whole
        for first in range(0, num_samples, max_samples):
            last = min(first + max_samples, num_samples)
            batch = self._load(part.path)
            lookups = {}
            for name, number in number_of.items():
                lengths_B = batch.lengths[number, first:last].long()
                begin, end = begins[name], begins[name] + int(lengths_B.sum())
                # A copy, since a view would keep the whole file mapped.
                rows = batch.indices[begin:end].long().numpy().copy()
                lookups[name], begins[name] = TableLookups.of_lengths(rows, lengths_B.numpy()), end
            del batch  # what was touched stays in memory as long as the file is mapped, so each block maps it again
            yield Block(last - first, lookups)
