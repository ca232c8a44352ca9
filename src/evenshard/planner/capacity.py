"""Whether there is room for a request, and advice where there is none. Columns are cut wherever that is allowed.

A refusal is a proof, or it says that nothing was found. Its figures hold for every placement; for the memory or the
devices that it advises, a placement was found.

Legend: I items, D devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from evenshard.placement.feasibility import MORE_MEMORY, MORE_ROOM, no_placement_found, require_room
from evenshard.placement.items import Items
from evenshard.placement.optimizer_state import state_bytes_of_rows
from evenshard.placement.parts import COLUMN_STEP, TablePart, column_parts, whole_tables
from evenshard.placement.placement import Placement
from evenshard.placement.sharding import BY_COLUMNS, COLUMN_WISE
from evenshard.placement.task import PlacementTask
from evenshard.planner.request import TASK_ID, PlacementRequest
from evenshard.sharders.packing import TIME_LIMIT_S, Pieces, pack, packed_in_order
from evenshard.utils.errors import InfeasibleTask
from evenshard.utils.units import BYTES_PER_GB, gb_to_bytes


@dataclass(frozen=True)
class Room:
    """A request as something to pack.

    Attributes:
        task: task of the whole tables; their optimizer state is the least that they can have, cut or not.
        pieces: its items, with their blocks of columns where they may be cut.
        cut: positions of the tables that may be.
    """

    task: PlacementTask
    pieces: Pieces
    cut: frozenset[int]

    @staticmethod
    def of(request: PlacementRequest) -> Room:
        """Tables in one piece, or in blocks of four columns where the request allows that."""
        task = request.task()
        items = Items.of(task)
        blocks_I, part_bytes_I = (
            np.ones(len(items.members), dtype=np.int64),
            np.zeros(len(items.members), dtype=np.int64),
        )
        cut, wholes = [], whole_tables(request.tables)
        kept_whole = {name for group in request.rules.together for name in group}
        for position, item in enumerate(items.item_of_T.tolist()):
            table, whole = request.tables[position], wholes[position]
            if COLUMN_WISE in request.types and table.name not in kept_whole and whole.halves():
                cut.append(position)
                blocks_I[item] = table.embedding_dim // COLUMN_STEP
                part_bytes_I[item] = state_bytes_of_rows(table, request.optimizer)
        pieces = Pieces(items, blocks_I, part_bytes_I)
        parts_I = pieces.least_parts_I()
        parts_I = np.where(
            parts_I > 0, parts_I, items.allowed_ID.sum(axis=1).clip(min=1)
        )  # and even so they do not fit
        more_T = (part_bytes_I * (parts_I - 1))[items.item_of_T].tolist()
        sizes = zip(task.table_bytes, more_T, task.tables, strict=True)
        state = tuple(size + more - table.size_bytes for size, more, table in sizes)
        return Room(replace(task, constraints=replace(task.constraints, state_bytes=state)), pieces, frozenset(cut))


def any_parts(
    request: PlacementRequest, seed: int = 0, time_limit_s: float = TIME_LIMIT_S
) -> tuple[tuple[TablePart, ...], Placement]:
    """Some parts, and a legal placement of them; the same arguments give the same.

    Args:
        request: the request.
        seed, time_limit_s: the same as in ``pack``.

    Raises:
        InfeasibleTask: if there are none, or none were found in time; the message says which of the two.
    """
    room = Room.of(request)
    require_room(room.task, room.cut)
    packed = pack(room.pieces, seed, time_limit_s)
    if packed.blocks_ID is None:
        raise no_placement_found(room.task, packed.why_not, room.cut)
    parts: list[TablePart] = []
    device_of_part: list[int] = []
    for table, item in zip(request.tables, room.pieces.items.item_of_T.tolist(), strict=True):
        devices = np.flatnonzero(packed.blocks_ID[item])
        device_of_part += devices.tolist()
        parts += column_parts(table, (packed.blocks_ID[item, devices].cumsum()[:-1] * COLUMN_STEP).tolist())
    return tuple(parts), Placement(tuple(device_of_part), request.num_devices)


def refusal(request: PlacementRequest, error: InfeasibleTask) -> InfeasibleTask:
    """The error of a search as an answer to a request: with memory or devices for which a placement was found."""
    problem = error.problem.removeprefix(f"{TASK_ID}: ")  # a request is not one task of many: its name says nothing
    if not error.remedy.startswith(MORE_MEMORY):
        return InfeasibleTask(problem, error.remedy)
    rest = error.remedy.removeprefix(MORE_ROOM).removeprefix(MORE_MEMORY)
    alike = len(set(request.caps_bytes)) == 1
    enough, remedies = [], []
    if (cap_gb := _enough_gb(request)) is not None:
        enough.append(f"memory_cap_gb to {cap_gb:.2f}{'' if alike else ' for each device'}")
    if (devices := _enough_devices(request)) is not None:
        enough.append(f"num_devices to {devices}{'' if alike else ' (the new ones as large as the largest)'}")
    if enough:
        remedies.append(f"Raise {' or '.join(enough)}{rest}")
    for_parts = None if COLUMN_WISE in request.types else _enough_devices_for_parts(request)
    if for_parts is not None and (devices is None or for_parts < devices):
        on = "" if for_parts == request.num_devices else f" on {for_parts} devices"
        remedies.append(f"Split by columns (--allow-column-split), the tables fit{on}.")
    if not remedies:
        remedies.append("Neither more memory nor more devices helped: relax the rules on where tables may live.")
    return InfeasibleTask(problem, " ".join(remedies))


def _fits(request: PlacementRequest) -> bool:
    return packed_in_order(Room.of(request).pieces) is not None


def _enough_gb(request: PlacementRequest) -> float | None:
    """Memory of each device, if all had the same, for which a placement was found."""

    def fits(hundredths: int) -> bool:
        return _fits(replace(request, caps_bytes=(gb_to_bytes(hundredths / 100),) * request.num_devices))

    least = min(request.caps_bytes) * 100 // BYTES_PER_GB
    total = sum(Room.of(request).task.table_bytes) + request.reserved_bytes
    enough = _least_that(fits, least, max(least, -(-total * 100 // BYTES_PER_GB)) + 1)
    return None if enough is None else enough / 100


def _enough_devices(request: PlacementRequest) -> int | None:
    """Devices, the new ones as large as the largest, for which a placement was found."""

    def fits(devices: int) -> bool:
        more = (max(request.caps_bytes),) * (devices - request.num_devices)
        return _fits(replace(request, caps_bytes=(*request.caps_bytes, *more)))

    most = request.num_devices + len(request.tables) + int(Room.of(request).pieces.blocks_I.max())
    return _least_that(fits, request.num_devices, most)


def _enough_devices_for_parts(request: PlacementRequest) -> int | None:
    """The same where tables may be split, beginning with the devices there are."""
    in_parts = replace(request, sharding_types=BY_COLUMNS)
    return request.num_devices if _fits(in_parts) else _enough_devices(in_parts)


def _least_that(fits: Callable[[int], bool], low: int, most: int) -> int | None:
    """A number above ``low`` that fits, and next to which one does not; None if no number was found up to ``most``.

    Args:
        fits: asks for a number.
        low: does not fit.
        most: the largest to ask for.
    """
    step = 1
    while not fits(high := min(low + step, most)):
        if high == most:
            return None
        low, step = high, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
