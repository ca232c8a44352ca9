"""Room for a request: random requests at the edge of what fits, checked by an integer program of this file's own."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evenshard.base.errors import InfeasibleTask
from evenshard.base.units import BYTES_PER_GB as GB
from evenshard.base.units import gb_to_bytes
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import FUSED, TablePart
from evenshard.placement.placement import check_sharding
from evenshard.placement.sharding import BY_COLUMNS, COLUMN_WISE, ROW_WISE, TABLE_WISE
from evenshard.planner.capacity import refusal
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rules import Rules
from evenshard.search.infeasibility import MORE_CAPACITY
from evenshard.search.legal_parts import legal_parts
from evenshard.tables.sources import load_catalog
from evenshard.tables.table import Table
from support.builders import cuts_of
from support.integer_program import Program, Sum, total
from support.request_builders import request, untrained

# How many are asked; 2,000 take some minutes.
REQUESTS = int(os.environ.get("EVENSHARD_TIGHT_REQUESTS", "283"))
# Bytes of optimizer state for each row of a part, and for each weight.
STATE = {"sgd": (0, 0), "rowwise_adagrad": (4, 0), "adagrad": (0, 4), "adam": (0, 8)}


# The slow reference --------------------------------------------------------------------------------------------------


def part_bytes(asked: PlacementRequest, table: Table, columns: int) -> int:
    per_row, per_weight = STATE[asked.optimizer]
    return table.num_rows * (per_row + columns * (per_weight + table.weight_bits // 8))


def may_live_on(asked: PlacementRequest, name: str, device: int) -> bool:
    rules = asked.rules
    return (
        device in rules.pinned.get(name, range(asked.num_devices))
        and device not in rules.forbidden.get(name, ())
        and device not in rules.forbidden_devices
    )


def can_be_placed(asked: PlacementRequest) -> bool | None:
    """Whether there is a way, by columns in steps of four on each device; None where the solver does not know."""
    model, devices = Program(), range(asked.num_devices)
    kept = {name for group in asked.rules.together for name in group}
    here = {(table.name, d): model.variable() for table in asked.tables for d in devices}
    used: list[list[Sum | int]] = [[] for _ in devices]
    widest = max(asked.tables, key=lambda table: part_bytes(asked, table, table.embedding_dim)).name
    for table in asked.tables:
        name, dim = table.name, table.embedding_dim
        step = 4 if COLUMN_WISE in asked.types and name not in kept and dim % 4 == 0 else dim
        steps = [model.variable(dim // step) for _ in devices]
        model.add(total(steps) == dim // step)
        no_columns = part_bytes(asked, table, 0) if step < dim else 0
        for d in devices:
            model.add(steps[d] <= dim // step * here[name, d])
            model.add(steps[d] >= here[name, d])
            if not may_live_on(asked, name, d):
                model.add(steps[d] == 0)
            each = (part_bytes(asked, table, dim) - no_columns) // (dim // step)
            used[d] += [each * steps[d], no_columns * here[name, d]]
        if name == widest and len(set(asked.caps_bytes)) == 1 and asked.rules == Rules():
            for d in devices[1:]:  # all devices are alike
                model.add(steps[d - 1] >= steps[d])
    for d, cap in enumerate(asked.caps_bytes):
        model.add(total(used[d]) <= cap - asked.reserved_bytes)
        for group in asked.rules.apart:
            model.add(total(here[name, d] for name in group) <= 1)
        for first, *others in asked.rules.together:
            for other in others:
                model.add(here[first, d] == here[other, d])
    answer = model.solve(seconds=10)
    return None if answer.values is None and not answer.is_infeasible else not answer.is_infeasible


def check_parts(asked: PlacementRequest, parts: Sequence[TablePart]) -> None:
    """All columns live somewhere, once, where they may, and within the memory."""
    used, homes = [0] * asked.num_devices, {}
    for table in asked.tables:
        own = [part for part in parts if part.table == table.name]
        assert [part.columns.start for part in own] == [0, *(part.columns.stop for part in own[:-1])]
        assert own[-1].columns.stop == table.embedding_dim and all(part.rows == (0, table.num_rows) for part in own)
        assert len(own) == 1 or not any(part.columns.size % 4 for part in own)
        homes[table.name] = [part.device for part in own]
        assert len(set(homes[table.name])) == len(own), "parts side by side are one part"
        for part in own:
            used[part.device] += part_bytes(asked, table, part.columns.size)
            assert may_live_on(asked, table.name, part.device)
    assert all(size <= cap - asked.reserved_bytes for size, cap in zip(used, asked.caps_bytes, strict=True))
    for group in asked.rules.together:
        assert len({tuple(homes[name]) for name in group}) == 1 and len(homes[group[0]]) == 1
    for group in asked.rules.apart:
        for number, name in enumerate(group):
            assert all(not set(homes[name]) & set(homes[other]) for other in group[:number])


# Random requests -----------------------------------------------------------------------------------------------------


def tight_request(seed: int) -> PlacementRequest:
    """Up to twelve tables on up to eight devices, which have 97 to 110 % of what the tables need."""
    rng = np.random.default_rng(seed)
    count, devices = int(rng.integers(1, 13)), int(rng.integers(2, 9))
    optimizer = str(rng.choice(list(STATE)))
    dims = [4 * int(rng.integers(1, 65)) if rng.random() < 0.9 else int(rng.integers(4, 65)) for _ in range(count)]
    rows = (10 ** rng.uniform(4, 7.3, count)).astype(int).tolist()
    bits = rng.choice([8, 16, 32], count).tolist()
    tables = tuple(Table(f"t{n}", rows[n], dims[n], 2.0, None, bits[n]) for n in range(count))
    draws = rng.uniform(0.5, 1.5, devices) if rng.random() < 0.3 else np.ones(devices)
    reserved = int(rng.integers(0, GB)) if rng.random() < 0.2 else 0
    types = BY_COLUMNS if rng.random() < 0.8 else (TABLE_WISE,)
    asked = PlacementRequest(tables, (1,) * devices, 4096, reserved, optimizer, sharding_types=types)
    need = sum(part_bytes(asked, table, table.embedding_dim) for table in tables) * rng.uniform(0.97, 1.10)
    caps = tuple(int(need * share) + reserved for share in draws / draws.sum())
    asked = replace(asked, caps_bytes=caps, rules=random_rules(rng, [table.name for table in tables], devices))
    return asked if rng.random() < 0.1 else replace(asked, compute_kernels=(FUSED,))


def random_rules(rng: np.random.Generator, names: list[str], devices: int) -> Rules:
    some = rng.choice(names, min(len(names), 2), replace=False).tolist()
    device = int(rng.integers(devices))
    kinds = [
        Rules(),
        Rules(),
        Rules(pinned={some[0]: (device, (device + 1) % devices)}),
        Rules(forbidden={name: (device,) for name in some}),
        Rules(together=(tuple(some),)) if len(some) > 1 else Rules(),
        Rules(apart=(tuple(some),)) if len(some) > 1 else Rules(),
    ]
    return kinds[int(rng.integers(len(kinds)))]


def refused(asked: PlacementRequest) -> str:
    """The message of a refusal; empty where there is room, which is checked."""
    try:
        parts = legal_parts(asked.task())
    except InfeasibleTask as error:
        return str(refusal(asked, error))
    if asked.nodes.host_bytes:
        check_sharding(asked.task(), parts)
    else:
        check_parts(asked, parts)
    return ""


def check_remedies(asked: PlacementRequest, message: str) -> None:
    """With each change that a message names, there is room."""
    others = []
    if found := re.search(r"memory_cap_gb to (\d+\.\d\d)", message):
        others.append(replace(asked, caps_bytes=(gb_to_bytes(float(found[1])),) * asked.num_devices))
    if found := re.search(r"num_devices to (\d+)", message):
        others.append(replace(asked, caps_bytes=with_more_devices(asked, int(found[1]))))
    if found := re.search(r"With ([\d,]+) GB of each host's|host_memory_gb to ([\d,]+)", message):
        others.append(with_host_gb(asked, int((found[1] or found[2]).replace(",", ""))))
    if found := re.search(r"Split by columns \(--allow-column-split\), the tables fit( on (\d+) devices)?", message):
        caps = asked.caps_bytes if found[2] is None else with_more_devices(asked, int(found[2]))
        others.append(replace(asked, caps_bytes=caps, sharding_types=BY_COLUMNS))
    assert all(refused(other) == "" for other in others), message


def with_more_devices(asked: PlacementRequest, count: int) -> tuple[int, ...]:
    assert count > asked.num_devices
    return (*asked.caps_bytes, *[max(asked.caps_bytes)] * (count - asked.num_devices))


@pytest.mark.slow
def test_every_refusal_of_a_tight_request_is_a_proof_or_says_that_nothing_was_found() -> None:
    ends: Counter[str] = Counter()
    for seed in range(REQUESTS):
        asked = tight_request(seed)
        message = refused(asked)
        if not message:
            ends["placed"] += 1
        elif "no placement was found" in message:
            ends["not found"] += 1
            assert "missing" not in message and "no placement fits" not in message
        else:
            can_be = can_be_placed(asked)
            assert not can_be, f"{seed}: {message}"
            ends["refused" if can_be is False else "refused, and the reference does not know"] += 1
            assert "Raise" in message or asked.rules != Rules(), f"{seed}: {message}"
        check_remedies(asked, message)
    assert ends["placed"] > REQUESTS / 4 and ends["refused"] > REQUESTS / 4, ends
    assert ends["not found"] + ends["refused, and the reference does not know"] < REQUESTS / 200, ends


# By hand -------------------------------------------------------------------------------------------------------------


def adagrad(*rows: int, gb: float, devices: int = 3, dim: int = 64, **more: Any) -> PlacementRequest:
    """Tables a, b, ... of 16 bits with a state of each row of each part."""
    tables = tuple(Table("abc"[number], count, dim, 1.0, None, 16) for number, count in enumerate(rows))
    asked = {"optimizer": "rowwise_adagrad", "sharding_types": BY_COLUMNS, "compute_kernels": (FUSED,), **more}
    return request(tables=tables, caps=(gb_to_bytes(gb),) * devices, **asked)


def test_uneven_parts_fit_where_halves_of_halves_have_too_much_state() -> None:
    """24 + 20 + 20 columns of 20,000,000 rows are 0.97 + 0.82 + 0.82 GB; quarters are four states, 2.98 GB."""
    asked = adagrad(20_000_000, gb=0.98)
    parts = legal_parts(asked.task())
    check_parts(asked, parts)
    assert cuts_of(parts) == {"a": (24, 44)}
    assert len(place_request(asked, untrained(), PlaceConfig()).parts) == 3


def test_what_tables_need_at_least_has_the_state_of_the_fewest_parts() -> None:
    """2.38 GB of weights and three states of 0.07 GB: two devices of 1.2 GB have room for neither 64 nor 2 x 32."""
    assert refused(adagrad(20_000_000, gb=0.85)) == (
        "table a needs at least 2.61 GB (2.38 GB of weights, 0.22 GB of state, inputs and outputs), the 3 devices have "
        "2.55 GB (cap 0.85 GB each): 0.06 GB is missing. Raise memory_cap_gb to 0.97 or num_devices to 4. "
        "Sharded in every way (sharding_types left out), the tables fit."
    )


def test_room_that_is_enough_in_numbers_only_is_a_proof_as_well() -> None:
    asked = adagrad(20_000_000, gb=0.88)
    assert refused(asked).startswith(
        "table 'a' does not fit on its allowed devices, however it is sharded (table_wise, column_wise): "
        "they can hold 60 of its 64 columns, in shards of at least 4 (cap 0.88 GB each). Raise memory_cap_gb to "
        "0.97 or num_devices to 4, or allow more sharding types."
    )


def test_a_split_is_named_exactly_where_it_helps() -> None:
    whole = adagrad(20_000_000, gb=1.5, sharding_types=(TABLE_WISE,))
    assert refused(whole).endswith(" Split by columns (--allow-column-split), the tables fit.")
    less = replace(whole, caps_bytes=(GB // 2,) * 3)
    assert "Split by columns (--allow-column-split), the tables fit on 8 devices." in refused(less)
    assert "--allow-column-split" not in refused(adagrad(20_000_000, gb=1.5, dim=62, sharding_types=(TABLE_WISE,)))


def test_rows_are_named_where_columns_do_not_help() -> None:
    """Three columns cannot be cut; two of three rows' worth fit each device."""
    table = Table("a", 3_000_000, 3, 1.0)
    asked = request(tables=(table,), caps=(gb_to_bytes(0.012),) * 3, compute_kernels=(FUSED,))
    assert refused(replace(asked, sharding_types=BY_COLUMNS)).endswith(
        " Sharded in every way (sharding_types left out), the tables fit."
    )
    assert legal_parts(replace(asked, sharding_types=(ROW_WISE,)).task())


