"""The refusal of a request, with memory, devices or types for which a placement was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from evenshard.placement.feasibility import MORE_MEMORY, MORE_ROOM
from evenshard.placement.optimizer_state import state_bytes
from evenshard.placement.sharding import BY_COLUMNS, COLUMN_WISE, SHARDING_TYPES
from evenshard.planner.request import TASK_ID, PlacementRequest
from evenshard.sharders.room.legal_parts import first_fit
from evenshard.utils.errors import InfeasibleTask
from evenshard.utils.limits import RANGES
from evenshard.utils.units import BYTES_PER_GB, gb_to_bytes


def refusal(request: PlacementRequest, error: InfeasibleTask) -> InfeasibleTask:
    """The error of a search as an answer to a request."""
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
    for types, how in (
        (BY_COLUMNS, "Split by columns (--allow-column-split)"),
        (SHARDING_TYPES, "Sharded in every way (sharding_types left out)"),
    ):
        if set(types) <= set(request.types) or (types == BY_COLUMNS and COLUMN_WISE in request.types):
            continue
        more_types = replace(request, sharding_types=types)
        count = request.num_devices if _fits(more_types) else _enough_devices(more_types)
        if count is not None and (devices is None or count < devices):
            on = "" if count == request.num_devices else f" on {count} devices"
            remedies.append(f"{how}, the tables fit{on}.")
            break
    if not remedies:
        remedies.append("Neither more memory nor more devices helped: relax the rules on where tables may live.")
    return InfeasibleTask(problem, " ".join(remedies))


def _fits(request: PlacementRequest) -> bool:
    task = request.sharding_task()
    return all(task.types) and first_fit(task) is not None


def _enough_gb(request: PlacementRequest) -> float | None:
    """Memory of each device, if all had the same, for which a placement was found."""

    def fits(hundredths: int) -> bool:
        return _fits(replace(request, caps_bytes=(gb_to_bytes(hundredths / 100),) * request.num_devices))

    least = min(request.caps_bytes) * 100 // BYTES_PER_GB
    total = sum(table.size_bytes + 2 * state_bytes(table, request.optimizer) for table in request.tables)
    enough = _least_that(fits, least, max(least, -(-(total + request.reserved_bytes) * 100 // BYTES_PER_GB)) + 1)
    return None if enough is None else enough / 100


def _enough_devices(request: PlacementRequest) -> int | None:
    """Devices in nodes as there are, the new ones as large as the largest, for which a placement was found."""
    machine = request.nodes
    if machine.groups:
        return None
    step = 1 if machine.num_nodes == 1 else machine.domain_size

    def fits(steps: int) -> bool:
        devices = request.num_devices + steps * step
        per_node = devices if machine.num_nodes == 1 else machine.devices_per_node
        more = (max(request.caps_bytes),) * (devices - request.num_devices)
        grown = replace(machine, num_devices=devices, devices_per_node=per_node)
        return _fits(replace(request, caps_bytes=(*request.caps_bytes, *more), machine=grown))

    most = len(request.tables) + max(table.embedding_dim for table in request.tables)
    most = min(most, int(RANGES["num_devices"].most) - request.num_devices)
    steps = _least_that(fits, 0, -(-most // step))
    return None if steps is None else request.num_devices + steps * step


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
