"""``.metadata`` of a checkpoint of torch.distributed.checkpoint: a pickle, read as data alone and checked whole.

Torch's own reader would call whatever the pickle names. Here its records are stand-ins that keep what is said of them,
and torch's records are made of these once every value has its type, every chunk lies within its tensor, and every file
is one of the checkpoint's folder.
"""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from math import prod
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from evenshard.utils.errors import BadFile
from evenshard.utils.messages import brief, reason_of

METADATA = ".metadata"
# Suffix of the files that torch.distributed.checkpoint writes tensors to.
TENSOR_SUFFIX = ".distcp"
REMEDY = "Give the folder that torch.distributed.checkpoint.save wrote, whole."
_METADATA_MODULE = "torch.distributed.checkpoint.metadata"
_MAX_BYTES = 2**62


def read_metadata(path: Path) -> Metadata:
    """What a checkpoint says that it holds, and where.

    Args:
        path: its folder.

    Raises:
        BadFile: if it has no ``.metadata``, or one that torch.distributed.checkpoint would not have written.
    """
    try:
        with (path / METADATA).open("rb") as file:
            found = _Unpickler(file).load()
    except (FileNotFoundError, NotADirectoryError):
        raise BadFile(path, f"has no {METADATA}", REMEDY) from None
    except pickle.UnpicklingError as error:
        raise BadFile(path / METADATA, f"does not hold a checkpoint ({reason_of(error)})", REMEDY) from None
    except Exception as error:  # torn bytes make pickle raise nearly anything
        raise BadFile(path / METADATA, f"cannot be read ({type(error).__name__})", REMEDY) from None
    try:
        return _metadata(found, _tensor_files(path))
    except ValueError as error:
        raise BadFile(path / METADATA, str(error), REMEDY) from None


