"""Constraints of a placement besides memory, by position in a task."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Constraints:
    """Limits of one task. Without arguments there are none.

    Attributes:
        device_caps_bytes: memory of each device, where they differ; None: the task's memory cap for all.
        state_bytes: memory of each table beside its weights: optimizer state, inputs, outputs; None: nothing.
        allowed: the devices that each table may live on, None for any; None: all tables may live anywhere.
        together: groups of tables that live on one device.
        apart: groups of tables of which a device holds one at most.
    """

    device_caps_bytes: tuple[int, ...] | None = None
    state_bytes: tuple[int, ...] | None = None
    allowed: tuple[frozenset[int] | None, ...] | None = None
    together: tuple[tuple[int, ...], ...] = ()
    apart: tuple[tuple[int, ...], ...] = ()


UNCONSTRAINED = Constraints()
