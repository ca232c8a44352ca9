"""Where does a file with this content lie? In a folder of data, or in DVC's cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

DVC_CACHE = Path(".dvc/cache/files/md5")
PARQUET = b"PAR1"


def find_by_hash(sha256: str, folders: Sequence[Path], md5: str = "") -> Path | None:
    """The first Parquet file with this SHA-256, or None.

    Args:
        folders: looked through with all that is in them, before DVC's cache.
        md5: what DVC calls the file; without it, all of the cache is read.
    """
    for path in _candidates(folders, md5):
        if _sha256(path) == sha256:
            return path
    return None


def _candidates(folders: Sequence[Path], md5: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(folder.rglob("*.parquet"))
    if md5:
        yield from (path for path in (DVC_CACHE / md5[:2] / md5[2:],) if path.is_file())
    else:
        yield from (path for path in sorted(DVC_CACHE.glob("*/*")) if path.is_file() and _starts(path) == PARQUET)


def _starts(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(PARQUET))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
