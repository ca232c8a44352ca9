"""The search where device memory is short: caches and host memory, hosts that are full, and a bound below all of it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from evenshard.sharders.search.construction import Construction, Works

from evenshard.measure.collectives import Links
from evenshard.measure.link import LINKS
from evenshard.measure.price.step import DeviceKind, PartCosts
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.measure.simulated.price import SimulatedCluster, simulated_kind
from evenshard.placement.machine import Machine
from evenshard.placement.parts import FUSED, FUSED_UVM, FUSED_UVM_CACHING, USUAL_KERNELS, Span, Storage, TablePart
from evenshard.placement.placement import Placement
from evenshard.placement.plan import check_sharding
from evenshard.placement.sharding import ROW_WISE, SHARDING_TYPES
from evenshard.placement.task import ShardingTask, TableLimits, used_bytes, used_host_bytes
from evenshard.sharders.bounds.lower_bound import lower_bound_ms
from evenshard.sharders.packing.legal_parts import legal_parts
from evenshard.sharders.search.choices import choices_of
from evenshard.sharders.search.search import PlanSearch, PlanSearchEffort
from evenshard.sharders.search.sharding_option import Choice
from evenshard.sharders.search.space import SearchSpace, is_short_of_memory
from evenshard.sharders.search.state import State
from evenshard.tables.table import Table
from evenshard.utils.errors import InfeasibleTask

pytestmark = pytest.mark.full_search

GB = 2**30
BATCH = 16_384
SHORT = PlanSearchEffort(changes=300, idle_kicks=10)
HOT = Table("hot", 2**21, 128, 40.0)
# 1 GB each.
COLD = Table("cold", 2**21, 128, 0.5)


@cache
def kind() -> DeviceKind:
    return simulated_kind(gpu_profile("h100"), Machine(1, 1))


def costs_of(
    tables: tuple[Table, ...], devices: int, room_gb: float, host_gb: float = 64.0, nodes: int = 1, **changes: object
) -> PartCosts:
    inter = "infiniband_ndr" if nodes > 1 else ""
    machine = Machine(devices, devices // nodes, inter=inter, host_bytes=(int(host_gb * GB),) * nodes)
    task = ShardingTask(tables, machine, (int(room_gb * GB),) * devices, BATCH, kernels=USUAL_KERNELS)
    task = replace(task, **changes)  # type: ignore[arg-type]
    links = Links(LINKS["nvlink_h100"], LINKS[inter] if inter else None)
    return PartCosts(task, [kind()], [0] * devices, links)


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


@pytest.mark.parametrize(("host_gb", "fits"), [(1.5, True), (0.5, False)])
def test_a_state_fits_only_if_its_hosts_hold_what_it_keeps_there(host_gb: float, fits: bool) -> None:
    """1 GB in the host's memory, as a state says of itself and of a change."""
    search = PlanSearch(costs_of((HOT, COLD), 1, 1.2, host_gb), SHORT)
    outside = next(
        number
        for number, option in enumerate(search.space.groups[0].options)
        if sum(piece.host_bytes for piece in option.pieces) >= GB
    )
    state = State(search.space, [Choice(0)] * 2)
    change = [(0, Choice(outside))]
    _, fits_N = state.after(state.piece_changes([change]), 1)
    state.replace_all(change)
    assert state.used_3D[0, 0] <= 1.2 * GB and state.used_3D[1, 0] >= GB
    assert state.fits() is fits and fits_N.tolist() == [fits]


def test_where_all_tables_fit_nothing_is_kept_outside() -> None:
    costs = costs_of((HOT, COLD), 2, 8.0)
    assert not is_short_of_memory(costs.task)
    assert {part.storage.kernel for part in searched(costs)} == {FUSED}


