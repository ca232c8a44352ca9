"""A file found by its content hash, in a folder of data or in DVC's cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from evenshard.utils.provenance import sha256_of

DVC_CACHE = Path(".dvc/cache/files/md5")
PARQUET = b"PAR1"


class StoredFiles:
    """Parquet files of some folders and of DVC's cache. Each is read once, however many hashes are asked for."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """``folders`` are looked through with all that is in them, before DVC's cache."""
        self._folders = tuple(folders)
        self._sha256: dict[Path, str] = {}

    def find(self, sha256: str, md5: str = "") -> Path | None:
        """The first file with this SHA-256, or None.

        Args:
            md5: DVC's hash of the file; without it, all of the cache is read.
        """
        for path in self._candidates(md5):
            if path not in self._sha256:
                self._sha256[path] = sha256_of(path)
            if self._sha256[path] == sha256:
                return path
        return None

    def _candidates(self, md5: str) -> Iterator[Path]:
        for folder in self._folders:
            yield from (path for path in sorted(folder.rglob("*.parquet")) if path.is_file())  # Spark writes folders
        if md5:
            yield from (path for path in (DVC_CACHE / md5[:2] / md5[2:],) if path.is_file())
        else:
            yield from (path for path in sorted(DVC_CACHE.glob("*/*")) if path.is_file() and _starts(path) == PARQUET)


def _starts(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(PARQUET))
