"""The model of a GPU: times that can be worked out by hand, and what must hold for any GPU."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from evenshard.placement.memory import STATE_NUMBERS
from evenshard.price.device_model import backward_ms, forward_ms, overlap, pass_ms, sort_passes, state_update_bytes
from evenshard.price.gpu_profile import BY_KERNEL, FREE_CONSTANTS, RATES, GpuProfile, gpu_profile
from evenshard.price.kernel_calls import Lookup
from evenshard.price.shard_work import NUM_WORK_COLUMNS, ShardWork, WindowGrid, WorkCounter, missed_bytes, sector_bytes
from evenshard.price.simulated_price import DeviceModelPrice, work_columns
from evenshard.search.bound_lines import price_bounds
from evenshard.tables.reuse import NUM_REUSE_BINS
from evenshard.tables.table import Table
from support.builders import READ_ONCE
from support.builders import table as plain_table

BATCH = 65536
# A GPU that does everything at once, with room in the L2: times show what a test makes it slow at.
IDEAL = replace(
    gpu_profile("h200"),
    **dict.fromkeys((*FREE_CONSTANTS, *BY_KERNEL), 0.0)
    | dict.fromkeys(RATES, 1e15)
    | {"num_sms": 1.0, "warps_per_sm": 1.0, "l2_mb": 100.0, "l2_usable_share": 1.0, "hbm_efficiency": 0.5},
)
# 64 bags of 2 rows of 32 bytes, each row read once: 128 lookups of 128 distinct rows, 2,048 bytes of output.
SMALL = Table("t", 1000, 8, 2.0, READ_ONCE, 32)
SMALL_BATCH = 64


def only(**constants: float) -> GpuProfile:
    """A GPU on which nothing takes any time but what is given."""
    return replace(IDEAL, **constants)


def all_in_bin(number: int) -> tuple[float, ...]:
    return tuple(float(bin_number == number) for bin_number in range(NUM_REUSE_BINS))


def work_of(*tables: Table, batch_size: int = BATCH, profile: GpuProfile = IDEAL) -> ShardWork:
    """The work of one shard."""
    counter = WorkCounter(profile)
    shard = np.zeros(len(tables), dtype=np.int64)
    return counter.shard_work(counter.columns(tables, batch_size), shard, 1)


def times_ns(
    *tables: Table, batch_size: int = BATCH, profile: GpuProfile = IDEAL, optimizer: str = "sgd"
) -> tuple[float, float]:
    """Forward and backward time of one shard, ns."""
    work = work_of(*tables, batch_size=batch_size, profile=profile)
    return float(forward_ms(profile, work)[0]) * 1e6, float(backward_ms(profile, work, optimizer)[0]) * 1e6


def small_ns(optimizer: str = "sgd", **constants: float) -> tuple[float, float]:
    """Forward and backward time of ``SMALL`` where nothing else takes any time, ns."""
    return times_ns(SMALL, batch_size=SMALL_BATCH, profile=only(**constants), optimizer=optimizer)


def missed(rows: list[float], counts: list[float], capacity: float) -> float:
    """Missed bytes of rows of one byte."""
    unique = np.array([rows], dtype=float)
    count = np.array([counts], dtype=float)
    return float(missed_bytes(unique, unique * count, count, np.array([capacity]))[0])


def test_misses_of_a_cache_by_hand() -> None:
    """100 rows twice, room for 50: 1 - (1 - x)**2 = 1/2, and that is the chance of a miss too.

    1000 rows read once sweep through room for 110; 100 rows are read 100 times, and nearly always found.
    """
    assert missed([100], [2], 50) == pytest.approx(150)
    assert missed([60, 40], [1, 9], 100) == 100 < missed([60, 40], [1, 9], 99)
    assert 1100 < missed([1000, 100], [1, 100], 110) < 1100 + 0.2 * 9900
    assert missed([1000], [1], 110) == 1000


@pytest.mark.parametrize(("in_flight", "share"), [(0.5, 0.25), (1.5, 0.75), (4.0, 1.0)])
def test_misses_lie_between_those_apart_and_those_together_by_how_many_other_tables_are_in_flight(
    in_flight: float, share: float
) -> None:
    """Three tables, each of which fits the L2 that all of them do not fit: at most two others run beside each."""
    batch = 256
    gpu = replace(IDEAL, l2_mb=10.0, num_sms=1.0, warps_per_sm=in_flight * batch)
    tables = [Table(name, 10**6, 128, 100.0, all_in_bin(1), 32) for name in "abc"]
    alone = work_of(tables[0], batch_size=batch, profile=gpu)
    unique, lookups = alone.unique_bytes[0], alone.row_bytes[0]
    assert unique < gpu.l2_bytes < 3 * unique and alone.row_miss_bytes[0] == unique
    count = alone.lookups[0] / alone.uniques[0]
    together = missed([3 * unique], [count], gpu.l2_bytes)
    assert together > 1.2 * 3 * unique and 3 * lookups == pytest.approx(3 * unique * count)
    misses = work_of(*tables, batch_size=batch, profile=gpu).row_miss_bytes[0]
    assert misses == pytest.approx(3 * unique + share * (together - 3 * unique))


def test_sharing_the_l2_never_takes_misses_away() -> None:
    """Rows that are read once miss as often together as apart; what all miss apart is not less together."""
    counter = WorkCounter(replace(IDEAL, l2_mb=0.01, warps_per_sm=1e9))
    sums_NC = counter.columns([replace(SMALL, name=name) for name in "ab"], SMALL_BATCH).sum(axis=0)[None]
    apart = counter.work_of_sums(sums_NC[:, :NUM_WORK_COLUMNS]).row_miss_bytes[0]
    assert counter.work_of_sums(sums_NC).row_miss_bytes[0] == apart == 2 * 128 * 32
    sums_NC[:, [field.name for field in fields(ShardWork)].index("row_miss_bytes")] *= 2
    assert counter.work_of_sums(sums_NC).row_miss_bytes[0] == 2 * apart


def test_sectors_and_requests_of_a_row() -> None:
    """40 bytes begin at multiples of 8: 1 sector can never hold them, 3 are never touched."""
    sectors = sector_bytes(np.array([32, 16, 8, 64, 48, 40, 256])) / 32
    assert sectors.tolist() == [1, 1, 1, 2, 2, 2, 8]
    for dim, requests in ((4, 1), (128, 1), (132, 2), (256, 2), (260, 3)):
        assert work_of(replace(SMALL, embedding_dim=dim), batch_size=64).row_requests[0] == 128 * requests


def test_gradients_that_do_not_fit_the_l2_are_fetched_again() -> None:
    """1024 gradients of 32 bytes, each read 3 times, in an L2 of half of them: the 2nd and 3rd time half miss."""
    half = only(l2_mb=1 / 64)
    found = work_of(Table("t", 10**6, 8, 3.0, READ_ONCE, 32), batch_size=1024, profile=half)
    assert found.grad_miss_bytes[0] == pytest.approx(1024 * 32 * (1 + 2 * 0.5))


def test_a_table_of_few_rows_looks_each_up_more_often() -> None:
    """The histogram says that each of 128 lookups has a row of its own, but there are 10."""
    work = work_of(Table("t", 10, 8, 2.0, READ_ONCE, 32), batch_size=64)
    assert (work.uniques[0], work.lookups[0], work.unique_bytes[0]) == (10, 128, 320)
    assert work.hottest[0] == pytest.approx(12.8)


def test_a_shard_has_the_hottest_row_and_the_longest_bag_of_its_tables_not_their_sums() -> None:
    hot, long = Table("h", 10**6, 8, 4.0, all_in_bin(16), 32), Table("l", 10**6, 8, 9.0, READ_ONCE, 32)
    alone = [work_of(one) for one in (hot, long)]
    together = work_of(hot, long)
    assert together.hottest[0] == alone[0].hottest[0] > 32768 > alone[1].hottest[0] == 1
    assert together.longest_bag[0] == alone[1].longest_bag[0] == 9 > alone[0].longest_bag[0] == 4
    assert together.lookups[0] == 13 * BATCH


def test_parts_of_a_kernel_overlap_in_part() -> None:
    """Two equal ones take 2**(1/3) of one, and one that is twice another 9**(1/3) / 2 of itself."""
    ones = np.ones(1)
    assert overlap(np.stack([ones * 5]))[0] == pytest.approx(5)
    assert overlap(np.stack([ones * 5, ones * 5]))[0] == pytest.approx(5 * 2 ** (1 / 3))
    assert overlap(np.stack([ones, ones * 2, ones * 0]))[0] == pytest.approx(9 ** (1 / 3))
    assert overlap(np.stack([ones * 0, ones * 0]))[0] == pytest.approx(0)
    assert np.isfinite(overlap(np.stack([ones * 1e12, ones * 1e-12]))[0])


def test_rows_from_the_l2_and_from_memory_by_hand() -> None:
    """64 bags of 8 lookups of one row of 32 bytes, and 2,048 bytes of output: the L2 gives 512 rows, memory 64."""
    eight = Table("t", 10**6, 8, 8.0, all_in_bin(3), 32)
    uniques = work_of(eight, batch_size=64).uniques[0]
    l2_ns, memory_ns = (512 * 32 + 2048) / 2, (uniques * 32 + 2048) / 3
    for constants, expected in (
        ({"l2_gb_s": 2.0}, l2_ns),
        ({"hbm_gb_s": 6.0}, memory_ns),  # of which half is reached
        ({"l2_gb_s": 2.0, "hbm_gb_s": 6.0}, (l2_ns**3 + memory_ns**3) ** (1 / 3)),
    ):
        assert times_ns(eight, batch_size=64, profile=only(**constants))[0] == pytest.approx(expected)


def test_the_longest_bag_is_a_chain_of_rows_from_memory_and_from_the_l2() -> None:
    """9 rows one after the other; of a table whose rows are all read 8 times or so, that share of them misses."""
    chain = only(bag_hit_ns=100, bag_miss_ns=500)
    cold, warm = Table("c", 10**7, 8, 9.0, READ_ONCE, 32), Table("w", 10**7, 8, 9.0, all_in_bin(3), 32)
    share = work_of(warm).uniques[0] / work_of(warm).lookups[0]
    assert 1 / 8 <= share < 1 / 4
    assert times_ns(cold, profile=chain) == pytest.approx((9 * 500, 0), abs=1e-6)
    assert times_ns(warm, profile=chain)[0] == pytest.approx(9 * (100 + 400 * share))
    longer, shorter = replace(cold, name="l", pooling_factor=30.0), replace(cold, name="s", pooling_factor=1.0)
    assert times_ns(cold, longer, shorter, profile=chain)[0] == pytest.approx(30 * 500)
    assert times_ns(cold, batch_size=16, profile=chain)[0] == pytest.approx(9 * 500), "however few there are"


def test_the_sort_takes_a_pass_for_each_byte_of_the_shards_rows() -> None:
    for rows, passes in (((255,), 1), ((256,), 2), ((255, 1), 2), ((2**16,), 3), ((10**7,) * 2, 4)):
        tables = [plain_table(f"t{number}", count) for number, count in enumerate(rows)]
        assert sort_passes(work_of(*tables).num_rows)[0] == passes


@pytest.mark.parametrize(
    ("optimizer", "state_bytes_per_row"), [("sgd", 0), ("rowwise_adagrad", 32), ("adagrad", 256), ("adam", 512)]
)
def test_gradients_rows_and_states_from_the_l2_and_from_memory_by_hand(
    optimizer: str, state_bytes_per_row: int
) -> None:
    """64 gradients of 256 bytes, of 16 samples that memory gives once; 16 rows of 128 bytes (FP16) and their states of
    64 FP32 values, or of one in a sector of its own, in and out.
    """
    of_16_rows = Table("t", 16, 64, 4.0, all_in_bin(2), 16)
    updated = 2 * 16 * (128 + state_bytes_per_row)
    l2_ns, memory_ns = (64 * 256 + updated) / 2, (16 * 256 + updated) / 1.5
    assert state_update_bytes(work_of(of_16_rows, batch_size=16), optimizer)[0] == 16 * state_bytes_per_row
    for constants, expected in (
        ({"l2_gb_s": 2.0}, l2_ns),
        ({"hbm_gb_s": 3.0}, memory_ns),
        ({"l2_gb_s": 2.0, "hbm_gb_s": 3.0}, (l2_ns**3 + memory_ns**3) ** (1 / 3)),
    ):
        found = times_ns(of_16_rows, batch_size=16, profile=only(**constants), optimizer=optimizer)
        assert found[1] == pytest.approx(expected)


def test_the_hottest_row_is_a_floor_of_the_backward_pass() -> None:
    """Bin 16 alone: 65536 lookups or so go to one row, and are added up one after the other."""
    gpu = only(hot_lookup_ns=10)
    hot, cold = Table("h", 10**6, 8, 4.0, all_in_bin(16), 32), Table("c", 10**6, 8, 4.0, READ_ONCE, 32)
    floor = work_of(hot).hottest[0] * 10
    assert floor > 327_680
    assert times_ns(hot, profile=gpu) == pytest.approx((0, floor), abs=1e-6)
    assert times_ns(hot, cold, profile=gpu)[1] == pytest.approx(floor)
    assert times_ns(cold, profile=gpu)[1] == pytest.approx(10)


def test_the_hottest_row_takes_its_first_gradients_on_top_of_all_waits() -> None:
    """The others of its 65536 are spread over the GPU."""
    gpu = only(hot_row_ns=10, gradient_ns_per_row=3)
    hot = Table("h", 10**6, 8, 4.0, all_in_bin(16), 32)
    rows = work_of(hot).uniques[0]
    assert times_ns(hot, profile=gpu)[1] == pytest.approx(128 * 10 + rows * 3)
    assert times_ns(Table("c", 10**6, 8, 4.0, READ_ONCE, 32), profile=only(hot_row_ns=10))[1] == pytest.approx(10)


@pytest.mark.parametrize(("dim", "share", "warps"), [(32, 0.25, 1), (36, 0.5, 1), (128, 1, 1), (256, 1, 2)])
def test_rows_take_the_lanes_of_a_warp_that_the_widest_of_their_call_needs(dim: int, share: float, warps: int) -> None:
    """64 bags and 128 lookups of each of two tables, and as many distinct rows."""
    gpu = only(
        lookup_lane_power=2, gradient_lane_power=0.5, gradient_wide_power=0.5, row_lane_power=1.5, lookup_ns_per_bag=3,
        lookup_ns_per_request=5, gradient_ns_per_request=7, gradient_ns_per_row=11,
    )  # fmt: skip
    narrow, other = SMALL, replace(SMALL, name="o", embedding_dim=dim)
    forward, backward = times_ns(narrow, other, batch_size=SMALL_BATCH, profile=gpu)
    assert forward == pytest.approx(2 * (64 * 3 * share**2 + 128 * 5 * share**2 * warps))
    assert backward == pytest.approx(2 * 128 * (7 * share**0.5 + 11 * share**1.5) * warps**0.5)


@pytest.mark.parametrize(
    ("optimizer", "longer"), [("sgd", 0), ("rowwise_adagrad", 0.5), ("adagrad", 2), ("partial_rowwise_adam", 2.5)]
)
def test_states_make_the_instructions_of_gradients_longer(optimizer: str, longer: float) -> None:
    found = small_ns(
        optimizer, gradient_lane_power=1.0, gradient_ns_per_request=4, row_state_share=0.5, weight_state_share=2
    )
    assert found[1] == pytest.approx(128 * 4 * (1 + longer) / 4)


@pytest.mark.parametrize("optimizer", ["adam", "lamb", "lars_sgd"])
@pytest.mark.parametrize(("dim", "further"), [(4, 0), (128, 0), (132, 1)])
def test_optimizers_with_full_warps_take_as_long_at_any_dim_of_a_warp(optimizer: str, dim: int, further: int) -> None:
    """128 lookups of 128 rows, which are no faster for lanes, states or instructions of other optimizers."""
    gpu = only(
        full_warp_ns_per_lookup=2, full_warp_ns_per_request=3, full_warp_ns_per_row=5, gradient_lane_power=1,
        row_lane_power=1, gradient_ns_per_request=7, gradient_ns_per_row=11, rounding_share=1, row_state_share=1,
        weight_state_share=1,
    )  # fmt: skip
    half = replace(SMALL, embedding_dim=dim, weight_bits=16)
    assert times_ns(half, batch_size=64, profile=gpu, optimizer=optimizer)[1] == pytest.approx(128 * (7 + 3 * further))
    assert times_ns(half, batch_size=64, profile=gpu)[1] == pytest.approx(128 * (7 + 2 * 11) * (0.25, 1)[dim > 4])


def test_lookups_whose_indices_the_l2_cannot_keep_take_longer() -> None:
    """2**20 lookups of 4 bytes, of which an L2 of 1 MiB keeps a quarter. The bound knows that of each call."""
    spilled = dict.fromkeys(("lookup_ns_per_spilled", "index_ns_per_spilled", "gradient_ns_per_spilled"), 2.0)
    gpu, table = only(l2_mb=1, **spilled), Table("t", 10**6, 8, 16.0, READ_ONCE, 32)
    assert times_ns(table, profile=gpu) == pytest.approx((1.5 * 2**20, 3 * 2**20), rel=1e-3)
    price = DeviceModelPrice(gpu)
    (sums_H,) = price.columns([Lookup(table, BATCH)])
    bounds = price_bounds(price)
    for calls, kept in ((0, 1.0), (1, 0.25), (3, 0.75), (4, 1.0)):
        line = bounds.line_at(sums_H, calls)
        took_2 = line.below_2 + line.slopes_2H @ sums_H
        assert took_2 * 1e6 == pytest.approx(2**20 * (1 - kept) * np.array([2, 4]), rel=1e-3, abs=100)


def test_a_call_checks_bags_with_lookups_longer_and_waits_between_backward_kernels() -> None:
    """A dense call checks none. FP16 rows are rounded."""
    gpu = only(bounds_ns_per_bag=1, bounds_ns_per_filled=2, bwd_gap_us=3)
    few = replace(SMALL, pooling_factor=0.25)
    assert times_ns(few, batch_size=64, profile=gpu) == pytest.approx((64 + 2 * 16, 3000))
    assert times_ns(SMALL, batch_size=64, profile=gpu)[0] == pytest.approx(64 + 2 * 64)
    price = DeviceModelPrice(gpu)
    dense = price.call_ms(price.columns([Lookup(SMALL, 64, is_dense=True)]))[:2, 0]
    assert dense * 1e6 == pytest.approx((0, 3000), abs=1e-3)


def test_each_pass_of_the_sort_is_started_where_one_kernel_does_not_do() -> None:
    """10 bits of rows are 2 passes; 4,864 pairs are sorted by one kernel."""
    gpu = only(sort_pass_us=3)
    few, many = Table("t", 1000, 8, 1.0, None, 32), Table("t", 1000, 8, 2.0, None, 32)
    assert times_ns(few, batch_size=4864, profile=gpu)[1] == pytest.approx(0, abs=1e-3)
    assert times_ns(many, batch_size=4864, profile=gpu)[1] == pytest.approx(2 * 3000)


def test_a_call_is_never_shorter_than_the_host_takes_to_launch_it() -> None:
    constants = {"fwd_overhead_us": 10, "bwd_overhead_us": 20, "fwd_host_us": 50, "bwd_host_us": 300}
    assert small_ns(**constants) == pytest.approx((60e3, 320e3))
    hidden = {"bounds_floor_us": 30, "lookup_floor_us": 19, "index_floor_us": 100, "sort_floor_us": 199}
    assert small_ns(**constants, **hidden) == pytest.approx((60e3, 320e3))
    longer = hidden | {"lookup_floor_us": 40, "gradient_floor_us": 51}
    assert small_ns(**constants, **longer) == pytest.approx((80e3, 370e3))


def test_an_empty_shard_takes_no_time() -> None:
    gpu = gpu_profile("rtx_2080_ti")
    counter = WorkCounter(gpu)
    work = counter.shard_work(counter.columns([SMALL], 64), np.array([1]), 3)
    for found in (forward_ms(gpu, work), backward_ms(gpu, work)):
        assert (found > 0).tolist() == [False, True, False]


def test_a_backward_call_takes_time_beside_its_kernels_by_its_lookups() -> None:
    gpu = only(short_call_us=400, medium_call_us=600)
    powers = {1: 0, 13: 0, 15: 200, 17: 400, 17.99: 400, 18: 0, 19.5: 300, 21: 600, 22.5: 300, 24: 0, 25: 0}
    for power, us in powers.items():
        assert times_ns(plain_table(pooling=2 ** (power - 16)), profile=gpu) == pytest.approx((0, us * 1e3), abs=1)


def test_a_sequence_writes_each_lookup_and_its_gradients_are_read_once() -> None:
    """Samples are its bags; pooled, a sample's gradient is read for each of its lookups."""
    pooled = plain_table(pooling=4.0)
    own, of_pooled = work_of(replace(pooled, pooling="none")), work_of(pooled)
    differ = {field.name for field in fields(own) if getattr(own, field.name) != getattr(of_pooled, field.name)}
    assert differ == {"output_bytes", "grad_miss_bytes"}
    assert own.output_bytes == 4 * of_pooled.output_bytes and own.bags == BATCH
    assert own.grad_miss_bytes == own.grad_bytes > of_pooled.grad_miss_bytes


