"""Room for a request: random requests at the edge of what fits."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from evenshard.base.errors import InfeasibleTask
from evenshard.base.units import BYTES_PER_GB as GB
from evenshard.base.units import gb_to_bytes
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import FUSED
from evenshard.placement.placement import check_sharding
from evenshard.placement.sharding import BY_COLUMNS, COLUMN_WISE, TABLE_WISE
from evenshard.planner.capacity import explain_infeasibility
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rules import Rules
from evenshard.search.legal_parts import legal_parts
from evenshard.tables.table import Table
from support.builders import cuts_of
from support.request_builders import request

# Bytes of optimizer state for each row of a part, and for each weight.
STATE = {"sgd": (0, 0), "rowwise_adagrad": (4, 0), "adagrad": (0, 4), "adam": (0, 8)}


def part_bytes(asked: PlacementRequest, table: Table, columns: int) -> int:
    per_row, per_weight = STATE[asked.optimizer]
    return table.num_rows * (per_row + columns * (per_weight + table.weight_bits // 8)) if columns else 0


def ways(asked: PlacementRequest, table: Table) -> list[tuple[int, ...]]:
    """Columns of a table on each device: in steps of four, or whole."""
    rules, dim = asked.rules, table.embedding_dim
    kept = any(table.name in group for group in rules.together)
    step = 4 if COLUMN_WISE in asked.types and not kept else dim
    allowed = {*rules.pinned.get(table.name, range(asked.num_devices))} - {*rules.forbidden.get(table.name, ())}
    steps = [range(0, dim + 1, step) if device in allowed else (0,) for device in range(asked.num_devices)]
    return [counts for counts in product(*steps) if sum(counts) == dim]


def is_legal(asked: PlacementRequest, counts: dict[str, tuple[int, ...]]) -> bool:
    for device, cap in enumerate(asked.caps_bytes):
        here = {name for name, own in counts.items() if own[device]}
        if sum(part_bytes(asked, table, counts[table.name][device]) for table in asked.tables) > cap:
            return False
        if any(len(here & {*group}) > 1 for group in asked.rules.apart):
            return False
        if any(0 < len(here & {*group}) < len(group) for group in asked.rules.together):
            return False
    return True


def can_be_placed(asked: PlacementRequest) -> bool:
    names = [table.name for table in asked.tables]
    every = product(*(ways(asked, table) for table in asked.tables))
    return any(is_legal(asked, dict(zip(names, counts, strict=True))) for counts in every)


def tight_request(seed: int) -> PlacementRequest:
    """Up to three tables on two or three devices, which have 97 to 140 % of what the tables need."""
    rng = np.random.default_rng(seed)
    count, devices = int(rng.integers(1, 4)), int(rng.integers(2, 4))
    rows = (10 ** rng.uniform(6, 7, count)).astype(int).tolist()
    tables = tuple(Table(f"t{at}", rows[at], 4 * int(rng.integers(1, 5)), 2.0, None, 16) for at in range(count))
    draws = rng.uniform(0.5, 1.5, devices) if rng.random() < 0.3 else np.ones(devices)
    names, device = [table.name for table in tables], int(rng.integers(devices))
    kinds = [
        Rules(),
        Rules(pinned={names[0]: (device, (device + 1) % devices)}),
        Rules(forbidden={names[-1]: (device,)}),
    ]
    kinds += [Rules(together=(tuple(names[:2]),)), Rules(apart=(tuple(names[:2]),))] if count > 1 else []
    asked = PlacementRequest(
        tables,
        (1,) * devices,
        4096,
        optimizer=str(rng.choice(list(STATE))),
        sharding_types=BY_COLUMNS if rng.random() < 0.7 else (TABLE_WISE,),
        compute_kernels=(FUSED,),
        rules=kinds[int(rng.integers(len(kinds)))],
    )
    need = sum(part_bytes(asked, table, table.embedding_dim) for table in tables) * rng.uniform(0.97, 1.4)
    return replace(asked, caps_bytes=tuple(int(need * share) for share in draws / draws.sum()))


def refused(asked: PlacementRequest) -> str:
    """The message of a refusal; empty where there is room, which is checked."""
    try:
        check_sharding(asked.task(), legal_parts(asked.task()))
    except InfeasibleTask as error:
        return str(explain_infeasibility(asked, error))
    return ""


def check_remedies(asked: PlacementRequest, message: str) -> None:
    """With each change that a message names, there is room."""
    others = []
    if found := re.search(r"memory_cap_gb to (\d+\.\d\d)", message):
        others.append(replace(asked, caps_bytes=(gb_to_bytes(float(found[1])),) * asked.num_devices))
    if found := re.search(r"num_devices to (\d+)", message):
        others.append(replace(asked, caps_bytes=with_more_devices(asked, int(found[1]))))
    if found := re.search(r"With column splits \(--allow-column-split\), the tables fit( on (\d+) devices)?", message):
        caps = asked.caps_bytes if found[2] is None else with_more_devices(asked, int(found[2]))
        others.append(replace(asked, caps_bytes=caps, sharding_types=BY_COLUMNS))
    assert all(refused(other) == "" for other in others), message


def with_more_devices(asked: PlacementRequest, count: int) -> tuple[int, ...]:
    assert count > asked.num_devices
    return (*asked.caps_bytes, *[max(asked.caps_bytes)] * (count - asked.num_devices))


def test_tight_requests_are_placed_exactly_where_there_is_a_way() -> None:
    ends: Counter[bool] = Counter()
    for seed in range(40):
        asked = tight_request(seed)
        message = refused(asked)
        assert (message == "") == can_be_placed(asked), f"{seed}: {message}"
        check_remedies(asked, message)
        ends[message == ""] += 1
    assert min(ends.values()) > 10


def adagrad(*rows: int, gb: float, devices: int = 3, dim: int = 64, **more: Any) -> PlacementRequest:
    """Tables a, b, ... of 16 bits with a state of each row of each part."""
    tables = tuple(Table("abc"[number], count, dim, 1.0, None, 16) for number, count in enumerate(rows))
    asked = {"optimizer": "rowwise_adagrad", "sharding_types": BY_COLUMNS, "compute_kernels": (FUSED,), **more}
    return request(tables=tables, caps=(gb_to_bytes(gb),) * devices, **asked)


def test_uneven_parts_fit_where_halves_of_halves_have_too_much_state() -> None:
    """24 + 20 + 20 columns of 20,000,000 rows are 0.97 + 0.82 + 0.82 GB; quarters are four states, 2.98 GB."""
    asked = adagrad(20_000_000, gb=0.98)
    parts = legal_parts(asked.task())
    check_sharding(asked.task(), parts)
    assert cuts_of(parts) == {"a": (24, 44)}


def test_what_tables_need_at_least_has_the_state_of_the_fewest_parts() -> None:
    """2.38 GB of weights and three states of 0.07 GB: two devices of 1.2 GB have room for neither 64 nor 2 x 32."""
    assert refused(adagrad(20_000_000, gb=0.85)) == (
        "table a needs at least 2.61 GB (2.38 GB of weights, 0.22 GB of state, inputs and outputs), the 3 devices have "
        "2.55 GB (cap 0.85 GB each): 0.06 GB is missing. Raise memory_cap_gb to 0.97 or num_devices to 4. "
        "With all sharding types (without sharding_types), the tables fit."
    )


def test_a_split_is_named_exactly_where_it_helps() -> None:
    whole = adagrad(20_000_000, gb=1.5, sharding_types=(TABLE_WISE,))
    assert refused(whole).endswith(" With column splits (--allow-column-split), the tables fit.")
    less = replace(whole, caps_bytes=(GB // 2,) * 3)
    assert "With column splits (--allow-column-split), the tables fit on 8 devices." in refused(less)
    assert "--allow-column-split" not in refused(adagrad(20_000_000, gb=1.5, dim=62, sharding_types=(TABLE_WISE,)))


@pytest.mark.parametrize(
    ("machine", "named"),
    [
        (Nodes(8, 4, 2), "num_devices to 16 (2 domains of 2 nodes linked by --inter)"),
        (Nodes(8, 4, 2, intra="nvlink_gb200"), "num_devices to 12 (3 nodes of one domain)"),
        (Nodes(8, 2, 2, inter="infiniband_ndr"), "num_devices to 12 (3 domains of 2 nodes)"),
        (Nodes(8, 2, inter="infiniband_ndr"), "num_devices to 10"),
        (Nodes.one_node(8), "num_devices to 9"),
    ],
)
def test_new_devices_join_the_domain_as_long_as_its_link_connects_them(machine: Nodes, named: str) -> None:
    """One table of 3 GB more than there are devices of 4: there is no room for two on any of them."""
    asked = whole_gb(*[3.0] * (machine.num_devices + 1), devices=machine.num_devices, gb=4)
    asked = replace(asked, machine=machine, sharding_types=(TABLE_WISE,))
    assert f"Raise memory_cap_gb to 6.00 or {named}. " in refused(asked)


def test_the_memory_that_a_refusal_names_has_batches_a_share_and_the_dense_model_in_it() -> None:
    """2.38 GB of weights in all ways; inputs and outputs of 65,536 samples, 15 % and 0.5 GB of a dense model."""
    asked = adagrad(20_000_000, gb=0.98, reserved_share=0.15, dense_bytes=GB // 2, training_pipeline="prefetch")
    asked = replace(asked, batch_size=65_536)
    message = refused(asked)
    found = re.search(r"memory_cap_gb to (\d+\.\d\d)", message)
    assert found and float(found[1]) > 1.5, message
    check_remedies(asked, message)
    assert "memory_cap_gb to 4.0" in refused(adagrad(1_000_000, gb=1.0, dense_bytes=4 * GB))
    less = replace(asked, caps_bytes=(gb_to_bytes(float(found[1]) - 0.01),) * 3)
    assert "memory_cap_gb" in refused(less)


def test_what_no_table_may_take_is_said() -> None:
    message = refused(adagrad(20_000_000, gb=0.98, reserved_bytes=GB // 4, dense_bytes=GB // 8))
    assert "the 3 devices have 1.82 GB (cap 0.61 GB each)" in message
    assert " Of the 0.98 GB per device, 0.25 are reserved, 0.12 are for the dense model. Raise memory_cap_gb" in message
    assert " Of " not in refused(adagrad(20_000_000, gb=0.85))


def test_host_memory_is_named_exactly_where_it_would_do() -> None:
    """Of 3 + 3 + 3 GB two devices of 4 hold 3 each; a host memory of 3 GB is for the third."""
    asked = whole_gb(3, 3, 3, devices=2, gb=4, sharding_types=(TABLE_WISE,), compute_kernels=())
    message = refused(asked)
    assert "With 3 GB of host memory per host (--host-memory-gb 3), they fit." in message
    assert refused(with_host_gb(asked, 3)) == ""
    less = refused(with_host_gb(asked, 2))
    assert "or host_memory_gb to 3" in less and "With" not in less and ", or host_memory_gb." not in less
    for other in (
        replace(asked, compute_kernels=(FUSED,)),
        replace(asked, hardware="cpu"),
        replace(asked, rules=Rules.of(table_kernels=dict.fromkeys(("t0", "t1", "t2"), "fused"))),
        replace(asked, sharding_types=("data_parallel",)),
    ):
        message = refused(other)
        assert message and "host" not in message


def test_more_host_memory_is_named_where_the_smallest_host_has_too_little() -> None:
    """Each node has three tables of 3 GB for two devices of 4: it takes 3 GB of a host, and one has 1."""
    asked = whole_gb(*[3.0] * 6, devices=4, gb=4, sharding_types=(TABLE_WISE,), compute_kernels=())
    # t0 and t3 leave device memory first
    tables = tuple(replace(one, pooling_factor=1.0) if one.name in ("t0", "t3") else one for one in asked.tables)
    rules = Rules(pinned_nodes={f"t{number}": (number // 3,) for number in range(6)})
    machine = Nodes(4, 2, inter="infiniband_ndr", host_bytes=(GB, 9 * GB))
    assert "or host_memory_gb to 3" in refused(replace(asked, tables=tables, rules=rules, machine=machine))


def with_host_gb(asked: PlacementRequest, gb: int) -> PlacementRequest:
    return replace(asked, machine=replace(asked.nodes, host_bytes=(gb * GB,) * asked.nodes.num_nodes))


def whole_gb(*sizes: float, devices: int, gb: float, **more: Any) -> PlacementRequest:
    """Whole tables t0, t1, ... of so many GB, of one column each."""
    tables = tuple(Table(f"t{n}", int(size * GB / 4), 1, 2.0) for n, size in enumerate(sizes))
    asked = {"sharding_types": BY_COLUMNS, "compute_kernels": (FUSED,), **more}
    return request(tables=tables, caps=(gb_to_bytes(gb),) * devices, **asked)


def test_the_memory_that_would_do_is_the_least() -> None:
    """17 tables of 1 GB and one of 0.3 on 4 devices of 4.4: one device must hold 5 of them."""
    message = refused(whole_gb(*[1.0] * 17, 0.3, devices=4, gb=4.4))
    assert "Raise memory_cap_gb to 5.00 or num_devices to 5." in message
    # Unlike devices: 3 + 3 on 2 + 4, one of the two has no room.
    asked = replace(whole_gb(3, 3, devices=2, gb=1), caps_bytes=(2 * GB, 4 * GB))
    assert "Raise memory_cap_gb to 3.00 for each device or num_devices to 3 (new devices as large as" in refused(asked)


def test_what_does_not_help_is_not_named() -> None:
    apart = (("t0", "t1"), ("t1", "t2"), ("t0", "t2"))
    asked = whole_gb(1, 1, 1, devices=2, gb=4, rules=Rules(apart=apart))
    assert refused(asked).endswith("Raise num_devices to 3.")
    stuck = Rules(apart=apart, pinned={name: (0, 1) for name in ("t0", "t1", "t2")})
    assert refused(replace(asked, rules=stuck)).endswith("Relax the placement rules.")
    pinned = Rules(pinned={name: (0, 1) for name in ("t0", "t1", "t2")})
    message = refused(whole_gb(2, 2, 2, devices=3, gb=3.5, rules=pinned))
    assert message.endswith("Raise memory_cap_gb to 4.00.")
