"""Traffic in ``.pt`` files, one batch each; see ``dlrm_batch``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from evenshard.tables.dlrm_batch import DlrmBatch, mapped_batch
from evenshard.tables.traffic.sample import Block, Part, Survey, TableLookups, check_same_tables
from evenshard.utils.console import progress


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
