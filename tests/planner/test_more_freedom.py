"""More types answer no worse; more memory hardly worse."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from evenshard.placement.machine import Machine
from evenshard.placement.sharding import BY_COLUMNS, SHARDING_TYPES, TABLE_WISE
from evenshard.placement.storage import FUSED
from evenshard.planner.place import place_request
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.model import DeviceModel
from evenshard.sharders.search.usual_cuts import MOST_SLOWER
from evenshard.tables.table import Table
from evenshard.utils.errors import InfeasibleTask

MORE_MEMORY = 1.5
# What a search may miss in more memory: it knows nothing of what less of it answers.
SEARCHED = 0.02
# 26 tables on one node of eight devices, 18 on two nodes of two, and 17 in little memory.
SEEDS = (0, 1, 9)
pytestmark = [pytest.mark.slow, pytest.mark.full_search]


def random_request(seed: int) -> tuple[PlacementRequest, int]:
    """Eight to thirty tables on devices that hold little more than them; and that memory."""
    rng = np.random.default_rng(seed)

    def table(number: int) -> Table:
        rows, dim = int(10 ** rng.uniform(3, 7)), int(rng.choice([16, 32, 64, 128]))
        return Table(f"t{number}", rows, dim, float(rng.choice([1, 5, 20, 60])))

    tables = tuple(map(table, range(int(rng.integers(8, 30)))))
    devices, nodes = int(rng.choice([4, 8])), int(rng.choice([1, 1, 2]))
    machine = Machine(devices, devices // nodes, inter="infiniband_ndr" if nodes > 1 else "")
    cap = int(sum(one.size_bytes for one in tables) / devices * rng.uniform(1.05, 1.6))
    return PlacementRequest(tables, (cap,) * devices, 16_384, machine=machine, compute_kernels=(FUSED,)), cap


@cache
def step_ms(seed: int, types: tuple[str, ...], memory: float) -> float:
    """Predicted; infinite where the tables do not fit so."""
    asked, cap = random_request(seed)
    asked = replace(asked, sharding_types=types, caps_bytes=(int(memory * cap),) * asked.num_devices)
    try:
        return place_request(asked, DeviceModel("simulated:h200")).predicted_ms
    except InfeasibleTask:
        return float("inf")


@pytest.mark.parametrize("seed", SEEDS)
def test_more_memory_and_more_types_answer_no_worse(seed: int) -> None:
    most = 1 + MOST_SLOWER
    all_types = ((TABLE_WISE,), BY_COLUMNS, SHARDING_TYPES)
    for types in all_types:
        assert step_ms(seed, types, MORE_MEMORY) <= most * (1 + SEARCHED) * step_ms(seed, types, 1.0), types
    for memory in (1.0, MORE_MEMORY):
        for fewer, more in pairwise(all_types):
            assert step_ms(seed, more, memory) <= (1 + 1e-6) * step_ms(seed, fewer, memory), (more, memory)
