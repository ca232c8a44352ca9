"""What belongs to a folder on S3? Names, sizes and SHA-256 of its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from evenshard.errors import BadFile
from evenshard.lineage import sha256_of

MANIFEST = "evenshard-manifest.json"
FILES = "files"
_SCHEMA = 1


@dataclass(frozen=True)
class StoredFile:
    """One file of a folder.

    Attributes:
        path: below the folder, with "/" between its parts.
        size_bytes: its length.
        sha256: 64 hex digits.
    """

    path: str
    size_bytes: int
    sha256: str

    @property
    def blob(self) -> str:
        """Where its content is, below the folder's address."""
        return f"{FILES}/{self.sha256}"


@dataclass(frozen=True)
class Manifest:
    """The files of a folder, in the order of their paths."""

    files: tuple[StoredFile, ...]

    @staticmethod
    def of(folder: Path) -> Manifest:
        """Reads every file below ``folder`` once.

        Raises:
            BadFile: something in it would not come back: a link to a folder or to nothing, a pipe, an odd name.
        """
        paths = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
        for path in paths:
            if not path.is_file():
                remedy = "Put the files themselves there, or take it away."
                raise BadFile(path, "is no file, and no link to one", remedy)
        manifest = Manifest(tuple(stored(path, path.relative_to(folder).as_posix()) for path in paths))
        if problem := _problem(manifest.files):
            raise BadFile(folder, problem, "Rename it.")
        return manifest

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(one.size_bytes for one in self.files)

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest: folders of equal content have equal ones."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def to_json(self) -> bytes:
        """As it stands on S3."""
        content = {"schema": _SCHEMA, "files": [asdict(one) for one in self.files]}
        return (json.dumps(content, indent=1) + "\n").encode()

    @staticmethod
    def from_json(content: bytes, where: str) -> Manifest:
        """Reads what ``to_json`` has written.

        Args:
            where: it comes from, for messages.

        Raises:
            BadFile: it is no manifest, or a path leads out of the folder.
        """
        remedy = "Upload the folder again."
        try:
            found: Any = json.loads(content)
            files = tuple(StoredFile(**one) for one in found["files"])
            problem = None if found["schema"] == _SCHEMA else f"its schema is {found['schema']}, not {_SCHEMA}"
            problem = problem or _problem(files)
        except (ValueError, KeyError, TypeError) as error:
            problem = f"not readable as a manifest ({error})"
        if problem is not None:
            raise BadFile(where, problem, remedy)
        return Manifest(files)


def stored(path: Path, name: str) -> StoredFile:
    """What a file on disk holds."""
    return StoredFile(name, path.stat().st_size, sha256_of(path))


def _problem(files: Iterable[StoredFile]) -> str | None:
    """A manifest may come from anybody who can write to the bucket."""
    seen: set[str] = set()
    folders: set[str] = set()
    for one in files:
        path = PurePosixPath(one.path)
        odd = "\\" in one.path or "\0" in one.path
        if odd or path.is_absolute() or ".." in path.parts or str(path) != one.path or not path.name:
            return f"path {one.path!r} is no plain path below the folder"
        if one.path in seen:
            return f"path {one.path!r} is there twice"
        if not isinstance(one.size_bytes, int) or one.size_bytes < 0 or not _is_sha256(one.sha256):
            return f"size or SHA-256 of {one.path!r} is impossible"
        seen.add(one.path)
        folders.update(str(folder) for folder in path.parents)
    if both := seen & folders:
        return f"path {min(both)!r} is a file and a folder"
    return None


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")
