"""Which parts share a kernel call, and what each call looks up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import FUSED_UVM, FUSED_UVM_CACHING, Span, Storage, TablePart
from evenshard.placement.placement import parts_by_table
from evenshard.placement.task import ShardingTask
from evenshard.price.kernel_calls import EVERY_DEVICE, KernelCall, Lookup, list_held_parts, part_lookups, split_features
from evenshard.tables.table import Table
from support.builders import READ_ONCE, ROOMY, table

PLAIN = table("plain", rows=100, dim=8, pooling=2.5)
SHARED = replace(
    table("shared", rows=50, dim=8, pooling=5.0), feature_names=("a", "b"), feature_pooling_factors=(1.0, 4.0)
)
SEQUENCE = replace(table("sequence", rows=40, dim=8, pooling=3.25), pooling="none")


def task_of(*tables: Table, devices: int = 4, batch_size: int = 64) -> ShardingTask:
    return ShardingTask(tables, Nodes.one_node(devices), (ROOMY,) * devices, batch_size)


def part(whole: Table, devices: tuple[int, ...], rows: Span | None = None, columns: Span | None = None) -> TablePart:
    every = Span(0, whole.num_rows), Span(0, whole.embedding_dim)
    return TablePart(whole.name, rows or every[0], columns or every[1], devices)


def test_each_feature_is_a_table_with_bags_of_its_own() -> None:
    assert split_features(PLAIN, 64) == (Lookup(PLAIN, 64),)
    plain = replace(SHARED, feature_names=(), feature_pooling_factors=())
    assert split_features(SHARED, 64) == (
        Lookup(replace(plain, name="shared#0", pooling_factor=1.0), 64),
        Lookup(replace(plain, name="shared#1", pooling_factor=4.0), 64),
    )


def test_bags_of_a_sequence_are_samples_and_a_model_of_pooled_lookups_sees_bags_of_one() -> None:
    """64 samples with 3.25 lookups each: 208 bags of one; where lookups are no whole number, the bags hold the rest."""
    (found,) = split_features(SEQUENCE, 64)
    assert found == Lookup(SEQUENCE, 64)
    assert found.pooled == Lookup(replace(SEQUENCE, pooling="sum", pooling_factor=1.0), 208)
    (odd,) = split_features(replace(SEQUENCE, pooling_factor=0.03), 50)  # 1.5 lookups
    assert (odd.pooled.bags, odd.pooled.table.pooling_factor) == (2, 0.75)
    (empty,) = split_features(replace(SEQUENCE, pooling_factor=0.0), 50)
    assert (empty.pooled.bags, empty.pooled.table.pooling_factor) == (1, 0.0)
    assert Lookup(PLAIN, 64).pooled == Lookup(PLAIN, 64)


def test_a_part_with_a_cache_is_looked_up_in_it() -> None:
    for storage, is_cached in ((Storage(FUSED_UVM), False), (Storage(FUSED_UVM_CACHING, 0.1), True)):
        (found,) = part_lookups(replace(part(PLAIN, (0,)), storage=storage), PLAIN, task_of(PLAIN))
        assert found == Lookup(PLAIN, 64, is_cached=is_cached)


def test_a_part_is_looked_up_for_all_samples_with_the_lookups_of_its_rows() -> None:
    half = part(SHARED, (0,), rows=Span(0, 10))
    (first, bags, *_), (second, *_) = part_lookups(half, SHARED, task_of(SHARED))
    assert (first.num_rows, bags) == (10, 64)
    assert (first.pooling_factor, second.pooling_factor) == (pytest.approx(0.2), pytest.approx(0.8))


def test_replicas_are_looked_up_for_the_samples_of_one_device() -> None:
    task = task_of(PLAIN, SHARED)
    placed = parts_by_table(task, [part(PLAIN, (0, 1, 2, 3)), part(SHARED, (1,))])
    replica, whole = list_held_parts(task, placed)
    assert (replica.device, replica.call.is_dense, replica.lookups) == (
        EVERY_DEVICE,
        True,
        (Lookup(PLAIN, 16, is_dense=True),),
    )
    assert (whole.device, whole.call.is_dense) == (1, False)
    assert [one.bags for one in whole.lookups] == [64, 64]


def test_replicas_repeat_less_than_the_whole_batch_does() -> None:
    twice = replace(PLAIN, reuse_bins=(0.0, 1.0) + (0.0,) * 15)
    task = task_of(twice, devices=2)
    (replica,) = list_held_parts(task, parts_by_table(task, [part(twice, (0, 1))]))
    ((seen, *_),) = replica.lookups
    # Two lookups fall on one device together as often as not: of those that it sees, 1 in 3 twice.
    assert seen.reuse_bins is not None and seen.reuse_bins[:2] == (pytest.approx(2 / 3), pytest.approx(1 / 3))


def test_deduplicated_sequences_are_looked_up_once_for_each_device_that_sends_them() -> None:
    """A row with 4 lookups, dealt to 4 devices, is sent by 4 (1 - 0.75**4) = 2.73 of them; so by 3, a little less."""
    four = replace(SEQUENCE, pooling_factor=4.0, is_deduplicated=True, reuse_bins=(0.0, 0.0, 1.0) + (0.0,) * 14)
    ((sent, bags, *_),) = part_lookups(part(four, (0,)), four, task_of(four))
    mean_count = (3 / 9 + 4 / 16) / (1 / 9 + 1 / 16)
    assert bags == 64
    assert sent.pooling_factor == pytest.approx(4 * 4 * (1 - 0.75**mean_count) / mean_count)
    assert sent.reuse_bins == (0.0, 1.0) + (0.0,) * 15  # 2.45 devices, taken for two
    task = task_of(four)
    (replica,) = list_held_parts(task, parts_by_table(task, [part(four, (0, 1, 2, 3))]))
    assert replica.lookups[0].table.reuse_bins == pytest.approx(READ_ONCE)


def test_a_call_is_of_one_module_type_precision_pooling_and_weighting() -> None:
    one = replace(PLAIN, module="user.ebc", weight_bits=16, data_type="bf16", pooling="mean", is_weighted=True)
    for table_of, expected in (
        (PLAIN, KernelCall("", "column_wise", "fp32", "sum", False)),
        (one, KernelCall("user.ebc", "column_wise", "bf16", "mean", True)),
    ):
        task = task_of(table_of)
        (held,) = list_held_parts(task, parts_by_table(task, [part(table_of, (2,))]))
        assert held.call == expected


def test_parts_of_unlike_types_share_no_call() -> None:
    """Of two tables whole, one by columns, one by rows and a replica, the first three share one."""
    other, rows, columns, replica = (replace(PLAIN, name=name) for name in ("other", "rows", "columns", "replica"))
    task = task_of(PLAIN, other, rows, columns, replica)
    parts = [
        part(PLAIN, (0,)),
        part(other, (0,)),
        *(part(rows, (device,), rows=Span(25 * device, 25 * device + 25)) for device in range(4)),
        part(columns, (0,), columns=Span(0, 4)),
        part(columns, (1,), columns=Span(4, 8)),
        part(replica, (0, 1, 2, 3)),
    ]
    held = list(list_held_parts(task, parts_by_table(task, parts)))
    types = ["column_wise"] * 2 + ["row_wise"] * 4 + ["column_wise"] * 2 + ["data_parallel"]
    assert [one.call.sharding_type for one in held] == types
    assert len({one.call for one in held if one.device == 0}) == 2
    assert [one.lookups[0][0].num_rows for one in held if one.call.sharding_type == "row_wise"] == [25] * 4


def test_features_of_a_sequence_are_one_lookup_with_a_bag_for_each_feature_and_sample() -> None:
    two = replace(SEQUENCE, feature_names=("a", "b"), feature_pooling_factors=(1.0, 2.25))
    (found,) = split_features(two, 64)
    assert found == Lookup(replace(SEQUENCE, pooling_factor=3.25 / 2), 2 * 64)
