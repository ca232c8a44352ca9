"""The memory of this machine, within its control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evenshard.base import machine_memory
from evenshard.base.machine_memory import machine_bytes
from evenshard.base.units import BYTES_PER_GB


def test_it_is_what_the_operating_system_says_or_less() -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert BYTES_PER_GB // 4 < machine_bytes() <= total


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/a/b\n", {"a/memory.max": "3000", "a/b/memory.max": "5000"}, 3000),
        ("0::/a/b\n", {"a/memory.max": "max", "a/b/memory.max": "5000"}, 5000),
        ("0::/out/of/sight\n", {"memory.max": "7000"}, 7000),
        ("4:cpu,memory:/pod\n3:pids:/x\n", {"memory/pod/memory.limit_in_bytes": "6000"}, 6000),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": str(2**63 - 4096)}, None),
        ("0::/\n", {"memory.max": "max"}, None),
    ],
)
def test_the_lowest_limit_of_its_control_groups_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, limits: dict[str, str], expected: int | None
) -> None:
    """Of both versions, and of all groups above its own; None: only the machine's own memory."""
    for name, limit in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{limit}\n")
    (tmp_path / "own").write_text(groups)
    monkeypatch.setattr(machine_memory, "CONTROL_GROUP", tmp_path)
    monkeypatch.setattr(machine_memory, "OWN_GROUPS", tmp_path / "own")
    assert machine_bytes() == (expected or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
