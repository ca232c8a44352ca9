"""Fitting the constants of a device model: each is found from the times that it is part of, and nothing else moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evenshard.measure.calibrate.device import (
    SHARD_TIMES,
    Errors,
    MeasuredShards,
    compute_errors,
    fit_constants,
    predict_times,
    stack_times,
)
from evenshard.price.device_model import KERNELS, backward_ms, forward_ms
from evenshard.price.gpu_profile import BOUNDS, BY_KERNEL, FREE_CONSTANTS, RATES, GpuProfile, gpu_profile
from evenshard.price.hardware import profile_names
from evenshard.price.shard_work import ShardWork, WorkCounter
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.reuse import NUM_REUSE_BINS
from evenshard.tables.table import Table

START = gpu_profile("v100")
KERNEL_CONSTANTS = tuple(
    name for name in FREE_CONSTANTS if name.startswith(("bounds", "lookup", "index", "sort", "grad"))
)
BATCHES = (64, 1024, 16384, 65536)


@pytest.fixture(scope="module")
def work() -> ShardWork:
    """Shards of 1 to 8 generated tables at several batch sizes."""
    rng, parts = np.random.default_rng(0), []
    for batch_size in BATCHES:
        pool = generate_tables(GeneratorConfig(60, (4, 16, 64, 128, 256)), batch_size, seed=0)
        for _ in range(60):
            tables = [pool[i] for i in rng.choice(60, rng.integers(1, 9), replace=False)]
            parts.append((tables, batch_size))
    return WorkCounter(START).work_of(parts)


def shards(truth: GpuProfile, work: ShardWork, times: tuple[str, ...], optimizer: str = "sgd") -> MeasuredShards:
    """The times of ``truth``, as if only some of them had been measured."""
    all_NM = predict_times(truth, work, optimizer)
    known = {name: all_NM[:, SHARD_TIMES.index(name)] for name in times}
    num_shards = len(all_NM)
    return MeasuredShards(work, stack_times(num_shards, **known), np.arange(num_shards), optimizer)


def other(names: tuple[str, ...], seed: int = 0) -> GpuProfile:
    """A GPU on which some constants are up to twice or half of those of the start."""
    factors = np.exp2(np.random.default_rng(seed).uniform(-1, 1, len(names)))
    return replace(
        START, **{name: getattr(START, name) * factor for name, factor in zip(names, factors.tolist(), strict=True)}
    )


def test_the_constants_of_kernels_are_found_from_the_times_of_kernels(work: ShardWork) -> None:
    truth = other(KERNEL_CONSTANTS)
    found, at_bound = fit_constants(START, [shards(truth, work, KERNELS)], prior_weight=1e-3)
    assert at_bound == () and len(KERNEL_CONSTANTS) == 15
    for name in KERNEL_CONSTANTS:
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=0.05), name


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_times_of_one_kernel_move_no_constant_of_another(work: ShardWork, kernel: str) -> None:
    found, _ = fit_constants(START, [shards(other(KERNEL_CONSTANTS), work, (kernel,))], KERNEL_CONSTANTS)
    own = "bounds" if kernel == "bounds_check" else kernel
    moved = {name for name in KERNEL_CONSTANTS if abs(getattr(found, name) / getattr(START, name) - 1) > 1e-6}
    assert moved == {name for name in KERNEL_CONSTANTS if name.startswith(own)}


def test_what_calls_add_to_their_kernels_is_found_from_the_times_of_calls(work: ShardWork) -> None:
    names = ("fwd_overhead_us", "bwd_overhead_us", "fwd_host_us", "bwd_host_us")
    truth = replace(START, fwd_overhead_us=40.0, bwd_overhead_us=90.0, fwd_host_us=100.0, bwd_host_us=500.0)
    found, _ = fit_constants(START, [shards(truth, work, ("forward", "backward"))], names)
    for name in names:
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=0.02), name
    assert replace(found, **{name: getattr(START, name) for name in names}) == START


def test_the_longest_bag_and_the_hottest_row_are_found_where_shards_wait_for_them() -> None:
    """16 bags of up to 2000 rows, and a row that takes all lookups."""
    hot = tuple(float(bin_number == NUM_REUSE_BINS - 1) for bin_number in range(NUM_REUSE_BINS))
    parts = []
    for pooling in (10.0, 100.0, 500.0, 2000.0):
        for reuse in (None, (1.0,) + (0.0,) * (NUM_REUSE_BINS - 1), hot):
            parts.append(([Table("t", 10**6, 16, pooling, reuse, 32)], 16))
    work = WorkCounter(START).work_of(parts)
    names = ("bag_hit_ns", "bag_miss_ns", "hot_lookup_ns")
    truth = replace(START, bag_hit_ns=200.0, bag_miss_ns=900.0, hot_lookup_ns=25.0)
    found, _ = fit_constants(START, [shards(truth, work, ("lookup", "gradient"))], names)
    for name in names:
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=0.02), name


def test_shards_of_several_optimizers_are_fitted_together(work: ShardWork) -> None:
    """States are bytes: with SGD alone, memory is hidden behind the gradients' instructions more often."""
    truth = replace(START, hbm_efficiency=0.6, gradient_ns_per_request=1.0)
    measured = [shards(truth, work, ("backward",), optimizer) for optimizer in ("sgd", "adam")]
    found, _ = fit_constants(START, measured, ("hbm_efficiency", "gradient_ns_per_request"), prior_weight=1e-3)
    assert found.hbm_efficiency == pytest.approx(0.6, rel=0.02)
    assert found.gradient_ns_per_request == pytest.approx(1.0, rel=0.02)


