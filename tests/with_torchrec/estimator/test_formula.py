"""The formula of an exported estimator: exchanges as the cluster has them, work counted by hand."""

from __future__ import annotations

import pytest

from evenshard.measure.collectives import exchange_times, volumes_of
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.plan import parts_by_table
from evenshard.placement.sharding import sharding_type
from evenshard.tables.table import Table
from evenshard.torchrec.estimator.examples import FittedMachine
from evenshard.torchrec.estimator.fit import constants_of, rated_ms, shards_of_devices, size_of_machine
from evenshard.torchrec.estimator.formula import (
    FittedShard,
    Rates,
    cache_miss_bytes,
    exchanged_ms,
    host_work_of,
    touched_bytes,
    work_of,
)

# The formula has straight links.
MACHINE = FittedMachine("simulated:h100", devices_per_node=2, intra="327gb_s")
TABLES = [Table(name, 4000, 8, 3.0) for name in "abcd"]
LARGE = [Table("large", 10**7, 8, 3.0)]


def parts_of(way: str) -> list[TablePart]:
    """Four tables on two nodes of two devices, so that all devices have as much."""
    rows, columns = Span(0, 4000), Span(0, 8)
    quarters = [Span(at * 1000, at * 1000 + 1000) for at in range(4)]
    halves = [Span(0, 2000), Span(2000, 4000)]
    found = []
    for number, table in enumerate(TABLES):
        node = number % 2
        found += {
            "table_wise": [TablePart(table.name, rows, columns, (number,))],
            "row_wise": [TablePart(table.name, quarters[at], columns, (at,)) for at in range(4)],
            "table_row_wise": [TablePart(table.name, halves[at], columns, (2 * node + at,)) for at in range(2)],
            "data_parallel": [TablePart(table.name, rows, columns, (0, 1, 2, 3))],
        }[way]
    return found


@pytest.mark.parametrize("way", ["table_wise", "row_wise", "table_row_wise", "data_parallel"])
def test_exchanges_are_those_of_the_cluster_where_all_devices_have_as_much(way: str) -> None:
    task = MACHINE.request(TABLES, 2).task()
    parts, fit, links = parts_of(way), constants_of(MACHINE, LARGE), MACHINE.links()
    by_table = parts_by_table(task, parts)
    assert {sharding_type(of, table, task.machine) for of, table in zip(by_table.values(), TABLES, strict=True)} == {
        way
    }
    times = exchange_times(task, volumes_of(task, by_table), links)
    rates = Rates(links.intra.even_gb_s(2) * 1e6, links.inter.even_gb_s(4) * 1e6, 1e6)  # type: ignore[union-attr]
    size = size_of_machine(task.machine)
    for device, shards in enumerate(shards_of_devices(task, parts)):
        inputs, out, back = (
            sum(column) for column in zip(*(exchanged_ms(one, size, rates, fit) for one in shards), strict=True)
        )
        assert out == pytest.approx(times.forward[device])
        assert back == pytest.approx(times.backward[device])
        assert inputs == pytest.approx(times.input_dist[device])


def test_work_by_hand() -> None:
    size = size_of_machine(MACHINE.request(TABLES, 2).nodes)
    rows = FittedShard("row_wise", "fused", 1000, 8, 4000, lookups=8e6, bags=2e6, weight_bytes=4, call_share=0.25)
    work = work_of(rows, size, distinct_share=0.1, l2_bytes=16_000.0)
    assert (work["lookups"], work["bags"], work["call"], work["dense_bytes"]) == (2.0, 2.0, 0.25, 0.0)
    assert work["distinct"] * 1e6 == 1000  # all of its rows
    assert work["row_bytes"] == 2.0 * 32
    assert work["missed_bytes"] * 1e6 == pytest.approx(32_000 + (64e6 - 32_000) / 2)  # half of them fit
    replica = FittedShard("data_parallel", "dense", 4000, 8, 4000, lookups=8e6, bags=2e6, weight_bytes=4)
    replicated = work_of(replica, size, 0.1, 16_000.0)
    assert (replicated["lookups"], replicated["dense_bytes"]) == (2.0, 4000 * 8 * 4 / 1e6)


def test_memory_by_hand() -> None:
    assert touched_bytes(32, 32) == 32
    assert touched_bytes(48, 32) == 64  # every other row begins in the middle of a sector
    assert cache_miss_bytes(100.0, 40.0, 50.0) == 40.0
    assert cache_miss_bytes(100.0, 40.0, 10.0) == 40.0 + 60.0 * 0.75


def test_misses_go_from_all_to_none() -> None:
    def missed_ms(load_factor: float) -> float:
        one = FittedShard("table_wise", "fused_uvm_caching", 1000, 16, 1000, 1e4, 1e4, 4, load_factor=load_factor)
        return host_work_of(one, {"distinct_share": 0.01, "new_share": 0.4}, host=1.0)["missed_ms"]

    assert missed_ms(0.0) == 100 * 64  # distinct rows, a line each
    assert missed_ms(0.1) == pytest.approx(100 * 64 * 0.4 * 0.9)  # as many rows as a batch has: the new ones
    assert missed_ms(1.0) == 0.0


def test_a_rating_is_the_largest_sum_of_a_device() -> None:
    task = MACHINE.request(TABLES, 2).task()
    fit = constants_of(MACHINE, LARGE)
    fit["kernels"] = {}
    fit["compute"] = {
        kind: {"forward": {"shard": 10.0}, "backward": {}}
        for kind in ("table_wise", "row_wise", "table_row_wise", "data_parallel")
    }
    one_each = rated_ms(task, parts_of("table_wise"), fit)
    everything = [TablePart(table.name, Span(0, 4000), Span(0, 8), (0,)) for table in TABLES]
    assert 10 < one_each < 10.2
    assert 40 < rated_ms(task, everything, fit) < 40.4
