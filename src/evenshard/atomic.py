"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path


@contextmanager
def atomic_path(path: str | PathLike[str]) -> Iterator[Path]:
    """Gives a temporary path to write to; it becomes ``path`` when the block ends well.

    The temporary name lies in the same folder (made if missing) and ends like ``path``, so that writers that choose
    a format by suffix choose the same. If the block raises, whatever was written is removed and an older ``path`` stays
    as it was. The block may also make a folder of the temporary path; it then replaces an older folder as a whole.

    Raises:
        FileNotFoundError: the block ended well but wrote nothing.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{secrets.token_hex(4)}.{target.name}")
    try:
        yield draft
        replace_path(draft, target)
    except OSError as error:
        if error.filename is not None and Path(error.filename) == draft:  # nobody knows the temporary name
            raise type(error)(error.errno, error.strerror, str(target)) from error
        raise
    finally:
        _remove(draft)


def replace_path(draft: Path, target: Path) -> None:
    """Puts a finished file or folder in the place of an older one; both must be on the same disk.

    Raises:
        FileNotFoundError: there is no draft.
    """
    if draft.is_dir():
        _replace_directory(draft, target)
    else:
        _flush_to_disk(draft)
        os.replace(draft, target)


def _replace_directory(draft: Path, target: Path) -> None:
    """Puts a folder in the place of an older one, which a plain rename cannot do."""
    retired = target.with_name(f".{secrets.token_hex(4)}.{target.name}")
    try:
        os.replace(target, retired)
    except FileNotFoundError:
        os.replace(draft, target)
        return
    try:
        os.replace(draft, target)
    except BaseException:
        os.replace(retired, target)
        raise
    _remove(retired)


def _flush_to_disk(path: Path) -> None:
    """Without it, a power cut soon after the rename can leave the new name with empty content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
