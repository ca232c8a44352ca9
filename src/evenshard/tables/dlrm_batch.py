"""A recorded batch of real lookups, in the format of facebookresearch/dlrm_datasets.

The file is what ``torch.save((indices, offsets, lengths))`` writes, often gzipped: table after table, sample after
sample.

Legend: T tables, B samples, L lookups of all tables together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evenshard.tables.reuse import reuse_bins_of_counts
from evenshard.tables.table import Table, check_dims, check_weight_bits
from evenshard.utils.errors import BadConfig, BadFile
from evenshard.utils.messages import brief, reason_of
from evenshard.utils.packed_files import is_gzipped, unpacked
from evenshard.utils.tensor_files import load_tensors, not_integers

if TYPE_CHECKING:  # torch takes a second to import
    import torch

_FETCH_AGAIN = "Fetch the file again; it must hold (indices, offsets, lengths) as facebookresearch/dlrm_datasets does."
_TORN = "Fetch the file again, or save it again."


@dataclass(frozen=True, eq=False)
class DlrmBatch:
    """Lookups of one batch in all tables.

    Attributes:
        indices: [L] row numbers, int64 where ``read_dlrm_batch`` has read them.
        offsets: [T*B+1], likewise; lookups of table t and sample b are ``indices[offsets[t*B+b] : offsets[t*B+b+1]]``.
            None where a file has none.
        lengths: [T, B] lookups of each table and sample, of the file's own integer type.
        names: T tables; those of a recorded batch are called by their position.
    """

    indices: torch.Tensor
    offsets: torch.Tensor | None
    lengths: torch.Tensor
    names: tuple[str, ...]

    @property
    def num_tables(self) -> int:
        """Tables of the batch."""
        return self.lengths.shape[0]

    @property
    def batch_size(self) -> int:
        """Samples of the batch."""
        return self.lengths.shape[1]

    def begins(self, path: Path) -> list[int]:
        """[T+1] positions of each table's first lookup, and the end of the last table's.

        One table at a time is looked at: real files hold a billion indices.

        Raises:
            BadFile: lengths, offsets and lookups contradict each other.
        """
        begins = [0]
        for number, name in enumerate(self.names):
            lengths_B, where = self.lengths[number].long(), f"table {brief(name)}"
            if lengths_B.numel() and int(lengths_B.min()) < 0:
                raise BadFile(path, "a sample has a negative number of lookups", _TORN, where)
            if self.offsets is not None:
                first = number * self.batch_size
                steps_B = self.offsets[first : first + self.batch_size + 1].long().diff()
                if not steps_B.equal(lengths_B):
                    raise BadFile(path, "offsets do not match the lengths", _TORN, where)
            begins.append(begins[-1] + int(lengths_B.sum()))
        if begins[-1] != self.indices.numel():
            problem = f"lengths add up to {begins[-1]}, but there are {self.indices.numel()} row numbers"
            raise BadFile(path, problem, _TORN)
        return begins

    def lookups(self, table_index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What a recorded batch reads from one table: ([lookups of the table] int64 indices, [B] lengths), both views.

        Raises:
            IndexError: there is no such table.
        """
        if not 0 <= table_index < self.num_tables:
            raise IndexError(f"table {table_index} of {self.num_tables}")
        assert self.offsets is not None
        first = table_index * self.batch_size
        begin, end = int(self.offsets[first]), int(self.offsets[first + self.batch_size])
        return self.indices[begin:end], self.lengths[table_index]


def read_dlrm_batch(path: str | PathLike[str]) -> DlrmBatch:
    """Reads and checks a ``.pt`` or gzipped ``.pt.gz`` file. A gzipped one is unpacked into the temporary folder first.

    Raises:
        BadFile: the file is missing, torn, or its tensors contradict each other.
    """
    path = Path(path)
    if not path.is_file():
        raise BadFile(path, "is not a file" if path.exists() else "no such file", "Check the path.")
    try:
        # torch seeks back and forth, and each step back in a gzip stream starts over at the first byte.
        with unpacked(path, is_gzipped(path)) as file:
            batch = batch_in(path, load_tensors(path, file))
    except OSError as error:
        raise BadFile(path, f"cannot be read ({reason_of(error)})", _FETCH_AGAIN) from None
    assert batch.offsets is not None
    batch = replace(batch, indices=batch.indices.long(), offsets=batch.offsets.long())
    batch.begins(path)
    for number in range(batch.num_tables):
        indices, _ = batch.lookups(number)
        if indices.numel() and int(indices.min()) < 0:
            raise BadFile(path, f"index {int(indices.min())} is negative", _FETCH_AGAIN, f"table {number}")
    return batch