def test_new_devices_come_in_whole_nodes() -> None:
    asked = replace(whole_gb(3, 3, 3, 3, 3, devices=4, gb=5), machine=Nodes(4, 2, inter="infiniband_ndr"))
    asked = replace(asked, sharding_types=(TABLE_WISE,))
    assert refused(asked).endswith(
        "Raise memory_cap_gb to 6.00 or num_devices to 6. Sharded in every way (sharding_types left out), the tables "
        "fit."
    )


@pytest.mark.parametrize(
    ("machine", "named"),
    [
        (Nodes(8, 4, 2), "num_devices to 16 (2 domains of 2 nodes linked by --inter)"),
        (Nodes(8, 4, 2, intra="nvlink_gb200"), "num_devices to 12 (3 nodes of one domain)"),
        (Nodes(8, 4, 2, intra="calibrated.yaml"), "num_devices to 12 (3 nodes of one domain)"),
        (Nodes(72, 4, 18, intra="nvlink_gb200"), "num_devices to 144 (2 domains of 18 nodes linked by --inter)"),
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


def test_the_memory_of_hosts_that_would_do_is_more_than_the_smallest_host_has() -> None:
    """Each node has three tables of 3 GB for two devices of 4: it takes 3 GB of a host, and one has 1."""
    asked = whole_gb(*[3.0] * 6, devices=4, gb=4, sharding_types=(TABLE_WISE,), compute_kernels=())
    tables = tuple(replace(one, pooling_factor=1.0 if one.name in ("t0", "t3") else 2.0) for one in asked.tables)
    asked = replace(asked, tables=tables)  # these two leave device memory first
    rules = Rules(pinned_nodes={f"t{number}": (number // 3,) for number in range(6)})
    small, large = (
        replace(asked, rules=rules, machine=Nodes(4, 2, inter="infiniband_ndr", host_bytes=(first * GB, 9 * GB)))
        for first in (1, 3)
    )
    assert "or host_memory_gb to 3" in refused(small)
    assert refused(large) == ""
    gave_up = refusal(large, InfeasibleTask("nothing was found.", f"{MORE_CAPACITY}."))
    assert "host_memory_gb" not in str(gave_up)  # the smallest host has the 3 GB that do


def test_mlperfs_tables_fit_eight_devices_of_13_gb_by_columns() -> None:
    """Even cuts are 12.39 GB each; the five largest, of 40,000,000 rows and 128 columns, are 19.07 GB each."""
    tables = load_catalog("mlperf_dlrm_v2", 65_536)
    asked = PlacementRequest(tables, (gb_to_bytes(13),) * 8, 65_536, sharding_types=BY_COLUMNS)
    check_parts(asked, legal_parts(asked.task()))


def test_the_search_knows_the_types_that_rules_leave() -> None:
    """Rows of the one node are row_wise; rules that leave nothing are named before anything is searched."""
    asked = request(8, 8, rules=Rules.of(table_types={"a": "table_row_wise"}))
    assert place_request(asked, untrained(), PlaceConfig()).type_of_table["a"] == ROW_WISE
    nothing = request(8, 8, rules=Rules.of(pinned={"a": 0}, table_types={"a": "row_wise"}))
    with pytest.raises(InfeasibleTask, match="'a' allows only row_wise sharding, but a rule allows only the devices"):
        place_request(nothing, untrained(), PlaceConfig())


def test_the_memory_that_a_refusal_names_has_the_reserve_in_it() -> None:
    asked = adagrad(20_000_000, gb=0.98, reserved_bytes=GB // 8)
    message = refused(asked)
    assert "memory_cap_gb to 1.10" in message
    check_remedies(asked, message)


def test_the_memory_that_a_refusal_names_has_batches_a_share_and_the_dense_model_in_it() -> None:
    """2.38 GB of weights in all ways; inputs and outputs of 65,536 samples, 15 % and 0.5 GB of a dense model."""
    asked = adagrad(20_000_000, gb=0.98, reserved_share=0.15, dense_bytes=GB // 2, training_pipeline="prefetch")
    asked = replace(asked, batch_size=65_536)
    message = refused(asked)
    found = re.search(r"memory_cap_gb to (\d+\.\d\d)", message)
    assert found and float(found[1]) > 1.5, message
    check_remedies(asked, message)
    less = replace(asked, caps_bytes=(gb_to_bytes(float(found[1]) - 0.01),) * 3)
    assert "memory_cap_gb" in refused(less)


def test_what_no_table_may_take_is_said() -> None:
    message = refused(adagrad(20_000_000, gb=0.98, reserved_bytes=GB // 4, dense_bytes=GB // 8))
    assert "the 3 devices have 1.82 GB (cap 0.61 GB each)" in message
    assert " Of 0.98 GB of a device, 0.25 are reserved, 0.12 are the dense model's. Raise memory_cap_gb" in message
    assert " Of " not in refused(adagrad(20_000_000, gb=0.85))


def test_host_memory_is_named_where_it_would_do() -> None:
    """Of 3 + 3 + 3 GB two devices of 4 hold 3 each; a host memory of 3 GB is for the third."""
    asked = whole_gb(3, 3, 3, devices=2, gb=4, sharding_types=(TABLE_WISE,), compute_kernels=())
    message = refused(asked)
    assert "With 3 GB of each host's memory (--host-memory-gb 3), they fit." in message
    assert refused(with_host_gb(asked, 3)) == ""
    less = refused(with_host_gb(asked, 2))
    assert "or host_memory_gb to 3" in less and "With" not in less and ", or host_memory_gb." not in less


def test_host_memory_is_not_named_where_it_would_not_do() -> None:
    asked = whole_gb(3, 3, 3, devices=2, gb=4, sharding_types=(TABLE_WISE,), compute_kernels=())
    for other in (
        replace(asked, compute_kernels=(FUSED,)),
        replace(asked, hardware="cpu"),
        replace(asked, rules=Rules.of(table_kernels=dict.fromkeys(("t0", "t1", "t2"), "fused"))),
        replace(asked, sharding_types=("data_parallel",)),
    ):
        message = refused(other)
        assert message and "host" not in message


def with_host_gb(asked: PlacementRequest, gb: int) -> PlacementRequest:
    return replace(asked, machine=replace(asked.nodes, host_bytes=(gb * GB,) * asked.nodes.num_nodes))


def whole_gb(*sizes: float, devices: int, gb: float, **more: Any) -> PlacementRequest:
    """Whole tables t0, t1, ... of so many GB, of one column each."""
    tables = tuple(Table(f"t{n}", int(size * GB / 4), 1, 2.0) for n, size in enumerate(sizes))
    asked = {"sharding_types": BY_COLUMNS, "compute_kernels": (FUSED,), **more}
    return request(tables=tables, caps=(gb_to_bytes(gb),) * devices, **asked)


def test_what_does_is_named_where_tables_fit_in_numbers_and_not_in_pieces() -> None:
    assert refused(whole_gb(3, 3, 3, devices=2, gb=5)).endswith(
        "the largest (t0) needs 3.00 GB. Raise memory_cap_gb to 6.00 or num_devices to 3. Sharded in every way "
        "(sharding_types left out), the tables fit."
    )


def test_the_memory_that_would_do_is_the_least() -> None:
    """17 tables of 1 GB and one of 0.3 on 4 devices of 4.4: one device must hold 5 of them."""
    message = refused(whole_gb(*[1.0] * 17, 0.3, devices=4, gb=4.4))
    assert "Raise memory_cap_gb to 5.00 or num_devices to 5." in message


def test_unlike_devices_get_new_ones_as_large_as_the_largest() -> None:
    """3 + 3 on 2 + 4: one of the two has no room."""
    asked = replace(whole_gb(3, 3, devices=2, gb=1), caps_bytes=(2 * GB, 4 * GB))
    assert "Raise memory_cap_gb to 3.00 for each device or num_devices to 3 (the new ones as large as" in refused(asked)


def test_what_does_not_help_is_not_named() -> None:
    apart = (("t0", "t1"), ("t1", "t2"), ("t0", "t2"))
    asked = whole_gb(1, 1, 1, devices=2, gb=4, rules=Rules(apart=apart))
    assert refused(asked).endswith("Raise num_devices to 3.")
    stuck = Rules(apart=apart, pinned={name: (0, 1) for name in ("t0", "t1", "t2")})
    assert refused(replace(asked, rules=stuck)).endswith("relax the rules on where tables may live.")
    pinned = Rules(pinned={name: (0, 1) for name in ("t0", "t1", "t2")})
    message = refused(whole_gb(2, 2, 2, devices=3, gb=3.5, rules=pinned))
    assert message.endswith("Raise memory_cap_gb to 4.00.")


def test_rules_that_contradict_each_other_are_what_to_change() -> None:
    rules = Rules(together=(("t0", "t1"),), apart=(("t0", "t1"),))
    message = refused(whole_gb(1, 1, devices=2, gb=4, rules=rules))
    assert message == "tables t0, t1 must stay both together and apart. Drop one of the two rules."
