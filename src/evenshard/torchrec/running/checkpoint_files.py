"""The files of a checkpoint of torch.distributed.checkpoint: read as data alone, and copied with other contents.

A checkpoint is ``.metadata``, a pickle of known classes, and files of tensors one behind the other. A copy shares the
files of tensors (as hard links where the file system has them) and gets one more with what is new.
"""

from __future__ import annotations

import io
import os
import pickle
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from evenshard.placement.parts import Span
from evenshard.torchrec.running.checkpoint_metadata import METADATA, REMEDY, TENSOR_SUFFIX, read_metadata
from evenshard.utils.errors import BadFile
from evenshard.utils.messages import brief
from evenshard.utils.tensor_files import load_tensors

# Place of a value in the state that was saved, such as ("model", "ebc.embedding_bags.user.weight").
Key = tuple[Any, ...]


class CheckpointFiles:
    """A checkpoint, and the changes of a copy.

    Args:
        path: its folder.

    Attributes:
        metadata: torch's record of what it holds.
        names: of each place in the saved state, the name that the record has for it.
        written_bytes: of the copy, what is not shared.

    Raises:
        BadFile: if it is none, or holds what torch.distributed.checkpoint does not write.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata = read_metadata(path)
        self.names: dict[Key, str] = {key: name for name, key in self.metadata.planner_data.items()}
        self._file_name = next(
            name for number in range(10**6) if not (path / (name := f"__evenshard_{number}{TENSOR_SUFFIX}")).exists()
        )
        self._out: IO[bytes] | None = None
        self.written_bytes = 0

    def tensor(self, key: Key) -> TensorStorageMetadata:
        """What is said of a tensor: size, type and chunks.

        Raises:
            BadFile: if the value is not a tensor.
        """
        found = self.metadata.state_dict_metadata[self.names[key]]
        if not isinstance(found, TensorStorageMetadata):
            raise BadFile(self.path, f"{brief(self.names[key])} is not a tensor", REMEDY)
        return found

    def size(self, key: Key) -> tuple[int, ...]:
        """The size of a tensor."""
        return tuple(self.tensor(key).size)

    def rows(self, key: Key, rows: Span) -> torch.Tensor:
        """Some rows of a tensor, whole.

        Raises:
            BadFile: if they are not all in the files.
        """
        found = self.tensor(key)
        result = torch.empty((rows.size, *found.size[1:]), dtype=found.properties.dtype)
        lacking = torch.ones(result.shape, dtype=torch.bool)
        for chunk in found.chunks:
            start, stop = max(chunk.offsets[0], rows.start), min(chunk.offsets[0] + chunk.sizes[0], rows.stop)
            if start >= stop:
                continue
            values = self._read(self.names[key], chunk, found.properties.dtype)
            where = [slice(start - rows.start, stop - rows.start)]
            where += [
                slice(offset, offset + size) for offset, size in zip(chunk.offsets[1:], chunk.sizes[1:], strict=True)
            ]
            result[tuple(where)] = values[start - chunk.offsets[0] : stop - chunk.offsets[0]]
            lacking[tuple(where)] = False
        if lacking.any():
            raise BadFile(self.path, f"{brief(self.names[key])} is not whole", REMEDY)
        return result

    def _read(self, name: str, chunk: ChunkStorageMetadata, dtype: torch.dtype) -> torch.Tensor:
        """A chunk of a tensor."""
        index = next(
            one
            for one in self.metadata.storage_data
            if one.fqn == name and tuple(one.offset or ()) == tuple(chunk.offsets)
        )
        info = self.metadata.storage_data[index]
        if info.transform_descriptors:
            raise BadFile(self.path, f"{brief(name)} is compressed or encoded", "Save it without extensions.")
        path = self.path / info.relative_path
        with path.open("rb") as file:
            file.seek(info.offset)
            values = load_tensors(path, io.BytesIO(file.read(info.length)))
        is_right = isinstance(values, torch.Tensor) and values.dtype == dtype and values.shape == chunk.sizes
        if not is_right or values.layout != torch.strided or values.device.type != "cpu":
            raise BadFile(path, f"does not hold {brief(name)} as {METADATA} says", REMEDY)
        assert isinstance(values, torch.Tensor)
        return values

    # A copy ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def copy_to(self, folder: Path) -> Iterator[None]:
        """A copy, which shares the files of tensors; what is changed within the block is of the copy."""
        folder.mkdir(parents=True, exist_ok=True)
        for one in sorted({info.relative_path for info in self.metadata.storage_data.values()}):
            try:
                os.link(self.path / one, folder / one)
            except OSError:  # another file system, or one without hard links
                shutil.copyfile(self.path / one, folder / one)
        with (folder / self._file_name).open("wb") as self._out:
            yield
            self.written_bytes = self._out.tell()
        if not self.written_bytes:
            (folder / self._file_name).unlink()
        with (folder / METADATA).open("wb") as file:
            pickle.dump(self.metadata, file)

    def remove(self, key: Key) -> None:
        """Forgets a value; its bytes stay where they are."""
        name = self.names.pop(key)
        del self.metadata.state_dict_metadata[name]
        del self.metadata.planner_data[name]
        for index in [one for one in self.metadata.storage_data if one.fqn == name]:
            del self.metadata.storage_data[index]

    def rename(self, key: Key, new: Key) -> None:
        """Puts a value at another place of the state, without reading it."""
        self.share(key, new)
        self.remove(key)

    def share(self, key: Key, new: Key) -> None:
        """Puts a value at a second place."""
        name, other = self.names[key], _flat(new)
        self.metadata.state_dict_metadata[other] = self.metadata.state_dict_metadata[name]
        self._know(new)
        for index in [one for one in self.metadata.storage_data if one.fqn == name]:
            self.metadata.storage_data[replace(index, fqn=other)] = self.metadata.storage_data[index]

    def write(self, key: Key, parts: Iterable[torch.Tensor]) -> None:
        """Writes a tensor of parts that stand one behind the other, rows upon rows, each as a chunk.

        Args:
            key: place in the state.
            parts: at least one; a number alone is one without dimensions.
        """
        assert self._out is not None
        name, chunks = _flat(key), []
        properties, size = TensorProperties(), torch.Size()
        for number, values in enumerate(parts):
            offset = torch.Size((size[0] if number else 0, *(0,) * (values.dim() - 1))[: values.dim()])
            begin = self._out.tell()
            torch.save(values.contiguous(), self._out)
            chunks.append(ChunkStorageMetadata(offset, values.size()))
            index = MetadataIndex(name, offset, number)
            self.metadata.storage_data[index] = _StorageInfo(self._file_name, begin, self._out.tell() - begin)
            properties = TensorProperties(dtype=values.dtype)
            size = torch.Size(first + count for first, count in zip(offset, values.size(), strict=True))
        self.metadata.state_dict_metadata[name] = TensorStorageMetadata(properties, size, chunks)
        self._know(key)

    def _know(self, key: Key) -> None:
        self.metadata.planner_data[_flat(key)] = key
        self.names[key] = _flat(key)


def _flat(key: Key) -> str:
    return ".".join(map(str, key))
