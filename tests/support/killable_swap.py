"""Replaces a folder again and again, killed at the first, second, third, ... step, until it is done; prints what stood.

Run by test_atomic.py in an empty working directory: python killable_swap.py exchange|rename
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from evenshard.utils import atomic
from evenshard.utils.atomic import atomic_path, tidy_up

NAMES = ("a", "b", "deep/c")
STEPS = ("os.", "shutil.", "ctypes.call_function", "open")


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


def state(target: Path) -> str:
    if not target.exists():
        return "none"
    contents = {(target / name).read_text() for name in NAMES if (target / name).exists()}
    whole = all((target / name).exists() for name in NAMES)
    return contents.pop() if whole and len(contents) == 1 else "half"


def main(how: str) -> None:
    if how == "rename":
        atomic._exchange = lambda one, other: False
    target, states, ended = Path("net"), [], False
    while not ended:
        shutil.rmtree(target, ignore_errors=True)
        write(target, "old")
        pid = os.fork()
        if pid == 0:
            replace(target, kill_at=len(states) + 1)
            os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        found = state(target)
        tidy_up(target)
        states.append(found if found == state(target) else f"{found}, then {state(target)}")
        assert os.listdir() == ["net"], os.listdir()
    print(json.dumps(states))


if __name__ == "__main__":
    main(sys.argv[1])