def batch_in(path: Path, content: Any) -> DlrmBatch:
    """The batch in a file's content, if types and sizes agree. Its tensors are as the file has them, and unread.

    Raises:
        BadFile: the content is something else.
    """
    if not isinstance(content, tuple | list) or len(content) != 3:
        raise BadFile(path, f"holds a {type(content).__name__}, not three tensors", _FETCH_AGAIN)
    for name, value, num_dims in zip(("indices", "offsets", "lengths"), content, (1, 1, 2), strict=True):
        if problem := not_integers(value):
            raise BadFile(path, f"{name} {problem}", _FETCH_AGAIN)
        if value.dim() != num_dims:
            raise BadFile(path, f"{name} has {value.dim()} dimensions, not {num_dims}", _FETCH_AGAIN)
    indices, offsets, lengths = content
    num_tables, batch_size = lengths.shape
    if num_tables == 0 or batch_size == 0:
        raise BadFile(path, f"holds {num_tables} tables and {batch_size} samples", _FETCH_AGAIN)
    if offsets.numel() != num_tables * batch_size + 1:
        expected = f"{num_tables} tables x {batch_size} samples + 1"
        raise BadFile(path, f"has {offsets.numel()} offsets, not {expected}", _FETCH_AGAIN)
    if int(offsets[0]) != 0 or int(offsets[-1]) != indices.numel():
        problem = f"offsets run from {int(offsets[0])} to {int(offsets[-1])}, but there are {indices.numel()} indices"
        raise BadFile(path, problem, _FETCH_AGAIN)
    return DlrmBatch(indices, offsets, lengths, tuple(map(recorded_name, range(num_tables))))


def tables_from_batch(
    batch: DlrmBatch,
    embedding_dims: Sequence[int],
    seed: int,
    weight_bits: int = 32,
    task_batch_size: int | None = None,
) -> tuple[Table, ...]:
    """The tables as far as the batch shows them.

    A table has as many rows as its largest index tells (the true table may have more) and the mean lookups per sample
    and the reuse histogram of this batch. A table that the batch never reads has 1 row, pooling factor 0 and no
    histogram. Dims are not recorded; they are drawn.

    Args:
        batch: a batch from ``read_dlrm_batch``.
        embedding_dims: dims to draw from, each equally likely.
        seed: seed of the draw.
        weight_bits: 4, 8, 16 or 32, the same for all tables.
        task_batch_size: samples of the tasks the tables are for, where that is fewer than recorded: pooling factor and
            reuse histogram are then those of the first so many samples. None takes the whole batch.

    Raises:
        BadConfig: no dim to draw from, or impossible weight bits.
    """
    check_dims(embedding_dims)
    check_weight_bits(weight_bits)
    num_samples = batch.batch_size if task_batch_size is None else task_batch_size
    if not 1 <= num_samples <= batch.batch_size:
        raise BadConfig(
            f"batch_size is {num_samples}, but the recorded batch has {batch.batch_size} samples. Lower it."
        )
    dims = np.random.default_rng(seed).choice(np.array(embedding_dims), size=batch.num_tables)
    return tuple(_table(batch, number, int(dim), weight_bits, num_samples) for number, dim in enumerate(dims))


def recorded_name(table_index: int) -> str:
    """The name of the table at a position of the recorded batch."""
    return f"t{table_index:03d}"


def _table(batch: DlrmBatch, number: int, dim: int, weight_bits: int, num_samples: int) -> Table:
    name = batch.names[number]
    indices, lengths = batch.lookups(number)
    if indices.numel() == 0:
        return Table(name, 1, dim, 0.0, None, weight_bits)
    num_rows = int(indices.max()) + 1
    indices = indices[: int(lengths[:num_samples].sum())]
    if indices.numel() == 0:
        return Table(name, num_rows, dim, 0.0, None, weight_bits)
    counts = np.unique(indices.numpy(), return_counts=True)[1]
    return Table(name, num_rows, dim, indices.numel() / num_samples, reuse_bins_of_counts(counts), weight_bits)
