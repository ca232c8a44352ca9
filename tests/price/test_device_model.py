"""The model of a GPU: times that can be worked out by hand, and what must hold for any GPU."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest

from evenshard.placement.memory import STATE_NUMBERS
from evenshard.price.costs import interquartile_range
from evenshard.price.device_model import (
    BACKWARD_KERNELS,
    FORWARD_KERNELS,
    KERNELS,
    SHORT_LOOKUPS,
    backward_ms,
    forward_ms,
    kernel_times,
    overlap,
    pass_ms,
    sort_passes,
    state_update_bytes,
)
from evenshard.price.gpu_profile import BY_KERNEL, FREE_CONSTANTS, RATES, GpuProfile, gpu_profile
from evenshard.price.hardware import profile_names
from evenshard.price.kernel_calls import Lookup
from evenshard.price.shard_work import NUM_WORK_COLUMNS, ShardWork, WorkCounter, missed_bytes, sector_bytes
from evenshard.price.simulated_price import work_columns
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.reuse import NUM_REUSE_BINS
from evenshard.tables.table import Table
from support.builders import READ_ONCE
from support.builders import table as plain_table

BATCH = 65536
POOL = generate_tables(GeneratorConfig(120, (4, 8, 16, 64, 128), weight_bits=16), BATCH, seed=3)
NAMES = profile_names()
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


def kernels_ns(
    *tables: Table, batch_size: int = BATCH, profile: GpuProfile = IDEAL, optimizer: str = "sgd"
) -> dict[str, float]:
    """The kernels of one shard."""
    times = kernel_times(profile, work_of(*tables, batch_size=batch_size, profile=profile), optimizer)
    return {name: float(getattr(times, name)[0]) for name in KERNELS}


# The L2 --------------------------------------------------------------------------------------------------------------


def missed(rows: list[float], counts: list[float], capacity: float) -> float:
    """Missed bytes of rows of one byte."""
    unique = np.array([rows], dtype=float)
    count = np.array([counts], dtype=float)
    return float(missed_bytes(unique, unique * count, count, np.array([capacity]))[0])


def test_half_of_the_second_lookups_miss_a_cache_of_half_the_rows() -> None:
    """100 rows twice, room for 50: 1 - (1 - x)**2 = 1/2, and that is the chance of a miss too."""
    assert missed([100], [2], 50) == pytest.approx(150)


def test_where_all_rows_fit_only_first_lookups_miss() -> None:
    assert missed([60, 40], [1, 9], 100) == 100
    assert missed([60, 40], [1, 9], 99) > 100


def test_hot_rows_stay_in_the_cache_and_rows_read_once_do_not_matter_to_themselves() -> None:
    """1000 rows read once sweep through room for 110; 100 rows are read 100 times, and nearly always found."""
    assert 1100 < missed([1000, 100], [1, 100], 110) < 1100 + 0.2 * 9900
    assert missed([1000], [1], 110) == 1000


def test_misses_agree_with_a_real_lru_cache() -> None:
    rng = np.random.default_rng(0)
    counts = [1] * 800 + [2] * 300 + [5] * 150 + [40] * 30
    stream = rng.permutation(np.repeat(np.arange(len(counts)), counts)).tolist()
    for capacity in (60, 200, 600):
        cache: OrderedDict[int, None] = OrderedDict()
        misses = 0
        for row in stream:
            misses += row not in cache
            cache[row] = None
            cache.move_to_end(row)
            if len(cache) > capacity:
                cache.popitem(last=False)
        assert missed([800, 300, 150, 30], [1, 2, 5, 40], capacity) == pytest.approx(misses, rel=0.03)


def test_a_second_table_raises_the_misses_of_the_first_when_their_bags_are_in_flight_together() -> None:
    """6912 warps hold the bags of 27 tables at batch 256, but only a tenth of one table's at batch 65536.

    Each table alone fits the L2 of 28 MB, the two together do not.
    """
    gpu = gpu_profile("a100_80gb")

    def misses(batch_size: int, pooling: float) -> tuple[float, float]:
        big = [Table(name, 10**6, 128, pooling, all_in_bin(1), 32) for name in "ab"]
        alone, together = (work_of(*tables, batch_size=batch_size, profile=gpu) for tables in (big[:1], big))
        assert alone.unique_bytes[0] < gpu.l2_bytes < together.unique_bytes[0]
        return 2 * alone.row_miss_bytes[0], together.row_miss_bytes[0]

    apart, shared = misses(256, 400.0)
    assert apart == pytest.approx(2 * 51200 * 512) and shared > 1.2 * apart
    apart, shared = misses(BATCH, 400.0 / 256)
    assert apart < shared < 1.1 * apart


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


def test_a_larger_l2_misses_less() -> None:
    misses = [work_of(*POOL[:9], profile=replace(IDEAL, l2_mb=mb)).row_miss_bytes[0] for mb in (1, 5, 25, 1e6)]
    assert misses == sorted(misses, reverse=True) and misses[0] > misses[-2] >= misses[-1]
    assert misses[-1] == pytest.approx(work_of(*POOL[:9]).unique_bytes[0])


# Work by hand --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("row_bytes", "sectors"), [(32, 1), (16, 1), (8, 1), (64, 2), (48, 2), (40, 2), (256, 8)])
def test_sectors_of_a_row(row_bytes: int, sectors: float) -> None:
    """40 bytes begin at multiples of 8: 1 sector can never hold them, 3 are never touched."""
    assert sector_bytes(np.array([row_bytes]))[0] == 32 * sectors


def test_a_row_of_dim_8_in_fp16_costs_a_whole_sector() -> None:
    narrow, wide = (work_of(Table("t", 10**6, dim, 4.0, None, 16)) for dim in (8, 16))
    for name in ("unique_bytes", "row_bytes", "row_miss_bytes", "row_requests"):
        assert getattr(narrow, name) == pytest.approx(getattr(wide, name))
    assert narrow.output_bytes[0] == wide.output_bytes[0] / 2
    assert narrow.unique_values[0] == wide.unique_values[0] / 2


@pytest.mark.parametrize(("dim", "requests"), [(4, 1), (128, 1), (132, 2), (256, 2), (260, 3)])
def test_a_request_is_128_values_of_a_row(dim: int, requests: int) -> None:
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


def test_one_row_that_takes_all_lookups() -> None:
    work = work_of(Table("t", 1, 8, 1.0, all_in_bin(16), 32))
    assert (work.uniques[0], work.lookups[0], work.hottest[0]) == pytest.approx((1, BATCH, BATCH))


def test_a_shard_has_the_hottest_row_and_the_longest_bag_of_its_tables_not_their_sums() -> None:
    hot, long = Table("h", 10**6, 8, 4.0, all_in_bin(16), 32), Table("l", 10**6, 8, 9.0, READ_ONCE, 32)
    alone = [work_of(one) for one in (hot, long)]
    together = work_of(hot, long)
    assert together.hottest[0] == alone[0].hottest[0] > 32768 > alone[1].hottest[0] == 1
    assert together.longest_bag[0] == alone[1].longest_bag[0] == 9 > alone[0].longest_bag[0] == 4
    assert together.lookups[0] == 13 * BATCH


# Kernels by hand -----------------------------------------------------------------------------------------------------


def test_parts_of_a_kernel_overlap_in_part() -> None:
    """Two equal ones take 2**(1/3) of one, and one that is twice another 9**(1/3) / 2 of itself."""
    ones = np.ones(1)
    assert overlap(np.stack([ones * 5]))[0] == pytest.approx(5)
    assert overlap(np.stack([ones * 5, ones * 5]))[0] == pytest.approx(5 * 2 ** (1 / 3))
    assert overlap(np.stack([ones, ones * 2, ones * 0]))[0] == pytest.approx(9 ** (1 / 3))
    assert overlap(np.stack([ones * 0, ones * 0]))[0] == pytest.approx(0)
    assert np.isfinite(overlap(np.stack([ones * 1e12, ones * 1e-12]))[0])


def test_nothing_takes_any_time_on_the_ideal_gpu() -> None:
    assert small_ns() == pytest.approx((0, 0), abs=1e-6)


def test_bounds_check_by_hand() -> None:
    found = small_ns(bounds_floor_us=3, bounds_ns_per_bag=0.5, bounds_ns_per_lookup=0.25)
    assert found == pytest.approx((3000 + 64 * 0.5 + 128 * 0.25, 0), abs=1e-6)


def test_lookup_instructions_by_hand() -> None:
    """A floor, and then 64 bags and 128 rows; rows of 2 requests twice as long."""
    constants = {"lookup_floor_us": 2, "lookup_ns_per_bag": 0.5, "lookup_ns_per_request": 0.25}
    assert small_ns(**constants) == pytest.approx((2000 + 64 * 0.5 + 128 * 0.25, 0), abs=1e-6)
    wide = times_ns(replace(SMALL, embedding_dim=256), batch_size=64, profile=only(**constants))
    assert wide[0] == pytest.approx(2000 + 64 * 0.5 + 256 * 0.25)


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
        assert kernels_ns(eight, batch_size=64, profile=only(**constants))["lookup"] == pytest.approx(expected)


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


def test_index_kernels_by_hand() -> None:
    """64 bags, 128 lookups; 128 distinct rows, and 16 where each is looked up 8 times."""
    constants = {"index_floor_us": 3, "index_ns_per_bag": 0.5, "index_ns_per_lookup": 0.25, "index_ns_per_row": 2}
    assert small_ns(**constants) == pytest.approx((0, 3000 + 64 * 0.5 + 128 * 0.25 + 128 * 2), abs=1e-6)
    few_rows = times_ns(replace(SMALL, num_rows=16), batch_size=64, profile=only(**constants))
    assert few_rows[1] == pytest.approx(3000 + 64 * 0.5 + 128 * 0.25 + 16 * 2)


@pytest.mark.parametrize(
    ("rows", "passes"), [((255,), 1), ((256,), 2), ((255, 1), 2), ((2**16,), 3), ((10**7,) * 2, 4)]
)
def test_the_sort_takes_a_pass_for_each_byte_of_the_shards_rows(rows: tuple[int, ...], passes: int) -> None:
    tables = [plain_table(f"t{number}", count) for number, count in enumerate(rows)]
    assert sort_passes(work_of(*tables).num_rows)[0] == passes


def test_sort_by_hand() -> None:
    """A floor, then 128 pairs in 2 passes (1000 rows are 10 bits), half a pair each ns."""
    assert small_ns(sort_floor_us=4, sort_pairs_per_ns=0.5) == pytest.approx((0, 4000 + 2 * 128 / 0.5), abs=1e-6)


def test_gradient_instructions_by_hand() -> None:
    """A floor, then 128 gradients (256 requests where rows are wide) and 128 distinct rows."""
    constants = {"gradient_floor_us": 5, "gradient_ns_per_request": 0.25, "gradient_ns_per_row": 2}
    assert small_ns(**constants) == pytest.approx((0, 5000 + 128 * 0.25 + 128 * 2), abs=1e-6)
    wide = times_ns(replace(SMALL, embedding_dim=256), batch_size=64, profile=only(**constants))
    assert wide[1] == pytest.approx(5000 + 256 * 0.25 + 128 * 2)


@pytest.mark.parametrize(
    ("optimizer", "state_bytes_per_row"),
    [("sgd", 0), ("rowwise_adagrad", 32), ("adagrad", 256), ("adam", 512)],
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


# Lanes by hand -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dim", "share", "warps"), [(4, 0.25, 1), (32, 0.25, 1), (36, 0.5, 1), (64, 0.5, 1), (128, 1, 1), (256, 1, 2)]
)
def test_rows_take_the_lanes_of_a_warp_that_the_widest_of_their_call_needs(dim: int, share: float, warps: int) -> None:
    """64 bags and 128 lookups of each of two tables, and as many distinct rows."""
    gpu = only(
        lookup_lane_power=2, gradient_lane_power=0.5, gradient_wide_power=0.5, lookup_ns_per_bag=3,
        lookup_ns_per_request=5, gradient_ns_per_request=7, gradient_ns_per_row=11,
    )  # fmt: skip
    narrow, other = SMALL, replace(SMALL, name="o", embedding_dim=dim)
    forward, backward = times_ns(narrow, other, batch_size=SMALL_BATCH, profile=gpu)
    assert forward == pytest.approx(2 * (64 * 3 * share**2 + 128 * 5 * share**2 * warps))
    assert backward == pytest.approx(2 * 128 * (7 + 11) * share**0.5 * warps**0.5)


def test_instructions_of_lanes_come_on_top_of_what_kernels_wait_for() -> None:
    waits = {"l2_gb_s": 2.0}
    lanes = {"lookup_lane_power": 1.0, "lookup_ns_per_request": 8.0}
    (alone, _), (waiting, _), (both, _) = (small_ns(**one) for one in (lanes, waits, {**lanes, **waits}))
    assert both == pytest.approx(alone + waiting) and alone == pytest.approx(128 * 8 / 4)


@pytest.mark.parametrize(("optimizer", "longer"), [("sgd", 0), ("rowwise_adagrad", 0.5), ("adagrad", 2), ("adam", 4)])
def test_states_make_the_instructions_of_gradients_longer(optimizer: str, longer: float) -> None:
    found = small_ns(
        optimizer, gradient_lane_power=1.0, gradient_ns_per_request=4, row_state_share=0.5, weight_state_share=2
    )
    assert found[1] == pytest.approx(128 * 4 * (1 + longer) / 4)


def test_each_pass_of_the_sort_is_started_where_one_kernel_does_not_do() -> None:
    """10 bits of rows are 2 passes; 4,864 pairs are sorted by one kernel."""
    gpu = only(sort_pass_us=3)
    few, many = Table("t", 1000, 8, 1.0, None, 32), Table("t", 1000, 8, 2.0, None, 32)
    assert times_ns(few, batch_size=4864, profile=gpu)[1] == pytest.approx(0, abs=1e-3)
    assert times_ns(many, batch_size=4864, profile=gpu)[1] == pytest.approx(2 * 3000)


def test_the_longest_bag_is_a_chain_of_the_index_kernels() -> None:
    other = Table("o", 1000, 8, 30.0, None, 32)
    assert times_ns(SMALL, other, batch_size=SMALL_BATCH, profile=only(index_bag_ns=7))[1] == pytest.approx(30 * 7)


# Calls by hand -------------------------------------------------------------------------------------------------------


def test_a_call_takes_its_overhead_and_its_kernels() -> None:
    gpu = gpu_profile("a100_80gb")
    kernels = kernels_ns(POOL[5], profile=gpu)
    forward, backward = (sum(kernels[name] for name in names) for names in (FORWARD_KERNELS, BACKWARD_KERNELS))
    assert forward > gpu.fwd_host_us * 1e3 and backward > gpu.bwd_host_us * 1e3
    overheads = (gpu.fwd_overhead_us * 1e3, gpu.bwd_overhead_us * 1e3)
    assert times_ns(POOL[5], profile=gpu) == pytest.approx((overheads[0] + forward, overheads[1] + backward))
    assert (*FORWARD_KERNELS, *BACKWARD_KERNELS) == ("bounds_check", "lookup", "index", "sort", "gradient")


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


@pytest.mark.parametrize(
    ("power", "us"),
    [
        (1, 0),
        (13, 0),
        (15, 200),
        (17, 400),
        (17.99, 400),
        (18, 0),
        (19.5, 300),
        (21, 600),
        (22.5, 300),
        (24, 0),
        (25, 0),
    ],
)
def test_a_backward_call_takes_time_beside_its_kernels_by_its_lookups(power: float, us: float) -> None:
    gpu = only(short_call_us=400, medium_call_us=600)
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


# What holds for any GPU ----------------------------------------------------------------------------------------------


def is_short(*tables: Table) -> bool:
    """Whether a backward call of these tables takes ``short_call_us`` more."""
    return bool(work_of(*tables).lookups[0] < SHORT_LOOKUPS)


@pytest.mark.parametrize("name", NAMES)
def test_fusing_tables_is_cheaper_than_running_them_apart_and_not_just_by_an_overhead(name: str) -> None:
    """As long as the sort takes no more passes: the linear indices of more tables have more bits."""
    gpu, rng = gpu_profile(name), np.random.default_rng(1)
    fixed = (gpu.fwd_overhead_us + gpu.bounds_floor_us + gpu.lookup_floor_us) * 1e3
    savings, gains = [], 0
    for _ in range(40):
        dim = rng.choice([one.embedding_dim for one in POOL])  # a wide table makes narrow ones of its call dearer
        alike = [one for one in POOL if one.embedding_dim == dim]
        pair = [alike[i] for i in rng.choice(len(alike), 2, replace=False)]
        apart = [times_ns(one, profile=gpu) for one in pair]
        together = times_ns(*pair, profile=gpu)
        savings.append(sum(forward for forward, _ in apart) - together[0])
        passes = [sort_passes(work_of(*tables).num_rows)[0] for tables in (pair[:1], pair[1:], pair)]
        if max(passes[:2]) == passes[2]:
            gains += 1
            assert together[1] < sum(backward for _, backward in apart)
    assert gains > 10
    # What the L2 loses by sharing at this batch size is far less than the call that is saved.
    assert min(savings) > 0.1 * fixed
    assert interquartile_range(savings) > 1e-3 * fixed


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("field", ["pooling_factor", "embedding_dim", "num_rows"])
def test_more_work_is_never_faster(name: str, field: str) -> None:
    """The step of ``short_call_us`` apart: the measurements of the RTX 2080 Ti have it."""
    gpu = gpu_profile(name)
    num_pairs = 0
    for one in POOL[:20]:
        larger = [replace(one, **{field: getattr(one, field) * factor}) for factor in (1, 2, 4)]
        for smaller, bigger in pairwise(larger):
            (forward, backward), (more_forward, more_backward) = (
                times_ns(table, profile=gpu) for table in (smaller, bigger)
            )
            assert more_forward >= forward * (1 - 1e-9)
            if gpu.short_call_us == 0 or is_short(smaller) == is_short(bigger):
                num_pairs += 1
                assert more_backward >= backward * (1 - 1e-9)
    assert num_pairs >= 30


def test_more_lookups_are_faster_at_one_place_on_one_gpu() -> None:
    """Below 2**18 lookups and from there on the time grows; between the two it falls, by ``short_call_us``."""
    assert [name for name in NAMES if gpu_profile(name).short_call_us > 0] == ["rtx_2080_ti"]
    gpu = gpu_profile("rtx_2080_ti")
    below, above = np.linspace(0.5, 3.999, 20), np.linspace(4.0, 8.0, 20)
    for poolings in (below, above):
        times = [times_ns(plain_table(rows=10**6, pooling=pooling), profile=gpu)[1] for pooling in poolings.tolist()]
        assert all(more > less for less, more in pairwise(times))
    before, after = (times_ns(plain_table(rows=10**6, pooling=one), profile=gpu)[1] for one in (4 - 1e-9, 4.0))
    assert before - after == pytest.approx(gpu.short_call_us * 1e3, rel=1e-3)


# One of each size of state, the smallest first.
BY_STATE = ("sgd", "rowwise_adagrad", "adagrad", "partial_rowwise_adam", "adam")


@pytest.mark.parametrize("name", NAMES)
def test_an_optimizer_with_more_state_takes_longer(name: str) -> None:
    gpu, tables = gpu_profile(name), [table for table in POOL[:20] if table.embedding_dim >= 16]
    forward, backward = zip(*(times_ns(*tables, profile=gpu, optimizer=one) for one in BY_STATE), strict=True)
    assert [STATE_NUMBERS[one] for one in BY_STATE] == list(dict.fromkeys(STATE_NUMBERS.values()))
    assert all(less < more for less, more in pairwise(backward)) and len(set(forward)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("constant", ["hbm_gb_s", "l2_mb", *FREE_CONSTANTS])
def test_a_better_gpu_is_never_slower(constant: str) -> None:
    """Twice the rate or the cache, or half the time, of anything."""
    factor = 2.0 if constant in (*RATES, "l2_mb") else 0.5
    faster_somewhere = False
    hot = Table("hot", 100, 4, 1.0, all_in_bin(16), 16)
    for name in NAMES:
        gpu = gpu_profile(name)
        better = replace(gpu, **{constant: getattr(gpu, constant) * factor})
        for tables in (POOL[:1], POOL[1:2], POOL[:20], (hot,), (replace(hot, pooling_factor=0.01),)):
            old, new = times_ns(*tables, profile=gpu), times_ns(*tables, profile=better)
            assert new[0] <= old[0] * (1 + 1e-9) and new[1] <= old[1] * (1 + 1e-9)
            faster_somewhere |= sum(new) < sum(old)
    assert faster_somewhere


def test_tables_that_nobody_looks_up_cost_a_forward_call_and_no_nan() -> None:
    """FBGEMM's backward pass returns at once where there is no index."""
    idle = Table("idle", 10**6, 16, 0.0, None, 16)
    for name in NAMES:
        gpu = gpu_profile(name)
        forward, backward = times_ns(idle, profile=gpu)
        assert (gpu.fwd_overhead_us + gpu.fwd_host_us) * 1e3 <= forward * (1 + 1e-9) < 1e6
        assert backward == 0
        busy = times_ns(POOL[5], profile=gpu)
        with_idle = times_ns(POOL[5], idle, profile=gpu)
        assert busy[0] < with_idle[0] < busy[0] + forward
        assert busy[1] < with_idle[1] < busy[1] * 1.5, "bags of the idle table are sorted with the others"


def test_a_pass_takes_its_kernels_or_their_launches() -> None:
    """Two calls: the host launches the second one's kernels while the first one's run."""
    kernels_ns, calls = np.array([9e6, 1e6, 5e6]), np.array([2.0, 2.0, 0.0])
    assert pass_ms(kernels_ns, calls, overhead_us=500.0, host_us=3000.0).tolist() == [9.5, 6.5, 0.0]
