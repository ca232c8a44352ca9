"""A placement as an integer program: zero-one variables, one for each item and device it may go to.

Legend: I items, D devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evenshard.placement.items import Items, canonical_devices

Choices = list[dict[int, Any]]
"""For each item of an order, its variables by device: 1 where it goes."""


def device_variables(model: Any, items: Items, order: Sequence[int]) -> Choices:
    """The variables of a model of CP-SAT.

    Devices of one kind can swap names. Each of them is named by the first item of the order that it holds, so that the
    solver does not see the same placement twice: item i of the order has a variable for the first i + 1 of a kind.

    Args:
        model: the model that gets the variables.
        items: the items to place.
        order: order of the items.
    """
    kinds = items.device_kinds()
    rank_D = [kinds[:device].count(kind) for device, kind in enumerate(kinds)]
    return [
        {device: model.new_bool_var("") for device, rank in enumerate(rank_D) if rank <= number and allowed[device]}
        for number, allowed in enumerate(items.allowed_ID[list(order)].tolist())
    ]


def add_room(model: Any, items: Items, order: Sequence[int], choices: Choices, device: int) -> None:
    """What a device holds fits its room: the rule of ``legal_mask``, as constraints.

    Args:
        model: the model that gets the constraints.
        items, order, choices: the candidates for the device.
        device: the device with the room.
    """
    from ortools.sat.python import cp_model

    here = [(one[device], item) for one, item in zip(choices, order, strict=True) if device in one]
    for kind, room in enumerate(items.room_DR[device].tolist()):
        needs = [(variable, int(items.needs_IR[item, kind])) for variable, item in here]
        variables, weights = [variable for variable, _ in needs], [need for _, need in needs]
        model.add(cp_model.LinearExpr.weighted_sum(variables, weights) <= room)


def add_hint(model: Any, items: Items, order: Sequence[int], choices: Choices, device_of_item: Sequence[int]) -> None:
    """Where the solver begins: at a legal placement, with its devices named as the variables are."""
    hinted = canonical_devices([device_of_item[item] for item in order], items.device_kinds())
    for one, device in zip(choices, hinted, strict=True):
        for name, variable in one.items():
            model.add_hint(variable, name == device)


def chosen_devices(solver: Any, order: Sequence[int], choices: Choices) -> list[int]:
    """The device of each item in the solver's answer."""
    device_of_item = [0] * len(order)
    for item, one in zip(order, choices, strict=True):
        device_of_item[item] = next(device for device, variable in one.items() if solver.boolean_value(variable))
    return device_of_item
