"""Is there any legal placement at all? Packing by several orders, then a solver, whatever a placement costs.

Where there is none, the error says with how much memory, and with how many devices, one was found.

Legend: I items, D devices, R kinds of room.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from evenshard.errors import InfeasibleTask
from evenshard.impossible import gb_rounded_up, needs_and_room, require_room
from evenshard.placement import Items, Placement, check_placement
from evenshard.sharders.integer_program import add_room, chosen_devices, device_variables
from evenshard.tasks import PlacementTask

MAX_PAIRS = 150_000
"""Items times devices that the solver is given; it then needs about 1 GB."""
CAP_STEP = 1.01
"""How closely the smallest memory that would do is looked for."""
RANDOM_ORDERS = 8


def any_placement(task: PlacementTask, seed: int = 0, time_limit_s: float = 10.0) -> Placement:
    """Some legal placement; the same arguments give the same one.

    Args:
        task: to place.
        seed: of random orders and of the solver.
        time_limit_s: the solver's own seconds, which count its steps; each is one to three seconds of one core.

    Raises:
        InfeasibleTask: if there is none, or none was found in time; the message says which of the two.
    """
    require_room(task)
    items = Items.of(task)
    device_of_item = _packed(items, seed)
    why = "no placement was found by packing (the task is too large to solve exactly)"
    if device_of_item is None and items.allowed_ID.size <= MAX_PAIRS:
        device_of_item, impossible = _solved(items, seed, time_limit_s)
        why = "no placement fits" if impossible else f"no placement was found in {time_limit_s:g} s of the solver"
    if device_of_item is None:
        raise InfeasibleTask(f"{task.task_id}: {why}: {needs_and_room(task)}. {_remedy(task, items)}")
    placement = items.placement(device_of_item)
    check_placement(task, placement)
    return placement


def _packed(items: Items, seed: int | None = None) -> list[int] | None:
    """The device of each item by the first order that leads to the end; None if none does.

    Args:
        items: to pack.
        seed: of a few random orders; None leaves them out.
    """
    if (items.needs_IR > items.room_DR.max(axis=0)).any():
        return None
    for order in _orders(items, seed):
        for tightest in (True, False):
            if (found := _fill(items, order, tightest)) is not None:
                return found
    return None


def _orders(items: Items, seed: int | None) -> Iterator[Sequence[int]]:
    bytes_I, apart_I = items.needs_IR[:, 0], items.needs_IR[:, 1:].sum(axis=1)
    choices_I = items.allowed_ID.sum(axis=1)
    yield np.lexsort((-bytes_I, -apart_I, choices_I)).tolist()
    yield np.lexsort((-bytes_I, choices_I)).tolist()
    if seed is None:
        return
    yield (-bytes_I).argsort(kind="stable").tolist()
    rng = np.random.default_rng(seed)
    for _ in range(RANDOM_ORDERS):
        shaken_I = bytes_I * rng.uniform(0.5, 1.0, len(bytes_I))
        yield np.lexsort((-shaken_I, choices_I)).tolist()


def _fill(items: Items, order: Sequence[int], tightest: bool) -> list[int] | None:
    """Item after item to the legal device with the least memory left, or with the most; None at a dead end."""
    used_DR = np.zeros_like(items.room_DR)
    device_of_item = [0] * len(order)
    for item in order:
        legal = np.flatnonzero(items.legal_D(item, used_DR))
        if not len(legal):
            return None
        left = items.room_DR[legal, 0] - used_DR[legal, 0]
        device = int(legal[left.argmin() if tightest else left.argmax()])
        device_of_item[item] = device
        used_DR[device] += items.needs_IR[item]
    return device_of_item


def _solved(items: Items, seed: int, time_limit_s: float) -> tuple[list[int] | None, bool]:
    """The device of each item by CP-SAT, or None, and whether it has proven that there is none."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    order = next(_orders(items, None))
    choices = device_variables(model, items, order)
    for one in choices:
        model.add_exactly_one(one.values())
    for device in range(len(items.room_DR)):
        add_room(model, items, order, choices, device)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.interleave_search = True
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = time_limit_s
    status = solver.solve(model)
    assert status != cp_model.MODEL_INVALID, "the integer program is wrong"
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return chosen_devices(solver, order, choices), False
    return None, status == cp_model.INFEASIBLE


def _remedy(task: PlacementTask, items: Items) -> str:
    """With what memory and with how many devices a placement was found, by packing alone."""
    found = []
    if (cap_bytes := _enough_bytes(items)) is not None:
        found.append(f"with room for {gb_rounded_up(cap_bytes)} GB on each device")
    if (num_devices := _enough_devices(task)) is not None:
        found.append(f"with {num_devices} devices")
    if not found:
        return "Neither more memory nor more devices helped: relax the rules on where tables may live."
    remedies = [name for name, value in (("memory_cap_gb", cap_bytes), ("num_devices", num_devices)) if value]
    return f"One was found {' and one '.join(found)}. Raise {' or '.join(remedies)}."


def _enough_bytes(items: Items) -> int | None:
    """Room on each device, if all had the same, for which a placement was found; with 1 % less, none was."""

    def fullest(cap_bytes: int) -> int | None:
        """What the fullest device holds in a packing with so much room on each; None if there is none."""
        room_DR = items.room_DR.copy()
        room_DR[:, 0] = cap_bytes
        device_of_item = _packed(replace(items, room_DR=room_DR))
        if device_of_item is None:
            return None
        return int(np.bincount(device_of_item, weights=items.needs_IR[:, 0]).max())

    total = int(items.needs_IR[:, 0].sum())
    least = max(int(items.needs_IR[:, 0].max()), total // len(items.room_DR), int(items.room_DR[:, 0].min()))
    enough = fullest(total)
    while enough is not None and enough > least * CAP_STEP and enough - least > 1:
        middle = (least + enough) // 2
        held = fullest(middle)
        least, enough = (middle, enough) if held is None else (least, held)
    return enough


def _enough_devices(task: PlacementTask) -> int | None:
    """Devices, the new ones as large as the largest, for which a placement was found."""

    def found(more: int) -> bool:
        caps_bytes = (*task.caps_bytes, *[max(task.caps_bytes)] * more)
        constraints = replace(task.constraints, device_caps_bytes=caps_bytes)
        return _packed(Items.of(replace(task, num_devices=len(caps_bytes), constraints=constraints))) is not None

    enough = next((more for more in _doubling(len(task.tables)) if found(more)), None)
    if enough is None:
        return None
    least = enough // 2
    while enough - least > 1:
        middle = (least + enough) // 2
        least, enough = (least, middle) if found(middle) else (middle, enough)
    return task.num_devices + enough


def _doubling(most: int) -> Iterator[int]:
    """1, 2, 4 and so on; ``most`` at the end."""
    number = 1
    while number < most:
        yield number
        number *= 2
    yield most
