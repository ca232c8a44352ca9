"""Outside of what a model has seen, intervals are as much wider as tables lie beyond it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import evenshard
from evenshard.placement.parts import whole_part
from evenshard.planner.pricing import interval_factors, widening_note
from evenshard.planner.request import PlacementRequest
from evenshard.price.step import PredictedDevice
from evenshard.sharders.training_domain import MOST_FACTOR, TrainingDomain
from evenshard.tables.table import Table
from support.learned import learned_model

# Rows to 499,675,273, dims 4 to 512, lookups 0.01 to 300, batches 1,038 to 245,267, 64 devices, 8 to 32 bits.
LEARNED = learned_model().trained_on
NEAR = Table("near", 1000, 64, 2.0)
WIDE = replace(NEAR, name="wide", embedding_dim=2048)


def factors(
    tables: tuple[Table, ...],
    device_of_table: tuple[int, ...],
    alone_ms: tuple[float, ...],
    devices: tuple[PredictedDevice, ...],
    batch_size: int = 4096,
    learned: TrainingDomain = LEARNED,
) -> tuple[float, float]:
    request = PlacementRequest(tables, (10**12,) * len(devices), batch_size, hardware="simulated:h100")
    parts = tuple(whole_part(table, (device,)) for table, device in zip(tables, device_of_table, strict=True))
    return interval_factors(request, learned, parts, devices, alone_ms)


def took(compute_ms: float, exchange_ms: float = 0.0) -> PredictedDevice:
    return PredictedDevice(compute_ms / 4, exchange_ms, 0.0, compute_ms * 3 / 4)


# The rule ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "factor"),
    [
        (NEAR, 1.0),
        (WIDE, 4.0),
        (replace(NEAR, embedding_dim=600), 1.0),  # a little beyond
        (replace(NEAR, embedding_dim=2), 2.0),
        (replace(NEAR, pooling_factor=3000.0), 3000 / LEARNED.pooling_factor[1]),
        (replace(NEAR, pooling_factor=0.0), 1.0),  # costs nothing, which needs no training
        (replace(NEAR, num_rows=2 * 499_675_273, embedding_dim=1024), 4.0),
        (replace(NEAR, weight_bits=4, data_type="int4"), 2.0),
        (replace(NEAR, embedding_dim=4096, pooling_factor=3e6), MOST_FACTOR),
    ],
)
def test_how_far_beyond_a_table_is(table: Table, factor: float) -> None:
    assert LEARNED.table_factor(table) == pytest.approx(factor)


def test_inside_nothing_is_wider() -> None:
    assert factors((NEAR,), (0,), (1.0,), (took(1.0),)) == (1.0, 1.0)
    assert widening_note(1.0, 1.0) is None and widening_note(1.0001, 1.0001) is None


def test_only_an_end_that_moves_is_named() -> None:
    assert (widening_note(1.0, 6.61) or "").endswith("range: the upper bound is 6.61x wider.")
    both = ": the upper bound is 6.61x wider and the lower bound is 2x wider."
    assert (widening_note(2.0, 6.61) or "").endswith(both)


def test_each_part_of_the_time_has_the_factor_of_its_own_tables() -> None:
    """8 ms: 6 of tables that were seen, 2 of one that is 4 times beyond, so 6 + 2 / 4 to 6 + 2 * 4; 1 ms exchange."""
    below, above = factors((NEAR, WIDE), (0, 0), (3.0, 1.0), (took(8.0, 1.0), took(1.0)))
    assert (9 / below, 9 * above) == (pytest.approx(1 + 6.5), pytest.approx(1 + 14))


def test_another_device_may_be_the_slowest_then() -> None:
    """10 ms that are sure; 4 ms that may be 16."""
    below, above = factors((NEAR, WIDE), (0, 1), (1.0, 1.0), (took(10.0), took(4.0)))
    assert (10 / below, 10 * above) == (pytest.approx(10), pytest.approx(16))


def test_a_batch_concerns_all_tables_and_devices_the_exchange() -> None:
    batch = int(LEARNED.batch_size[1]) * 2
    assert factors((NEAR,), (0,), (1.0,), (took(3.0, 1.0),), batch) == (pytest.approx(4 / 2.5), pytest.approx(7 / 4))
    few = replace(LEARNED, num_devices=(1.0, 2.0))
    four = tuple(took(3.0, 1.0) for _ in range(4))
    assert factors((NEAR,), (0,), (1.0,), four, learned=few) == (pytest.approx(4 / 3.5), pytest.approx(5 / 4))


# Answers -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_answer_far_outside_says_so_and_is_less_sure() -> None:
    def half_widths(*tables: Table) -> tuple[float, float]:
        answer = evenshard.place(tables, 2, 100.0, model=learned_model(), batch_size=4096)
        assert any("wider" in note for note in answer.notes) == bool(answer.warnings)
        return answer.predicted_ms / answer.model_low_ms, answer.model_high_ms / answer.predicted_ms

    near, far = half_widths(NEAR), half_widths(replace(WIDE, pooling_factor=3000.0))
    assert max(near) < 1.5 and min(far) > 10


def test_128_devices_where_the_model_saw_64_are_said() -> None:
    tables = tuple(replace(NEAR, name=f"t{number}") for number in range(128))
    (line,) = LEARNED.devices_outside(tables, 128)
    assert line == "128 devices are more than the 64 the model was trained on"
    assert LEARNED.exchange_factor(128) == 2.0 and LEARNED.exchange_factor(64) == 1.0
