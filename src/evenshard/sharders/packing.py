"""Packing: a search for any legal placement, by several orders, then by a solver; costs do not matter here.

What is packed are items, in one piece or cut into blocks: a table of 64 columns is sixteen blocks of four, and the
blocks of it on one device are one part. The input is pieces; the output is where their blocks live, or a proof that
there is no way, or neither.

Legend: I items, D devices, R kinds of room.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from evenshard.placement.feasibility import no_placement_found, require_room
from evenshard.placement.items import Items
from evenshard.placement.placement import Placement, check_placement, legal_mask
from evenshard.placement.task import PlacementTask
from evenshard.sharders.integer_program import add_room, device_variables
from evenshard.utils.errors import MissingPackage
from evenshard.utils.extras import require_package

MAX_PAIRS = 150_000
"""Items times devices that the solver is given; it then needs about 1 GB."""
TIME_LIMIT_S = 10.0
RANDOM_ORDERS = 8


@dataclass(frozen=True)
class Pieces:
    """What is packed.

    Attributes:
        items: the items in one piece. Of memory a part takes what its blocks do; of other kinds of room, as much as the
            whole.
        blocks_I: equal blocks that an item can be cut into; 1: it stays in one piece.
        part_bytes_I: memory of each part beside its blocks, such as an optimizer's state of each row.
    """

    items: Items
    blocks_I: npt.NDArray[np.int64]
    part_bytes_I: npt.NDArray[np.int64]

    @staticmethod
    def whole(items: Items) -> Pieces:
        """Items of which none may be cut."""
        count = len(items.members)
        return Pieces(items, np.ones(count, dtype=np.int64), np.zeros(count, dtype=np.int64))

    @cached_property
    def block_bytes_I(self) -> npt.NDArray[np.int64]:
        """What a block takes."""
        return np.asarray((self.items.needs_IR[:, 0] - self.part_bytes_I) // self.blocks_I)

    @cached_property
    def parts(self) -> Items:
        """The items as their parts take room, whatever blocks they hold."""
        needs_IR = self.items.needs_IR.copy()
        needs_IR[:, 0] = self.part_bytes_I
        return replace(self.items, needs_IR=needs_IR)

    def takes_DR(self, item: int, blocks_D: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """What these blocks of an item take."""
        takes_DR = (blocks_D > 0)[:, None] * self.parts.needs_IR[item]
        takes_DR[:, 0] += blocks_D * self.block_bytes_I[item]
        return np.asarray(takes_DR)

    def most_blocks_D(self, item: int, used_DR: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Blocks of an item that there is room for on each device, with so much taken already."""
        size, blocks = int(self.block_bytes_I[item]), int(self.blocks_I[item])
        left_D = self.items.room_DR[:, 0] - used_DR[:, 0] - self.part_bytes_I[item]
        legal_D = legal_mask(used_DR[:, 1:], self.items.needs_IR[item, 1:], self.items.room_DR[:, 1:]).all(axis=1)
        most_D = np.minimum(left_D // size, blocks) if size else np.where(left_D < 0, 0, blocks)
        return np.where(legal_D & self.items.allowed_ID[item], most_D.clip(min=0), 0)

    def least_parts_I(self) -> npt.NDArray[np.int64]:
        """Parts that each item has at least; 0 where all devices together have no room for it."""
        nothing_DR = np.zeros_like(self.items.room_DR)
        most_ID = np.array([self.most_blocks_D(item, nothing_DR) for item in range(len(self.blocks_I))])
        enough_ID = (-np.sort(-most_ID, axis=1)).cumsum(axis=1) >= self.blocks_I[:, None]
        return np.where(enough_ID.any(axis=1), enough_ID.argmax(axis=1) + 1, 0)


@dataclass(frozen=True)
class Packed:
    """How a packing ended.

    Attributes:
        blocks_ID: blocks of each item on each device; None where no way was found.
        why_not: reason in words: there is none, or none was found; empty where one was.
        impossible: there is none: that is proven.
    """

    blocks_ID: npt.NDArray[np.int64] | None
    why_not: str = ""
    impossible: bool = False


def any_placement(task: PlacementTask, seed: int = 0, time_limit_s: float = TIME_LIMIT_S) -> Placement:
    """Some legal placement; the same arguments give the same one.

    Args:
        task: the task to place.
        seed, time_limit_s: the same as in ``pack``.

    Raises:
        InfeasibleTask: if there is none, or none was found in time; the message says which of the two.
    """
    require_room(task)
    items = Items.of(task)
    packed = pack(Pieces.whole(items), seed, time_limit_s)
    if packed.blocks_ID is None:
        raise no_placement_found(task, packed.why_not)
    placement = items.placement(packed.blocks_ID.argmax(axis=1).tolist())
    check_placement(task, placement)
    return placement


def pack(pieces: Pieces, seed: int = 0, time_limit_s: float = TIME_LIMIT_S) -> Packed:
    """Some way to live within the room; the same arguments give the same one.

    Args:
        pieces: the pieces to pack.
        seed: seed of random orders and of the solver.
        time_limit_s: the solver's own seconds, which count its steps; each is one to three seconds of one core.
    """
    if (blocks_ID := packed_in_order(pieces, seed)) is not None:
        return Packed(blocks_ID)
    if pieces.items.allowed_ID.size > MAX_PAIRS:
        return Packed(None, "no placement was found by packing (the task is too large to solve exactly)")
    try:
        require_package("ortools")
    except MissingPackage as error:
        return Packed(None, f"no placement was found by packing ({error})")
    return _solved(pieces, seed, time_limit_s)


def packed_in_order(pieces: Pieces, seed: int | None = None) -> npt.NDArray[np.int64] | None:
    """[I, D] blocks by the first order that leads to the end; None if none does.

    Args:
        pieces: the pieces to pack.
        seed: seed of a few random orders; None leaves them out.
    """
    if not pieces.least_parts_I().all():
        return None
    for order in _orders(pieces, seed):
        for tightest in (True, False):
            if (found := _fill(pieces, order, tightest)) is not None:
                return found
    return None


def _orders(pieces: Pieces, seed: int | None) -> Iterator[Sequence[int]]:
    """The hardest to place first: what may go to few devices, then what stays in one piece."""
    items, cut_I = pieces.items, pieces.blocks_I > 1
    bytes_I, apart_I = items.needs_IR[:, 0], items.needs_IR[:, 1:].sum(axis=1)
    choices_I = items.allowed_ID.sum(axis=1)
    yield np.lexsort((-bytes_I, -apart_I, cut_I, choices_I)).tolist()
    yield np.lexsort((-bytes_I, -pieces.part_bytes_I, cut_I, choices_I)).tolist()
    if seed is None:
        return
    yield np.lexsort((-bytes_I, cut_I)).tolist()
    rng = np.random.default_rng(seed)
    for _ in range(RANDOM_ORDERS):
        shaken_I = bytes_I * rng.uniform(0.5, 1.0, len(bytes_I))
        yield np.lexsort((-shaken_I, cut_I, choices_I)).tolist()


def _fill(pieces: Pieces, order: Sequence[int], tightest: bool) -> npt.NDArray[np.int64] | None:
    """[I, D] blocks, item after item; None at a dead end.

    Args:
        pieces: the pieces to pack.
        order: order of the items.
        tightest: True: an item goes to the legal device with the least memory left; False: to the one with the most.
            What no device has room for is cut: into parts that fill their devices, or into even ones.
    """
    items, blocks_ID = pieces.items, np.zeros(pieces.items.allowed_ID.shape, dtype=np.int64)
    used_DR = np.zeros_like(items.room_DR)
    for item in order:
        legal = np.flatnonzero(items.legal_D(item, used_DR))
        if len(legal):
            left = items.room_DR[legal, 0] - used_DR[legal, 0]
            blocks_ID[item, legal[left.argmin() if tightest else left.argmax()]] = pieces.blocks_I[item]
        elif (blocks_D := _cut(pieces, item, used_DR, tightest)) is not None:
            blocks_ID[item] = blocks_D
        else:
            return None
        used_DR += pieces.takes_DR(item, blocks_ID[item])
    return blocks_ID


def _cut(pieces: Pieces, item: int, used_DR: npt.NDArray[np.int64], tightest: bool) -> npt.NDArray[np.int64] | None:
    """[D] blocks of an item in the fewest parts that there is room for; None if there is not enough."""
    most_D, blocks = pieces.most_blocks_D(item, used_DR), int(pieces.blocks_I[item])
    freest = (-most_D).argsort(kind="stable")
    enough = most_D[freest].cumsum() >= blocks
    if not enough.any():
        return None
    blocks_D, count = np.zeros_like(most_D), int(enough.argmax()) + 1
    if tightest:
        full, others = freest[: count - 1], freest[count - 1 :]
        blocks_D[full] = most_D[full]
        rest = blocks - int(blocks_D.sum())
        blocks_D[others[most_D[others] >= rest][-1]] = rest
        return blocks_D
    for number, device in enumerate(freest[count - 1 :: -1]):  # what the fuller ones cannot take goes to the freer ones
        even = -(-(blocks - int(blocks_D.sum())) // (count - number))
        blocks_D[device] = min(even, int(most_D[device]))
    return blocks_D


def _solved(pieces: Pieces, seed: int, time_limit_s: float) -> Packed:
    """What CP-SAT finds, or proves."""
    from ortools.sat.python import cp_model

    model, parts, sizes = cp_model.CpModel(), pieces.parts, pieces.block_bytes_I.tolist()
    order = next(_orders(pieces, None))
    cut = [item for item in order if pieces.blocks_I[item] > 1]
    choices = device_variables(model, parts, order, named=not cut)
    held: dict[int, Mapping[int, Any]] = {}
    for item, one in zip(order, choices, strict=True):
        held[item] = _block_variables(model, int(pieces.blocks_I[item]), one)
    for device in range(len(parts.room_DR)):
        here = [(blocks[device], sizes[item]) for item, blocks in held.items() if device in blocks]
        add_room(model, parts, order, choices, device, here)
    if cut:  # devices of one kind can swap names: they are named by how much of the largest item they hold
        largest = held[max(cut, key=lambda item: int(pieces.items.needs_IR[item, 0]))]
        kinds = parts.device_kinds()
        for kind in set(kinds):
            alike = [largest[device] for device in largest if kinds[device] == kind]
            for more, less in pairwise(alike):
                model.add(more >= less)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.interleave_search = True
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = time_limit_s
    status = solver.solve(model)
    assert status != cp_model.MODEL_INVALID, "the integer program is wrong"
    if status == cp_model.INFEASIBLE:
        return Packed(None, "no placement fits", impossible=True)
    if status == cp_model.UNKNOWN:
        return Packed(None, f"no placement was found in {time_limit_s:g} s of the solver")
    blocks_ID = np.zeros(parts.allowed_ID.shape, dtype=np.int64)
    for item, blocks in held.items():
        for device, variable in blocks.items():
            blocks_ID[item, device] = solver.value(variable)
    return Packed(blocks_ID)


def _block_variables(model: Any, count: int, one: Mapping[int, Any]) -> Mapping[int, Any]:
    """How many of an item's blocks each device holds.

    Args:
        model: a model of CP-SAT.
        count: number of its blocks.
        one: 1 where a device may hold some, by device.
    """
    if count == 1:
        model.add_exactly_one(one.values())
        return one
    blocks = {device: model.new_int_var(0, count, "") for device in one}
    model.add(sum(blocks.values()) == count)
    for device, variable in one.items():
        model.add(blocks[device] <= count * variable)
    return blocks
