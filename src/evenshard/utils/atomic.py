"""Files and folders that appear whole or not at all; leftovers of killed commands are tidied up.

What is written lies beside its place, as ``.evenshard-1a2b3c4d.cost_net``, until it is whole and on the disk; then the
file system puts it there in one step. Where it cannot exchange two folders in one step, the old one is set aside as
``.evenshard-1a2b3c4d-old.cost_net`` for the moment between two steps. Every writer holds a shared lock on the folder
around; so whoever gets the exclusive lock knows that what has such a name was left by a command that was killed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from os import PathLike
from pathlib import Path

from evenshard.utils.outputs import ANY_FOLDER, File, Folder, follow_links, names_below

PATIENCE_S = 1.0  # with others who tidy up, which takes them milliseconds
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # as linux/fcntl.h and linux/fs.h have them
_CANNOT_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM, errno.EXDEV}
"""What kernels, file systems and sandboxes say that do not know it."""
_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}


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
        BadFile: something else stands at ``path`` and would be lost; see ``evenshard.utils.outputs``.
        FileNotFoundError: the block ended well but wrote nothing.
    """
    target = follow_links(Path(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = _beside(target)
    with _writing(target):
        try:
            yield draft
            if draft.is_dir():
                kind.require(Path(path), frozenset(names_below(draft)))
                _flush_folder(draft)
                _replace_folder(draft, target)
            else:
                File().require(Path(path))
                _flush(draft)
                os.replace(draft, target)
                _flush(target.parent)
        except OSError as error:
            if error.filename is not None and Path(error.filename) == draft:  # the user never sees the temporary name
                raise type(error)(error.errno, error.strerror, str(path)) from error
            raise
        finally:
            with suppress(OSError):  # whoever writes next tries again
                _remove(draft)


def tidy_up(path: Path) -> None:
    """Removes what killed commands have left of ``path``, and puts back what they had set aside."""
    target = follow_links(path)
    if target.parent.is_dir():
        with _writing(target):
            pass


def _replace_folder(draft: Path, target: Path) -> None:
    """At every moment the old folder or the new one stands there, but where two cannot be exchanged in one step.

    Afterwards the old one has the name of the draft.
    """
    try:
        os.rename(draft, target)  # where nothing stands there, or an empty folder
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not _exchange(draft, target):
            old = _beside(target, "-old")
            os.rename(target, old)
            try:
                os.rename(draft, target)
            except BaseException:
                os.rename(old, target)
                raise
            os.rename(old, draft)
    _flush(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Lets two paths change places in one step; False where that cannot be done here."""
    rename = _renameat2()
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(other))


@cache
def _renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    """Python has no function for it; None where the C library has none either."""
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    found: Callable[[int, bytes, int, bytes, int], int] = function
    return found


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Holds the lock of a writer within the block, and tidies up before it where no other process is writing.

    Where a folder cannot be read or locked (some network file systems), nothing is tidied up.
    """
    try:
        descriptor = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        yield
        return
    try:
        if _locked(descriptor, fcntl.LOCK_EX):
            _tidy_up(target)
        give_up = time.monotonic() + PATIENCE_S
        while not _locked(descriptor, fcntl.LOCK_SH) and time.monotonic() < give_up:
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _tidy_up(target: Path) -> None:
    left = re.compile(rf"(\.evenshard-[0-9a-f]{{8}}(-old)?\.)+{re.escape(target.name)}")
    names = [name for name in os.listdir(target.parent) if name.startswith(".evenshard-")]
    found = [target.with_name(name) for name in names if left.fullmatch(name)]
    with suppress(OSError):  # what cannot be removed today is removed another day
        set_aside = [one for one in found if one.name[len(".evenshard-1a2b3c4d") :] == f"-old.{target.name}"]
        if set_aside and not os.path.lexists(target):
            os.rename(max(set_aside, key=lambda one: one.stat().st_ctime), target)
        for one in found:
            _remove(one)


def _beside(target: Path, mark: str = "") -> Path:
    return target.with_name(f".evenshard-{secrets.token_hex(4)}{mark}.{target.name}")


def _flush_folder(folder: Path) -> None:
    for where, _, files in os.walk(folder, topdown=False):
        for name in files:
            if not os.path.islink(os.path.join(where, name)):
                _flush(Path(where, name))
        _flush(Path(where))


def _flush(path: Path) -> None:
    """Without it, a power cut soon after the rename can leave the new name with empty content, or the old name."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:  # a folder that may be written but not read
        if path.is_dir():
            return
        raise
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
