"""Random requests over everything that may be asked, at the edge of what fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from evenshard.placement.memory import STATE_NUMBERS
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import whole_part
from evenshard.placement.sharding import SHARDING_TYPES
from evenshard.placement.task import memory_of_part
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rules import Rules
from evenshard.tables.table import DATA_TYPES, Table

# Nodes, devices of each, nodes of a domain.
SHAPES = ((1, 1, 1), (1, 2, 1), (1, 4, 1), (2, 1, 1), (2, 2, 1), (2, 2, 2), (2, 3, 1), (4, 2, 2))


def random_request(seed: int) -> PlacementRequest:
    """Up to eight tables on up to eight devices; their memory is from less than enough to twice as much."""
    rng = np.random.default_rng(seed)
    nodes, per_node, per_domain = SHAPES[int(rng.integers(len(SHAPES)))]
    devices, domains = nodes * per_node, nodes // per_domain
    tables = tuple(_table(rng, f"t{number}") for number in range(int(rng.integers(1, 9))))
    asked = PlacementRequest(
        tables,
        (0,) * devices,
        int(rng.choice([64, 256, 1000])),
        optimizer=str(rng.choice(list(STATE_NUMBERS))),
        sharding_types=tuple(one for one in SHARDING_TYPES if rng.random() < 0.5) if rng.random() < 0.6 else (),
        machine=Nodes(devices, per_node, per_domain, inter="infiniband_ndr" if domains > 1 else ""),
        training_pipeline=str(rng.choice(["", "none", "sparse_dist", "prefetch"])),
    )
    task = asked.task()
    need = sum(memory_of_part(task, table, whole_part(table)).device_bytes for table in tables)
    outside = int(need * rng.uniform(0.1, 1.1)) if rng.random() < 0.4 else 0
    if outside:
        machine = replace(asked.nodes, host_bytes=(outside // nodes,) * nodes)
        asked = replace(asked, machine=machine)
    asked = replace(asked, rules=_rules(rng, asked))
    room = max(need - outside * rng.uniform(0, 1), 0.1 * need) * rng.uniform(1.0, 2.0)
    draws = rng.uniform(0.5, 1.5, devices) if rng.random() < 0.3 else np.ones(devices)
    caps = tuple(int(room * share) + asked.sample_memory.total for share in draws / draws.sum())
    return replace(asked, caps_bytes=caps)


def _table(rng: np.random.Generator, name: str) -> Table:
    data_type = str(rng.choice(["fp32", "fp16", "int8", "int4"]))
    return Table(
        name,
        int(10 ** rng.uniform(0, 4.5)),
        int(rng.choice([4, 8, 12, 16, 48, 64, 96, 128])),
        float(rng.choice([0.3, 1.0, 4.0, 20.0])),
        weight_bits=DATA_TYPES[data_type],
        data_type=data_type,
        pooling=str(rng.choice(["sum", "sum", "mean", "none"])),
        is_weighted=bool(rng.random() < 0.1),
    )


def _rules(rng: np.random.Generator, asked: PlacementRequest) -> Rules:
    """None, or one of some kinds."""
    names = [table.name for table in asked.tables]
    some = rng.choice(names, min(len(names), 3), replace=False).tolist()
    device, node = int(rng.integers(asked.num_devices)), int(rng.integers(asked.nodes.num_nodes))
    kinds: list[dict[str, Any]] = [
        {},
        {"pinned": {some[0]: device}},
        {"pinned_nodes": dict.fromkeys(some, node)},
        {"min_columns": dict.fromkeys(some, int(rng.choice([4, 8, 32])))},
    ]
    if len(some) > 1:
        kinds += [{"together": [some]}, {"apart": [some]}, {"forbidden": {some[0]: device} if device else {}}]
    return Rules.of(**kinds[int(rng.integers(len(kinds)))])
