"""The records of an explanation: where a table is, what it costs there and elsewhere, its next best move."""

from __future__ import annotations

from dataclasses import dataclass

from evenshard.placement.parts import Span


@dataclass(frozen=True)
class DeviceOption:
    """A device, with the part on it. Times are milliseconds of one training step.

    Attributes:
        device: its id.
        device_ms: predicted, with the part and all that must stay with it.
        step_ms: time of the slowest device then.
        change_ms: difference to the step now; below 0 where a step gets faster.
        used_bytes: memory that its tables take then.
        room_bytes: memory that they may take.
        illegal: why the part may not live there, a clause each; empty where it may.
    """

    device: int
    device_ms: float
    step_ms: float
    change_ms: float
    used_bytes: int
    room_bytes: int
    illegal: tuple[str, ...]


@dataclass(frozen=True)
class Move:
    """A legal move of the part, or a swap.

    Attributes:
        to_device: device that the part goes to.
        swap_with: parts that come back; empty for a plain move.
        from_ms, to_ms: times of the two devices then.
        step_ms: time of the slowest device then.
        change_ms: difference to the step now.
        helps: a step gets faster, by more than rounding.
    """

    to_device: int
    swap_with: tuple[str, ...]
    from_ms: float
    to_ms: float
    step_ms: float
    change_ms: float
    helps: bool


@dataclass(frozen=True)
class PartExplanation:
    """One part of the table; all of it, where it is not split.

    Attributes:
        name: name in the placement, with its columns if it is a part.
        rows, columns: rows and columns of the table in this part.
        device: device of the part.
        weight_bytes, state_bytes: its size: weights, and optimizer state where that is counted.
        moves_with: parts that a rule keeps with it; they move as one.
        alone_ms: no device that holds the part takes less, whatever else it holds (``PlacementAnswer.alone_ms``).
        adds_ms: time of its device now, minus that without the part.
        device_ms: time of its device now.
        on_slowest: its device is the slowest one, or as slow.
        without_ms: time of a step without the part.
        options: all devices, by id; its own as it is now.
        best: the legal move or swap with the fastest step, those left out after which the two devices take what they
            took, or trade it; None where there is none.
    """

    name: str
    rows: Span
    columns: Span
    device: int
    weight_bytes: int
    state_bytes: int
    moves_with: tuple[str, ...]
    alone_ms: float
    adds_ms: float
    device_ms: float
    on_slowest: bool
    without_ms: float
    options: tuple[DeviceOption, ...]
    best: Move | None


@dataclass(frozen=True)
class Explanation:
    """A table of a placement.

    Attributes:
        table: its name.
        model: the model that predicted all times.
        device: what stands behind the times of the simulated device that it learned from; empty for real hardware.
        step_ms: time of the slowest device now.
        slowest_device: its id, the first of equals.
        parts: parts of the table, from the first column to the last.
    """

    table: str
    model: str
    device: str
    step_ms: float
    slowest_device: int
    parts: tuple[PartExplanation, ...]
