"""A reader of tensor files from elsewhere: as data alone, and no more than the file really holds.

A file of torch.save is a pickle, which could run code, in a zip archive, which could unpack to a thousand times its
size, and a tensor in it may claim a billion values where there is one.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO, Any

from evenshard.utils.errors import BadFile


def load_tensors(path: Path, source: Path | IO[bytes] | None = None, mmap: bool = False) -> Any:
    """Reads what torch.save wrote.

    Args:
        path: path that the user knows.
        source: file that is read, if it is another one, such as an unpacked one.
        mmap: keep the tensors on disk until they are touched; needs a path, and a file of torch 1.6 or newer.

    Raises:
        BadFile: if it is torn, or holds anything but plain data.
    """
    try:
        return read_tensors(path if source is None else source, mmap)
    except MemoryError:
        raise BadFile(path, "does not fit into memory", "Use a machine with more, or a smaller sample.") from None
    except ValueError as error:
        raise BadFile(path, str(error), "Save or fetch the file again.") from None


def read_tensors(source: Path | IO[bytes], mmap: bool = False) -> Any:
    """Reads what torch.save wrote, with an error that does not name the file.

    Raises:
        ValueError: if it is torn, or holds anything but plain data; one line.
    """
    import torch

    if _is_bomb(source):
        raise ValueError("unpacks to more than its size, which torch.save never does")
    try:
        # weights_only: a pickle from elsewhere must not be able to run code.
        return torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)
    except (MemoryError, FileNotFoundError):
        raise
    except Exception:  # torn bytes make torch raise nearly anything, with advice that is not for data of others
        raise ValueError("cannot be read: it is torn, or holds more than tensors") from None


def not_integers(value: Any) -> str | None:
    """Says in one clause why a value is not a tensor of whole numbers that the file holds; None if it is."""
    import torch

    if not isinstance(value, torch.Tensor):
        return f"is a {type(value).__name__}, not a tensor"
    integers = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    if value.dtype not in integers or value.layout != torch.strided:
        return f"holds {value.dtype} ({value.layout}), not plain integers"
    if value.device.type != "cpu" or value.numel() * value.element_size() > value.untyped_storage().nbytes():
        return f"claims {value.numel():,} values, more than the file holds"
    return None


def _is_bomb(source: Path | IO[bytes]) -> bool:
    """Whether the parts of a zip archive are larger than the archive: torch.save packs nothing."""
    try:
        with zipfile.ZipFile(source) as archive:
            num_bytes = sum(part.file_size for part in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, UnicodeDecodeError):
        num_bytes = 0  # files of torch before 1.6 are not archives; what is torn, torch finds out
    if isinstance(source, Path):
        return num_bytes > source.stat().st_size
    size = source.seek(0, 2)
    source.seek(0)
    return num_bytes > size
