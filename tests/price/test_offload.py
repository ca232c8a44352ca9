"""What rows outside of device memory cost: by hand, and what must hold whatever the constants are."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import FUSED_UVM, FUSED_UVM_CACHING, HOST, KEY_VALUE, Storage
from evenshard.price.gpu_profile import gpu_profile
from evenshard.price.kernel_calls import Lookup
from evenshard.price.offload import PROCESSOR_GB_S, SSD_GB_S, HostLink, host_link, offload_ms
from evenshard.tables.table import Table
from support.builders import READ_ONCE

BATCH = 1000
LINK = HostLink(10.0, 40.0, 1.0, under_way_bytes=1e-9, update_share=0.5)
LINK = replace(LINK, find_ns_per_lookup=3.0, cached_update_ns_per_lookup=0.25)
PLAIN = Table("t", 10**6, 128, 4.0, READ_ONCE)  # 4,000 lookups of as many rows of 512 bytes, 1,000 outputs likewise
UVM, CACHED = Storage(FUSED_UVM), Storage(FUSED_UVM_CACHING, 0.2)
ROW_BYTES, LOOKUPS = 512, 4000
HOT = tuple(float(number == 2) for number in range(17))  # 3.36 lookups of each row


def times_us(
    storage: Storage, table: Table = PLAIN, miss: float = 0.0, optimizer: str = "sgd", link: HostLink = LINK
) -> tuple[float, float]:
    """Forward and backward."""
    forward_ms, backward_ms = offload_ms([Lookup(table, BATCH, optimizer)], storage, miss, link)
    return forward_ms * 1e3, backward_ms * 1e3


def test_managed_rows_are_read_once_forward_and_read_and_written_backward() -> None:
    """4,000 rows at 10 bytes a ns; backward at half of it, in both directions at once."""
    one_way_us = LOOKUPS * ROW_BYTES / 10 / 1e3
    assert times_us(UVM) == pytest.approx((one_way_us, 2 * one_way_us))


@pytest.mark.parametrize(("optimizer", "states"), [("sgd", 0), ("rowwise_adagrad", 0), ("adagrad", 1), ("adam", 2)])
def test_states_for_each_weight_move_with_it_and_those_for_each_row_do_not(optimizer: str, states: int) -> None:
    one_us = 2 * LOOKUPS * ROW_BYTES / 10 / 1e3
    forward, backward = times_us(UVM, optimizer=optimizer)
    assert (forward, backward) == pytest.approx((one_us / 2, (1 + states) * one_us))
    find_us, update_us = 3.0 * LOOKUPS / 1e3, 0.25 * LOOKUPS / 1e3
    assert times_us(CACHED, optimizer=optimizer) == pytest.approx((find_us, update_us + states * one_us))


def test_states_are_full_precision_whatever_the_weights_are() -> None:
    half = replace(PLAIN, weight_bits=16)
    forward, backward = times_us(UVM, half, optimizer="adagrad")
    assert forward == pytest.approx(times_us(UVM)[0] / 2)
    assert backward == pytest.approx(times_us(UVM)[1] * 1.5)


def test_a_cache_fetches_what_it_misses_while_it_writes_back_as_much() -> None:
    """A quarter of the rows comes in at 10 bytes a ns, and as much goes out."""
    forward, backward = times_us(CACHED, miss=0.25)
    assert forward == pytest.approx(3.0 * LOOKUPS / 1e3 + LOOKUPS / 4 * ROW_BYTES / 10 / 1e3)
    assert backward == times_us(CACHED)[1]
    slow_memory = replace(LINK, memory_gb_s=12.0)  # 6 each way
    slower, _ = times_us(CACHED, miss=0.25, link=slow_memory)
    assert slower - forward == pytest.approx(LOOKUPS / 4 * ROW_BYTES * (1 / 6 - 1 / 10) / 1e3)


def test_ssds_are_read_and_written_for_what_a_cache_misses() -> None:
    """1 byte a ns, for reads and writes together."""
    forward, backward = times_us(Storage(KEY_VALUE, 0.2), miss=0.25)
    assert forward == pytest.approx(3.0 * LOOKUPS / 1e3 + 2 * LOOKUPS / 4 * ROW_BYTES / 1.0 / 1e3)
    assert backward == times_us(CACHED)[1]


def test_the_processor_of_the_host_moves_rows_and_the_link_outputs() -> None:
    outputs_us, rows_us = BATCH * ROW_BYTES / 10 / 1e3, LOOKUPS * ROW_BYTES / 40 / 1e3
    on_host = Storage(HOST)
    assert times_us(on_host) == pytest.approx((outputs_us + rows_us, outputs_us + 2 * rows_us))
    assert times_us(on_host, optimizer="adam")[1] == pytest.approx(outputs_us + 6 * rows_us)
    hot, shared = replace(PLAIN, reuse_bins=HOT), replace(LINK, under_way_bytes=1e9)
    assert times_us(on_host, hot, link=shared) == pytest.approx((outputs_us + rows_us, outputs_us + 2 * rows_us / 3.36))
    of_rows_us = 2 * LOOKUPS * 64 / 40 / 1e3  # a number, and the line that it is in
    assert times_us(on_host, optimizer="rowwise_adagrad")[1] == pytest.approx(outputs_us + 2 * rows_us + of_rows_us)


def test_host_memory_is_read_in_lines() -> None:
    for dim, bits, line_bytes in ((4, 32, 64), (16, 32, 64), (32, 16, 64), (20, 32, 128)):
        narrow = replace(PLAIN, embedding_dim=dim, weight_bits=bits)
        assert times_us(UVM, narrow)[0] == pytest.approx(LOOKUPS * line_bytes / 10 / 1e3)


def test_lookups_of_a_row_share_a_transfer_only_while_it_is_under_way() -> None:
    """All do where all rows are under way at once; then each is read once."""
    hot = replace(PLAIN, reuse_bins=HOT)
    alone, some, all_of_them = (
        times_us(UVM, hot, link=replace(LINK, under_way_bytes=size)) for size in (1e-9, 3e5, 1e9)
    )
    assert alone[0] == pytest.approx(LOOKUPS * ROW_BYTES / 10 / 1e3)
    assert all_of_them[0] == pytest.approx(LOOKUPS / 3.36 * ROW_BYTES / 10 / 1e3)
    assert alone[0] > some[0] > all_of_them[0]
    assert alone[1] == some[1] == all_of_them[1] == pytest.approx(2 * all_of_them[0])


def test_the_hosts_memory_may_be_slower_than_the_link() -> None:
    rates = {math.inf: (50, 50, 40), 90: (50, 45, 40), 60: (50, 30, 30), 20: (20, 10, 10)}
    for memory_gb_s, expected in rates.items():
        link = HostLink(50.0, memory_gb_s, update_share=0.8)
        assert (link.read_gb_s, link.exchange_gb_s, link.update_gb_s) == expected
        assert link.processor_gb_s == (PROCESSOR_GB_S if memory_gb_s == math.inf else memory_gb_s)


def test_devices_of_a_host_share_its_memory_and_its_ssds() -> None:
    h100, a100 = gpu_profile("h100"), gpu_profile("a100_80gb")
    unknown = host_link(Nodes.one_node(8), h100)
    assert (unknown.memory_gb_s, unknown.ssd_gb_s) == (math.inf, SSD_GB_S)
    assert unknown == HostLink() and host_link(Nodes.one_node(8), a100) == HostLink(a100.host_gb_s)
    assert a100.host_gb_s < h100.host_gb_s
    known = host_link(replace(Nodes.one_node(8), host_gb_s=400.0, ssd_gb_s=16.0), h100)
    assert (known.memory_gb_s, known.ssd_gb_s) == (50.0, 2.0)
    two_nodes = Nodes(16, 8, inter="infiniband_ndr", host_gb_s=400.0)
    assert host_link(two_nodes, h100).memory_gb_s == 50.0


KERNELS_OUTSIDE = (FUSED_UVM_CACHING, FUSED_UVM, KEY_VALUE, HOST)


def test_tables_that_nobody_looks_up_cost_nothing() -> None:
    idle = replace(PLAIN, pooling_factor=0.0, reuse_bins=None)
    for kernel in KERNELS_OUTSIDE:
        forward, backward = times_us(Storage(kernel), idle, miss=0.5, optimizer="adam")
        outputs_us = BATCH * ROW_BYTES / 10 / 1e3 if kernel == HOST else 0.0
        assert (forward, backward) == pytest.approx((outputs_us, outputs_us))
