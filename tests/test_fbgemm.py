"""Measuring: FBGEMM's kernels compute what we think they compute, and measurements are taken in the right order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from builders import FakeHardware, every_placement, table, task, working
from evenshard.errors import BadConfig, BadInput, MeasurementFailed
from evenshard.measure import MeasureConfig, measure_all, open_hardware
from evenshard.measure.fbgemm import FbgemmHardware
from evenshard.measure.hardware import TimeShare
from evenshard.measure.link import LINKS
from evenshard.measure.workload import draw_lookups
from evenshard.placement import Placement
from evenshard.tables import Table

CONFIG = MeasureConfig(hardware="cpu", link="ethernet_10g", num_batches=2, warmup=1, repeats=3, visits=2, seed=5)
SHARD = (
    table("ads", rows=50, dim=4, pooling=2.5),
    table("users", rows=200, dim=12, pooling=0.5),
    table("clicks", rows=7, dim=8, pooling=6.0),
)
BATCH_SIZE = 32


def cpu(config: MeasureConfig = CONFIG) -> FbgemmHardware:
    return FbgemmHardware(config, torch.device("cpu"))


# The kernels ---------------------------------------------------------------------------------------------------------


class Reference:
    """The shard as PyTorch trains it: one EmbeddingBag per table, summed, then plain SGD."""

    def __init__(self, shard: Sequence[Table], operator: Any, learning_rate: float) -> None:
        self._bags = [torch.nn.EmbeddingBag(one.num_rows, one.embedding_dim, mode="sum") for one in shard]
        with torch.no_grad():
            for bag, weights in zip(self._bags, operator.split_embedding_weights(), strict=True):
                bag.weight.copy_(weights)
        self._sgd = torch.optim.SGD([bag.weight for bag in self._bags], learning_rate)

    def step(self, shard: Sequence[Table], gradient: torch.Tensor) -> torch.Tensor:
        """[B, sum of dims] pooled embeddings of batch 0; the weights then take one step against ``gradient``."""
        pooled = []
        for one, bag in zip(shard, self._bags, strict=True):
            lookups = draw_lookups(one, BATCH_SIZE, CONFIG.seed)
            starts = lookups.lengths.cumsum(0) - lookups.lengths
            pooled.append(bag(lookups.indices, starts))
        together = torch.cat(pooled, dim=1)
        together.backward(gradient)  # type: ignore[no-untyped-call]
        self._sgd.step()
        return together.detach()

    def weights(self) -> list[torch.Tensor]:
        return [bag.weight.detach() for bag in self._bags]


@pytest.mark.parametrize("num_tables", [1, 3])
def test_forward_and_backward_are_those_of_embedding_bags_with_sgd(num_tables: int) -> None:
    shard, generator = SHARD[:num_tables], torch.Generator().manual_seed(0)
    hardware = cpu()
    operator = hardware._operator(shard)
    for weights in operator.split_embedding_weights():
        weights.copy_(torch.randn(weights.shape, generator=generator))
    reference = Reference(shard, operator, learning_rate=1e-6)
    before = [weights.clone() for weights in operator.split_embedding_weights()]
    indices, offsets = hardware._batches(shard, BATCH_SIZE)[0]
    gradient = 1e5 * torch.randn(BATCH_SIZE, sum(one.embedding_dim for one in shard), generator=generator)

    pooled = operator(indices, offsets)
    pooled.backward(gradient)

    torch.testing.assert_close(pooled.detach(), reference.step(shard, gradient), atol=1e-5, rtol=1e-5)
    after = operator.split_embedding_weights()
    for mine, expected, old in zip(after, reference.weights(), before, strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-5, rtol=1e-4)
        assert (mine - old).abs().max() > 0.1  # the step is large enough to be seen


def test_a_table_of_half_precision_has_weights_of_half_precision() -> None:
    shard = [replace(one, weight_bits=16) for one in SHARD]
    assert {weights.dtype for weights in cpu()._operator(shard).split_embedding_weights()} == {torch.float16}
    assert {weights.dtype for weights in cpu()._operator(SHARD).split_embedding_weights()} == {torch.float32}


def test_the_weights_of_two_shards_are_right_though_they_share_memory() -> None:
    """A larger shard makes the arena grow; rows of one shard never overlap."""
    hardware = cpu()
    for shard in (SHARD[:1], SHARD, [table("wide", rows=3000, dim=64)], SHARD[1:]):
        operator = hardware._operator(shard)
        for number, weights in enumerate(operator.split_embedding_weights()):
            weights.fill_(float(number))
        for number, weights in enumerate(operator.split_embedding_weights()):
            assert (weights == number).all()


@pytest.mark.parametrize("bits", [(32, 16), (8, 8), (16, 8)])
def test_mixed_or_untrainable_weight_bits_are_the_users_to_repair(bits: tuple[int, int]) -> None:
    tables = [replace(one, weight_bits=b) for one, b in zip(SHARD[:2], bits, strict=True)]
    with pytest.raises(BadInput, match="same weight_bits"):
        cpu().measure(task(tables, batch_size=BATCH_SIZE), Placement((0, 0), 2))


def test_batches_are_table_by_table_as_drawn_and_differ() -> None:
    first, second = cpu()._batches(SHARD, BATCH_SIZE)
    indices, offsets = first
    assert len(offsets) == 3 * BATCH_SIZE + 1
    assert (int(offsets[0]), int(offsets[-1])) == (0, len(indices))
    drawn = [draw_lookups(one, BATCH_SIZE, CONFIG.seed) for one in SHARD]
    assert indices.tolist() == torch.cat([lookups.indices for lookups in drawn]).tolist()
    assert offsets.diff().tolist() == torch.cat([lookups.lengths for lookups in drawn]).tolist()
    assert second[0].tolist() != indices.tolist()


def test_a_fraction_of_a_lookup_reaches_the_kernel_as_such() -> None:
    """0.5 of a lookup per sample: half of the samples read one row, none reads two, none is rounded up or away."""
    half = table("half", rows=200, pooling=0.5)
    for _, offsets in cpu()._batches([half], BATCH_SIZE):
        assert sorted(offsets.diff().tolist()) == [0] * 16 + [1] * 16


def test_tables_of_one_name_but_different_rows_are_not_mixed_up() -> None:
    hardware = cpu()
    hardware.measure_table(table("ads", rows=1000, pooling=5.0), BATCH_SIZE)
    small = table("ads", rows=10, pooling=0.3)
    for indices, _ in hardware._batches([small], BATCH_SIZE):
        assert int(indices.max()) < 10 and len(indices) == 10


# Costs ---------------------------------------------------------------------------------------------------------------


def test_costs_are_positive_and_an_empty_shard_computes_nothing() -> None:
    of_task = task(SHARD, devices=3, batch_size=BATCH_SIZE)
    measured = cpu().measure(of_task, Placement((0, 2, 0), 3))
    full, empty, other = measured.devices
    for device in (full, other):
        assert 0 < device.fwd_compute_ms < 1000 and 0 < device.bwd_compute_ms < 1000
        assert device.fwd_compute_spread_ms >= 0 and device.bwd_compute_spread_ms >= 0
    assert (empty.fwd_compute_ms, empty.bwd_compute_ms) == (0.0, 0.0)
    assert measured.max_device_ms == max(device.total_ms for device in measured.devices)


def test_the_exchange_is_modelled_and_says_so() -> None:
    of_task = task(SHARD, devices=3, batch_size=BATCH_SIZE)
    measured = cpu().measure(of_task, Placement((0, 2, 0), 3))
    expected = LINKS["ethernet_10g"].all_to_all_ms([4 + 8, 0, 12], BATCH_SIZE)
    assert measured.all_to_all == "modelled"
    assert tuple(device.fwd_all_to_all_ms for device in measured.devices) == expected
    assert tuple(device.bwd_all_to_all_ms for device in measured.devices) == expected


def test_a_single_table_is_measured_without_communication() -> None:
    alone = cpu().measure_table(SHARD[0], BATCH_SIZE)
    assert (alone.fwd_all_to_all_ms, alone.bwd_all_to_all_ms) == (0.0, 0.0)
    assert alone.fwd_compute_ms > 0 and alone.bwd_compute_ms > 0


def test_a_hundred_times_the_lookups_take_longer() -> None:
    hardware = cpu()
    few = hardware.measure_table(table("few", rows=10_000, dim=64, pooling=1.0), 512)
    many = hardware.measure_table(table("many", rows=10_000, dim=64, pooling=100.0), 512)
    assert many.fwd_compute_ms > 2 * few.fwd_compute_ms
    assert many.bwd_compute_ms > 2 * few.bwd_compute_ms


def test_the_median_and_the_spread_of_the_repeats_count_and_warm_up_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([(900.0, 900.0), (1.0, 40.0), (3.0, 20.0), (2.0, 30.0)])
    hardware = cpu()
    monkeypatch.setattr(hardware, "_time_pass_cpu", lambda *_: next(times))
    found = hardware.measure_table(SHARD[0], BATCH_SIZE)
    assert (found.fwd_compute_ms, found.bwd_compute_ms) == (2.0, 30.0)
    assert (found.fwd_compute_spread_ms, found.bwd_compute_spread_ms) == (1.0, 10.0)


def test_one_core_stands_for_one_device_and_the_threads_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def time_shard(*_: object) -> list[tuple[float, float]]:
        seen.append(torch.get_num_threads())
        return [(1.0, 1.0)]

    hardware, threads = cpu(), torch.get_num_threads()
    monkeypatch.setattr(hardware, "_time_shard", time_shard)
    torch.set_num_threads(2)
    try:
        hardware.measure_table(SHARD[0], BATCH_SIZE)
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(threads)


def test_a_kernel_that_fails_names_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("CUDA out of memory.\nA second line")

    hardware = cpu()
    monkeypatch.setattr(hardware, "_operator", fail)
    with pytest.raises(MeasurementFailed, match=r"\[ads, users, clicks\]: CUDA out of memory\.$"):
        hardware.measure(task(SHARD, batch_size=BATCH_SIZE), Placement((0, 0, 0), 2))


def test_every_measurement_knows_its_origin() -> None:
    found = cpu().provenance
    assert found.hardware.startswith("cpu: ") and found.hardware.endswith("(1 thread)")
    assert f"torch {torch.__version__}" in found.versions and "fbgemm_gpu" in found.versions
    assert (found.link, found.seed, found.repeats) == ("ethernet_10g", 5, 6)  # 3 repeats in each of 2 visits


def test_kernel_time_is_a_part_of_the_wall_time() -> None:
    hardware = cpu()
    assert hardware.time_share.kernel_s == 0
    hardware.measure_table(SHARD[0], BATCH_SIZE)
    share = hardware.time_share
    assert 0 < share.kernel_s <= share.wall_s and 0 < share.kernel_share <= 1
    assert TimeShare(1.0, 4.0).kernel_share == 0.25 and TimeShare(0.0, 0.0).kernel_share == 0.0


# Choosing hardware ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hardware": "tpu"}, "hardware is 'tpu'. Use one of auto, cpu, cuda"),
        ({"link": "carrier_pigeon"}, "carrier_pigeon"),
        ({"num_batches": 0}, "measure.num_batches is 0"),
        ({"repeats": 0}, "measure.repeats is 0"),
        ({"visits": 0}, "measure.visits is 0"),
        ({"warmup": -1}, "measure.warmup is -1"),
    ],
)
def test_senseless_settings_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        open_hardware(replace(CONFIG, **change))


def test_auto_is_the_cpu_where_there_is_no_gpu_and_cuda_is_refused_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert open_hardware(replace(CONFIG, hardware="auto", warmup=0)).provenance.hardware.startswith("cpu")
    with pytest.raises(BadConfig, match="finds no CUDA GPU"):
        open_hardware(replace(CONFIG, hardware="cuda"))


# The order of measuring ----------------------------------------------------------------------------------------------

TASKS = [task(working(1.0, 2.0, 4.0), task_id=name) for name in "abc"]
JOBS = [(of_task.task_id, of_task, placement) for of_task in TASKS for placement in every_placement(of_task)[:4]]


def test_each_job_is_visited_as_often_as_asked_and_comes_back_in_its_place() -> None:
    hardware = FakeHardware()
    costs = measure_all(hardware, JOBS, replace(CONFIG, visits=3))
    assert len(hardware.calls) == 3 * len(JOBS)
    assert costs == [FakeHardware().measure(of_task, placement) for _, of_task, placement in JOBS]
    assert all(hardware.calls.count((of_task, placement)) == 3 for _, of_task, placement in JOBS)


def test_jobs_of_a_group_are_measured_right_after_each_other_and_groups_take_turns() -> None:
    hardware = FakeHardware()
    interleaved = JOBS[::4] + JOBS[1::4] + JOBS[2::4] + JOBS[3::4]
    measure_all(hardware, interleaved, CONFIG)
    visited = [of_task.task_id for of_task, _ in hardware.calls]
    assert visited == (["a"] * 4 + ["b"] * 4 + ["c"] * 4) * 2


def test_the_order_within_a_group_is_random_from_visit_to_visit_but_the_same_for_a_seed() -> None:
    orders = []
    for seed in (0, 0, 1):
        hardware = FakeHardware()
        measure_all(hardware, JOBS, replace(CONFIG, visits=4, seed=seed))
        orders.append([placement.device_of_table for of_task, placement in hardware.calls if of_task.task_id == "a"])
    assert orders[0] == orders[1] != orders[2]
    visits = [tuple(orders[0][start : start + 4]) for start in range(0, 16, 4)]
    assert len(set(visits)) > 1 and len({frozenset(visit) for visit in visits}) == 1


def test_a_disturbance_during_one_of_three_visits_does_not_count() -> None:
    """The second pass over all jobs runs while a neighbour makes everything 50 times as slow."""
    disturbed = FakeHardware(slowness=[1.0] * len(JOBS) + [50.0] * len(JOBS) + [1.0] * len(JOBS))
    costs = measure_all(disturbed, JOBS, replace(CONFIG, visits=3))
    undisturbed = measure_all(FakeHardware(), JOBS, replace(CONFIG, visits=3))
    assert [cost.max_device_ms for cost in costs] == [cost.max_device_ms for cost in undisturbed]
    assert all(device.fwd_compute_spread_ms > 0 for cost in costs for device in cost.devices if device.fwd_compute_ms)


def test_progress_is_told_of_every_step() -> None:
    seen: list[int] = []

    def track(steps: list[int]) -> list[int]:
        seen.extend(steps)
        return steps

    measure_all(FakeHardware(), JOBS, CONFIG, track)
    assert sorted(seen) == sorted(list(range(len(JOBS))) * 2)


def test_nothing_to_measure_takes_no_visit() -> None:
    assert measure_all(FakeHardware(), [], CONFIG) == []
