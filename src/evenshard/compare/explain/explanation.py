"""The records of an explanation: how a table is sharded, what that costs, and what each other place and way would."""

from __future__ import annotations

from dataclasses import dataclass

from evenshard.compare.explain.storage_options import KeptOption
from evenshard.placement.parts import Span


@dataclass(frozen=True)
class DeviceOption:
    """A device, with the part on it. Times are milliseconds of one training step.

    Attributes:
        device: its id.
        device_ms: predicted, with the part and all that must stay with it.
        step_ms: time of a step then.
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
        step_ms: time of a step then.
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
    """One part of the table; all of it, where it is whole.

    Attributes:
        name: name of the part: the table's, with its rows and columns where it is cut.
        rows, columns: rows and columns of the table in this part.
        devices: its device, or all of them for a replicated table.
        weight_bytes, state_bytes: its size on each: weights, and optimizer state where that is counted.
        alone_ms: what it takes alone on its device (``PlacementAnswer.alone_ms``).
        adds_ms: what its device would save without it (``PlacementAnswer.adds_ms``).
        device_ms: time of its device now; of replicas, of the slowest one.
        on_slowest: its device is the slowest one, or as slow.
        options: all devices, by id; empty for a part that cannot move alone: a replica, or some of the rows.
        best: the legal move or swap with the fastest step, those left out that change nothing but names; None where
            there is none.
    """

    name: str
    rows: Span
    columns: Span
    devices: tuple[int, ...]
    weight_bytes: int
    state_bytes: int
    alone_ms: float
    adds_ms: float
    device_ms: float
    on_slowest: bool
    options: tuple[DeviceOption, ...]
    best: Move | None


@dataclass(frozen=True)
class WayOption:
    """The table sharded in one of the ways, at the best place that was found for it; the other tables stay.

    Attributes:
        sharding_type: the way.
        is_now: the table is sharded so now; the figures are those of now.
        widths: columns of its parts.
        devices: devices that hold some of it.
        nodes: nodes of the parts, where rows are cut over the devices of a node.
        table_bytes: memory that the table takes of all devices together.
        step_ms: time of a step then; None where the table cannot be sharded so.
        change_ms: difference to the step now.
        illegal: why it may not be, a clause each; empty where it may.
    """

    sharding_type: str
    is_now: bool
    widths: tuple[int, ...]
    devices: tuple[int, ...]
    nodes: tuple[int, ...]
    table_bytes: int
    step_ms: float | None
    change_ms: float | None
    illegal: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """A table of a placement.

    Attributes:
        table: its name.
        model: the model that predicted all times.
        device: what stands behind the times of the simulated device that it learned from; empty for real hardware.
        step_ms: time of a step now.
        slowest_device: its id, the first of equals.
        sharding_type: how the table is sharded.
        moves_with: tables that a rule keeps with it; they move as one.
        without_ms: time of a step without the table.
        parts: parts of the table that were asked for, by columns, then rows.
        ways: every way to shard the table.
        kept: every place to keep its weights, where there is a choice.
    """

    table: str
    model: str
    device: str
    step_ms: float
    slowest_device: int
    sharding_type: str
    moves_with: tuple[str, ...]
    without_ms: float
    parts: tuple[PartExplanation, ...]
    ways: tuple[WayOption, ...]
    kept: tuple[KeptOption, ...] = ()
