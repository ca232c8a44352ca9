"""Interface of recorded lookups (``Sample``), and its implementation for ``.pt`` files.

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
from evenshard.tables.dlrm_batch import DlrmBatch, map_batch

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TableLookups:
    """Lookups of one table in a block; sample b reads ``rows[offsets[b] : offsets[b+1]]``; shapes [L] and [B+1]."""

    rows: IntArray
    offsets: IntArray

    @staticmethod
    def of_lengths(rows: IntArray, lengths: npt.NDArray[Any]) -> TableLookups:
        """Build the lookups from the number of lookups of each sample, [B]."""
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return TableLookups(rows, offsets)


@dataclass(frozen=True, eq=False)
class Block:
    """Successive samples and their lookups by table name."""

    num_samples: int
    lookups: dict[str, TableLookups]


@dataclass(frozen=True)
class Part:
    """Samples that are read together: a row group of a Parquet file, or a ``.pt`` file."""

    path: Path
    row_group: int = 0


@dataclass(frozen=True)
class Survey:
    """Numbers of samples and lookups from the files' metadata; a null or an empty list may count as one lookup."""

    num_samples: int
    num_lookups: dict[str, int]
    parts: tuple[Part, ...]


class Sample(Protocol):
    """Interface of a sample of traffic: files with recorded lookups in the same tables."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the tables, in the order of the first file."""

    @property
    def non_features(self) -> Mapping[str, str]:
        """Return the kind of each column that does not look like a feature: dense, label or time."""

    def survey(self, names: Sequence[str]) -> Survey:
        """Return the sizes of all files without reading their lookups.

        Raises:
            BadFile: if a file is damaged or has other tables than the first file, or a named table has a wrong type.
        """

    def blocks(self, part: Part, names: Sequence[str], max_samples: int) -> Iterator[Block]:
        """Yield the samples of a part, in order, in blocks of at most ``max_samples``, with the named tables only.

        Raises:
            BadFile: if the part is damaged or its values contradict each other.
        """


def check_same_tables(path: Path, names: Sequence[str], expected: Sequence[str], first: Path) -> None:
    """Raise BadFile unless a file has exactly the tables of the first file."""
    missing = [name for name in expected if name not in set(names)]
    extra = [name for name in names if name not in set(expected)]
    if missing or extra:
        problem = f"lacks table {brief(missing[0])} of" if missing else f"has table {brief(extra[0])}, which is not in"
        raise BadFile(path, f"{problem} {first.name}", "All files of a sample must have the same tables.")


class TorchSample:
    """Sample in ``.pt`` files, one batch each; see ``dlrm_batch``.

    If the only file is gzipped, ``unpacked`` is its unpacked copy.

    Raises:
        BadFile: if the first file is damaged or is not a batch.
    """

    def __init__(self, paths: Sequence[Path], unpacked: Path | None = None) -> None:
        self._paths, self._unpacked = tuple(paths), unpacked
        self._begins: dict[Path, list[int]] = {}
        self.names = self._load(self._paths[0]).names
        self.non_features: Mapping[str, str] = {}  # these files have only lookups

    def _load(self, path: Path) -> DlrmBatch:
        return map_batch(path, self._unpacked or path)

    def survey(self, names: Sequence[str]) -> Survey:
        """Return the sizes; see ``Sample.survey``."""
        num_samples, num_lookups = 0, dict.fromkeys(names, 0)
        for path in progress(self._paths, "counting samples"):
            batch = self._load(path)
            check_same_tables(path, batch.names, self.names, self._paths[0])
            num_samples += batch.batch_size
            begins = self._begins[path] = batch.table_starts(path)
            for name, (begin, end) in zip(batch.names, pairwise(begins), strict=True):
                if name in num_lookups:
                    num_lookups[name] += end - begin
        return Survey(num_samples, num_lookups, tuple(map(Part, self._paths)))

    def blocks(self, part: Part, names: Sequence[str], max_samples: int) -> Iterator[Block]:
        """Yield blocks; see ``Sample.blocks``."""
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
                # A copy, because a view would keep the whole file mapped.
                rows = batch.indices[begin:end].long().numpy().copy()
                lookups[name], begins[name] = TableLookups.of_lengths(rows, lengths_B.numpy()), end
            del batch  # pages that were read stay in memory while the file is mapped, so each block maps it again
            yield Block(last - first, lookups)
