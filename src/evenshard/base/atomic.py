"""Files and folders that appear whole or not at all, and temporary folders.

What is written lies beside its place, as ``.evenshard-1a2b3c4d5e6f.cost_net``, until it is whole and on the disk; then
it is renamed into its place. A folder that stood there before is set aside for the moment between two renames, as
``.evenshard-7a8b9c0d1e2f-old.cost_net``. A command that is killed may leave such names behind, and nothing removes
them; where that happens between the two renames, the old folder and the new one both stand there, whole.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory

from evenshard.base.outputs import ANY_FOLDER, File, Folder, follow_links, names_below

# Errors of file systems that cannot sync.
_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}
# Errors of a write without space: on the disk, in the quota, or within the largest size of a file.
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def atomic_path(path: str | PathLike[str], kind: Folder = ANY_FOLDER) -> Iterator[Path]:
    """Gives a temporary path to write to; it becomes ``path`` when the block ends well.

    The temporary name lies in the same folder (made if missing) and ends like ``path``, so that writers that choose
    a format by suffix choose the same. If the block raises, whatever was written is removed and an older ``path`` stays
    as it was. The block may also make a folder of the temporary path; it then replaces an older folder as a whole.
    Where ``path`` is a link, what it leads to is written.

    Args:
        kind: kind of the folder that the block makes, if it makes one.

    Raises:
        BadFile: something else stands at ``path`` and would be lost; see ``evenshard.base.outputs``.
        FileNotFoundError: the block ended well but wrote nothing.
        OSError: the disk is full, or something else failed; the error names ``path``.
    """
    target = follow_links(Path(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = _beside(target)
    try:
        with name_full_disk(path, draft):
            yield draft
            if draft.is_dir():
                kind.require(Path(path), frozenset(names_below(draft)))
                _flush_folder(draft)
                _replace_folder(draft, target)
            else:
                File().require(Path(path))
                _flush(draft)
                os.replace(draft, target)
            _flush_names(target.parent)
    except OSError as error:
        if error.filename is not None and Path(error.filename) == draft:  # the user never sees the temporary name
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            with suppress(OSError):
                draft.unlink()


@contextmanager
def name_full_disk(path: str | PathLike[str], draft: Path | None = None) -> Iterator[None]:
    """Name the file in the error of a write without space, which libraries bury below errors of their own.

    Args:
        path: file that the block writes.
        draft: its temporary name, if it has one.

    Raises:
        OSError: in place of any error that such an error led to.
    """
    try:
        yield
    except Exception as error:
        chain: list[BaseException] = [error]
        while below := chain[-1].__cause__ or chain[-1].__context__:
            chain.append(below)
        full = next((one for one in chain if isinstance(one, OSError) and one.errno in _NO_SPACE), None)
        if full is None:
            raise
        named = full.filename
        if named is None or (draft is not None and Path(named).is_relative_to(draft)):
            named = str(path)
        raise OSError(full.errno, os.strerror(full.errno or 0), named) from error


def _beside(target: Path, mark: str = "") -> Path:
    return target.with_name(f".evenshard-{secrets.token_hex(6)}{mark}.{target.name}")


def _replace_folder(draft: Path, target: Path) -> None:
    try:
        os.rename(draft, target)  # where nothing stands there, or an empty folder
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    old = _beside(target, "-old")
    os.rename(target, old)
    try:
        os.rename(draft, target)
    except BaseException:
        os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _flush_folder(folder: Path) -> None:
    for where, _, files in os.walk(folder, topdown=False):
        for name in files:
            if not os.path.islink(os.path.join(where, name)):
                _flush(Path(where, name))
        _flush_names(Path(where))


def _flush_names(folder: Path) -> None:
    with suppress(PermissionError):  # a folder that may be written but not read
        _flush(folder)


def _flush(path: Path) -> None:
    """Forces content to the disk; else a power cut soon after the rename can leave a name with empty or old content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder in the system's temporary folder (TMPDIR), which is removed when the block ends."""
    with TemporaryDirectory(prefix="evenshard-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