def test_a_call_with_a_cache_has_kernels_of_it_once() -> None:
    gpu = only(cached_fwd_us=100, cached_bwd_us=20)
    counter = WorkCounter(gpu)
    for is_cached, expected_ms in (((False, False), (0, 0)), ((True, False), (0.1, 0.02)), ((True, True), (0.1, 0.02))):
        lookups = [Lookup(plain_table(), BATCH, is_cached=one) for one in is_cached]
        work = counter.shard_work(work_columns(counter, lookups), np.zeros(2, dtype=np.int64), 1)
        assert (forward_ms(gpu, work)[0], backward_ms(gpu, work)[0]) == pytest.approx(expected_ms, abs=1e-6)


def test_a_pass_takes_its_kernels_or_their_launches() -> None:
    """Two calls: the host launches the second one's kernels while the first one's run."""
    kernels_ns, calls = np.array([9e6, 1e6, 5e6]), np.array([2.0, 2.0, 0.0])
    assert pass_ms(kernels_ns, calls, overhead_us=500.0, host_us=3000.0).tolist() == [9.5, 6.5, 0.0]


def test_kernels_by_hand() -> None:
    """64 bags, 128 lookups of as many distinct rows, of 10 bits: a sort of two passes. Wide rows are two requests."""
    wide, few = replace(SMALL, embedding_dim=256), replace(SMALL, num_rows=16)
    long = Table("o", 1000, 8, 30.0, None, 32)
    bounds = {"bounds_floor_us": 3, "bounds_ns_per_bag": 0.5, "bounds_ns_per_lookup": 0.25}
    lookup = {"lookup_floor_us": 2, "lookup_ns_per_bag": 0.5, "lookup_ns_per_request": 0.25}
    index = {"index_floor_us": 3, "index_ns_per_bag": 0.5, "index_ns_per_lookup": 0.25, "index_ns_per_row": 2}
    gradient = {"gradient_floor_us": 5, "gradient_ns_per_request": 0.25, "gradient_ns_per_row": 2}
    for tables, constants, expected in (
        ([SMALL], {}, (0, 0)),
        ([SMALL], bounds, (3000 + 64 * 0.5 + 128 * 0.25, 0)),
        ([SMALL], lookup, (2000 + 64 * 0.5 + 128 * 0.25, 0)),
        ([wide], lookup, (2000 + 64 * 0.5 + 256 * 0.25, 0)),
        ([SMALL], index, (0, 3000 + 64 * 0.5 + 128 * 0.25 + 128 * 2)),
        ([few], index, (0, 3000 + 64 * 0.5 + 128 * 0.25 + 16 * 2)),
        ([SMALL, long], {"index_bag_ns": 7}, (0, 30 * 7)),
        ([SMALL], {"sort_floor_us": 4, "sort_pairs_per_ns": 0.5}, (0, 4000 + 2 * 128 / 0.5)),
        ([SMALL], gradient, (0, 5000 + 128 * 0.25 + 128 * 2)),
        ([wide], gradient, (0, 5000 + 256 * 0.25 + 128 * 2)),
    ):
        found = times_ns(*tables, batch_size=SMALL_BATCH, profile=only(**constants))
        assert found == pytest.approx(expected, abs=1e-6)


