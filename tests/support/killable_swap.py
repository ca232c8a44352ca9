"""Replaces a folder again and again, killed at the first, second, third, ... step, until it is done; prints what stood.

Run by test_atomic.py in an empty working directory: python killable_swap.py
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from evenshard.utils.atomic import atomic_path

NAMES = ("a", "b", "deep/c")
STEPS = ("os.", "shutil.", "open")


def write(folder: Path, content: str) -> None:
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def replace(target: Path, kill_at: int) -> None:
    """Never returns if there are so many steps."""
    steps = 0

    def count(event: str, arguments: object) -> None:
        nonlocal steps
        if event.startswith(STEPS):
            steps += 1
            if steps == kill_at:
                os._exit(9)

    with atomic_path(target) as draft:
        write(draft, "new")
        sys.addaudithook(count)


def content(folder: Path) -> str:
    contents = {(folder / name).read_text() for name in NAMES if (folder / name).exists()}
    whole = all((folder / name).exists() for name in NAMES)
    return contents.pop() if whole and len(contents) == 1 else "half"


def state(target: Path) -> str:
    if target.exists():
        return content(target)
    beside = sorted(content(folder) for folder in Path().glob(f".evenshard-*.{target.name}"))
    return "both beside" if beside == ["new", "old"] else f"beside: {beside}"


def main() -> None:
    target, states, ended = Path("net"), list[str](), False
    while not ended:
        write(target, "old")
        pid = os.fork()
        if pid == 0:
            replace(target, kill_at=len(states) + 1)
            os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        states.append(state(target))
        assert not ended or os.listdir() == ["net"], os.listdir()
        for left in os.listdir():
            shutil.rmtree(left)
    print(json.dumps(states))


if __name__ == "__main__":
    main()