class _Record:
    """An object of the pickle: what is said of it, before anything of that is believed."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __repr__(self) -> str:
        return f"a {type(self).__name__}"


_RECORDS: Mapping[str, type[_Record]] = {
    name: type(name, (_Record,), {})
    for name in (
        "Metadata",
        "TensorStorageMetadata",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "MetadataIndex",
        "StorageMeta",
        "_StorageInfo",
    )
}
_CONTAINERS = {kind.__name__: kind for kind in (set, frozenset, list, dict, tuple, OrderedDict)}
_OF_RECORDS = (_METADATA_MODULE, "torch.distributed.checkpoint.filesystem")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """A stand-in of a record, a type of plain data, or what makes one; anything else is refused.

        What could be changed by a pickle (a class, a function) is wrapped, so that a change ends with the reading.
        """
        if module in _OF_RECORDS and name in _RECORDS:
            return _RECORDS[name]
        if (module, name) == (_METADATA_MODULE, "_MEM_FORMAT_ENCODING"):
            return partial(_MEM_FORMAT_ENCODING)
        if (module, name) == ("torch.serialization", "_get_layout"):
            return partial(super().find_class(module, name))
        if (module, name) == ("torch", "Size"):
            return torch.Size
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if module in ("builtins", "collections") and name in _CONTAINERS:
            return _CONTAINERS[name]
        if module in ("pathlib", "pathlib._local") and name.endswith("Path"):
            return partial(os.path.join)  # the text of a path is all that is needed
        raise pickle.UnpicklingError(f"{module}.{name}")


def _tensor_files(path: Path) -> dict[str, int]:
    """The files of tensors in a folder, with their bytes: a name that is not here leads elsewhere, or nowhere."""
    with os.scandir(path) as entries:
        return {one.name: one.stat().st_size for one in entries if one.name.endswith(TENSOR_SUFFIX) and one.is_file()}


# These make torch's records of stand-ins; each raises ValueError, one clause, if something is not as torch writes it.


def _metadata(found: Any, files: Mapping[str, int]) -> Metadata:
    said = _fields(
        found,
        "Metadata",
        state_dict_metadata=(dict,),
        planner_data=(dict,),
        storage_data=(dict,),
        storage_meta=(_RECORDS["StorageMeta"], NoneType),
        version=(str, NoneType),
    )
    values = {_text(name): _value(one) for name, one in said["state_dict_metadata"].items()}
    stored = {}
    for index, info in said["storage_data"].items():
        place = _fields(index, "MetadataIndex", fqn=(str,), offset=(torch.Size, NoneType), index=(int, NoneType))
        stored[MetadataIndex(_text(place["fqn"]), place["offset"], place["index"])] = _storage_info(info, files)
    there = {(index.fqn, tuple(index.offset or ())) for index in stored}
    for name, one in values.items():
        offsets = [tuple(chunk.offsets) for chunk in getattr(one, "chunks", ())]
        lacking = [offset for offset in offsets if (name, offset) not in there]
        if lacking:
            raise ValueError(f"does not say where the chunk of {brief(name)} at {lacking[0]} is")
    keys = said["planner_data"]
    if not keys or not all(map(_is_key, keys.values())) or len(set(keys.values())) < len(keys):
        raise ValueError("does not say where values stood in the saved state")
    unknown = keys.keys() - (values.keys() & {fqn for fqn, _ in there})
    if unknown:
        raise ValueError(f"does not say what and where {brief(min(unknown, key=repr))} is")
    return Metadata(values, keys, stored, _storage_meta(said["storage_meta"]), said["version"])


def _is_key(key: Any) -> bool:
    return isinstance(key, tuple) and bool(key) and all(isinstance(one, str | int) for one in key)


def _value(found: Any) -> TensorStorageMetadata | BytesStorageMetadata:
    if isinstance(found, _RECORDS["BytesStorageMetadata"]):
        _fields(found, "BytesStorageMetadata")
        return BytesStorageMetadata()
    said = _fields(
        found,
        "TensorStorageMetadata",
        properties=(_RECORDS["TensorProperties"],),
        size=(torch.Size,),
        chunks=(list,),
    )
    properties = _properties(said["properties"])
    if min(said["size"], default=0) < 0 or prod(said["size"]) * properties.dtype.itemsize > _MAX_BYTES:
        raise ValueError(f"names a tensor of the size {brief(tuple(said['size']))}")
    return TensorStorageMetadata(properties, said["size"], [_chunk(one, said["size"]) for one in said["chunks"]])


def _chunk(found: Any, size: torch.Size) -> ChunkStorageMetadata:
    said = _fields(found, "ChunkStorageMetadata", offsets=(torch.Size,), sizes=(torch.Size,))
    begins, sizes = said["offsets"], said["sizes"]
    fits = len(begins) == len(sizes) == len(size) and min((*begins, *sizes), default=0) >= 0
    if not fits or any(begin + own > all_ for begin, own, all_ in zip(begins, sizes, size, strict=True)):
        raise ValueError(f"names a chunk that is not of its tensor ({brief(tuple(begins))} + {brief(tuple(sizes))})")
    return ChunkStorageMetadata(begins, sizes)


def _properties(found: Any) -> TensorProperties:
    said, kinds = found.state, (torch.dtype, torch.layout, bool, _MEM_FORMAT_ENCODING, bool)
    is_right = isinstance(said, tuple) and len(said) == len(kinds)
    if not is_right or not all(isinstance(one, kind) for one, kind in zip(said, kinds, strict=True)):
        raise ValueError(f"names a tensor of the properties {brief(said)}")
    properties = TensorProperties()
    properties.__setstate__(said)  # type: ignore[no-untyped-call]
    return properties


def _storage_info(found: Any, files: Mapping[str, int]) -> _StorageInfo:
    said = _fields(
        found,
        "_StorageInfo",
        relative_path=(str,),
        offset=(int,),
        length=(int,),
        transform_descriptors=(list, tuple, NoneType),
    )
    name, begin, length = said["relative_path"], said["offset"], said["length"]
    if name not in files:
        raise ValueError(f"names the file {brief(name)}, which is not a {TENSOR_SUFFIX} file of its folder")
    if min(begin, length) < 0 or begin + length > files[name]:
        raise ValueError(
            f"names the bytes from {brief(begin)}, {brief(length)} of them, of {brief(name)}, which has "
            f"{files[name]:,} bytes"
        )
    encoding = said["transform_descriptors"]
    if encoding is not None and not all(isinstance(one, str) for one in encoding):
        raise ValueError(f"names the encoding {brief(encoding)}")
    return _StorageInfo(name, begin, length, encoding)


def _storage_meta(found: Any) -> StorageMeta | None:
    if found is None:
        return None
    texts = dict.fromkeys(("checkpoint_id", "save_id", "load_id"), (str, NoneType))
    said = _fields(found, "StorageMeta", **texts, modules=(list, NoneType))
    modules = said["modules"] or []
    if not all(isinstance(one, str) for one in modules):
        raise ValueError(f"names the modules {brief(modules)}")
    return StorageMeta(**{**said, "modules": modules})


def _fields(found: Any, kind: str, **types: tuple[type, ...]) -> dict[str, Any]:
    """What is said of an object, each value of a type that it may have; what may be lacking is None."""
    if not isinstance(found, _RECORDS[kind]):
        raise ValueError(f"holds {brief(found)} in place of a {kind}")
    said = {} if found.state is None else found.state
    if not isinstance(said, dict) or not said.keys() <= types.keys():
        raise ValueError(f"holds a {kind} of other fields, or of a newer torch")
    for name, allowed in types.items():
        value = said.get(name)
        if not isinstance(value, allowed) or isinstance(value, bool):
            raise ValueError(f"holds a {kind} whose {name} is {brief(value)}")
    return {name: said.get(name) for name in types}


def _text(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError(f"names a value {brief(name)}")
    return name
