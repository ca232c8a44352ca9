"""Traffic in ``.pt`` files, one batch each, as ``torch.save`` writes them.

Either the tuple (indices, offsets, lengths) of facebookresearch/dlrm_datasets, whose tables are called t000, t001 and
so on, or a dict ``{"keys": names, "values": [L], "lengths": [T*B] or [T, B]}`` with the content of a TorchRec
KeyedJaggedTensor; other entries of the dict are not looked at.

Legend: T tables, B samples of a file, L lookups of all tables together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenshard.tables.dlrm_batch import DlrmBatch, batch_in
from evenshard.tables.traffic.sample import Block, Part, Survey, TableLookups, check_same_tables
from evenshard.utils.console import progress
from evenshard.utils.errors import BadFile
from evenshard.utils.messages import brief, reason_of
from evenshard.utils.tensor_files import load_tensors, not_integers

if TYPE_CHECKING:  # torch takes a second to import
    import torch

_ZIP_MAGIC = b"PK\x03\x04"
_KEYS = ("keys", "values", "lengths")
_REMEDY = 'It must hold (indices, offsets, lengths) or {"keys": names, "values": tensor, "lengths": tensor}.'


class TorchSample:
    """See ``Sample``.

    Args:
        paths: the files, at least one.
        unpacked: the unpacked copy to read if the only file is gzipped.

    Raises:
        BadFile: the first file is torn or holds something else.
    """

    def __init__(self, paths: Sequence[Path], unpacked: Path | None = None) -> None:
        self._paths, self._unpacked = tuple(paths), unpacked
        self._begins: dict[Path, list[int]] = {}
        self.names = self._load(self._paths[0]).names
        self.unlike_features: Mapping[str, str] = {}  # such a file holds lookups alone

    def _load(self, path: Path) -> DlrmBatch:
        """One file. Its tensors are mapped, not read: only what is touched comes into memory."""
        return _load(path, self._unpacked or path)

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


def _load(path: Path, source: Path) -> DlrmBatch:
    """The batch in ``source``, which the user knows as ``path``; raises BadFile unless its shapes agree."""
    try:
        with source.open("rb") as file:
            # Files of torch before 1.6 cannot be mapped; they are read whole, one at a time.
            can_map = file.read(4) == _ZIP_MAGIC
    except OSError as error:
        raise BadFile(path, f"cannot be read ({reason_of(error)})", _REMEDY) from None
    content = load_tensors(path, source, can_map)
    if isinstance(content, dict) and all(key in content for key in _KEYS):
        return _from_dict(path, content)
    if isinstance(content, tuple | list) and len(content) == 3:
        return batch_in(path, content)
    keys = f" with {', '.join(sorted(map(brief, content))[:5])}" if isinstance(content, dict) else ""
    raise BadFile(path, f"holds a {type(content).__name__}{keys}", _REMEDY)


def _from_dict(path: Path, content: dict[str, Any]) -> DlrmBatch:
    keys, (values, lengths) = content["keys"], (_integers(path, content, key) for key in _KEYS[1:])
    if not isinstance(keys, list | tuple) or not keys or not all(isinstance(key, str) and key for key in keys):
        raise BadFile(path, "keys is not a list of table names", _REMEDY)
    twice = next((key for key, count in Counter(keys).items() if count > 1), None)
    if twice is not None:
        raise BadFile(path, f"keys holds {brief(twice)} twice", "Give each table its own name.")
    shape = list(lengths.shape)
    if lengths.dim() not in (1, 2) or (lengths.dim() == 2 and shape[0] != len(keys)) or lengths.numel() % len(keys):
        raise BadFile(path, f"lengths of shape {shape} cannot be shared among {len(keys)} tables", _REMEDY)
    return DlrmBatch(values, None, lengths.reshape(len(keys), -1), tuple(keys))


def _integers(path: Path, content: dict[str, Any], key: str) -> torch.Tensor:
    value: torch.Tensor = content[key]
    if problem := not_integers(value):
        raise BadFile(path, f"{key} {problem}", _REMEDY)
    if key == "values" and value.dim() != 1:
        raise BadFile(path, f"{key} has {value.dim()} dimensions, not 1", _REMEDY)
    return value
