"""The peak memory of real training on two ranks, within 10 % of its prediction."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torchrec", reason="TorchRec is not installed", exc_type=ImportError)
if not Path("/proc/self/clear_refs").exists():
    pytest.skip("the kernel tells no peak of resident memory", allow_module_level=True)

from evenshard.placement.memory import PartMemory, SampleMemory, moments
from evenshard.placement.parts import Span
from evenshard.tables.table import Table
from support.builders import column_parts
from support.memory_peaks import MB, Peak, cpu_moments, peaks_of, predicted_peaks
from support.memory_training import Setting, TableSpec

MIXED = Setting(
    "every way but rows",
    2,
    tuple(TableSpec(way, 60_000, 64, 10) for way in ("table_wise", "column_wise", "table_wise", "data_parallel")),
    32_768,
    "rowwise_adagrad",
    dense=4,
    dense_optimizer="adam",
)
ROWS = Setting(
    "rows, inputs of three batches",
    2,
    tuple(TableSpec(way, 60_000, 64, 20) for way in ("row_wise", "table_wise", "table_wise")),
    32_768,
    pipeline="sparse_dist",
)


@pytest.mark.slow
@pytest.mark.parametrize("setting", [MIXED, ROWS], ids=lambda one: one.name)
def test_the_peak_of_real_training_is_within_10_percent(setting: Setting) -> None:
    peaks = peaks_of(setting)
    assert len(peaks) == 2
    for one in peaks:
        assert one.measured > 80 * MB
        assert abs(one.error) <= 0.1, one


def test_tables_inputs_outputs_and_the_rest_add_up() -> None:
    """Of table_wise alone, by hand: 2 of 4 tables of 10 MB, a batch of 64 samples a rank."""
    setting = Setting("by hand", 2, (TableSpec("table_wise", 40_960, 64, 5),) * 4, 128, dense=1)
    first, second = predicted_peaks(setting)
    assert first == Peak(**{**vars(second), "rank": 0})
    assert first.tables == 2 * 40_960 * 64 * 4
    of_tables, of_samples = 2 * (128 * 5 * 8 + 128 * 12), 4 * (64 * 5 * 8 + 64 * 12)
    assert first.inputs == of_tables + of_samples
    dense = 1024 * 1024 + 1024 + 4 * 64 * 4 + 4  # parameters, and as many gradients
    assert first.predicted == first.tables + first.inputs + first.exchanged + 2 * 4 * dense
    outputs = 2 * 128 * 64 * 4  # of two tables for all samples, and of four for half of them
    assert first.exchanged == 3 * outputs and first.moment == "outputs are sent"


def test_what_cpus_take_besides_is_added_here() -> None:
    table = Table("t", 100, 8, 1.0)
    size, own = PartMemory(outputs=300, workspace=40 * 1000), SampleMemory(received=5)
    at = moments(size._replace(workspace=18 * 1000), own)
    whole = replace(column_parts(table)[0], devices=(0,))
    assert cpu_moments(size, own, [(table, whole, size)]) == at
    half = replace(whole, rows=Span(0, 50))
    by_rows = cpu_moments(size, own, [(table, half, size)])
    for name, gloo in (("outputs are sent", 300), ("gradients are sent", 300), ("tables are updated", 0)):
        assert by_rows[name] == at[name] + gloo
    replica = replace(whole, devices=(0, 1))
    assert cpu_moments(size, own, [(table, replica, size)])["tables are updated"] == 300  # nothing is sorted
