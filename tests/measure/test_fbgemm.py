"""A shard on the real kernels: FBGEMM computes what we think it computes, on the lookups we think it gets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evenshard.base.errors import BadConfig, BadInput, MeasurementFailed
from evenshard.base.units import BYTES_PER_GB
from evenshard.measure import fbgemm
from evenshard.measure.config import MeasureConfig
from evenshard.measure.fbgemm import (
    LoadedShard,
    OutOfDeviceMemory,
    ShardKernels,
    resolve_device,
)
from evenshard.measure.workload import draw_lookups
from evenshard.placement.memory import OPTIMIZERS
from evenshard.tables.table import Table
from support.builders import READ_ONCE, table

CONFIG = MeasureConfig(hardware="cpu", num_batches=2, seed=5)
CPU = torch.device("cpu")
SHARD = (
    table("ads", rows=50, dim=4, pooling=2.5),
    table("users", rows=200, dim=12, pooling=0.5),
    table("clicks", rows=7, dim=8, pooling=6.0),
)
BATCH_SIZE = 32


def kernels(config: MeasureConfig = CONFIG) -> ShardKernels:
    return ShardKernels(config, CPU)


@contextmanager
def loaded(*shard: Table) -> Iterator[LoadedShard]:
    with kernels().load_shard(shard, BATCH_SIZE) as on_device:
        yield on_device


def weights_of(shard: LoadedShard) -> list[torch.Tensor]:
    weights: list[torch.Tensor] = shard.operator.split_embedding_weights()
    return weights


def test_the_forward_pass_is_that_of_embedding_bags() -> None:
    generator = torch.Generator().manual_seed(0)
    with loaded(*SHARD) as shard:
        for weights in weights_of(shard):
            weights.copy_(torch.randn(weights.shape, generator=generator))
        for number in range(3):
            pooled = []
            for one, weights in zip(SHARD, weights_of(shard), strict=True):
                lookups = draw_lookups(one, BATCH_SIZE, CONFIG.seed, number % 2)
                starts = lookups.lengths.cumsum(0) - lookups.lengths
                pooled.append(torch.nn.functional.embedding_bag(lookups.indices, weights, starts, mode="sum"))
            torch.testing.assert_close(shard.forward(number), torch.cat(pooled, dim=1), atol=1e-5, rtol=1e-5)


def test_weights_have_the_precision_of_the_tables_and_mixed_or_untrainable_ones_are_the_users_to_repair() -> None:
    for bits, dtype in ((16, torch.float16), (32, torch.float32)):
        with loaded(*[replace(one, weight_bits=bits) for one in SHARD]) as shard:
            assert {weights.dtype for weights in weights_of(shard)} == {dtype}
    for mixed in ((32, 16), (8, 8)):
        tables = [replace(one, weight_bits=b) for one, b in zip(SHARD[:2], mixed, strict=True)]
        with pytest.raises(BadInput, match="same weight_bits"), loaded(*tables):
            pass


def test_batches_are_table_by_table_as_drawn_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    with loaded(*SHARD) as shard:
        (indices, offsets), second = shard.batches
    assert len(offsets) == 3 * BATCH_SIZE + 1
    assert (int(offsets[0]), int(offsets[-1])) == (0, len(indices))
    drawn = [draw_lookups(one, BATCH_SIZE, CONFIG.seed) for one in SHARD]
    assert indices.tolist() == torch.cat([lookups.indices for lookups in drawn]).tolist()
    assert offsets.diff().tolist() == torch.cat([lookups.lengths for lookups in drawn]).tolist()
    assert second[0].tolist() != indices.tolist()
    monkeypatch.setattr(fbgemm, "MAX_INT32", 287)
    with pytest.raises(BadInput, match=r"a shard has 288 lookups per batch.*Lower batch_size"), loaded(*SHARD):
        pass


def batches_of(num_bytes: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.zeros(num_bytes - 1, dtype=torch.int8), torch.zeros(1, dtype=torch.int8))]


def test_kept_lookups_stay_within_their_capacity() -> None:
    """100 bytes: what was used last is kept, as far as it fits."""
    cache = fbgemm._LookupCache(100)
    keys = [(table(name), BATCH_SIZE) for name in "abcd"]
    for key, num_bytes in zip(keys[:3], (40, 30, 30), strict=True):
        cache.put(key, batches_of(num_bytes))
    assert cache.get(keys[0]) is not None and cache._held_bytes == 100
    cache.put(keys[3], batches_of(60))
    assert [cache.get(key) is not None for key in keys] == [True, False, False, True] and cache._held_bytes == 100
    cache.put(keys[1], batches_of(101))
    assert cache.get(keys[1]) is None
    cache.clear()
    assert cache._held_bytes == 0 and not cache._batches


def test_drawn_lookups_are_drawn_once_and_again_after_all_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def draw(one: Table, *arguments: Any) -> Any:
        drawn.append(one.name)
        return draw_lookups(one, *arguments)

    monkeypatch.setattr(fbgemm, "draw_lookups", draw)
    shared = kernels(replace(CONFIG, num_batches=1))
    other = replace(SHARD[0], num_rows=10)  # of the same name
    for tables, size in ((SHARD, 32), (SHARD[1:], 32), (SHARD[:1], 64), ([other], 32)):
        with shared.load_shard(tables, size):
            pass
    assert drawn == ["ads", "users", "clicks", "ads", "ads"]
    shared.free()
    with shared.load_shard(SHARD[:1], BATCH_SIZE):
        pass
    assert len(drawn) == 6


def test_the_arena_is_small_numbers_freed_on_demand_and_filled_as_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros and subnormal numbers can be faster or slower than others.

    400 bytes lie in a block of 1000, whatever the memory held before; 4000 need another one.
    """
    arena = fbgemm._WeightArena()
    assert (arena.borrow(1000, torch.float16) - 0.012).abs().max() < 1e-3
    single = arena.borrow(5000, torch.float32)
    assert single.shape == (5000,) and (single > torch.finfo(torch.float32).tiny).all() and (single < 1e-10).all()
    shared = kernels()
    with shared.load_shard(SHARD, BATCH_SIZE):
        pass
    assert shared._weights._block.numel() == BYTES_PER_GB
    shared.free()
    assert shared._weights._block.numel() == 0
    monkeypatch.setattr(fbgemm, "BYTES_PER_GB", 1000)
    arena = fbgemm._WeightArena()
    first = float(arena.borrow(100, torch.float32).clone()[0])
    arena.borrow(100, torch.float32).zero_()
    assert (arena.borrow(1000, torch.float32) == first).all()
    assert arena._block.numel() == 4000
    arena.borrow(1001, torch.float32)
    assert arena._block.numel() == 8000  # twice as much, so that it seldom grows


