"""The record of an explanation: the times of the slowest device, and the best changes of tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceTime:
    """One of the times of the slowest device.

    Attributes:
        name: such as ``backward``.
        time_ms: of the device.
        mean_ms: mean of all devices.
    """

    name: str
    time_ms: float
    mean_ms: float


@dataclass(frozen=True)
class TableChange:
    """A legal change of a table: another device, a swap, another sharding type or another compute kernel.

    Attributes:
        table: its name.
        change: the change in words.
        step_ms: time of a step after it.
        change_ms: difference to the step now; below 0 where a step gets faster.
        helps: a step gets faster, by more than rounding.
    """

    table: str
    change: str
    step_ms: float
    change_ms: float
    helps: bool


@dataclass(frozen=True)
class Explanation:
    """The device that a step waits for, and the best changes.

    Attributes:
        model: the model that predicted all times.
        device: evidence for the times of the simulated device that it learned from; empty for real hardware.
        step_ms: time of a step.
        slowest_device: its id, the first of equals.
        num_devices: devices of the placement.
        times: of the slowest device, in the order of a step.
        table: the table that was asked for; empty for those of the slowest device.
        sharding_type: of that table.
        devices: devices with a part of it.
        adds_ms: time that its devices save without it, that of the part which adds most.
        num_tried: tables whose changes were tried.
        changes: the best ones; the fastest step first. Of a table that was asked for one of each kind, else one of
            each table.
    """

    model: str
    device: str
    step_ms: float
    slowest_device: int
    num_devices: int
    times: tuple[DeviceTime, ...]
    table: str
    sharding_type: str
    devices: tuple[int, ...]
    adds_ms: float
    num_tried: int
    changes: tuple[TableChange, ...]
