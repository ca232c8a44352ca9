"""The space of a search: shards in arrays take what parts take by themselves, and options can be added later."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import (
    FUSED_UVM,
    ON_DEVICE,
    USUAL_KERNELS,
    Span,
    Storage,
    TablePart,
    busiest_rows,
    lookup_share,
)
from evenshard.placement.sharding import COLUMN_WISE, DATA_PARALLEL, ROW_WISE, SHARDING_TYPES, TABLE_WISE, TYPES
from evenshard.placement.task import ShardingTask, TableLimits, memory_of_part
from evenshard.price.collectives import Links, part_volume
from evenshard.price.gpu_profile import gpu_profile
from evenshard.price.kernel_calls import KernelCall, kernel_call, part_lookups, replica_lookups
from evenshard.price.link import LINKS
from evenshard.price.simulated_price import build_device_kind
from evenshard.price.step import DeviceKind, PartCosts
from evenshard.search.chains import chains_of
from evenshard.search.sharding_option import Choice
from evenshard.search.space import SearchSpace, column_cuts
from evenshard.sharders.cost_model.price import LearnedPrice
from evenshard.tables.table import Table
from support.convex_builders import random_model

MACHINE = Nodes(8, 4, inter="infiniband_ndr", host_bytes=(2**36, 2**36))
LINKS_OF_BOTH = Links(LINKS["nvlink_h100"], LINKS["infiniband_ndr"])


def drawn_table(rng: np.random.Generator, number: int) -> Table:
    """A table of any size, pooling, weights and features."""
    lookups = tuple(float(one) for one in rng.uniform(0.5, 9, int(rng.choice([1, 1, 3]))))
    pooling, shares = str(rng.choice(["sum", "mean", "none"])), rng.random(20)
    return Table(
        f"t{number}",
        int(10 ** rng.uniform(2, 6.5)),
        int(rng.choice([4, 6, 8, 64, 80, 160])),
        sum(lookups),
        weight_bits=int(rng.choice([32, 16, 8, 4])),
        pooling=pooling,
        is_weighted=pooling == "sum" and rng.random() < 0.3,
        feature_pooling_factors=lookups if len(lookups) > 1 else (),
        is_deduplicated=bool(rng.random() < 0.4),
        module=str(rng.choice(["", "other"])),
        row_shares=tuple((shares / shares.sum()).tolist()) if rng.random() < 0.4 else None,
    )


def drawn_task(seed: int, **rules: object) -> ShardingTask:
    rng = np.random.default_rng(seed)
    tables = tuple(drawn_table(rng, number) for number in range(8))
    limits = tuple(
        TableLimits(frozenset(SHARDING_TYPES) - ({DATA_PARALLEL} if table.is_sequence else set())) for table in tables
    )
    pipeline, optimizer = str(rng.choice(["", "sparse_dist", "prefetch"])), str(rng.choice(["adam", "rowwise_adagrad"]))
    task = ShardingTask(tables, MACHINE, (2**26,) * 8, 16_384, limits=limits, kernels=USUAL_KERNELS, pipeline=pipeline)
    return replace(task, optimizer=optimizer, **rules)  # type: ignore[arg-type]


def costs_of(task: ShardingTask, seed: int = 0) -> PartCosts:
    """Devices of two kinds, or with odd seeds those of a learned model."""
    if seed % 2:
        kinds = [DeviceKind(LearnedPrice(random_model(seed)), float("inf"))] * 2
    else:
        kinds = [build_device_kind(gpu_profile(name), Nodes(1, 1)) for name in ("h100", "v100")]
    return PartCosts(task, kinds, [0, 1] * 4, LINKS_OF_BOTH)


@pytest.mark.parametrize("seed", range(4))
def test_shards_take_what_parts_take_by_themselves(seed: int) -> None:
    task = drawn_task(seed)
    costs = costs_of(task, seed)
    space, call_of = SearchSpace(costs, offloads=seed < 2), dict[int, KernelCall]()
    call_of = {number: call for call, number in space.calls.items()}
    shards = space.shard_arrays
    for number, group in enumerate(space.groups):
        table = task.tables[group.tables[0]]
        for option in space.options(number):
            own = TYPES[option.sharding_type]
            rows = busiest_rows(table, option.span) if own.cuts_rows else Span(0, table.num_rows)
            devices = tuple(range(8)) if own.is_replicated else (0,)
            assert sum(option.widths) == table.embedding_dim
            for shard, columns in zip(option.shards, option.widths, strict=True):
                part = TablePart(table.name, rows, Span(0, columns), devices, option.storage)
                memory = memory_of_part(task, table, part)
                sizes = (shards.size_P[shard], shards.host_P[shard], shards.ssd_P[shard])
                assert sizes == (memory.device_bytes, memory.host_bytes, memory.ssd_weights)
                volume = part_volume(table, own.name, columns, lookup_share(table, rows), 8)
                expected_V = [0.0] * 4 if own.is_replicated else list(volume)
                assert shards.volume_PV[shard].tolist() == expected_V
                offload_K2 = costs.offload_K2(part, table) or ((0, 0), (0, 0))
                assert shards.offload_PK2[shard].tolist() == [[*times] for times in offload_K2]
                assert shards.values_P[shard] == (table.num_rows * table.embedding_dim if own.is_replicated else 0)
                _, (cell,) = shards.cells_of(np.array([shard]))
                call, row = shards.call_C[cell], shards.row_C[cell]
                assert call_of[call] == kernel_call(table, own.name, task.optimizer)
                lookups = replica_lookups(table, task) if own.is_replicated else part_lookups(part, table, task)
                for price, columns_PH in zip(costs.prices, space.lookups.columns_KPH, strict=True):
                    alone_PH, maxima = price.columns(lookups), price.num_maxima
                    expected = alone_PH.sum(axis=0)
                    expected[len(expected) - maxima :] = alone_PH[:, len(expected) - maxima :].max(axis=0)
                    assert columns_PH[row] == pytest.approx(expected, rel=1e-5 if seed % 2 else 1e-12)


def test_tables_that_stay_together_are_one_shard_with_all_that_they_take() -> None:
    task = drawn_task(2, together=((0, 1, 2),))
    space = SearchSpace(costs_of(task))
    ((number, group),) = ((at, one) for at, one in enumerate(space.groups) if len(one.tables) > 1)
    apart = SearchSpace(costs_of(drawn_task(2)))
    wholes = [
        next(option for option in apart.options(at) if len(option.shards) == option.span == 1).shards[0]
        for at in range(3)
    ]
    (shard,), widths = space.option(number, 0).shards, space.option(number, 0).widths
    assert (group.tables, widths) == ((0, 1, 2), (sum(task.tables[at].embedding_dim for at in range(3)),))
    shards, of_wholes = space.shard_arrays, apart.shard_arrays
    assert shards.size_P[shard] == of_wholes.size_P[wholes].sum()
    assert shards.volume_PV[shard] == pytest.approx(of_wholes.volume_PV[wholes].sum(axis=0))
    assert space.find_or_add_option(number, TABLE_WISE, [6], ON_DEVICE) == 0


def test_the_table_of_options_has_what_the_options_say() -> None:
    space = SearchSpace(costs_of(drawn_task(0)), offloads=True)
    table, shards = space.table, space.shard_arrays
    every = [option for group in range(len(space.groups)) for option in space.options(group)]
    assert len(every) == len(table.group_O) == table.num_options_G.sum()
    assert all(one.widths == tuple(shards.columns_P[[*one.shards]].tolist()) for one in every)
    assert table.bytes_O.tolist() == [shards.size_P[[*one.shards]].max() for one in every]
    assert table.width_O.tolist() == [max(one.widths) for one in every]
    assert table.is_replica_O.tolist() == [one.sharding_type == DATA_PARALLEL for one in every]
    slices = zip(table.first_twin_O, table.num_twins_O, strict=True)
    twins = [table.twin_O[first : first + count].tolist() for first, count in slices]
    keys = [(int(group), one.sharding_type, one.widths) for group, one in zip(table.group_O, every, strict=True)]
    assert twins == [[number for number, other in enumerate(keys) if other == own] for own in keys]
    shapes = {(one.sharding_type, one.widths[0], shape) for one, shape in zip(every, table.shape_O, strict=True)}
    assert len({shape for *_, shape in shapes}) == len({one[:2] for one in shapes}) == len(shapes)


CUT = Table("cut", 10**5, 160, 5.0)


def space_of(*tables: Table, **limits: object) -> SearchSpace:
    task = ShardingTask(tables, MACHINE, (2**33,) * 8, 16_384, kernels=USUAL_KERNELS)
    task = replace(task, limits=(TableLimits(**limits),) * len(tables))  # type: ignore[arg-type]
    return SearchSpace(costs_of(task))


def types_of(space: SearchSpace, group: int) -> set[str]:
    return {option.sharding_type for option in space.options(group)}


def test_known_placements_add_options_of_odd_widths_but_none_of_types_that_are_not_allowed() -> None:
    space = space_of(replace(CUT, name="first"), CUT)
    before, counts = space.table, space.table.num_options_G.tolist()
    widths = [64, 64, 32]
    number = space.find_or_add_option(0, COLUMN_WISE, widths, ON_DEVICE)
    assert number == counts[0] and space.find_or_add_option(0, COLUMN_WISE, widths, ON_DEVICE) == number
    added = space.option(0, number)
    assert added.widths == tuple(widths)
    assert space.table.num_options_G.tolist() == [counts[0] + 1, counts[1]]
    assert space.table.first_option_G[1] == before.first_option_G[1] + 1
    of_second = before.shard_A[before.first_O[before.first_option_G[1]] :]
    assert space.table.shard_A[space.table.first_O[space.table.first_option_G[1]] :].tolist() == of_second.tolist()
    assert space.shard_arrays.row_C.max() < len(space.lookups.columns_KPH[0])
    space = space_of(CUT, types=frozenset({COLUMN_WISE, ROW_WISE}))
    count = space.table.num_options_G[0]
    assert space.find_or_add_option(0, DATA_PARALLEL, [160], ON_DEVICE) is None
    assert space.table.num_options_G[0] == count
    assert space.find_or_add_option(0, ROW_WISE, [160], Storage(FUSED_UVM)) == count


@pytest.mark.parametrize(
    ("widths", "is_usual"),
    [
        ([160], True),
        ([80, 80], True),
        ([84, 76], False),
        ([56, 52, 52], False),
        ([40, 40, 40, 40], True),
        ([32] * 5, True),
        ([64, 64, 32], False),
        ([28, 28, 28, 28, 24, 24], False),
    ],
)
def test_halves_powers_of_two_and_parts_as_wide_as_one_are_usual(widths: list[int], is_usual: bool) -> None:
    space = space_of(CUT)
    (number,) = space.add_options(0, [(COLUMN_WISE, widths, ON_DEVICE)])
    assert space.table.is_unusual_O[number] == (not is_usual)


def test_column_cuts_are_even_multiples_of_four() -> None:
    assert list(column_cuts(128, 4, 4)) == [(64, 64), (44, 44, 40), (32, 32, 32, 32)]
    assert list(column_cuts(128, 8, 64)) == [(64, 64)]
    assert list(column_cuts(6, 8, 4)) == []


def test_rows_are_cut_only_where_every_device_gets_some() -> None:
    """A sum over devices without rows would be a wrong one; where nothing else is allowed, it has to do."""
    few, many = Table("few", 3, 16, 5.0), Table("many", 8, 16, 5.0)
    of_few, of_many = (types_of(space_of(few, many), group) for group in range(2))
    assert ROW_WISE not in of_few and ROW_WISE in of_many
    assert types_of(space_of(few, types=frozenset({ROW_WISE})), 0) == {ROW_WISE}


def test_an_option_that_a_start_brings_has_its_own_kernel_call() -> None:
    """A start may be sharded in a type that the search does not try by itself; its collective counts all the same."""
    costs_ms = []
    for types in (frozenset({TABLE_WISE}), frozenset(SHARDING_TYPES)):
        space = space_of(CUT, replace(CUT, name="other"), types=types)
        (number,) = space.add_options(0, [(ROW_WISE, [160], ON_DEVICE)])
        costs_ms.append(chains_of(space, [[Choice(number), Choice(0, (0,))]]).cost_N[0])
    assert costs_ms[0] == pytest.approx(costs_ms[1])
