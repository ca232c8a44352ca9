"""The release command: what dist/ then holds, what it refuses, and that a step which fails leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evenshard.version import __version__
from support.repository import ROOT, git

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a release is made of a commit")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A checkout of the last commit, with the files of this one in their place."""
    git(tmp_path, "clone", "--quiet", "--no-hardlinks", "--depth", "1", f"file://{ROOT}", "clone")
    shutil.copy(ROOT / "tools/release.py", tmp_path / "clone/tools/release.py")
    return tmp_path / "clone"


def release(clone: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, "tools/release.py", *flags]
    return subprocess.run(words, cwd=clone, env=variables, capture_output=True, text=True)


def leftovers(clone: Path) -> list[str]:
    return [path.name for path in clone.iterdir() if path.name == "dist" or path.name.startswith(".release-")]


@pytest.mark.slow
def test_what_is_no_release_is_refused_on_one_line(clone: Path) -> None:
    changes = clone / "CHANGELOG.md"
    changes.write_text(f"# Changelog\n\n## Unreleased\n\n## {__version__}\n")
    assert "there are uncommitted changes" in refused(clone)
    git(clone, "commit", "--quiet", "--all", "--message", "changes")
    assert f"begins with 'Unreleased', but the version is {__version__}" in refused(clone)
    (clone / "dist").mkdir()
    assert "dist/ is not a release" in refused(clone, "--draft")
    assert leftovers(clone) == ["dist"] and not list((clone / "dist").iterdir())


def refused(clone: Path, *flags: str) -> str:
    done = release(clone, *flags)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr
