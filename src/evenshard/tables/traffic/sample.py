"""The interface of a kind of traffic file: its tables, a first look at their sizes, and blocks of samples.

Legend: B samples of a block, L lookups of one table in a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from evenshard.utils.errors import BadFile
from evenshard.utils.messages import brief

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TableLookups:
    """What a block of samples reads from one table.

    Attributes:
        rows: [L] row numbers, sample after sample.
        offsets: [B+1]; sample b reads ``rows[offsets[b] : offsets[b+1]]``.
    """

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
    """Some successive samples.

    Attributes:
        num_samples: B.
        lookups: lookups by table name.
    """

    num_samples: int
    lookups: dict[str, TableLookups]


@dataclass(frozen=True)
class Part:
    """A stretch of samples that is read as one step of the progress bar.

    Attributes:
        path: the file.
        row_group: row group of a Parquet file; 0 elsewhere.
    """

    path: Path
    row_group: int = 0


@dataclass(frozen=True)
class Survey:
    """What is known before the lookups are read.

    Attributes:
        num_samples: samples in the whole sample of traffic.
        num_lookups: lookups of each table in the whole sample; a null or an empty list may count as one.
        parts: parts of the sample, in reading order.
    """

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
