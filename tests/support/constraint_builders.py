"""Small tasks with constraints, and the rule of what is legal once more, as slow and plain as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from evenshard.base.units import BYTES_PER_GB
from evenshard.placement.memory import STATE_NUMBERS, state_bytes
from evenshard.placement.placement import Placement
from evenshard.placement.task import WHOLE, ShardingTask
from evenshard.search.legal_parts import legal_parts
from evenshard.tables.table import Table
from support.builders import every_placement, sized, task


def limited(of_task: ShardingTask, **limits: Any) -> ShardingTask:
    """The task under constraints: ``allowed`` devices of each table, and fields of the task."""
    if (allowed := limits.pop("allowed", None)) is not None:
        limits["limits"] = tuple(replace(WHOLE, devices=devices) for devices in allowed)
    return replace(of_task, **limits)


def only(*devices: int) -> frozenset[int]:
    return frozenset(devices)


def gb_task(sizes_gb: Sequence[float], devices: int = 2, cap_gb: float = 4) -> ShardingTask:
    """Tables t0, t1 and so on of so many GB of 32-bit weights."""
    tables = [Table(f"t{number}", round(size * BYTES_PER_GB / 256), 64, 2.0) for number, size in enumerate(sizes_gb)]
    return task(tables, devices, int(cap_gb * BYTES_PER_GB))


def is_legal(of_task: ShardingTask, placement: Placement) -> bool:
    """The rule from its description, for one placement."""
    device_of = placement.device_of_table
    sizes = [one.size_bytes + state_bytes(one, of_task.optimizer_of(one.name)) for one in of_task.tables]
    for device in range(of_task.num_devices):
        here = [position for position, home in enumerate(device_of) if home == device]
        if sum(sizes[position] for position in here) > of_task.room_bytes[device]:
            return False
        parted = any(0 < len(set(group) & set(here)) < len(set(group)) for group in of_task.together)
        if parted or any(len(set(group) & set(here)) > 1 for group in of_task.apart):
            return False
    may = [of_task.limits_of(position).devices for position in range(len(of_task.tables))]
    return all(devices is None or device in devices for device, devices in zip(device_of, may, strict=True))


def any_placement(of_task: ShardingTask, **more: Any) -> Placement:
    """Some legal placement of whole tables; arguments and errors of ``legal_parts``."""
    return Placement.of(of_task, legal_parts(of_task.as_whole, **more))


def legal_placements(of_task: ShardingTask) -> list[Placement]:
    return [placement for placement in every_placement(of_task) if is_legal(of_task, placement)]


@st.composite
def limited_tasks(draw: st.DrawFn) -> ShardingTask:
    """Up to six tables of 4 to 24 bytes on up to three devices, under some constraints; many have no placement."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    devices, count = draw(st.integers(1, 3)), len(sizes)
    cap = -(-sum(sizes) // devices) + draw(st.integers(0, 6))
    positions = st.lists(st.integers(0, count - 1), min_size=min(2, count), max_size=3, unique=True).map(tuple)
    groups = st.just(()) if count < 2 else st.lists(positions, max_size=2).map(tuple)
    may_go = st.none() | st.frozensets(st.integers(0, devices - 1), min_size=draw(st.sampled_from([0, 1, 1, 1])))
    caps = st.tuples(*[st.integers(max(1, cap - 3), cap + 6).map(lambda size: 4 * size)] * devices)
    names = st.sampled_from([f"s{number}" for number in range(count)])
    optimizers = st.dictionaries(names, st.sampled_from([*STATE_NUMBERS]))
    return limited(
        task(sized(*sizes), devices, 4 * cap),
        room_bytes=draw(st.just((4 * cap,) * devices) | caps),
        table_optimizers=draw(st.just({}) | optimizers),
        allowed=draw(st.none() | st.lists(st.none() | may_go, min_size=count, max_size=count).map(tuple)),
        together=draw(groups),
        apart=draw(groups),
    )
