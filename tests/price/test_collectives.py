"""What devices exchange, by hand: 2 nodes of 2 devices, a batch of 8 samples, links of round numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.placement import parts_by_table
from evenshard.placement.sharding import GRID_SHARD, ROW_WISE, TABLE_WISE, Communication
from evenshard.placement.task import ShardingTask
from evenshard.price.collectives import (
    ExchangeTimes,
    Links,
    all_to_all_bytes,
    all_to_all_ms,
    distinct_share,
    exchange_times,
    node_reduce_scatter_bytes,
    part_volume,
    reduce_scatter_bytes,
    volumes_of,
)
from evenshard.price.link import LINKS
from evenshard.price.link_model import Link
from evenshard.tables.table import Table
from support.builders import READ_ONCE

MACHINE = Nodes(4, 2, inter="slow")
FAST = Link(0.0, "by hand", bandwidth_gb_s=1e-3)  # 1 ms for 1000 bytes
SLOW = Link(0.0, "by hand", bandwidth_gb_s=1e-4)  # 10 ms
BATCH = 8
T = Table("t", 100, 16, 5.0)


def moved_by(times: np.ndarray) -> object:
    """To compare with, but for rounding."""
    return pytest.approx(times.tolist())


def numbers(*values: float) -> np.ndarray:
    return np.array(values, dtype=float)


def in_rows(one: Table, *devices: int) -> list[TablePart]:
    edges = np.linspace(0, one.num_rows, len(devices) + 1).astype(int).tolist()
    return [
        TablePart(one.name, Span(start, stop), Span(0, one.embedding_dim), (device,))
        for start, stop, device in zip(edges, edges[1:], devices, strict=False)
    ]


def whole(one: Table, *devices: int) -> list[TablePart]:
    return [TablePart(one.name, Span(0, one.num_rows), Span(0, one.embedding_dim), devices)]


def times_of(
    parts: list[TablePart], *tables: Table, links: Links | None = None, machine: Nodes = MACHINE, **more: object
) -> ExchangeTimes:
    task = ShardingTask(tables or (T,), machine, (10**12,) * machine.num_devices, BATCH, **more)  # type: ignore[arg-type]
    volumes = volumes_of(task, parts_by_table(task, parts))
    return exchange_times(task, volumes, links or Links(FAST, SLOW if machine.num_domains > 1 else None))


def test_all_to_all_bytes_by_hand() -> None:
    """Each device sends so much to each of one neighbour and two others; the busier direction counts."""
    moved = all_to_all_bytes(MACHINE, numbers(8, 2, 1, 0))
    assert moved.intra.tolist() == [8, 8, 1, 1]
    assert moved.inter.tolist() == [16, 4, 10, 10]
    assert moved.intra_sent.tolist() == [8, 2, 1, 0] and moved.inter_sent.tolist() == [16, 4, 2, 0]


def test_reduce_scatter_bytes_by_hand() -> None:
    """Half of the buffer to the neighbour; of the other half, half to the other node. A device without rows joins."""
    moved = reduce_scatter_bytes(MACHINE, numbers(80, 80, 80, 0))
    assert moved.intra.tolist() == [40] * 4 and moved.inter.tolist() == [20] * 4


def test_node_reduce_bytes_by_hand() -> None:
    """In the first node half of the buffer; the sums of half of the samples are for two devices, one over there."""
    in_node, between = node_reduce_scatter_bytes(MACHINE, numbers(80, 80, 0, 0))
    assert in_node.intra.tolist() == [40, 40, 0, 0] and not in_node.inter.any()
    assert between.inter.tolist() == [20, 20, 20, 20]  # the other node receives what this one sends
    assert between.inter_sent.tolist() == [20, 20, 0, 0] and not between.intra.any()
    one_without_rows, _ = node_reduce_scatter_bytes(MACHINE, numbers(80, 0, 0, 0))
    assert one_without_rows.intra.tolist() == [40, 40, 0, 0]


def test_in_a_domain_of_two_nodes_sums_go_over_the_fast_link() -> None:
    pods = Nodes(8, 2, nodes_per_domain=2, inter="slow")
    in_node, between = node_reduce_scatter_bytes(pods, numbers(80, 80, 0, 0, 0, 0, 0, 0))
    assert in_node.intra.tolist() == [40, 40, 0, 0, 0, 0, 0, 0]
    assert between.intra.tolist() == [10, 10, 10, 10, 0, 0, 0, 0]  # to the domain's other node
    assert between.inter.tolist() == [20, 20, 0, 0, 10, 10, 10, 10]  # 10 to each of two nodes


def test_the_slower_tier_of_links_counts() -> None:
    """Device 1 receives 128 bytes over the fast link, here the slower one; device 2 receives them from another node."""
    found = times_of(whole(T, 0), links=Links(FAST, Link(0.0, "by hand", bandwidth_gb_s=1.0)))
    assert moved_by(found.forward) == [0.128, 0.128, 0.000128, 0.000128]


def test_a_whole_table_by_hand() -> None:
    """16 values of 4 bytes for the 2 samples of each other device: 128 bytes.

    The neighbour receives them over the fast link; 256 leave for the other node, whose devices receive 128.
    Inputs are 5 indices of 8 bytes and a length of 4 for each of the 2 samples of every other device.
    """
    found = times_of(whole(T, 0))
    assert moved_by(found.forward) == [2.56, 0.128, 1.28, 1.28] == moved_by(found.backward)
    assert moved_by(found.input_dist) == [1.76, 0.088, 0.88, 0.88]
    faster = times_of(whole(T, 0), links=Links(replace(FAST, forward_share=0.5), SLOW))
    assert moved_by(faster.forward) == (found.forward / 2).tolist()


def test_columns_are_exchanged_as_narrow_tables_but_all_lookups_go_to_each() -> None:
    rows = Span(0, 100)
    found = times_of([TablePart("t", rows, Span(0, 4), (0,)), TablePart("t", rows, Span(4, 16), (2,))])
    assert moved_by(found.forward) == [0.96, 0.96, 1.92, 0.32]
    assert moved_by(found.input_dist) == [1.76, 0.88] * 2


def test_rows_on_all_devices_by_hand() -> None:
    """Partial sums of 8 samples of 64 bytes: 256 of 512 bytes to the neighbour, 128 of the sums to the other node.

    A quarter of the lookups goes to each device, but each of its 8 bags has a length: 14 bytes a sample.
    """
    found = times_of(in_rows(T, 0, 1, 2, 3))
    assert moved_by(found.forward) == [1.28] * 4 == moved_by(found.backward)
    assert moved_by(found.input_dist) == [0.56] * 4


def test_rows_on_a_node_by_hand() -> None:
    """256 of 512 bytes in the node, then the sums of 2 samples, 128 bytes, to the other node."""
    found = times_of(in_rows(T, 2, 3))
    assert moved_by(found.forward) == [1.28, 1.28, 0.256 + 1.28, 0.256 + 1.28] == moved_by(found.backward)
    sent = 0.002 * (2.5 * 8 + 4)
    assert moved_by(found.input_dist) == [20 * sent] * 4


def test_a_grid_is_rows_on_both_nodes() -> None:
    halves = [replace(one, columns=Span(0, 4)) for one in in_rows(T, 0, 1)]
    halves += [replace(one, columns=Span(4, 16)) for one in in_rows(T, 2, 3)]
    assert moved_by(times_of(halves).forward) == [0.064 + 0.96, 0.064 + 0.96, 0.192 + 0.96, 0.192 + 0.96]


def test_replicas_reduce_their_gradients_by_hand() -> None:
    """1600 gradients of 4 bytes, there and back: half of 12,800 bytes to the neighbour, a quarter to the other node."""
    found = times_of(whole(T, 0, 1, 2, 3))
    assert moved_by(found.backward) == [32.0] * 4
    assert not found.forward.any() and not found.input_dist.any()


def test_hot_rows_send_more_of_a_sequence() -> None:
    hot = replace(T, pooling="none", row_shares=(0.7, 0.1, 0.1, 0.1))
    found = times_of(in_rows(hot, 0, 1, 2, 3), hot).forward
    assert found[0] == pytest.approx(0.7 * 4 * 3.20)


def test_features_have_outputs_of_their_own_and_weights_travel() -> None:
    shared = replace(T, feature_pooling_factors=(2.0, 3.0), is_weighted=True)
    assert moved_by(times_of(whole(shared, 0), shared).forward) == (2 * times_of(whole(T, 0)).forward).tolist()
    volume = part_volume(shared, TABLE_WISE, 16, 1.0, 4)
    assert (volume.sent, volume.input_bytes) == (32.0, 5 * (8 + 4) + 2 * 4)
    assert part_volume(shared, ROW_WISE, 16, 0.5, 4).summed == 32.0
    assert part_volume(shared, GRID_SHARD, 16, 0.5, 4).summed_in_node == 32.0


def test_communication_of_half_precision_halves_the_bytes() -> None:
    found = times_of(whole(T, 0), communication=Communication("fp16", "fp32"))
    full = times_of(whole(T, 0))
    assert moved_by(found.forward) == (full.forward / 2).tolist()
    assert found.backward.tolist() == full.backward.tolist()
    replicas = times_of(whole(T, 0, 1, 2, 3), communication=Communication("fp16", "fp16"))
    assert moved_by(replicas.backward) == [32.0] * 4  # dense gradients are not encoded


def test_bytes_that_all_devices_send_share_a_host_or_a_switch() -> None:
    """Device 0 sends 128 bytes to its neighbour, and 256 to the other node; what is received is not counted again."""
    taking_turns = Link(0.0, "by hand", shared_gb_s=1e-3)
    near, far = Links(taking_turns, FAST), Links(Link(0.0, "by hand"), taking_turns)
    assert moved_by(times_of(whole(T, 0), links=near).forward) == [0.256, 0.128, 0.128, 0.128]
    assert moved_by(times_of(whole(T, 0), links=far).forward) == [0.256] * 4
    half = times_of(whole(T, 0), links=far, communication=Communication("fp16", "fp32"))
    assert moved_by(half.forward) == [0.128] * 4


def test_distinct_indices_travel_once() -> None:
    """Rows that are looked up twice in a batch: by the same of 4 devices every fourth time, so 7 of 8 are sent."""
    twice = (0.0, 1.0, *[0.0] * 15)
    asked = replace(T, is_deduplicated=True, reuse_bins=twice)
    assert distinct_share(asked, 4) == pytest.approx(7 / 8) and distinct_share(asked, 1) == 0.5
    assert distinct_share(T, 4) == 1.0 == pytest.approx(distinct_share(replace(asked, reuse_bins=READ_ONCE), 4))
    plain, once = part_volume(T, TABLE_WISE, 16, 1.0, 4), part_volume(asked, TABLE_WISE, 16, 1.0, 4)
    assert (plain.input_bytes, once.input_bytes) == (44.0, 5 * 7 / 8 * 8 + 4)


def test_a_single_device_exchanges_nothing() -> None:
    found = times_of(whole(T, 0), machine=Nodes.one_node(1))
    assert [one.tolist() for one in (found.input_dist, found.forward, found.backward)] == [[0.0]] * 3


SMALL = Table("t", 100, 4, 0.0)
STARTS = Links(Link(1000.0, "by hand"), Link(100_000.0, "by hand"))  # 1 and 100 ms; bytes take no time


def test_each_kind_of_exchange_begins_once() -> None:
    """The input takes two: lengths, and indices. Rows of a node are reduced in it, then exchanged between nodes."""
    for parts, expected_ms in (
        (whole(SMALL, 1), (200, 100, 100)),
        (in_rows(SMALL, 0, 1, 2, 3), (200, 100, 100)),
        (in_rows(SMALL, 0, 1), (200, 101, 101)),
        (whole(SMALL, 0, 1, 2, 3), (0, 0, 100)),
    ):
        found = times_of(parts, SMALL, links=STARTS)
        for times, ms in zip((found.input_dist, found.forward, found.backward), expected_ms, strict=True):
            assert moved_by(times) == [ms] * 4


def test_tables_of_a_type_share_a_collective_and_modules_do_not() -> None:
    tables = [replace(SMALL, name=name, module=module) for name, module in (("a", ""), ("b", ""), ("c", "other"))]
    parts = [part for one in tables for part in whole(one, 1)]
    assert moved_by(times_of(parts[:2], *tables[:2], links=STARTS).forward) == [100] * 4
    assert moved_by(times_of(parts, *tables, links=STARTS).forward) == [200] * 4


@settings(deadline=None)
@given(name=st.sampled_from(sorted(LINKS)), dims=st.lists(st.integers(0, 30), min_size=2, max_size=8))
def test_whole_tables_on_one_node_exchange_as_one_link_says(name: str, dims: list[int]) -> None:
    machine, found = Nodes.one_node(len(dims)), LINKS[name]
    tables = [Table(f"t{device}", 10, 4 * dim, 1.0) for device, dim in enumerate(dims) if dim]
    if not tables:
        return
    parts = [part for one in tables for part in whole(one, int(one.name[1:]))]
    task = ShardingTask(tuple(tables), machine, (10**9,) * len(dims), 512)
    times = exchange_times(task, volumes_of(task, parts_by_table(task, parts)), Links(found))
    expected = all_to_all_ms(found, [4 * dim for dim in dims], 512)
    assert times.backward.tolist() == pytest.approx(expected)
    assert times.forward.tolist() == pytest.approx([found.forward_share * ms for ms in expected])