def test_a_constant_that_ends_at_its_bound_is_named(work: ShardWork) -> None:
    """Memory twice as fast as its data sheet says."""
    truth = replace(START, hbm_gb_s=2 * START.hbm_gb_s)
    found, at_bound = fit_constants(START, [shards(truth, work, KERNELS)], ("hbm_efficiency", "sort_floor_us"))
    assert at_bound == ("hbm_efficiency",) and found.hbm_efficiency == pytest.approx(1.0, rel=1e-2)


def test_times_that_were_not_measured_do_not_count(work: ShardWork) -> None:
    some = shards(other(KERNEL_CONSTANTS), work, ("sort",))
    half = replace(some, times_ms_NM=some.times_ms_NM.copy())
    half.times_ms_NM[::2] = np.nan
    odd = np.arange(len(some)) % 2 == 1
    assert compute_errors(START, half) == compute_errors(START, some.select(odd))
    assert list(compute_errors(START, half)) == ["sort"]
    assert fit_constants(START, [half], ("sort_floor_us",)) == fit_constants(
        START, [some.select(odd)], ("sort_floor_us",)
    )


def test_predicted_times_are_those_of_the_device_model(work: ShardWork) -> None:
    found = predict_times(START, work, "adam")
    forward, backward = forward_ms(START, work), backward_ms(START, work, "adam")
    for name, expected in (("forward", forward), ("backward", backward), ("both", forward + backward)):
        assert found[:, SHARD_TIMES.index(name)].tolist() == expected.tolist()
    assert (found[:, : len(KERNELS)] > 0).all()


def test_errors_by_hand() -> None:
    assert Errors.of(np.array([1.1, 1.8, 3.0]), np.array([1.0, 2.0, 2.0])) == Errors(
        pytest.approx(10), pytest.approx(10 + 0.8 * 40)
    )


def test_every_free_constant_has_bounds_around_the_profiles() -> None:
    """A bound that is at most the thousandth part of anything that matters stands for 0."""
    for profile in profile_names():
        for name, (low, high) in BOUNDS.items():
            value = getattr(gpu_profile(profile), name)
            assert low < value < high or (value == 0 and name not in RATES and (low <= 1e-3 or name in BY_KERNEL)), name
