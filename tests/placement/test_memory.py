"""Bytes of parts, by hand: a table of 1,000 rows of 8 columns, 2 lookups a sample, 64 samples on 4 devices."""

from dataclasses import replace
from functools import partial

import pytest

from evenshard.placement.memory import (
    PartMemory,
    SampleMemory,
    moments,
    part_memory,
    peak_bytes,
    row_state_bytes,
    sample_memory,
    state_bytes,
)
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import FUSED_UVM, FUSED_UVM_CACHING, HOST, KEY_VALUE, Span, Storage, TablePart
from evenshard.placement.task import ShardingTask, used_bytes
from evenshard.tables.table import Table

T = Table("t", 1000, 8, 2.0)
WHOLE = TablePart("t", Span(0, 1000), Span(0, 8), (0,))


def memory(part: TablePart = WHOLE, table: Table = T, optimizer: str = "sgd", pipeline: str = "none") -> PartMemory:
    return part_memory(part, table, num_devices=4, batch_size=64, optimizer=optimizer, pipeline=pipeline)


def test_without_a_pipeline_weights_and_states_count() -> None:
    assert memory(pipeline="") == PartMemory(weights=32_000)
    assert memory(pipeline="", optimizer="adam") == PartMemory(weights=32_000, optimizer_state=64_000)
    assert memory(pipeline="", optimizer="rowwise_adagrad") == PartMemory(weights=32_000, optimizer_state=4_000)
    assert row_state_bytes(8, "adam") == 2 * 8 * 4
    assert state_bytes(T, "partial_rowwise_adam") == 1000 * (1 + 8) * 4


def test_inputs_are_indices_and_the_lengths_and_offsets_of_each_feature_of_all_samples() -> None:
    of_one_batch = 64 * 2 * 8 + 64 * (4 + 8)
    assert memory().inputs == memory(pipeline="base").inputs == of_one_batch
    assert memory(pipeline="sparse_dist").inputs == 2 * of_one_batch
    assert memory(pipeline="prefetch").inputs == 3 * of_one_batch
    weighted = replace(T, is_weighted=True)
    assert memory(table=weighted).inputs == of_one_batch + 64 * 2 * 4
    two_features = replace(T, feature_pooling_factors=(1.5, 0.5))
    assert memory(table=two_features).inputs == of_one_batch + 64 * (4 + 8)
    own = sample_memory((two_features,), num_devices=4, batch_size=64, pipeline="none")
    assert own.inputs == 16 * 2 * 8 + 2 * 16 * 12


def test_outputs_are_sent_from_a_buffer_of_their_own() -> None:
    assert (memory().outputs, memory().sent) == (4 * 64 * 8, 4 * 64 * 8)
    halves = [replace(WHOLE, columns=Span(0, 4)), replace(WHOLE, columns=Span(4, 8))]
    assert sum(memory(half).outputs for half in halves) == memory().outputs
    assert [memory(half).inputs for half in halves] == [memory().inputs] * 2
    two_features = replace(T, feature_pooling_factors=(1.5, 0.5))
    assert memory(table=two_features).outputs == 2 * memory().outputs
    sequence = replace(T, pooling="none")
    assert memory(table=sequence).outputs == 2 * memory().outputs  # two lookups a sample, each an output
    assert memory(table=sequence).returned == 2 * memory().outputs  # gradients are ordered where they come to
    assert memory().returned == 0


def test_every_kind_is_whole_many_bytes_and_so_many_for_each_column() -> None:
    table = replace(T, num_rows=999, pooling_factor=1.7, embedding_dim=64, is_weighted=True)
    for storage in (Storage(), Storage(FUSED_UVM_CACHING, 0.3), Storage(FUSED_UVM), Storage(KEY_VALUE, 0.1)):
        for optimizer, rows in (("rowwise_adagrad", 999), ("adam", 333)):
            parts = [TablePart("t", Span(0, rows), Span(0, width), (0,), storage) for width in (4, 12, 60)]
            for one, two, three in zip(*(memory(part, table, optimizer, "prefetch") for part in parts), strict=True):
                slope, rest = divmod(two - one, 8)
                assert rest == 0 and three == one + 56 * slope


