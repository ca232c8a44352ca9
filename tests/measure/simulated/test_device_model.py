"""The model of a GPU: times that can be worked out by hand, and what must hold for any GPU."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from evenshard.measure.costs import interquartile_range
from evenshard.measure.simulated.device_model import backward_ms, forward_ms, hottest_row_ns, sort_passes
from evenshard.measure.simulated.gpu_profile import GpuProfile, gpu_profile
from evenshard.measure.simulated.l2_cache import missed_bytes
from evenshard.measure.simulated.shard_work import ShardWork, WorkCounter, sector_bytes
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.reuse import NUM_REUSE_BINS
from evenshard.tables.table import Table
from support.builders import READ_ONCE
from support.builders import table as plain_table

BATCH = 65536
POOL = generate_tables(GeneratorConfig(120, (4, 8, 16, 64, 128), weight_bits=16), BATCH, seed=3)
NAMES = ("a100_80gb", "h200", "rtx_2080_ti", "v100")
# One byte of memory a nanosecond, everything else for nothing: times are bytes.
BYTES_ONLY = GpuProfile(
    link="nvlink_h200",
    num_sms=1,
    clock_ghz=1,
    warps_per_sm=1,
    memory_gb=1,
    hbm_gb_s=2,
    l2_mb=100,
    l2_usable_share=1,
    hbm_latency_ns=0,
    l2_latency_ns=0,
    launch_us=0,
    fwd_overhead_us=0,
    bwd_overhead_us=0,
    hbm_efficiency=0.5,
    l2_gb_s=1e12,
    fwd_loads_per_warp=1,
    bwd_loads_per_warp=1,
    sort_pairs_per_sm_clock=1e12,
    hot_row_ns=0,
)


def only(**constants: float) -> GpuProfile:
    """A GPU on which memory costs nothing, so that times show the given constants."""
    return replace(BYTES_ONLY, hbm_gb_s=1e15, **constants)


def all_in_bin(number: int) -> tuple[float, ...]:
    return tuple(float(bin_number == number) for bin_number in range(NUM_REUSE_BINS))


def work_of(*tables: Table, batch_size: int = BATCH, profile: GpuProfile = BYTES_ONLY) -> ShardWork:
    """The work of one shard."""
    counter = WorkCounter(profile)
    shard = np.zeros(len(tables), dtype=np.int64)
    return counter.shard_work(counter.columns(tables, batch_size), shard, 1)


def times_ns(*tables: Table, batch_size: int = BATCH, profile: GpuProfile = BYTES_ONLY) -> tuple[float, float]:
    """Forward and backward time of one shard, ns."""
    work = work_of(*tables, batch_size=batch_size, profile=profile)
    return float(forward_ms(profile, work)[0]) * 1e6, float(backward_ms(profile, work)[0]) * 1e6


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


def test_a_larger_l2_misses_less() -> None:
    misses = [work_of(*POOL[:9], profile=replace(BYTES_ONLY, l2_mb=mb)).row_miss_bytes[0] for mb in (1, 5, 25, 1e6)]
    assert misses == sorted(misses, reverse=True) and misses[0] > misses[-2] >= misses[-1]
    assert misses[-1] == pytest.approx(work_of(*POOL[:9]).unique_bytes[0])


# Bytes and kernels by hand -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("row_bytes", "sectors"), [(32, 1), (16, 1), (8, 1), (64, 2), (48, 2), (40, 2), (256, 8)])
def test_sectors_of_a_row(row_bytes: int, sectors: float) -> None:
    """40 bytes begin at multiples of 8: 1 sector can never hold them, 3 are never touched."""
    assert sector_bytes(np.array([row_bytes]))[0] == 32 * sectors


def test_a_row_of_dim_8_in_fp16_costs_a_whole_sector() -> None:
    narrow, wide = (work_of(Table("t", 10**6, dim, 4.0, None, 16)) for dim in (8, 16))
    for name in ("unique_bytes", "row_bytes", "row_miss_bytes", "row_requests"):
        assert getattr(narrow, name) == pytest.approx(getattr(wide, name))
    assert narrow.output_bytes[0] == wide.output_bytes[0] / 2


def test_forward_bytes_by_hand() -> None:
    """64 bags of 2 rows of 32 bytes, each row read once.

    Bounds check: 4 * (128 + 64) = 768 bytes. Lookup: the same, 64 * 8 * 4 = 2048 of output, 128 * 32 = 4096 of rows.
    """
    small = Table("t", 1000, 8, 2.0, READ_ONCE, 32)
    assert times_ns(small, batch_size=64)[0] == pytest.approx(768 + 768 + 2048 + 4096)


def test_backward_bytes_by_hand() -> None:
    """Of the same table. Indices: 24 a lookup, 32 a distinct row, 4 a bag. Sort: 8 a lookup, and 24 in each of 2 passes
    (1000 rows are 10 bits). Gradients: 64 of 32 bytes once (then they are in the L2), 4 a lookup, 12 a distinct row and
    its 32 bytes in and out.
    """
    small = Table("t", 1000, 8, 2.0, READ_ONCE, 32)
    indices, sort = 24 * 128 + 32 * 128 + 4 * 64, 128 * (8 + 2 * 24)
    gradients = 64 * 32 + 4 * 128 + 12 * 128 + 2 * 128 * 32
    assert times_ns(small, batch_size=64)[1] == pytest.approx(indices + sort + gradients)


def test_gradients_that_do_not_fit_the_l2_are_fetched_again() -> None:
    """1024 gradients of 32 bytes, each read 3 times, in an L2 of half of them: the 2nd and 3rd time half miss."""
    half = replace(BYTES_ONLY, l2_mb=1 / 64)
    assert work_of(Table("t", 10**6, 8, 3.0, READ_ONCE, 32), batch_size=1024, profile=half).grad_miss_bytes[
        0
    ] == pytest.approx(1024 * 32 * (1 + 2 * 0.5))


def test_overheads_and_launches_by_hand() -> None:
    gpu = only(fwd_overhead_us=10, bwd_overhead_us=20, launch_us=1)
    forward, backward = times_ns(plain_table(rows=1000), batch_size=64, profile=gpu)
    assert forward == pytest.approx((10 + 2) * 1e3, rel=1e-6)
    assert backward == pytest.approx((20 + 12 + 2) * 1e3, rel=1e-6)


def test_latency_by_hand() -> None:
    """128 bags on 2 * 4 warps: each waits for the offsets (L2) and indices (memory); then 3 * 128 rows that all miss,
    each of 2 requests, 2 in flight.
    """
    gpu = only(num_sms=2, warps_per_sm=4, l2_latency_ns=100, hbm_latency_ns=500, fwd_loads_per_warp=2)
    wide = Table("t", 10**6, 64, 3.0, READ_ONCE, 32)
    assert times_ns(wide, batch_size=128, profile=gpu)[0] == pytest.approx((128 * 600 + 3 * 128 * 2 * 500 / 2) / 8)


def test_no_more_warps_work_than_there_are_bags() -> None:
    gpu = only(num_sms=1000, warps_per_sm=64, l2_latency_ns=100, hbm_latency_ns=500)
    assert times_ns(Table("t", 10**6, 8, 3.0, READ_ONCE, 32), batch_size=16, profile=gpu)[0] == pytest.approx(
        600 + 3 * 500
    )


def test_l2_bandwidth_by_hand() -> None:
    """A row looked up 8 times is 8 times 32 bytes of L2; indices, offsets and outputs pass through it too."""
    gpu = only(l2_gb_s=2.0)
    once = Table("t", 10**6, 8, 8.0, all_in_bin(3), 32)
    assert times_ns(once, batch_size=64, profile=gpu)[0] == pytest.approx((512 * 32 + 4 * (512 + 64) + 2048) / 2)


@pytest.mark.parametrize(
    ("rows", "passes"), [((255,), 1), ((256,), 2), ((255, 1), 2), ((2**16,), 3), ((10**7,) * 2, 4)]
)
def test_the_sort_takes_a_pass_for_each_byte_of_the_shards_rows(rows: tuple[int, ...], passes: int) -> None:
    tables = [plain_table(f"t{number}", count) for number, count in enumerate(rows)]
    assert sort_passes(work_of(*tables))[0] == passes


def test_a_slow_sort_by_hand() -> None:
    """128 pairs in 2 passes on 2 SMs of 3 GHz that move half a pair each clock."""
    gpu = only(num_sms=2, clock_ghz=3, sort_pairs_per_sm_clock=0.5)
    assert times_ns(plain_table(rows=1000), batch_size=64, profile=gpu)[1] == pytest.approx(2 * 128 / 3)


def test_the_hottest_row_is_a_floor_of_the_backward_pass() -> None:
    """Bin 16 alone: 65536 lookups or so go to one row; blocks of 1024 add to it one after the other."""
    gpu = only(hot_row_ns=1000)
    hot, cold = Table("h", 10**6, 8, 4.0, all_in_bin(16), 32), Table("c", 10**6, 8, 4.0, READ_ONCE, 32)
    work = work_of(hot)
    assert work.hottest[0] > 32768 and work_of(cold).hottest[0] == 1
    floor = (work.hottest[0] / 1024 - 1) * 1000
    assert hottest_row_ns(gpu, work)[0] == pytest.approx(floor)
    assert times_ns(hot, profile=gpu)[1] == pytest.approx(floor, rel=1e-3)
    assert times_ns(hot, cold, profile=gpu)[1] == pytest.approx(floor, rel=1e-3)
    assert times_ns(cold, profile=gpu)[1] < floor / 1000


def test_two_hot_tables_wait_for_their_hottest_rows_at_the_same_time() -> None:
    gpu = only(hot_row_ns=1000, l2_latency_ns=1e-9)
    hot = [Table(name, 10**6, 8, 4.0, all_in_bin(bin_number), 32) for name, bin_number in (("a", 16), ("b", 15))]
    assert work_of(*hot).hottest[0] == max(work_of(one).hottest[0] for one in hot)
    assert hottest_row_ns(gpu, work_of(*hot))[0] == hottest_row_ns(gpu, work_of(hot[0]))[0]


def test_a_row_of_one_block_waits_for_its_loads_alone() -> None:
    """511 or so lookups by 8 warps with 2 loads in flight each."""
    gpu = only(hot_row_ns=1000, l2_latency_ns=100, bwd_loads_per_warp=2)
    work = work_of(Table("t", 10**6, 8, 4.0, all_in_bin(9), 32))
    assert 256 < work.hottest[0] <= 512
    assert hottest_row_ns(gpu, work)[0] == pytest.approx(work.hottest[0] * 100 / 16)


def test_a_table_of_few_rows_looks_each_up_more_often() -> None:
    """The histogram says that each of 128 lookups has a row of its own, but there are 10."""
    work = work_of(Table("t", 10, 8, 2.0, READ_ONCE, 32), batch_size=64)
    assert (work.uniques[0], work.lookups[0], work.unique_bytes[0]) == (10, 128, 320)
    assert work.hottest[0] == pytest.approx(12.8)


def test_gradient_latency_by_hand() -> None:
    """16 distinct rows of 64 FP16 weights, 4 lookups each, on 2 * 2 warps. A row waits for its run and its length (L2)
    and for its weights; a gradient of 256 bytes is 2 requests, 4 in flight, of which a quarter miss: each of 16
    samples is read 4 times.
    """
    gpu = only(num_sms=2, warps_per_sm=2, l2_latency_ns=100, hbm_latency_ns=500, bwd_loads_per_warp=4)
    four_times = Table("t", 16, 64, 4.0, all_in_bin(2), 16)
    chain, gradients = 16 * (2 * 100 + 500), 64 * 2 * (3 * 100 + 500) / 4 / 4
    assert times_ns(four_times, batch_size=16, profile=gpu)[1] == pytest.approx((chain + gradients) / 4)
    one_each = times_ns(four_times, batch_size=16, profile=replace(gpu, num_sms=1000))[1]
    assert one_each == pytest.approx((chain + gradients) / 16)


def test_gradient_l2_bandwidth_by_hand() -> None:
    """64 gradients of 256 bytes and their infos; 16 distinct rows of 128 bytes in and out, and where their runs are."""
    gpu = only(l2_gb_s=2.0)
    four_times = Table("t", 16, 64, 4.0, all_in_bin(2), 16)
    assert times_ns(four_times, batch_size=16, profile=gpu)[1] == pytest.approx(
        (64 * (256 + 4) + 16 * (2 * 128 + 12)) / 2
    )


def test_one_row_that_takes_all_lookups() -> None:
    work = work_of(Table("t", 1, 8, 1.0, all_in_bin(16), 32))
    assert (work.uniques[0], work.lookups[0], work.hottest[0]) == pytest.approx((1, BATCH, BATCH))
    assert work.grad_warps[0] == pytest.approx(BATCH / 32)


# What holds for any GPU ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_fusing_tables_is_cheaper_than_running_them_apart_and_not_just_by_an_overhead(name: str) -> None:
    """As long as the sort takes no more passes: the linear indices of more tables have more bits."""
    gpu, rng = gpu_profile(name), np.random.default_rng(1)
    fixed = (gpu.fwd_overhead_us + 2 * gpu.launch_us) * 1e3
    savings, gains = [], 0
    for _ in range(40):
        pair = [POOL[i] for i in rng.choice(len(POOL), 2, replace=False)]
        apart = [times_ns(one, profile=gpu) for one in pair]
        together = times_ns(*pair, profile=gpu)
        savings.append(sum(forward for forward, _ in apart) - together[0])
        passes = [sort_passes(work_of(*tables))[0] for tables in (pair[:1], pair[1:], pair)]
        if max(passes[:2]) == passes[2]:
            gains += 1
            assert together[1] < sum(backward for _, backward in apart)
    assert gains > 10
    # What the L2 loses by sharing at this batch size is far less than the call that is saved.
    assert min(savings) > 0.5 * fixed
    assert interquartile_range(savings) > 1e-3 * fixed


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("field", ["pooling_factor", "embedding_dim", "num_rows"])
def test_more_work_is_never_faster(name: str, field: str) -> None:
    gpu = gpu_profile(name)
    for one in POOL[:20]:
        larger = [replace(one, **{field: getattr(one, field) * factor}) for factor in (1, 2, 4)]
        times = [times_ns(table, profile=gpu) for table in larger]
        for smaller, bigger in pairwise(times):
            assert bigger[0] >= smaller[0] * (1 - 1e-9) and bigger[1] >= smaller[1] * (1 - 1e-9)


@pytest.mark.parametrize(
    ("constant", "factor"),
    [(name, 2.0) for name in ("hbm_gb_s", "l2_mb", "l2_gb_s", "num_sms", "clock_ghz", "sort_pairs_per_sm_clock")]
    + [(name, 2.0) for name in ("fwd_loads_per_warp", "bwd_loads_per_warp", "warps_per_sm")]
    + [(name, 0.5) for name in ("hbm_latency_ns", "launch_us", "fwd_overhead_us", "bwd_overhead_us", "hot_row_ns")],
)
def test_a_better_gpu_is_never_slower(constant: str, factor: float) -> None:
    """But for a trifle where more warps have more tables in flight, which then share the L2."""
    faster_somewhere = False
    allowed = 1.002 if constant in ("num_sms", "warps_per_sm") else 1 + 1e-9
    for name in NAMES:
        gpu = gpu_profile(name)
        better = replace(gpu, **{constant: getattr(gpu, constant) * factor})
        for tables in (POOL[:1], POOL[1:2], POOL[:20], (Table("hot", 100, 4, 1.0, all_in_bin(16), 16),)):
            old, new = times_ns(*tables, profile=gpu), times_ns(*tables, profile=better)
            assert new[0] <= old[0] * allowed and new[1] <= old[1] * allowed
            faster_somewhere |= sum(new) < sum(old)
    assert faster_somewhere


def test_tables_that_nobody_looks_up_cost_their_call_and_no_nan() -> None:
    idle = Table("idle", 10**6, 16, 0.0, None, 16)
    gpu = gpu_profile("v100")
    forward, backward = times_ns(idle, profile=gpu)
    assert (gpu.fwd_overhead_us + 2 * gpu.launch_us) * 1e3 < forward < 1e6
    assert (gpu.bwd_overhead_us + 12 * gpu.launch_us) * 1e3 < backward < 1e6
    busy = times_ns(POOL[5], profile=gpu)
    with_idle = times_ns(POOL[5], idle, profile=gpu)
    assert busy[0] < with_idle[0] < busy[0] + forward and busy[1] < with_idle[1] < busy[1] + backward
