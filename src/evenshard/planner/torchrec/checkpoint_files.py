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
from typing import IO, TYPE_CHECKING, Any

import torch

from evenshard.placement.parts import Span
from evenshard.utils.errors import BadFile
from evenshard.utils.messages import brief

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

METADATA = ".metadata"
_REMEDY = "Give the folder that torch.distributed.checkpoint.save wrote, whole."
_CLASSES = {
    "torch.distributed.checkpoint.metadata": (
        "Metadata",
        "TensorStorageMetadata",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "MetadataIndex",
        "StorageMeta",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch": ("Size",),
    "torch.serialization": ("_get_layout",),
    "pathlib": ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath", "Path"),
    "pathlib._local": ("PosixPath", "Path"),
    "builtins": ("set", "frozenset", "list", "dict", "tuple"),
    "collections": ("OrderedDict",),
}
"""What ``.metadata`` is made of; torch's own reader would call whatever a pickle names."""
Key = tuple[Any, ...]
"""Where a value stood in the state that was saved, such as ("model", "ebc.embedding_bags.user.weight")."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Classes of ``_CLASSES`` and types of numbers; anything else is refused."""
        if name in _CLASSES.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        raise pickle.UnpicklingError(f"{module}.{name}")


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
        self.metadata = _metadata(path)
        try:
            names = {tuple(key): str(name) for name, key in self.metadata.planner_data.items()}
            known = {index.fqn for index in self.metadata.storage_data} & set(self.metadata.state_dict_metadata)
        except (AttributeError, TypeError):
            names, known = {}, set()
        if not names or not set(names.values()) <= known:
            raise BadFile(path / METADATA, "does not say where values stood in the saved state", _REMEDY)
        self.names: dict[Key, str] = names
        self._file_name = next(
            name for number in range(10**6) if not (path / (name := f"__evenshard_{number}.distcp")).exists()
        )
        self._out: IO[bytes] | None = None
        self.written_bytes = 0

    def tensor(self, key: Key) -> TensorStorageMetadata | None:
        """What is said of a tensor: size, type and chunks; None where the checkpoint has none of this key."""
        found = self.metadata.state_dict_metadata.get(self.names.get(key, ""))
        return found if hasattr(found, "chunks") else None  # type: ignore[return-value]

    def size(self, key: Key) -> tuple[int, ...]:
        """The size of a tensor that there is."""
        found = self.tensor(key)
        assert found is not None
        return tuple(found.size)

    def rows(self, key: Key, rows: Span) -> torch.Tensor:
        """Some rows of a tensor, whole.

        Raises:
            BadFile: if they are not all in the files.
        """
        found = self.tensor(key)
        assert found is not None
        result = torch.empty((rows.size, *found.size[1:]), dtype=found.properties.dtype)
        filled = 0
        for chunk in found.chunks:
            start, stop = max(chunk.offsets[0], rows.start), min(chunk.offsets[0] + chunk.sizes[0], rows.stop)
            if start >= stop:
                continue
            values = self._read(self.names[key], chunk.offsets)[start - chunk.offsets[0] : stop - chunk.offsets[0]]
            where = [slice(start - rows.start, stop - rows.start)]
            where += [
                slice(offset, offset + size) for offset, size in zip(chunk.offsets[1:], chunk.sizes[1:], strict=True)
            ]
            result[tuple(where)] = values
            filled += values.numel()
        if filled != result.numel():
            raise BadFile(self.path, f"{brief(self.names[key])} is not whole", _REMEDY)
        return result

    def _read(self, name: str, offset: Any) -> torch.Tensor:
        """A chunk of a tensor."""
        index = next(
            one for one in self.metadata.storage_data if one.fqn == name and tuple(one.offset or ()) == tuple(offset)
        )
        info = self.metadata.storage_data[index]
        if getattr(info, "transform_descriptors", None):
            raise BadFile(self.path, f"{brief(name)} is compressed or encoded", "Save it without extensions.")
        if Path(info.relative_path).name != info.relative_path:
            raise BadFile(self.path / METADATA, f"names the file {brief(info.relative_path)}", _REMEDY)
        try:
            with (self.path / info.relative_path).open("rb") as file:
                file.seek(info.offset)
                values = torch.load(io.BytesIO(file.read(info.length)), map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise BadFile(self.path / info.relative_path, f"cannot be read ({type(error).__name__})", _REMEDY) from None
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

    def write(self, key: Key, size: tuple[int, ...], chunks: Iterable[tuple[tuple[int, ...], torch.Tensor]]) -> None:
        """Writes a tensor, chunk by chunk.

        Args:
            size: of the whole.
            chunks: where each begins, and its values.
        """
        from torch.distributed.checkpoint.filesystem import _StorageInfo
        from torch.distributed.checkpoint.metadata import (
            ChunkStorageMetadata,
            MetadataIndex,
            TensorProperties,
            TensorStorageMetadata,
        )

        assert self._out is not None
        name, listed = _flat(key), []
        properties = TensorProperties()
        for number, (offset, values) in enumerate(chunks):
            begin = self._out.tell()
            torch.save(values.contiguous(), self._out)
            listed.append(ChunkStorageMetadata(torch.Size(offset), values.size()))
            index = MetadataIndex(name, torch.Size(offset), number)
            self.metadata.storage_data[index] = _StorageInfo(self._file_name, begin, self._out.tell() - begin)
            properties = TensorProperties(dtype=values.dtype)
        self.metadata.state_dict_metadata[name] = TensorStorageMetadata(properties, torch.Size(size), listed)
        self._know(key)

    def _know(self, key: Key) -> None:
        self.metadata.planner_data[_flat(key)] = key
        self.names[key] = _flat(key)


def _flat(key: Key) -> str:
    return ".".join(map(str, key))


def _metadata(path: Path) -> Metadata:
    from torch.distributed.checkpoint.metadata import Metadata

    try:
        with (path / METADATA).open("rb") as file:
            found = _Unpickler(file).load()
    except FileNotFoundError:
        raise BadFile(path, f"has no {METADATA}", _REMEDY) from None
    except pickle.UnpicklingError as error:
        raise BadFile(path / METADATA, f"does not hold a checkpoint ({error})", _REMEDY) from None
    except Exception as error:  # torn bytes make pickle raise nearly anything
        raise BadFile(path / METADATA, f"cannot be read ({type(error).__name__})", _REMEDY) from None
    if not isinstance(found, Metadata):
        raise BadFile(path / METADATA, f"holds a {type(found).__name__}", _REMEDY)
    return found
