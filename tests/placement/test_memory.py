"""Bytes of parts, by hand: a table of 1,000 rows of 8 columns, 2 lookups a sample, 64 samples on 4 devices."""

from dataclasses import replace

import pytest

from evenshard.placement.memory import PartMemory, part_memory, sample_memory
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.storage import FUSED_UVM, FUSED_UVM_CACHING, HOST, KEY_VALUE, Storage
from evenshard.tables.table import Table

T = Table("t", 1000, 8, 2.0)
WHOLE = TablePart("t", Span(0, 1000), Span(0, 8), (0,))


def memory(part: TablePart = WHOLE, table: Table = T, optimizer: str = "sgd", pipeline: str = "none") -> PartMemory:
    return part_memory(part, table, num_devices=4, batch_size=64, optimizer=optimizer, pipeline=pipeline)


def test_without_a_pipeline_weights_and_states_count() -> None:
    assert memory(pipeline="") == PartMemory(weights=32_000)
    assert memory(pipeline="", optimizer="adam") == PartMemory(weights=32_000, optimizer_state=64_000)
    assert memory(pipeline="", optimizer="rowwise_adagrad") == PartMemory(weights=32_000, optimizer_state=4_000)


def test_inputs_are_indices_lengths_and_offsets_of_all_samples() -> None:
    of_one_batch = 64 * 2 * 8 + 64 * (4 + 8)
    assert memory().inputs == memory(pipeline="base").inputs == of_one_batch
    assert memory(pipeline="sparse_dist").inputs == 2 * of_one_batch
    assert memory(pipeline="prefetch").inputs == 3 * of_one_batch
    weighted = replace(T, is_weighted=True)
    assert memory(table=weighted).inputs == of_one_batch + 64 * 2 * 4


def test_outputs_come_with_their_gradients() -> None:
    assert memory().outputs == 2 * 4 * 64 * 8
    halves = [replace(WHOLE, columns=Span(0, 4)), replace(WHOLE, columns=Span(4, 8))]
    assert sum(memory(half).outputs for half in halves) == memory().outputs
    assert [memory(half).inputs for half in halves] == [memory().inputs] * 2
    two_features = replace(T, feature_pooling_factors=(1.5, 0.5))
    assert memory(table=two_features).outputs == 2 * memory().outputs
    sequence = replace(T, pooling="none")
    assert memory(table=sequence).outputs == 2 * memory().outputs  # two lookups a sample, each an output


def test_rows_get_their_share_of_the_lookups_and_partial_sums_of_all_samples() -> None:
    quarter = replace(WHOLE, rows=Span(0, 250))
    assert memory(quarter).inputs == 64 * 2 * 8 // 4 + 64 * (4 + 8)
    assert memory(quarter).outputs == memory().outputs
    hot = replace(T, row_shares=(0.75, 0.25))
    assert memory(replace(WHOLE, rows=Span(0, 500)), hot).inputs == 64 * 2 * 8 * 3 // 4 + 64 * (4 + 8)


def test_a_replica_looks_up_its_own_samples_and_has_a_dense_gradient() -> None:
    replica = replace(WHOLE, devices=(0, 1, 2, 3))
    found = memory(replica)
    assert found.dense_gradient == 32_000
    assert (found.inputs, found.outputs) == (memory().inputs // 4, memory().outputs // 4)


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


def test_every_device_receives_all_tables_for_its_own_samples() -> None:
    found = sample_memory((T, T), num_devices=4, batch_size=64, pipeline="sparse_dist")
    assert found.inputs == 2 * 2 * (16 * 2 * 8 + 16 * 12)
    assert found.received == 2 * 2 * 4 * 16 * 8
    assert found.total == found.inputs + found.received
    assert sample_memory((T,), num_devices=1, batch_size=64, pipeline="none").received == 0
    assert sample_memory((T,), num_devices=4, batch_size=64, pipeline="").total == 0
