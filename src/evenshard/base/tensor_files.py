"""A reader of tensor files from other programs: as data alone, since a pickle could run code."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

from evenshard.base.errors import BadFile


def load_tensors(path: Path, source: Path | IO[bytes] | None = None, mmap: bool = False) -> Any:
    """Read a file of torch.save.

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
    """Read a file of torch.save, with an error that does not name the file.

    Raises:
        ValueError: if it is torn, or holds anything but plain data; one line.
    """
    import torch

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
