"""``place --near`` on random tables and machines: every answer obeys its bound, and is no worse than it should be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evenshard
from evenshard.base.errors import BadConfig
from evenshard.planner.diff import diff
from evenshard.planner.file import save_answer
from evenshard.search.near_placement import ALIKE
from evenshard.tables.table import Table

GB = 2**30
ONE, MORE = {"num_devices": 2}, {"num_devices": 4}
NODES = {"nodes": 2, "devices_per_node": 2, "inter": "ib_400g"}
TIGHT = {"memory_cap_gb": 0.25, "reserved_gb": 0, "training_pipeline": ""}
MACHINES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nodes": (NODES, NODES),
    "more devices": (ONE, MORE),
    "fewer devices": (MORE, ONE),
    "from nodes to one": (NODES, MORE),
    "to nodes": (ONE, NODES),
    "host memory": ({**ONE, **TIGHT, "host_memory_gb": 8}, {**ONE, **TIGHT, "host_memory_gb": 8}),
    "replicas": ({**MORE, "sharding_types": ["data_parallel"]}, MORE),
    "rules": (MORE, {**MORE, "forbidden_devices": [0], "apart": [["t0", "t1"]], "together": [["t2", "t3"]]}),
    "unequal memory": (MORE, {**MORE, "memory_cap_gb": [6, 3, 2, 4], "reserved_gb": 0, "training_pipeline": ""}),
    "other hardware": ({**ONE, "hardware": "simulated:v100"}, ONE),
}
QUICK = ("more devices", "host memory", "rules")


def tables(rng: np.random.Generator) -> Iterator[Table]:
    for number in range(5):
        rows, dim, lookups = int(10 ** rng.uniform(3, 5.5)), rng.choice([16, 64, 128]), rng.choice([1, 5, 40])
        yield Table(f"t{number}", rows, int(dim), float(lookups))


def drifted(before: tuple[Table, ...], rng: np.random.Generator) -> Iterator[Table]:
    """Other pooling factors; the last one is gone, another one new."""
    for table in before[:-1]:
        yield replace(table, pooling_factor=float(table.pooling_factor * rng.uniform(0.5, 4)))
    yield replace(before[-1], name="new")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MACHINES]
)
def test_every_answer_obeys_its_bound_and_is_not_worse_than_it_should_be(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(list(MACHINES).index(name))
    first, then = ({"hardware": "simulated:h100", "optimizer": "adam", **one} for one in MACHINES[name])
    before = tuple(tables(rng))
    today, old = tuple(drifted(before, rng)), evenshard.place(before, **first)
    save_answer(old, tmp_path / "old.json")
    total_gb = 3 * sum(table.size_bytes for table in before) / GB
    for most_gb in (0, 0.1 * total_gb, None):
        try:
            answer = evenshard.place(today, **then, near=tmp_path / "old.json", max_move_gb=most_gb)
        except BadConfig as error:  # something has to move
            assert most_gb is not None and "Raise max_move_gb to" in str(error)
            continue
        found, moved = answer.nearness, diff(old, answer).traffic.moved_bytes
        assert found is not None and found.stay_bytes <= found.moved_bytes == moved
        assert moved <= (np.inf if most_gb is None else most_gb * GB)
        assert answer.predicted_ms <= found.stay_ms * (1 + ALIKE)
        assert most_gb is not None or answer.predicted_ms <= found.free_ms * 1.01


def test_rows_that_are_cut_unevenly_stay_so(tmp_path: Path) -> None:
    """On 10 and 2 GB, 9 GB have room in uneven rows alone, which a search never cuts."""
    large = [Table("a", 9 * GB // 256, 64, 3.0)]
    rules: dict[str, Any] = {"hardware": "simulated:h100", "sharding_types": ["row_wise"], "reserved_gb": 0}
    rules |= {"num_devices": 2, "memory_cap_gb": [10, 2], "training_pipeline": ""}
    old = evenshard.place(large, **rules)
    save_answer(old, tmp_path / "old.json")
    for most_gb in (0, None):
        answer = evenshard.place(
            [replace(large[0], pooling_factor=5.0)], **rules, near=tmp_path / "old.json", max_move_gb=most_gb
        )
        assert answer.parts == old.parts and answer.nearness is not None and answer.nearness.moved_bytes == 0