def test_without_host_memory_there_is_no_option() -> None:
    costs = costs_of((HOT, COLD), 1, 1.2)
    alone = replace(costs.task, machine=replace(costs.task.machine, host_bytes=()))
    with pytest.raises(InfeasibleTask):
        PlanSearch(PartCosts(alone, costs.kinds, [0], costs.links), SHORT).run()
    with pytest.raises(InfeasibleTask, match=r"devices 1\.20 GB, the hosts 0\.50"):
        legal_parts(costs_of((HOT, COLD), 1, 1.2, host_gb=0.5).task)


@pytest.mark.slow
def test_hosts_hold_no_more_than_they_have() -> None:
    tables = tuple(Table(f"t{n}", 2**21, 128, 1.0 + n) for n in range(8))
    costs = costs_of(tables, 4, 1.3, host_gb=2.2, nodes=2)
    parts = searched(costs)
    assert max(used_host_bytes(costs.task, parts)) <= 2.2 * GB
    assert max(used_bytes(costs.task, parts)) <= 1.3 * GB
    assert {part.storage.kernel for part in parts} > {FUSED}


@pytest.mark.parametrize(("host_gb", "fits"), [(1.1, True), (0.9, False)])
def test_rows_of_all_devices_are_placed_only_where_hosts_have_memory_for_them(host_gb: float, fits: bool) -> None:
    space = SearchSpace(costs_of((COLD,), 2, 0.2, host_gb=host_gb))
    options = space.groups[0].options
    in_rows = next(
        at for at, one in enumerate(options) if (one.sharding_type, one.storage.kernel) == (ROW_WISE, FUSED_UVM)
    )
    choices = Construction(space, Works.of(space)).place(np.array([in_rows]))
    assert (choices is not None) == fits


@pytest.mark.parametrize("host_gb", [1.1, 2.2])
def test_a_host_that_one_table_fills_gets_no_other(host_gb: float) -> None:
    """Two hosts of one device each: the device with less to do is on the host whose memory the first table took."""
    space = SearchSpace(costs_of((HOT, replace(COLD, name="a"), replace(COLD, name="b")), 2, 1.2, host_gb, nodes=2))
    outside = [
        next(at for at, one in enumerate(group.options) if one.span == 1 and one.storage.kernel == FUSED_UVM)
        for group in space.groups[1:]
    ]
    choices = Construction(space, Works.of(space)).place(np.array([0, *outside]))
    assert choices is not None
    (hot,), *cold = (one.places for one in choices)
    assert cold == ([(1 - hot,), (hot,)] if host_gb < 2 else [(1 - hot,), (1 - hot,)])


def test_rules_of_a_table_say_where_it_is_kept() -> None:
    only = TableLimits(kernels=frozenset({FUSED_UVM}))
    cached = TableLimits(kernels=frozenset({FUSED_UVM_CACHING}))
    costs = costs_of((HOT, COLD), 2, 8.0, limits=(only, cached))
    kept = {part.table: part.storage.kernel for part in searched(costs)}
    assert kept == {"hot": FUSED_UVM, "cold": FUSED_UVM_CACHING}


def test_tables_that_stay_together_are_kept_alike() -> None:
    tables = (HOT, COLD, replace(COLD, name="colder", pooling_factor=0.1))
    parts = searched(costs_of(tables, 2, 1.2, together=((1, 2),)))
    of = {part.table: part for part in parts}
    assert (of["cold"].device, of["cold"].storage) == (of["colder"].device, of["colder"].storage)


