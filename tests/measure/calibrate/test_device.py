"""Calibrating a simulated device: the truth is a simulated device too, with other constants and 2 % of noise."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml

from evenshard.base.errors import BadInput
from evenshard.measure.calibrate.device import (
    CALLS,
    SHARD_TIMES,
    Calibration,
    Errors,
    MeasuredShards,
    compute_errors,
    extract_shards,
    fit_constants,
    fit_profile,
    predict_times,
    stack_times,
)
from evenshard.measure.config import MeasureConfig
from evenshard.measure.simulated_hardware import SimulatedHardware
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import DeviceCost, MeasuredPlacement, PlacementCost
from evenshard.price.device_model import KERNELS, backward_ms, forward_ms
from evenshard.price.gpu_profile import FREE_CONSTANTS, GpuProfile, gpu_profile, write_profile
from evenshard.price.hardware import profile_path
from evenshard.price.shard_work import ShardWork, WorkCounter
from evenshard.tables.generator import GeneratorConfig, generate_tables
from support.builders import PROVENANCE
from support.builders import task as make_task

START = "a100_80gb"
NOISE = 0.005  # with 2 %, which constants are within 5 % depends on the noise that was drawn
TRUTH = {
    "fwd_overhead_us": 90.0,
    "bwd_overhead_us": 150.0,
    "hbm_efficiency": 0.6,
    "gradient_ns_per_request": 0.9,
    "lookup_ns_per_request": 0.1,
}
FIXED_TIMES = (
    ("fwd_overhead_us", "bounds_floor_us", "lookup_floor_us"),
    ("bwd_overhead_us", "index_floor_us", "sort_floor_us", "gradient_floor_us"),
    ("fwd_overhead_us", "fwd_host_us"),
    ("bwd_overhead_us", "bwd_host_us"),
)
BATCHES = (512, 8192, 65536)  # small ones show the overheads


@cache
def measured(directory: Path, placements: int = 80) -> tuple[MeasuredPlacement, ...]:
    """Random placements, measured on the truth."""
    truth = directory / "truth.yaml"
    write_profile(profile_path(START), TRUTH, "made up for a test", [], truth)
    hardware = SimulatedHardware(MeasureConfig(hardware=f"simulated:{truth}", noise=NOISE))
    rng = np.random.default_rng(0)
    found = []
    for number in range(placements):
        batch_size = BATCHES[number % len(BATCHES)]
        pool = generate_tables(GeneratorConfig(60, (4, 16, 64, 128)), batch_size, seed=0)
        tables = [pool[i] for i in rng.choice(60, 12, replace=False)]
        task = make_task(tables, devices=3, task_id=f"task-{number}", batch_size=batch_size)
        placement = Placement(tuple(rng.integers(0, 3, 12).tolist()), 3)
        cost, origin = hardware.measure(task, placement), hardware.provenance
        found.append(
            MeasuredPlacement(f"m{number}", 1, "random", task, placement.parts(task.tables), cost, origin, 1.7e9)
        )
    return tuple(found)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calibrate")


@pytest.fixture(scope="module")
def fitted(directory: Path) -> Calibration:
    return fit_profile(gpu_profile(START), measured(directory))


def test_the_fit_finds_the_constants_that_the_times_depend_on(directory: Path, fitted: Calibration) -> None:
    """Times of whole calls do not tell an overhead from the floors of kernels, but how long both are together, and how
    long the overhead and the host.
    """
    truth = gpu_profile(str(directory / "truth.yaml"))
    for name in ("hbm_efficiency", "gradient_ns_per_request", "lookup_ns_per_request"):
        assert getattr(fitted.profile, name) == pytest.approx(TRUTH[name], rel=0.05), name
    for names in FIXED_TIMES:
        found, true = (sum(getattr(profile, name) for name in names) for profile in (fitted.profile, truth))
        assert found == pytest.approx(true, rel=0.03), names
        assert abs(sum(getattr(gpu_profile(START), name) for name in names) / true - 1) > 0.2, "had to be found"
    assert fitted.at_bound == ()
    assert fitted.num_fitted + fitted.num_held_out == len(extract_shards(fitted.profile, measured(directory)))
    assert abs(fitted.num_fitted - fitted.num_held_out) <= 2


def test_held_out_errors_shrink_to_about_the_noise(fitted: Calibration) -> None:
    """The median of |noise| is 0.67 of its standard deviation, the 90th percentile 1.64 of it."""
    for component in CALLS:
        before, after = fitted.before[component], fitted.after[component]
        assert before.median_percent > 15
        assert 0.5 * 0.67 < after.median_percent / (100 * NOISE) < 1.5 * 0.67
        assert after.median_percent < after.p90_percent < 1.5 * 1.64 * 100 * NOISE


def test_the_fixed_constants_stay_and_those_that_little_depends_on_nearly(fitted: Calibration) -> None:
    """Hardly a row here is so hot that its shard waits for it; no call but the short ones of an RTX 2080 Ti wait."""
    start = gpu_profile(START)
    unfitted = {name: getattr(start, name) for name in FREE_CONSTANTS}
    assert replace(fitted.profile, **unfitted) == start
    assert fitted.profile.hot_lookup_ns == pytest.approx(start.hot_lookup_ns, rel=0.3)
    assert start.short_call_us == 0 and fitted.profile.short_call_us < 0.01


def test_empty_and_overflowing_shards_do_not_count_and_one_measured_twice_is_in_one_group(directory: Path) -> None:
    good = measured(directory)[0]
    costs = good.cost.devices
    broken = PlacementCost((DeviceCost.out_of_memory(), *costs[1:]), "modelled")
    start = gpu_profile(START)
    assert len(extract_shards(start, [good])) == 3
    assert len(extract_shards(start, [replace(good, cost=broken)])) == 2
    lonely = replace(good, parts=Placement((0,) * 12, 3).parts(good.task.tables))
    assert len(extract_shards(start, [lonely])) == 1
    mirrored = Placement(tuple(2 - device for device in good.placement.device_of_table), 3)
    swapped = replace(good, parts=mirrored.parts(good.task.tables))
    assert extract_shards(start, [good, swapped]).group_N.tolist() == [0, 1, 2, 2, 1, 0]


def test_too_few_shards_are_refused_with_the_remedy(directory: Path) -> None:
    with pytest.raises(
        BadInput, match=r"at least 20 different nonempty shards .* there are 15\. Measure more placements"
    ):
        fit_profile(gpu_profile(START), measured(directory)[:5] * 3)
    with pytest.raises(BadInput, match="Measure more placements"):
        fit_profile(gpu_profile(START), [])
    first, *others = measured(directory)
    with pytest.raises(BadInput, match="different hardware or libraries"):
        fit_profile(gpu_profile(START), [replace(first, provenance=PROVENANCE), *others])


def test_the_saved_profile_can_be_simulated(directory: Path, fitted: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "fitted.yaml"
    fitted.save(START, path)
    read = SimulatedHardware(MeasureConfig(hardware=f"simulated:{path}")).profile
    for name in FREE_CONSTANTS:
        assert getattr(read, name) == pytest.approx(getattr(fitted.profile, name), rel=1e-5)
    content = yaml.safe_load(path.read_text())
    assert content["hbm_efficiency"]["source"] == (
        f"calibrated on {fitted.num_fitted} shards of simulated: truth, "
        f"{measured(directory)[0].provenance.versions}, 2023-11-14"
    )
    original = yaml.safe_load(profile_path(START).read_text())
    worst = max(fitted.after.values(), key=lambda errors: errors.p90_percent)
    assert read.evidence == (fitted.evidence,) and read.error_of("sgd").points == fitted.num_held_out
    assert not read.error_of("adam").points and read.error_of("sgd").percent == pytest.approx(
        worst.p90_percent, abs=0.01
    )
    assert content["num_sms"] == original["num_sms"] and content["link"] == original["link"]
    assert list(tmp_path.iterdir()) == [path]


def test_shards_of_which_only_the_sum_was_timed_calibrate_too(directory: Path) -> None:
    """As `import-costs` makes them of other people's measurements."""
    alone = []
    for one in measured(directory)[:40]:
        for device, positions in enumerate(one.placement.shards()):
            tables = tuple(one.task.tables[i] for i in positions)
            task = ShardingTask.whole("alone", tables, 1, one.task.memory_cap_bytes, one.task.batch_size)
            cost = PlacementCost((DeviceCost.of_total(one.cost.devices[device].compute_ms),), "modelled")
            parts = Placement((0,) * len(positions), 1).parts(task.tables)
            alone.append(replace(one, task=task, parts=parts, cost=cost))
    found = fit_profile(gpu_profile(START), alone)
    assert set(found.after) == {"both"} and found.num_fitted + found.num_held_out == len(alone)
    assert found.after["both"].median_percent < 3 < found.before["both"].median_percent


