"""The search where device memory is short: caches and host memory, hosts that are full, and a bound below all of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evenshard.base.errors import InfeasibleTask
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import FUSED, FUSED_UVM_CACHING, USUAL_KERNELS, Storage, TablePart
from evenshard.placement.placement import Placement, check_sharding
from evenshard.placement.sharding import SHARDING_TYPES
from evenshard.placement.task import TableLimits, used_bytes
from evenshard.price.step import PartCosts
from evenshard.search.legal_parts import legal_parts
from evenshard.search.lower_bound import lower_bound_ms
from evenshard.search.search import PlanSearch, PlanSearchEffort
from evenshard.search.space import SearchSpace
from evenshard.tables.table import Table
from support import search_builders
from support.search_builders import GB, least_ms

pytestmark = pytest.mark.full_search

SHORT = PlanSearchEffort(4_000)
HOT = Table("hot", 2**21, 128, 40.0)
# 1 GB each.
COLD = Table("cold", 2**21, 128, 0.5)


def costs_of(
    tables: tuple[Table, ...], devices: int, room_gb: float, host_gb: float = 64.0, nodes: int = 1, **changes: object
) -> PartCosts:
    """Of H100s in so many hosts; tables may leave their memory."""
    inter = "infiniband_ndr" if nodes > 1 else ""
    machine = Nodes(devices, devices // nodes, inter=inter, host_bytes=(int(host_gb * GB),) * nodes)
    changes.setdefault("kernels", USUAL_KERNELS)
    return search_builders.costs_of(tables, machine, int(room_gb * GB), "h100", **changes)


def random_tables(count: int, seed: int) -> tuple[Table, ...]:
    rng = np.random.default_rng(seed)
    return tuple(
        Table(f"t{n}", int(10 ** rng.uniform(5.5, 7)), int(rng.choice([32, 64, 128])), float(rng.choice([0.5, 2, 20])))
        for n in range(count)
    )


def searched(costs: PartCosts, effort: PlanSearchEffort = SHORT) -> tuple[TablePart, ...]:
    parts = PlanSearch(costs, effort).run().best.parts
    check_sharding(costs.task, parts)
    return parts


def test_what_is_looked_up_often_stays_in_device_memory() -> None:
    kept = {part.table: part.storage for part in searched(costs_of((HOT, COLD), 1, 1.2))}
    assert kept["hot"].kernel == FUSED
    assert kept["cold"].kernel != FUSED


def test_without_host_memory_there_is_no_option() -> None:
    costs = costs_of((HOT, COLD), 1, 1.2)
    alone = replace(costs.task, machine=replace(costs.task.machine, host_bytes=()))
    with pytest.raises(InfeasibleTask):
        PlanSearch(PartCosts(alone, costs.kinds, [0], costs.links), SHORT).run()
    with pytest.raises(InfeasibleTask, match=r"1\.20 GB on devices, 0\.50 GB on hosts"):
        legal_parts(costs_of((HOT, COLD), 1, 1.2, host_gb=0.5).task)


@pytest.mark.parametrize("seed", range(3))
def test_a_tiny_task_is_solved(seed: int) -> None:
    """Two tables on two devices with room for half of them."""
    tables = random_tables(2, seed)
    costs = costs_of(tables, 2, 0.25 * sum(table.size_bytes for table in tables) / GB)
    space = SearchSpace(costs)
    assert space.offloads
    assert PlanSearch(costs, PlanSearchEffort(20_000)).run().best.predicted_ms == pytest.approx(
        least_ms(space), rel=1e-6
    )


@pytest.mark.parametrize("seed", range(2))
def test_nothing_that_fits_is_below_the_bound(seed: int) -> None:
    tables = random_tables(6, seed)
    size = sum(table.size_bytes for table in tables) / GB
    costs = costs_of(tables, 4, 0.15 * size, nodes=2)
    space, rng = SearchSpace(costs), np.random.default_rng(seed)
    bound, found = lower_bound_ms(space), []
    for _ in range(100):
        parts = [
            replace(part, storage=Storage(FUSED_UVM_CACHING, float(10 ** rng.uniform(-3, 0))))
            if rng.random() < 0.85
            else part
            for part in Placement(tuple(rng.integers(4, size=6).tolist()), 4).parts(tables)
        ]
        if max(used_bytes(costs.task, parts)) <= costs.task.room_bytes[0]:
            found.append(costs.predict(parts).predicted_ms)
    assert len(found) > 8
    assert 0 < bound <= min(found)


def test_legal_parts_leave_device_memory_only_as_far_as_they_must() -> None:
    tables = random_tables(12, 2)
    size = sum(table.size_bytes for table in tables) / GB
    for share in (0.9, 0.5, 0.2):
        task = costs_of(tables, 4, share * size / 4).task
        parts = legal_parts(task)
        inside = sum(table.size_bytes for table in tables if _is_inside(table, parts)) / GB
        assert inside >= 0.4 * share * size
    types = TableLimits(types=frozenset(SHARDING_TYPES), kernels=frozenset({FUSED}))
    with pytest.raises(InfeasibleTask):
        legal_parts(costs_of(tables, 4, 0.2 * size / 4, limits=(types,) * 12).task)


def _is_inside(table: Table, parts: tuple[TablePart, ...]) -> bool:
    return all(part.storage.is_on_device for part in parts if part.table == table.name)
