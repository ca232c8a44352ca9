"""The interval of a prediction outside of the training data: wider by what a model can err there, if costs behave.

The cost model's own interval is that of placements like those it has seen. Beyond them it only continues its lines. The
rule here takes that a time neither falls nor grows faster than in proportion with rows, dims, lookups, weight bits,
batch, and devices (for the exchange): a model that is right at the edge of its data then errs by no more than the
factor that a table is beyond it. Factors of one table multiply, and each part of the time has the factor of its own
tables. It is a rule and no measurement.
"""

from __future__ import annotations

from collections.abc import Sequence

from evenshard.measure.price.step import PredictedDevice
from evenshard.placement.parts import TablePart
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.trained_on import TrainedOn


def interval_factors(
    request: PlacementRequest,
    learned: TrainedOn,
    parts: Sequence[TablePart],
    devices: Sequence[PredictedDevice],
    alone_ms: Sequence[float],
) -> tuple[float, float]:
    """What to divide the lower end of an interval by, and to multiply the upper end with; 1 and 1 inside of the data.

    Args:
        request: tables, batch and machine.
        learned: training data of the model.
        parts: the placement.
        devices: predicted times, by device id.
        alone_ms: of each part, which says how much of its device's compute time is the part's.
    """
    factor_of = {table.name: learned.table_factor(table) for table in request.tables}
    load = learned.load_factor(request.tables, request.num_devices, request.batch_size)
    exchange = learned.exchange_factor(request.num_devices)
    if load == exchange == 1 and set(factor_of.values()) == {1.0}:
        return 1.0, 1.0
    sums = [[0.0, 0.0, 0.0] for _ in devices]  # as predicted, as fast and as slow as may be
    for part, ms in zip(parts, alone_ms, strict=True):
        factor = factor_of[part.table] * load
        for device in part.devices:
            for number, times in enumerate((1.0, 1 / factor, factor)):
                sums[device][number] += ms * times
    ends = []
    for end, times in ((1, 1 / exchange), (2, exchange)):
        ends.append(
            max(
                _compute_ms(device) * (sums_3[end] / sums_3[0] if sums_3[0] else 1.0)
                + (device.predicted_total_ms - _compute_ms(device)) * times
                for device, sums_3 in zip(devices, sums, strict=True)
            )
        )
    predicted_ms = max(device.predicted_total_ms for device in devices)
    return (predicted_ms / ends[0], ends[1] / predicted_ms) if predicted_ms else (1.0, 1.0)


def widening_note(below: float, above: float) -> str | None:
    """A sentence about an interval that is wider than the model's own; None of one that is not."""
    if below == above == 1:
        return None
    return (
        f"The interval is {below:.3g} times wider below and {above:.3g} times above than where the model has seen "
        "tables, batch and devices like these: beyond, times may fall or grow in proportion."
    )


def _compute_ms(device: PredictedDevice) -> float:
    return device.predicted_fwd_compute_ms + device.predicted_bwd_compute_ms
