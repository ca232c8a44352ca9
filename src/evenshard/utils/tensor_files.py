"""A reader of tensor files from elsewhere: as data alone, and no more than the file really holds.

A file of torch.save is a pickle, which could run code, in a zip archive, which could unpack to a thousand times its
size, and a tensor in it may claim a billion values where there is one. Recorded batches also come gzipped.
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

from evenshard.utils.errors import BadFile
from evenshard.utils.messages import reason_of

MAX_UNPACKED_BYTES, MAX_UNPACKED_RATIO = 64 * 2**30, 100
"""Of a gzipped file; recorded batches unpack to two to ten times their size."""
ALWAYS_UNPACKED_BYTES = 64 * 2**20
"""What is small may unpack to so much, whatever its size."""
_CHUNK_BYTES = 16 * 2**20
_FETCH_AGAIN = "Save or fetch the file again."


def is_gzipped(path: Path) -> bool:
    """Whether a file begins as gzip does."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def unpack(path: Path, target: IO[bytes]) -> None:
    """Writes what a gzipped file holds.

    Raises:
        BadFile: if it is damaged, or unpacks to more than recorded lookups can.
    """
    most = min(MAX_UNPACKED_BYTES, max(ALWAYS_UNPACKED_BYTES, MAX_UNPACKED_RATIO * path.stat().st_size))
    num_bytes = 0
    try:
        with gzip.open(path) as packed:
            while chunk := packed.read(_CHUNK_BYTES):
                num_bytes += len(chunk)
                if num_bytes > most:
                    problem = f"unpacks to more than {most / 2**20:,.0f} MB, from {path.stat().st_size:,} bytes"
                    raise BadFile(path, problem, "Unpack it yourself if that is right, and name the unpacked file.")
                target.write(chunk)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadFile(path, f"cannot be unpacked ({reason_of(error)})", _FETCH_AGAIN) from None


def load_tensors(path: Path, source: Path | IO[bytes] | None = None, mmap: bool = False) -> Any:
    """What torch.save wrote.

    Args:
        path: path that the user knows.
        source: file that is read, if it is another one, such as an unpacked one.
        mmap: keep the tensors on disk until they are touched; needs a path, and a file of torch 1.6 or newer.

    Raises:
        BadFile: if it is torn, or holds anything but plain data.
    """
    import torch

    source = path if source is None else source
    try:
        if is_bomb(source):
            raise BadFile(path, "unpacks to more than its size, which torch.save never does", _FETCH_AGAIN)
        # weights_only: a pickle from elsewhere must not be able to run code.
        return torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)
    except BadFile:
        raise
    except MemoryError:
        raise BadFile(path, "does not fit into memory", "Use a machine with more, or a smaller sample.") from None
    except (
        Exception
    ) as error:  # torn bytes make torch raise nearly anything, with advice that is not for data of others
        problem = f"cannot be read as tensors that torch.save wrote ({type(error).__name__})"
        raise BadFile(path, problem, _FETCH_AGAIN) from None


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


def is_bomb(source: Path | IO[bytes]) -> bool:
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