def test_rows_get_their_share_of_the_lookups_and_partial_sums_of_all_samples() -> None:
    quarter = replace(WHOLE, rows=Span(0, 250))
    assert memory(quarter).inputs == 64 * 2 * 8 // 4 + 64 * (4 + 8)
    assert memory(quarter).outputs == memory().outputs
    assert memory(quarter).sent == 0  # a reduce-scatter sends them from where they are
    hot = replace(T, row_shares=(0.75, 0.25))
    assert memory(replace(WHOLE, rows=Span(0, 500)), hot).inputs == 64 * 2 * 8 * 3 // 4 + 64 * (4 + 8)
    halves = [TablePart("t", Span(500 * at, 500 * at + 500), Span(0, 8), (at,)) for at in (0, 1)]
    first, second = used_bytes(ShardingTask((hot,), Nodes(2, 2), (2**30,) * 2, 64, pipeline="none"), halves)
    assert first - second == 64 * 2 * 8 // 2


def test_a_replica_looks_up_its_own_samples_and_has_a_dense_gradient() -> None:
    replica = replace(WHOLE, devices=(0, 1, 2, 3))
    found = memory(replica)
    assert found.dense_gradient == 2 * 32_000  # as it is made, and as it is kept
    assert (found.inputs, found.outputs) == (memory().inputs // 4, memory().outputs // 4)
    assert found.sent == found.arriving == 0
    halves = memory(replica, replace(T, weight_bits=16), optimizer="adam")
    assert (halves.weights, halves.dense_gradient, halves.optimizer_state) == (16_000, 32_000, 32_000)


def test_a_cache_takes_its_rows_and_what_finds_them() -> None:
    cached = replace(WHOLE, storage=Storage(FUSED_UVM_CACHING, 0.2))
    found = memory(cached, optimizer="adam", pipeline="")
    assert found == PartMemory(
        weights=200 * 32, cache_state=1000 * 4 + 200 * 16, host_weights=32_000, host_state=64_000
    )
    assert found.device_bytes == 6_400 + 7_200
    assert found.host_bytes == 96_000
    prefetched = memory(cached, pipeline="prefetch")
    assert prefetched.prefetch == 7 * memory().inputs
    assert memory(pipeline="prefetch").prefetch == 0


@pytest.mark.parametrize(
    ("kernel", "device", "host", "ssd"),
    [(FUSED_UVM, 4_000, 32_000, 0), (HOST, 0, 36_000, 0), (KEY_VALUE, 32_000 + 20_000, 0, 36_000)],
)
def test_states_of_rows_stay_on_the_device_beside_weights_in_host_memory(
    kernel: str, device: int, host: int, ssd: int
) -> None:
    found = memory(replace(WHOLE, storage=Storage(kernel)), optimizer="rowwise_adagrad", pipeline="")
    assert (found.device_bytes, found.host_bytes, found.ssd_weights) == (device, host, ssd)


# Inputs of a device's own samples.
OF_A_BATCH = 16 * 2 * 8 + 16 * 12


def test_every_device_receives_all_tables_for_its_own_samples() -> None:
    found = sample_memory((T, T), num_devices=4, batch_size=64, pipeline="sparse_dist")
    assert found.inputs == 4 * 2 * OF_A_BATCH  # three batches, and what is sent of one
    assert found.received == found.ordered == 2 * 4 * 16 * 8
    assert found.leaving == 2 * OF_A_BATCH
    assert found.total == found.inputs + found.received
    assert sample_memory((T,), num_devices=4, batch_size=64, pipeline="").total == 0
    assert sample_memory((T, T), num_devices=4, batch_size=64, pipeline="base").inputs == 2 * 2 * OF_A_BATCH


def test_what_is_sent_of_samples_is_known_with_the_parts() -> None:
    known = partial(sample_memory, (T,), num_devices=4, batch_size=64)
    outputs = 4 * 16 * 8
    rows = [replace(WHOLE, rows=Span(at, at + 250), devices=(at // 250,)) for at in range(0, 1000, 250)]
    replica = [replace(WHOLE, devices=(0, 1, 2, 3))]
    for parts in (rows, replica):
        found = known(pipeline="none", parts=parts)
        assert (found.received, found.ordered, found.leaving) == (outputs, 0, OF_A_BATCH)
    halves = [replace(WHOLE, columns=Span(at, at + 4), devices=(at,)) for at in (0, 4)]
    found = known(pipeline="sparse_dist", parts=halves)
    assert (found.ordered, found.leaving) == (outputs, 2 * OF_A_BATCH)  # to both halves
    assert found.inputs == (3 + 2) * OF_A_BATCH
    two = [*halves, replace(WHOLE, table="u", devices=(0, 1, 2, 3))]
    mixed = sample_memory((T, replace(T, name="u")), num_devices=4, batch_size=64, pipeline="none", parts=two)
    assert (mixed.received, mixed.ordered, mixed.sliced) == (2 * outputs, outputs, outputs)
    assert found.sliced == 0
    sequence = sample_memory((replace(T, pooling="none"),), num_devices=4, batch_size=64, pipeline="none", parts=rows)
    assert sequence.ordered == 2 * outputs


def test_one_device_orders_and_sends_nothing() -> None:
    parts = part_memory(WHOLE, T, num_devices=1, batch_size=64, optimizer="sgd", pipeline="none")
    assert parts.sent == parts.arriving == 0
    own = sample_memory((T,), num_devices=1, batch_size=64, pipeline="none")
    assert (own.received, own.ordered, own.leaving) == (4 * 64 * 8, 0, 0)
    assert moments(parts, own)["gradients are sent"] == 2 * 4 * 64 * 8  # outputs and their gradients


PARTS = PartMemory(weights=1000, inputs=100, outputs=40, sent=40, dense_gradient=20, arriving=200, workspace=50)


def test_the_peak_is_at_one_moment() -> None:
    """By hand: 1,110 bytes of parts and 30 of samples stay."""
    at = partial(replace, SampleMemory(inputs=30))
    assert peak_bytes(PARTS, at(leaving=10)) == 1140 + 200 + 10
    few = PARTS._replace(arriving=0)
    assert peak_bytes(few, at()) == 1140 + 40 + 50  # tables are updated
    assert peak_bytes(few._replace(dense_gradient=200), at()) == 1230 + 40 + 100  # those that are replicated
    assert peak_bytes(few, at(received=35)) == 1140 + 40 + 40 + 35  # outputs are sent
    assert peak_bytes(few, at(received=50, ordered=45)) == 1140 + 50 + 2 * 45  # gradients are ordered
    assert peak_bytes(few, at(received=50, ordered=45, sliced=9)) == 1140 + 50 + 2 * 45 + 9
    rows = few._replace(sent=0, returned=30)
    assert peak_bytes(rows, at(received=50, ordered=45)) == 1140 + 40 + 30 + 50 + 45  # gradients are sent


def test_inputs_arrive_in_a_buffer_beside_the_batch_before() -> None:
    """FBGEMM keeps the batch before; with two batches in flight, it is one of them."""
    of_one_batch = 64 * 2 * 8 + 64 * (4 + 8)
    arriving = {name: memory(pipeline=name).arriving for name in ("none", "base", "sparse_dist", "prefetch")}
    assert arriving == {"none": 2 * of_one_batch, "base": 2 * of_one_batch} | dict.fromkeys(
        ("sparse_dist", "prefetch"), of_one_batch
    )