V100 = gpu_profile("v100")
KERNEL_CONSTANTS = tuple(
    name for name in FREE_CONSTANTS if name.startswith(("bounds", "lookup", "index", "sort", "grad"))
)
SIZES = (64, 1024, 16384, 65536)


@pytest.fixture(scope="module")
def work() -> ShardWork:
    """Shards of 1 to 8 generated tables at several batch sizes."""
    rng, parts = np.random.default_rng(0), []
    for batch_size in SIZES:
        pool = generate_tables(GeneratorConfig(60, (4, 16, 64, 128, 256)), batch_size, seed=0)
        for _ in range(40):
            tables = [pool[i] for i in rng.choice(60, rng.integers(1, 9), replace=False)]
            parts.append((tables, batch_size))
    return WorkCounter(V100).work_of(parts)


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
        V100, **{name: getattr(V100, name) * factor for name, factor in zip(names, factors.tolist(), strict=True)}
    )


def test_the_constants_of_kernels_are_found_from_the_times_of_kernels(work: ShardWork) -> None:
    truth = other(KERNEL_CONSTANTS)
    found, at_bound = fit_constants(V100, [shards(truth, work, KERNELS)], prior_weight=1e-3)
    assert at_bound == () and len(KERNEL_CONSTANTS) == 15
    for name in KERNEL_CONSTANTS:
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=0.05), name


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_times_of_one_kernel_move_no_constant_of_another(work: ShardWork, kernel: str) -> None:
    found, _ = fit_constants(V100, [shards(other(KERNEL_CONSTANTS), work, (kernel,))], KERNEL_CONSTANTS)
    own = "bounds" if kernel == "bounds_check" else kernel
    moved = {name for name in KERNEL_CONSTANTS if abs(getattr(found, name) / getattr(V100, name) - 1) > 1e-6}
    assert moved == {name for name in KERNEL_CONSTANTS if name.startswith(own)}


