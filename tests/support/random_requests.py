"""Random requests over everything that may be asked, at the edge of what fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from evenshard.placement.memory import STATE_NUMBERS
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import COMPUTE_KERNELS, FUSED, FUSED_UVM, HOST, KEY_VALUE, whole_part
from evenshard.placement.sharding import SHARDING_TYPES
from evenshard.placement.task import memory_of_part
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rules import Rules
from evenshard.tables.table import DATA_TYPES, Table

LINK = "infiniband_ndr"
# Nodes, devices of each, nodes of a domain.
SHAPES = ((1, 1, 1), (1, 2, 1), (1, 4, 1), (2, 1, 1), (3, 1, 1), (2, 2, 1), (2, 2, 2), (3, 2, 1), (2, 3, 1), (4, 2, 2))
PIPELINES = ("", "", "none", "base", "sparse_dist", "prefetch")


def random_request(seed: int) -> PlacementRequest:
    """Up to eight tables on up to eight devices; their memory is from less than enough to a little more."""
    rng = np.random.default_rng(seed)
    nodes, per_node, per_domain = SHAPES[int(rng.integers(len(SHAPES)))]
    devices, domains = nodes * per_node, nodes // per_domain
    tables = tuple(_table(rng, f"t{number}") for number in range(int(rng.integers(1, 9))))
    machine = Nodes(devices, per_node, per_domain, inter=LINK if domains > 1 else "")
    types = tuple(one for one in SHARDING_TYPES if rng.random() < 0.5) if rng.random() < 0.6 else ()
    asked = PlacementRequest(
        tables,
        (0,) * devices,
        int(rng.choice([64, 256, 1000])),
        int(rng.integers(0, 1000)) if rng.random() < 0.2 else 0,
        str(rng.choice(list(STATE_NUMBERS))),
        sharding_types=types,
        machine=machine,
        training_pipeline=str(rng.choice(PIPELINES)),
        dense_bytes=int(rng.integers(0, 1000)) if rng.random() < 0.1 else 0,
    )
    asked = _with_hosts(rng, asked) if rng.random() < 0.4 else asked
    asked = replace(asked, rules=_rules(rng, asked))
    outside = sum(asked.nodes.host_bytes) + sum(asked.nodes.ssd_bytes)
    need = _needed(asked)
    room = max(need - outside * rng.uniform(0, 1), 0.1 * need) * rng.uniform(0.8, 1.7)
    draws = rng.uniform(0.5, 1.5, devices) if rng.random() < 0.3 else np.ones(devices)
    kept = asked.reserved_bytes + asked.dense_bytes + asked.sample_memory.total
    return replace(asked, caps_bytes=tuple(int(room * share) + kept for share in draws / draws.sum()))


def _needed(asked: PlacementRequest) -> int:
    """Device memory of all tables, whole."""
    task = asked.task()
    return sum(memory_of_part(task, table, whole_part(table)).device_bytes for table in asked.tables)


def _table(rng: np.random.Generator, name: str) -> Table:
    data_type = str(rng.choice(["fp32", "fp32", "fp16", "bf16", "fp8", "int8", "int4"]))
    rows = int(10 ** rng.uniform(0, 4.5))
    lookups = float(rng.choice([0.3, 1.0, 1.0, 4.0, 20.0]))
    features = int(rng.integers(2, 4)) if rng.random() < 0.1 else 1
    more: dict[str, Any] = {}
    if rng.random() < 0.15:
        shares = rng.dirichlet(np.ones(min(rows, 8)))
        more["row_shares"] = tuple((shares / shares.sum()).tolist())
    return Table(
        name,
        rows,
        int(rng.choice([4, 4, 8, 12, 16, 32, 48, 64, 96, 128])),
        lookups,
        weight_bits=DATA_TYPES[data_type],
        data_type=data_type,
        pooling=str(rng.choice(["sum", "sum", "sum", "mean", "none"])),
        is_weighted=bool(rng.random() < 0.1),
        feature_pooling_factors=(lookups / features,) * features if features > 1 else (),
        **more,
    )


def _with_hosts(rng: np.random.Generator, asked: PlacementRequest) -> PlacementRequest:
    """Hosts, and perhaps SSDs, that hold some of the tables; each its own share."""
    nodes = asked.nodes.num_nodes

    def rooms() -> tuple[int, ...]:
        each = rng.uniform(0.4, 1.6, nodes) if rng.random() < 0.5 else np.ones(nodes)
        return tuple((each * _needed(asked) * rng.uniform(0.1, 1.1) / nodes).astype(int).tolist())

    ssd = rooms() if rng.random() < 0.3 else ()
    machine = replace(asked.nodes, host_bytes=rooms(), ssd_bytes=ssd)
    kernels: tuple[str, ...] = ()
    if rng.random() < 0.3:
        usable = [one for one in COMPUTE_KERNELS if one != KEY_VALUE or ssd]
        kernels = tuple(one for one in usable if rng.random() < 0.6) or (FUSED, FUSED_UVM)
    return replace(asked, machine=machine, compute_kernels=kernels)


def _rules(rng: np.random.Generator, asked: PlacementRequest) -> Rules:
    """None, or one of some kinds."""
    names, machine = [table.name for table in asked.tables], asked.nodes
    found: dict[str, Any] = {}

    def some(most: int) -> list[str]:
        return [str(one) for one in rng.choice(names, min(len(names), int(rng.integers(1, most + 1))), replace=False)]

    def ids(count: int) -> tuple[int, ...]:
        return tuple(sorted(rng.choice(count, int(rng.integers(1, count + 1)), replace=False).tolist()))

    for what in rng.choice(9, int(rng.integers(0, 3)) if rng.random() < 0.6 else 0, replace=False).tolist():
        if what == 0:
            found["pinned"] = {name: ids(machine.num_devices) for name in some(3)}
        elif what == 1:
            found["forbidden"] = {name: ids(machine.num_devices)[:1] for name in some(3)}
        elif what == 2 and machine.num_devices > 2:
            found["forbidden_devices"] = ids(machine.num_devices)[:1]
        elif what == 3 and len(names) > 1:
            found["together"] = (tuple(group),) if len(group := some(3)) > 1 else ()
        elif what == 4 and len(names) > 1:
            found["apart"] = (tuple(group),) if len(group := some(4)) > 1 else ()
        elif what == 5:
            found["pinned_nodes"] = {name: ids(machine.num_nodes) for name in some(3)}
        elif what == 6:
            types = [one for one in SHARDING_TYPES if rng.random() < 0.5] or [SHARDING_TYPES[0]]
            found["table_types"] = dict.fromkeys(some(3), tuple(types))
        elif what == 7:
            found["min_columns"] = {name: int(rng.choice([4, 6, 8, 16, 32])) for name in some(3)}
        elif what == 8 and machine.host_bytes:
            kernels = [FUSED, FUSED_UVM, "fused_uvm_caching", HOST, *([KEY_VALUE] if machine.ssd_bytes else [])]
            found["table_kernels"] = {name: (str(rng.choice(kernels)),) for name in some(3)}
    return Rules(**found)