def test_weights_that_the_memory_cannot_take_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """4000 bytes are free: what the arena has touched already it can touch again."""
    monkeypatch.setattr(fbgemm, "_free_host_memory", lambda: 4000)
    arena = fbgemm._WeightArena()
    with pytest.raises(OutOfDeviceMemory):
        arena.borrow(1001, torch.float32)
    assert len(arena.borrow(1000, torch.float32)) == 1000
    assert len(arena.borrow(2000, torch.float32)) == 2000
    with pytest.raises(OutOfDeviceMemory):
        arena.borrow(3001, torch.float32)


def test_free_memory_is_what_the_control_group_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that the kernel caches count as free: it drops them before anything runs out. None: only the machine."""
    monkeypatch.setattr(fbgemm, "CONTROL_GROUP", tmp_path)
    for files, free in (
        ({}, None),
        ({"max": "max\n", "current": "5\n"}, None),
        ({"max": "1000\n", "current": "400\n"}, 600),
        ({"max": "1000\n", "current": "900\n", "stat": "anon 200\ninactive_file 300\nactive_file 350\n"}, 750),
    ):
        for name, content in files.items():
            (tmp_path / f"memory.{name}").write_text(content)
        found = fbgemm._free_host_memory()
        assert found == free if free is not None else found > BYTES_PER_GB // 4


def test_memory_that_runs_out_inside_the_block_is_out_of_memory() -> None:
    for error in (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 TB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: 2 TB"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        MemoryError(),
    ):
        with pytest.raises(OutOfDeviceMemory) as caught, loaded(*SHARD):
            raise error
        assert caught.value.__cause__ is error


def test_any_other_failure_of_a_kernel_names_its_tables() -> None:
    many = [table(f"t{number}") for number in range(9)]
    for shard, error, words in (
        (SHARD, RuntimeError("illegal access\nA second line"), r"\[ads, users, clicks\]: illegal access$"),
        (SHARD, AssertionError("offsets"), r"\[ads, users, clicks\]: offsets$"),
        (many, RuntimeError(), r"\[t0, t1, t2, t3, \.\.\.\]: RuntimeError$"),
    ):
        with pytest.raises(MeasurementFailed, match=words), loaded(*shard):
            raise error


def test_one_core_stands_for_one_device_and_the_threads_come_back() -> None:
    torch.set_num_threads(2)
    try:
        with pytest.raises(MeasurementFailed, match="thread is 1"), loaded(*SHARD):
            raise RuntimeError(f"thread is {torch.get_num_threads()}")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_a_recorded_batch_reaches_the_kernel(tmp_path: Path) -> None:
    """One table, four samples: rows 7 7 | 2 | | 1."""
    recorded = (torch.tensor([7, 7, 2, 1]), torch.tensor([0, 2, 3, 3, 4]), torch.tensor([[2, 1, 0, 1]]))
    torch.save(recorded, tmp_path / "batch.pt")
    replaying = kernels(replace(CONFIG, recorded_batch=str(tmp_path / "batch.pt")))
    with replaying.load_shard([Table("t000", 10, 4, 1.0, READ_ONCE)], 2) as shard:
        found = [(indices.tolist(), offsets.tolist()) for indices, offsets in shard.batches]
    assert found == [([7, 7, 2], [0, 2, 3]), ([1], [0, 0, 1])]


def device_of(hardware: str) -> torch.device:
    return resolve_device(MeasureConfig(hardware))


def test_each_process_has_its_own_gpu_and_cpu_is_the_cpu_even_beside_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of("auto") == device_of("cpu") == CPU
    with pytest.raises(BadConfig, match="finds no CUDA GPU"):
        device_of("cuda")
    with pytest.raises(BadConfig, match=r"CPU kernels lack adam\. Use sgd, rowwise_adagrad, adagrad, or measure on"):
        resolve_device(MeasureConfig("cpu", optimizer="adam"))
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert device_of("auto") == torch.device("cuda", 0) and device_of("cpu") == CPU
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert device_of("cuda") == torch.device("cuda", 3)
    assert chosen == [torch.device("cuda", 0), torch.device("cuda", 3)]
    monkeypatch.setenv("LOCAL_RANK", "4")
    with pytest.raises(BadConfig, match="more processes than the host's 4 GPUs"):
        device_of("cuda")


@pytest.mark.parametrize("optimizer", [name for name, one in OPTIMIZERS.items() if one.has_cpu_kernels])
def test_the_backward_pass_takes_a_step_of_the_optimizer(optimizer: str) -> None:
    """The first step by hand, from weights of 0 and so large enough to be seen."""
    one = SHARD[0]
    gradient = torch.randn(BATCH_SIZE, one.embedding_dim, generator=torch.Generator().manual_seed(0))
    with kernels(replace(CONFIG, optimizer=optimizer)).load_shard([one], BATCH_SIZE) as shard:
        (weights,) = weights_of(shard)
        weights.zero_()
        replace(shard, gradient=gradient).backward(shard.forward(0))
        lookups = draw_lookups(one, BATCH_SIZE, CONFIG.seed, 0)
        sums = torch.zeros_like(weights)
        sums.index_add_(0, lookups.indices, gradient.repeat_interleave(lookups.lengths, dim=0))
        kept = {"sgd": torch.ones(1), "rowwise_adagrad": (sums**2).mean(dim=1, keepdim=True), "adagrad": sums**2}
        expected = -1e-6 * sums / (kept[optimizer].sqrt() + 1e-8)
        torch.testing.assert_close(weights, expected, atol=1e-12, rtol=1e-4)


def test_the_state_must_fit_into_the_memory_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    borrowed = kernels(replace(CONFIG, optimizer="adagrad"))
    with borrowed.load_shard(SHARD, BATCH_SIZE):
        pass
    size = sum(one.size_bytes for one in SHARD)  # of FP32 weights, and of what adagrad keeps
    for free, optimizer, fits in ((size, "adagrad", True), (size - 1, "adagrad", False), (size - 1, "sgd", True)):
        monkeypatch.setattr(fbgemm, "_free_host_memory", lambda free=free: free)
        measuring = kernels(replace(CONFIG, optimizer=optimizer))
        measuring._weights = borrowed._weights  # its pages are touched already
        with nullcontext() if fits else pytest.raises(OutOfDeviceMemory), measuring.load_shard(SHARD, BATCH_SIZE):
            pass
