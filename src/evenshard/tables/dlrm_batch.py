"""Recorded batch of lookups, ordered by table, then sample, in a ``.pt`` file written by ``torch.save``.

The file contains the tuple (indices, offsets, lengths) of facebookresearch/dlrm_datasets, whose tables are named t000,
t001 and so on, or the content of a TorchRec KeyedJaggedTensor as a dict ``{"keys": names, "values": [L], "lengths":
[T*B] or [T, B]}``; other entries of the dict are ignored.

Legend: T tables, B samples, L lookups of all tables together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenshard.base.documents import is_gzipped, unpack_file
from evenshard.base.errors import BadFile, blame_file
from evenshard.base.messages import brief, reason_of
from evenshard.base.tensor_files import integer_problem, load_tensors

if TYPE_CHECKING:  # torch takes a second to import
    import torch

_ZIP_MAGIC = b"PK\x03\x04"  # first bytes of a file of torch 1.6 or newer
_KEYS = ("keys", "values", "lengths")
_REMEDY = 'It must contain (indices, offsets, lengths) or {"keys": names, "values": tensor, "lengths": tensor}.'
_SAVE_AGAIN = "Save or download the file again."


@dataclass(frozen=True, eq=False)
class DlrmBatch:
    """Lookups of one batch in all tables."""

    indices: torch.Tensor  # [L] row numbers, int64 if read by ``read_dlrm_batch``
    # [T*B+1] position of the first lookup of each table and sample; None if the file has no offsets
    offsets: torch.Tensor | None
    lengths: torch.Tensor  # [T, B] lookups of each table and sample, in the file's integer type
    names: tuple[str, ...]  # names of T tables; t000, t001 and so on if the file has no names

    @property
    def batch_size(self) -> int:
        """Return the number of samples in the batch."""
        return self.lengths.shape[1]

    def table_starts(self, path: Path) -> list[int]:
        """Return the position of each table's first lookup, and the number of all lookups, [T+1].

        Tables are checked one at a time to limit memory, because real files have a billion indices.

        Raises:
            BadFile: if lengths, offsets and lookups contradict each other.
        """
        begins = [0]
        for number, name in enumerate(self.names):
            lengths_B, where = self.lengths[number].long(), f"table {brief(name)}"
            if lengths_B.numel() and int(lengths_B.min()) < 0:
                raise BadFile(path, "a sample has a negative number of lookups", _SAVE_AGAIN, where)
            if self.offsets is not None:
                first = number * self.batch_size
                steps_B = self.offsets[first : first + self.batch_size + 1].long().diff()
                if not steps_B.equal(lengths_B):
                    raise BadFile(path, "offsets do not match the lengths", _SAVE_AGAIN, where)
            begins.append(begins[-1] + int(lengths_B.sum()))
        if begins[-1] != self.indices.numel():
            problem = f"lengths add up to {begins[-1]}, but there are {self.indices.numel()} row numbers"
            raise BadFile(path, problem, _SAVE_AGAIN)
        return begins


@blame_file
def read_dlrm_batch(path: str | PathLike[str]) -> DlrmBatch:
    """Read and check a ``.pt`` or ``.pt.gz`` file; the latter is first unpacked into the temporary folder.

    Raises:
        BadFile: if the file is missing or damaged, or its tensors contradict each other.
    """
    import torch

    path = Path(path)
    if not path.is_file():
        raise BadFile(path, "is not a file" if path.exists() else "no such file", "Check the path.")
    try:
        # torch seeks back and forth, and a backward seek in a gzip stream starts over at the first byte.
        with unpack_file(path, is_gzipped(path)) as file:
            batch = map_batch(path, file)
    except OSError as error:
        raise BadFile(path, f"cannot be read ({reason_of(error)})", _REMEDY) from None
    begins = batch.table_starts(path)
    for number, name in enumerate(batch.names):
        indices = batch.indices[begins[number] : begins[number + 1]]
        if indices.numel() and int(indices.min()) < 0:
            raise BadFile(path, f"index {int(indices.min())} is negative", _REMEDY, f"table {brief(name)}")
    return DlrmBatch(batch.indices.to(torch.int64, copy=True), None, batch.lengths.clone(), batch.names)


def map_batch(path: Path, source: Path) -> DlrmBatch:
    """Memory-map the batch in ``source``, and check types and sizes of its tensors; errors call the file ``path``.

    Only the used parts are loaded, except from files that torch cannot map.

    Raises:
        BadFile: if the file is damaged or has other content.
    """
    try:
        with source.open("rb") as file:
            can_map = file.read(4) == _ZIP_MAGIC  # files of torch before 1.6 cannot be mapped; they are read as a whole
    except OSError as error:
        raise BadFile(path, f"cannot be read ({reason_of(error)})", _REMEDY) from None
    content = load_tensors(path, source, can_map)
    if isinstance(content, dict) and all(key in content for key in _KEYS):
        return _read_keyed(path, content)
    if isinstance(content, tuple | list) and len(content) == 3:
        return _read_tuple(path, content)
    keys = f" with {', '.join(sorted(map(brief, content))[:5])}" if isinstance(content, dict) else ""
    raise BadFile(path, f"contains a {type(content).__name__}{keys}", _REMEDY)


def _read_keyed(path: Path, content: dict[str, Any]) -> DlrmBatch:
    keys = content["keys"]
    values, lengths = (
        _integers(path, key, content[key], dims) for key, dims in (("values", (1,)), ("lengths", (1, 2)))
    )
    if not isinstance(keys, list | tuple) or not keys or not all(isinstance(key, str) and key for key in keys):
        raise BadFile(path, "keys is not a list of table names", _REMEDY)
    twice = next((key for key, count in Counter(keys).items() if count > 1), None)
    if twice is not None:
        raise BadFile(path, f"keys contains {brief(twice)} twice", "Give each table its own name.")
    shape = list(lengths.shape)
    if (len(shape) == 2 and shape[0] != len(keys)) or lengths.numel() % len(keys):
        raise BadFile(path, f"lengths of shape {shape} cannot be split evenly over {len(keys)} tables", _REMEDY)
    return DlrmBatch(values, None, lengths.reshape(len(keys), -1), tuple(keys))


def _read_tuple(path: Path, content: Sequence[Any]) -> DlrmBatch:
    indices, offsets, lengths = (
        _integers(path, name, value, (dims,))
        for name, value, dims in zip(("indices", "offsets", "lengths"), content, (1, 1, 2), strict=True)
    )
    num_tables, batch_size = lengths.shape
    if num_tables == 0 or batch_size == 0:
        raise BadFile(path, f"contains {num_tables} tables and {batch_size} samples", _REMEDY)
    if offsets.numel() != num_tables * batch_size + 1:
        expected = f"{num_tables} tables x {batch_size} samples + 1"
        raise BadFile(path, f"has {offsets.numel()} offsets, not {expected}", _REMEDY)
    if int(offsets[0]) != 0 or int(offsets[-1]) != indices.numel():
        problem = f"offsets run from {int(offsets[0])} to {int(offsets[-1])}, but there are {indices.numel()} indices"
        raise BadFile(path, problem, _REMEDY)
    return DlrmBatch(indices, offsets, lengths, tuple(f"t{number:03d}" for number in range(num_tables)))


def _integers(path: Path, name: str, value: Any, num_dims: Sequence[int]) -> torch.Tensor:
    if problem := integer_problem(value):
        raise BadFile(path, f"{name} {problem}", _REMEDY)
    tensor: torch.Tensor = value
    if tensor.dim() not in num_dims:
        raise BadFile(path, f"{name} has {tensor.dim()} dimensions, not {' or '.join(map(str, num_dims))}", _REMEDY)
    return tensor
