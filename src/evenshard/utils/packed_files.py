"""Gzipped files from elsewhere, unpacked up to a limit: they may hold a thousand times their size."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from evenshard.utils.errors import BadFile
from evenshard.utils.messages import reason_of
from evenshard.utils.scratch import scratch_folder

# Limits of a gzipped file; recorded batches unpack to two to ten times their size, traces to twenty times theirs.
MAX_UNPACKED_BYTES, MAX_UNPACKED_RATIO = 64 * 2**30, 100
# A file may unpack to this much whatever its size.
ALWAYS_UNPACKED_BYTES = 64 * 2**20
_CHUNK_BYTES = 16 * 2**20
_FETCH_AGAIN = "Save or fetch the file again."


class UnpackLimit:
    """The bytes that a file may unpack to, with all that is packed inside of it.

    Args:
        path: the file, as the user knows it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._packed_bytes = path.stat().st_size
        self._left = self._most = min(
            MAX_UNPACKED_BYTES, max(ALWAYS_UNPACKED_BYTES, MAX_UNPACKED_RATIO * self._packed_bytes)
        )

    def take(self, num_bytes: int) -> None:
        """Counts unpacked bytes.

        Raises:
            BadFile: if there are more of them than recorded data unpacks to.
        """
        self._left -= num_bytes
        if self._left < 0:
            problem = f"unpacks to more than {self._most / 2**20:,.0f} MB, from {self._packed_bytes:,} bytes"
            raise BadFile(self.path, problem, "Unpack it yourself if that is right, and name the unpacked file.")


class UnpackedFile(gzip.GzipFile):
    """The content of a gzipped file, read in pieces.

    Args:
        packed: what is gzipped, at its begin.
        limit: counts what is read.
    """

    def __init__(self, packed: IO[bytes], limit: UnpackLimit) -> None:
        super().__init__(fileobj=packed, mode="rb")
        self._limit = limit

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes; see ``gzip.GzipFile``.

        Raises:
            BadFile: beyond the limit.
        """
        piece = super().read(size)
        self._limit.take(len(piece))
        return piece


def is_gzipped(path: Path) -> bool:
    """Whether a file begins as gzip does."""
    with path.open("rb") as file:
        return begins_gzipped(file.read(2))


def begins_gzipped(content: bytes) -> bool:
    """Whether this is the begin of what gzip writes."""
    return content.startswith(b"\x1f\x8b")


@contextmanager
def unpack_file(path: Path, is_packed: bool = True) -> Iterator[Path]:
    """A file with the content of a gzipped one, which is removed when the block ends; the file itself if it is none.

    Raises:
        BadFile: if it is damaged, or unpacks to more than recorded lookups can.
    """
    if not is_packed:
        yield path
        return
    with scratch_folder() as folder:
        target = folder / path.name.removesuffix(".gz")
        try:
            with (
                path.open("rb") as packed,
                UnpackedFile(packed, UnpackLimit(path)) as file,
                target.open("wb") as content,
            ):
                while chunk := file.read(_CHUNK_BYTES):
                    content.write(chunk)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise BadFile(path, f"cannot be unpacked ({reason_of(error)})", _FETCH_AGAIN) from None
        yield target
