"""Provenance of outputs: the git commit and a hash of the parameters."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenshard.base.messages import UNKNOWN
from evenshard.base.outputs import HARDWARE_FILE, REPORT, REPORTS
from evenshard.version import __version__

# Files that a run of the loop writes for the user to commit; changes of these do not make a commit dirty.
RESULT = tuple(map(Path, ("dvc.lock", HARDWARE_FILE, *(f"{REPORTS}/{name}" for name in REPORT.in_git))))


@dataclass(frozen=True)
class Lineage:
    """Provenance of an output: the git commit, the SHA-256 of params.yaml, and evenshard's version.

    The commit has 40 hex digits, followed by "-dirty" if tracked files were changed, other than results (``RESULT``).
    """

    git_commit: str = UNKNOWN
    params_hash: str = UNKNOWN
    evenshard_version: str = __version__

    @staticmethod
    def current(params: Mapping[str, Any]) -> Lineage:
        """Return the lineage of the current run with these parameters."""
        return Lineage(git_commit(), params_hash(params))


def params_hash(params: Mapping[str, Any]) -> str:
    """Return the SHA-256 of parameters, independent of the order of keys."""
    return hashlib.sha256(json.dumps(params, sort_keys=True, default=str).encode()).hexdigest()


def git_commit(folder: Path | None = None, made: Sequence[Path] = RESULT) -> str:
    """Return the commit checked out in ``folder`` (default: the working directory); see ``Lineage``.

    Args:
        made: generated files and folders, relative to ``folder``, whose changes do not make the commit dirty.
    """
    here = (folder or Path()).resolve()

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    # ``git`` has ten seconds per call, so that a hanging file system does not block a run.
    try:
        top = Path(git("rev-parse", "--show-toplevel"))
        paths = [here / path for path in made]
        inside = [path.relative_to(top) for path in map(Path.resolve, paths) if path.is_relative_to(top)]
        others = [f":(top,exclude){path.as_posix()}" for path in inside]
        dirty = bool(git("status", "--porcelain", "--untracked-files=no", "--", ":/", *others))
        return git("rev-parse", "HEAD") + ("-dirty" if dirty else "")
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