def test_what_calls_add_to_their_kernels_is_found_from_the_times_of_calls(work: ShardWork) -> None:
    names = ("fwd_overhead_us", "bwd_overhead_us", "fwd_host_us", "bwd_host_us")
    truth = replace(V100, fwd_overhead_us=40.0, bwd_overhead_us=90.0, fwd_host_us=100.0, bwd_host_us=500.0)
    found, _ = fit_constants(V100, [shards(truth, work, ("forward", "backward"))], names)
    for name in names:
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=0.02), name
    assert replace(found, **{name: getattr(V100, name) for name in names}) == V100


def test_a_constant_that_ends_at_its_bound_is_named(work: ShardWork) -> None:
    """Memory twice as fast as its data sheet says."""
    truth = replace(V100, hbm_gb_s=2 * V100.hbm_gb_s)
    found, at_bound = fit_constants(V100, [shards(truth, work, KERNELS)], ("hbm_efficiency", "sort_floor_us"))
    assert at_bound == ("hbm_efficiency",) and found.hbm_efficiency == pytest.approx(1.0, rel=1e-2)


def test_times_that_were_not_measured_do_not_count(work: ShardWork) -> None:
    some = shards(other(KERNEL_CONSTANTS), work, ("sort",))
    half = replace(some, times_ms_NM=some.times_ms_NM.copy())
    half.times_ms_NM[::2] = np.nan
    odd = np.arange(len(some)) % 2 == 1
    assert compute_errors(V100, half) == compute_errors(V100, some.select(odd))
    assert list(compute_errors(V100, half)) == ["sort"]
    assert fit_constants(V100, [half], ("sort_floor_us",)) == fit_constants(
        V100, [some.select(odd)], ("sort_floor_us",)
    )


def test_predicted_times_are_those_of_the_device_model(work: ShardWork) -> None:
    found = predict_times(V100, work, "adam")
    forward, backward = forward_ms(V100, work), backward_ms(V100, work, "adam")
    for name, expected in (("forward", forward), ("backward", backward), ("both", forward + backward)):
        assert found[:, SHARD_TIMES.index(name)].tolist() == expected.tolist()
    assert (found[:, : len(KERNELS)] > 0).all()


def test_errors_by_hand() -> None:
    predicted = np.exp([0.1, -0.1, 0.5])
    assert Errors.of(2 * predicted, np.full(3, 2.0)) == Errors(pytest.approx(10), pytest.approx(10 + 0.8 * 40))
