"""How this evenshard was installed, and the words of a command that work from there."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

# The variable that the Dockerfile sets in its images, where nothing can be installed.
IMAGE_MARK = "EVENSHARD_IN_IMAGE"
_NAME = "evenshard"


def in_image() -> bool:
    """Whether this runs in an image of the Dockerfile."""
    return bool(os.environ.get(IMAGE_MARK))


def checkout() -> Path | None:
    """The root of the repository (or of an unpacked sdist) that this code runs from; None for an installed copy."""
    root = Path(__file__).parents[3]
    files = [root / "pyproject.toml", root / "Makefile", root / "src" / _NAME / "version.py"]
    return root if all(file.is_file() for file in files) else None


def pip_words(extra: str) -> str:
    """What ``pip install`` is given for an extra, quoted for a shell, such as ``'evenshard[mlops]'``.

    A wheel, a folder or an address that evenshard was installed from is named again. Where that is gone, the packages
    of the extra are named themselves.
    """
    root = checkout()
    if root is not None:
        folder = "." if root == Path.cwd() else str(root)
        return f"--editable {shlex.quote(f'{folder}[{extra}]')}"
    try:
        installed = distribution(_NAME)
    except PackageNotFoundError:
        return shlex.quote(f"{_NAME}[{extra}]")
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    url = str(origin.get("url", ""))
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        return shlex.quote(f"{_NAME}[{extra}] @ {vcs['vcs']}+{url}@{vcs['commit_id']}")
    if not url.startswith("file:"):
        return shlex.quote(f"{_NAME}[{extra}] @ {url}" if url else f"{_NAME}[{extra}]")
    path = Path(url2pathname(urlsplit(url).path))
    if path.exists():
        return shlex.quote(f"{path}[{extra}]")
    return " ".join(map(shlex.quote, sorted(set(_requirements(installed.requires or (), extra)))))


def how_to_train() -> str:
    """The command that trains a model, in backquotes."""
    return "`evenshard pipeline run`" if checkout() is None else "`make run`"


def _requirements(lines: Sequence[str], extras: str) -> Iterator[str]:
    for line in lines:
        requirement, _, marker = (part.strip() for part in line.partition(";"))
        wanted = re.fullmatch(r"""extra == ["']([\w-]+)["']""", marker)
        if wanted is None or wanted[1] not in extras.split(","):
            continue
        own = re.fullmatch(rf"{_NAME}\[(.*)\]", requirement)
        if own is None:
            yield requirement
        else:
            yield from _requirements(lines, own[1])
