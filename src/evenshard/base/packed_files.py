"""Gzipped files, unpacked up to a limit."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evenshard.base.errors import BadFile
from evenshard.base.messages import reason_of
from evenshard.base.outputs import scratch_folder

# Largest content of a gzipped file.
MAX_UNPACKED_BYTES = 64 * 2**30
_CHUNK_BYTES = 16 * 2**20


def is_gzipped(path: Path) -> bool:
    """Return whether a file begins as gzip does."""
    with path.open("rb") as file:
        return begins_gzipped(file.read(2))


def begins_gzipped(content: bytes) -> bool:
    """Return whether this is the begin of a gzipped file."""
    return content.startswith(b"\x1f\x8b")


@contextmanager
def unpack_file(path: Path, is_packed: bool = True) -> Iterator[Path]:
    """Give a file with the content of a gzipped one, which is removed when the block ends; or the file itself.

    Raises:
        BadFile: if it is damaged, or unpacks to more than ``MAX_UNPACKED_BYTES``.
    """
    if not is_packed:
        yield path
        return
    with scratch_folder() as folder:
        target = folder / path.name.removesuffix(".gz")
        try:
            with gzip.open(path) as file, target.open("wb") as content:
                while chunk := file.read(_CHUNK_BYTES):
                    content.write(chunk)
                    if content.tell() > MAX_UNPACKED_BYTES:
                        problem = f"unpacks to more than {MAX_UNPACKED_BYTES / 2**30:,.2g} GB"
                        raise BadFile(path, problem, "Use a smaller sample.")
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            problem = f"cannot be unpacked ({reason_of(error)})"
            raise BadFile(path, problem, "Save or fetch the file again.") from None
        yield target
