"""The memory of this machine, as far as its control groups let a process take it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

CONTROL_GROUP = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def machine_bytes() -> int:
    """Memory of this machine, or the limit of this process's control group, if that is lower."""
    return min((os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_limits()))


def _limits() -> Iterator[int]:
    """Memory limits of the process's control group and of all groups that it is in; a container may hide these."""
    if not OWN_GROUPS.exists():
        return
    for line in OWN_GROUPS.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # control groups, version 2
            top, name = CONTROL_GROUP, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = CONTROL_GROUP / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(top):
                break
            limit = folder / name
            if limit.exists() and limit.read_text().strip().isdigit():  # not "max"
                yield int(limit.read_text())