def test_tables_that_nobody_looks_up_cost_a_forward_call() -> None:
    """FBGEMM's backward pass returns at once where there is no index."""
    gpu, idle = gpu_profile("h200"), Table("idle", 10**6, 16, 0.0, None, 16)
    forward, backward = times_ns(idle, profile=gpu)
    assert (gpu.fwd_overhead_us + gpu.fwd_host_us) * 1e3 <= forward * (1 + 1e-9) < 1e6 and backward == 0
    alone, with_idle = (times_ns(*tables, profile=gpu)[0] for tables in ([SMALL], [SMALL, idle]))
    assert alone <= with_idle < alone + forward


@pytest.mark.parametrize("profile", ["h200", "rtx_2080_ti", "mi300x"])
def test_the_more_an_optimizer_keeps_the_longer_is_the_backward_pass_and_no_other(profile: str) -> None:
    price, wide = DeviceModelPrice(gpu_profile(profile)), plain_table(rows=10**6, dim=256, pooling=1, bits=16)
    forward, backward, _ = price.call_ms(price.columns([Lookup(wide, BATCH, optimizer) for optimizer in STATE_NUMBERS]))
    took = dict(zip(STATE_NUMBERS, backward.tolist(), strict=True))
    full = [took.pop(optimizer) for optimizer in ("lars_sgd", "adam", "lamb")]
    assert list(took.values()) == sorted(took.values()) and took["sgd"] < took["adagrad"] < took["partial_rowwise_adam"]
    assert len(set(forward)) == 1 and full[0] < full[1] == full[2]


def test_windows_approximate_the_misses_of_one_stream() -> None:
    unique_NK, counts_NK = np.array([[1e6, 2e6, 5e5]]), np.array([[1.0, 4.0, 50.0]])
    columns_WN = WindowGrid.columns(unique_NK, unique_NK * counts_NK, counts_NK).T
    for capacity in (1e5, 1e6, 3e6, 1e7):
        exact_N = missed_bytes(unique_NK, unique_NK * counts_NK, counts_NK, np.array([capacity]))
        assert WindowGrid.missed_bytes(columns_WN, capacity) == pytest.approx(exact_N, rel=0.03)
