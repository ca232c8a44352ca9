"""The overview of a placement: the device that a step waits for, why, and the best changes of one table each.

A change of a table on the slowest device is a move or a swap of its part there, another way to shard it, or another
place to keep it: the best legal one of each table, as the model of the answer predicts whole placements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from evenshard.compare.explain.changed_parts import WhatIf, devices_text
from evenshard.compare.explain.explain import PartMoves, way_options
from evenshard.compare.explain.storage_options import kept_options
from evenshard.measure.evidence import device_text
from evenshard.measure.price.device_price import ROUNDING
from evenshard.measure.price.step import STEP_PARTS, predicted_step_times
from evenshard.placement.sharding import TABLE_WISE
from evenshard.planner.answer import PlacementAnswer
from evenshard.sharders.model import Model
from evenshard.utils.messages import names_text
from evenshard.utils.process import one_thread

# Tables of the slowest device whose changes are tried: those that add most to it.
MOST_TABLES_TRIED = 24
NUM_CHANGES = 5


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
class TableShare:
    """A table on the slowest device.

    Attributes:
        table: its name.
        sharding_type: how it is sharded.
        kernel: how it is kept.
        num_parts: its parts on all devices.
        size_bytes: memory that it takes of the device.
        alone_ms: of its part there, the costliest where there are several.
        adds_ms: what the device would save without that part.
    """

    table: str
    sharding_type: str
    kernel: str
    num_parts: int
    size_bytes: int
    alone_ms: float
    adds_ms: float


@dataclass(frozen=True)
class TableChange:
    """The best legal change of a table.

    Attributes:
        table: its name.
        change: what is done, in words.
        step_ms: time of a step then.
        change_ms: difference to the step now; below 0 where a step gets faster.
        helps: a step gets faster, by more than rounding.
    """

    table: str
    change: str
    step_ms: float
    change_ms: float
    helps: bool


@dataclass(frozen=True)
class Overview:
    """What to know of a placement first.

    Attributes:
        model: the model that predicted all times.
        device: what stands behind the times of the simulated device that it learned from; empty for real hardware.
        step_ms: time of a step.
        slowest_device: its id, the first of equals.
        num_devices: devices of the placement.
        mean_ms: mean time of the devices.
        times: of the slowest device, in the order of a step.
        tables: on the slowest device, once each; those that add most first.
        changes: the best ones, of a table each; the fastest step first.
        num_tried: tables whose changes were tried.
    """

    model: str
    device: str
    step_ms: float
    slowest_device: int
    num_devices: int
    mean_ms: float
    times: tuple[DeviceTime, ...]
    tables: tuple[TableShare, ...]
    changes: tuple[TableChange, ...]
    num_tried: int


@one_thread()
def overview(answer: PlacementAnswer, model: Model) -> Overview:
    """The overview of an answer.

    Args:
        model: predicts everything again; the answer's own figures are not used.

    Raises:
        BadConfig: if the answer keeps tables apart that its own rules keep together.
    """
    what_if = WhatIf(answer, model)
    slowest = int(what_if.now.ms_D.argmax())
    costliest = _on_device(answer, what_if, slowest)
    tried = list(costliest)[:MOST_TABLES_TRIED]
    moves = PartMoves(answer, what_if)
    changes = [change for name in tried if (change := _best_change(answer, what_if, moves, name, costliest[name]))]
    devices = [predicted_step_times(one) for one in what_if.costs.predict(answer.parts).devices]
    means = np.mean(devices, axis=0).tolist()
    return Overview(
        model=model.source,
        device=device_text(model.hardware, model.device_error),
        step_ms=what_if.now.step_ms,
        slowest_device=slowest,
        num_devices=answer.num_devices,
        mean_ms=float(what_if.now.ms_D.mean()),
        times=tuple(map(DeviceTime, STEP_PARTS, devices[slowest], means)),
        tables=tuple(_share(answer, what_if, name, number) for name, number in costliest.items()),
        changes=tuple(sorted(changes, key=lambda one: one.step_ms)[:NUM_CHANGES]),
        num_tried=len(tried),
    )


def _on_device(answer: PlacementAnswer, what_if: WhatIf, device: int) -> dict[str, int]:
    """The tables on a device, each with its part there that adds most; those that add most first."""
    _, adds_ms = what_if.costs.part_ms(answer.parts)
    found: dict[str, int] = {}
    for number in sorted(answer.parts_on_device[device], key=lambda one: -adds_ms[one]):
        found.setdefault(answer.parts[number].table, number)
    return found


def _share(answer: PlacementAnswer, what_if: WhatIf, name: str, number: int) -> TableShare:
    alone_ms, adds_ms = what_if.costs.part_ms(answer.parts)
    here = [one for one in answer.parts_on_device[answer.parts[number].devices[0]] if answer.parts[one].table == name]
    return TableShare(
        table=name,
        sharding_type=answer.type_of_table[name],
        kernel=str(answer.parts[number].storage),
        num_parts=len(answer.parts_of_table[name]),
        size_bytes=sum(answer.part_bytes[one] for one in here),
        alone_ms=alone_ms[number],
        adds_ms=adds_ms[number],
    )


def _best_change(
    answer: PlacementAnswer, what_if: WhatIf, moves: PartMoves, name: str, number: int
) -> TableChange | None:
    """The change of a table with the fastest step; of equals the first, a move. None where none is legal."""
    position = next(at for at, table in enumerate(answer.request.tables) if table.name == name)
    found = list(_changes(answer, what_if, moves, position, number))
    if not found:
        return None
    step_ms, change = min(found, key=lambda one: one[0])
    change_ms = step_ms - what_if.now.step_ms
    return TableChange(name, change, step_ms, change_ms, change_ms < -ROUNDING * what_if.now.step_ms)


def _changes(
    answer: PlacementAnswer, what_if: WhatIf, moves: PartMoves, position: int, number: int
) -> Iterator[tuple[float, str]]:
    """The time of a step after each kind of change of a table, and the change in words."""
    if moves.is_movable(number) and (move := moves.best(number)) is not None:
        columns = (
            f" its columns {answer.parts[number].extent}"
            if what_if.option(position).sharding_type != TABLE_WISE
            else ""
        )
        if move.swap_with:
            yield move.step_ms, f"swap{columns} with {names_text(move.swap_with)} on device {move.to_device}"
        else:
            yield move.step_ms, f"move{columns} to device {move.to_device}"
    for way in way_options(what_if, position, what_if.without(position)):
        if way.step_ms is not None and not way.is_now and not way.illegal:
            where = f" on node {way.nodes[0]}" if len(way.nodes) == 1 else f" on {devices_text(way.devices)}"
            yield way.step_ms, f"shard it {way.sharding_type}{where}"
    for kept in kept_options(what_if, position):
        if not kept.is_now and not kept.illegal:
            yield kept.step_ms, f"keep it as {kept.storage}"