@pytest.mark.slow
def test_a_tiny_task_is_solved_with_every_cache() -> None:
    """Three tables on two devices with room for half of them: every way, storage and place is tried by hand."""
    tables = random_tables(3, 1)
    size = sum(table.size_bytes for table in tables)
    costs = costs_of(tables, 2, 0.25 * size / GB)
    space = SearchSpace(costs)
    per_group = [
        [
            Choice(number, places)
            for number, option in enumerate(group.options)
            for places in ([(0,), (1,)] if len(option.pieces) == 1 and option.span == 1 else [(0, 1)])
            if option.span == 1
        ]
        + [Choice(number) for number, option in enumerate(group.options) if option.span > 1]
        for group in space.groups
    ]
    per_group[0] = [choice for choice in per_group[0] if choice.places != (1,)]  # the devices are alike
    tried = list(product(*per_group))
    state = State(space, tried[0])
    windows_WND, fits_N = state.after(state.piece_changes([list(enumerate(choices)) for choices in tried]), len(tried))
    best = float(windows_WND.max(axis=2).sum(axis=0)[fits_N].min())
    assert PlanSearch(costs, PlanSearchEffort(changes=2000)).run().best.predicted_ms <= best * 1.01


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_nothing_that_fits_is_below_the_bound(seed: int) -> None:
    tables = random_tables(6, seed)
    size = sum(table.size_bytes for table in tables) / GB
    costs = costs_of(tables, 4, 0.15 * size, nodes=2)
    space, rng = SearchSpace(costs), np.random.default_rng(seed)
    bound = lower_bound_ms(space)
    found = [PlanSearch(costs, SHORT).run().best.predicted_ms]
    for _ in range(300):
        parts = [
            replace(part, storage=Storage(FUSED_UVM_CACHING, float(10 ** rng.uniform(-3, 0))))
            if rng.random() < 0.85
            else part
            for part in Placement(tuple(rng.integers(4, size=6).tolist()), 4).parts(tables)
        ]
        if max(used_bytes(costs.task, parts)) <= costs.task.room_bytes[0]:
            found.append(costs.predict(parts).predicted_ms)
    assert len(found) > 20
    assert 0 < bound <= min(found)


def test_sums_stay_right_and_choices_come_back() -> None:
    tables = random_tables(5, 3)
    costs = costs_of(tables, 4, 0.1 * sum(table.size_bytes for table in tables) / GB, nodes=2)
    space, rng = SearchSpace(costs), np.random.default_rng(0)
    for _ in range(20):
        choices = []
        for group in space.groups:
            number = int(rng.integers(len(group.options)))
            option = group.options[number]
            choices.append(Choice(number, tuple(rng.permutation(4 // option.span)[: len(option.pieces)].tolist())))
        state = State(space, choices)
        parts = state.parts()
        assert choices_of(space, parts) == state.choices
        assert costs.predict(parts).predicted_ms == pytest.approx(state.cost_ms, rel=2e-4)
        assert state.used_3D[1].reshape(2, -1).sum(axis=1).tolist() == pytest.approx(
            used_host_bytes(costs.task, parts), rel=1e-3
        )
        changed = State(space, choices)
        changed.replace(0, Choice(0))
        changed.replace(0, choices[0])
        assert changed.cost_ms == pytest.approx(state.cost_ms, rel=1e-5)
        assert changed.used_3D[1].tolist() == state.used_3D[1].tolist()


def test_a_cache_of_any_size_can_be_where_a_search_begins() -> None:
    odd = Storage(FUSED_UVM_CACHING, 0.1234)
    tables = (HOT, COLD)
    parts = tuple(TablePart(table.name, Span(0, table.num_rows), Span(0, 128), (0,), odd) for table in tables)
    space = SearchSpace(costs_of(tables, 2, 1.2))
    choices = choices_of(space, parts)
    assert choices is not None
    assert {part.storage for part in State(space, choices).parts()} == {odd}


def test_the_simulated_machine_and_the_prediction_add_the_same() -> None:
    tables = (HOT, COLD)
    costs = costs_of(tables, 2, 8.0)
    profile = gpu_profile("h100")
    cluster = SimulatedCluster(costs.task.machine, [profile] * 2, costs.links)
    inside = Placement((0, 1), 2).parts(tables)
    outside = tuple(replace(part, storage=Storage(FUSED_UVM)) for part in inside)
    for cost in (
        lambda parts: [one.predicted_fwd_compute_ms for one in costs.predict(parts).devices],
        lambda parts: [one.fwd_compute_ms for one in cluster.cost(costs.task, parts).devices],
    ):
        slower = np.array(cost(outside)) - np.array(cost(inside))
        assert (slower > 0).all()
        assert slower[0] > 10 * slower[1]


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
