"""A quick way to pack items: one after the other, whole where a device has room, else cut in the first way that fits.

Legend: D devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from evenshard.placement.parts import COLUMN_STEP, TablePart, lay_out
from evenshard.sharders.packing.cuts import Cut, Devices, Grid
from evenshard.sharders.packing.items import PackedItem, PackedItems

RANDOM_ORDERS = 8


@dataclass(frozen=True)
class PackingOrder:
    """How items are packed in turn.

    Attributes:
        order: of the items, by number.
        tightest: an item goes to the device with the least memory left that has room, and parts by columns fill their
            devices; else it goes to the one with the most, and parts are even.
        rows_first: rows are cut before columns.
    """

    order: Sequence[int]
    tightest: bool = False
    rows_first: bool = False


def quick_ways(items: PackedItems) -> Iterator[PackingOrder]:
    """Ways that lead to the end unless memory is tight: what may go to few devices and what cannot be cut is first."""
    all_items = items.items
    bytes_I = np.array([item.size_bytes for item in all_items], dtype=np.int64)
    choices_I = np.array([int(item.allowed_D.sum()) for item in all_items])
    apart_I = np.array([len(item.apart) for item in all_items])
    parts_I = np.array([max((cut.part_bytes for cut in item.cuts), default=0) for item in all_items])
    freedom_I = np.array([_freedom(item) for item in all_items])
    for order in (
        np.lexsort((-bytes_I, -apart_I, freedom_I, choices_I)),
        np.lexsort((-bytes_I, -parts_I, freedom_I, choices_I)),
    ):
        yield PackingOrder(order.tolist())
        yield PackingOrder(order.tolist(), tightest=True)


def more_ways(items: PackedItems, seed: int) -> Iterator[PackingOrder]:
    """Other ways, some of them random."""
    all_items = items.items
    bytes_I = np.array([item.size_bytes for item in all_items], dtype=np.int64)
    choices_I = np.array([int(item.allowed_D.sum()) for item in all_items])
    freedom_I = np.array([_freedom(item) for item in all_items])
    whole_I = np.array([item.may_be_whole for item in all_items])
    for order in (np.lexsort((-bytes_I, freedom_I)), np.lexsort((-bytes_I, whole_I))):
        for tightest in (True, False):
            yield PackingOrder(order.tolist(), tightest, rows_first=True)
    rng = np.random.default_rng(seed)
    for number in range(RANDOM_ORDERS):
        shaken_I = bytes_I * rng.uniform(0.5, 1.0, len(bytes_I))
        order = np.lexsort((-shaken_I, freedom_I, choices_I))
        for tightest in (True, False):
            yield PackingOrder(order.tolist(), tightest, rows_first=number % 2 == 1)


def _freedom(item: PackedItem) -> int:
    """Rank whole items 0, column cuts 1, and row cuts, of which any room takes some, 2."""
    return 2 if item.grid is not None or any(cut.in_rows for cut in item.cuts) else bool(item.cuts)


def pack_in_order(items: PackedItems, way: PackingOrder) -> list[TablePart] | None:
    """Parts of all items on their devices; None at a dead end."""
    left_D = items.room_D.copy()
    taken_D: dict[int, npt.NDArray[np.bool_]] = {}
    found = items.replica_parts()
    for number in way.order:
        item = items.items[number]
        free_D = item.allowed_D
        for group in item.apart:
            free_D = free_D & ~taken_D.setdefault(group, np.zeros(len(left_D), dtype=bool))
        used = _place(item, np.where(free_D, left_D, -1), way)
        if used is None:
            return None
        parts, bytes_of = used
        found += item.with_storage(parts)
        for device, size in bytes_of.items():
            left_D[device] -= size
        for group in item.apart:
            taken_D[group][list(bytes_of)] = True
    return found


_Placed = tuple[list[TablePart], Mapping[int, int]]


def _place(item: PackedItem, left_D: npt.NDArray[np.int64], way: PackingOrder) -> _Placed | None:
    """Place an item where there is room; -1 left means no room for any part."""
    if item.may_be_whole and left_D.max() >= item.size_bytes:
        roomy_D = np.where(left_D >= item.size_bytes, left_D, np.iinfo(np.int64).max if way.tightest else -1)
        device = int(roomy_D.argmin() if way.tightest else roomy_D.argmax())
        return item.whole(device), {device: item.size_bytes}
    cuts = item.cuts[::-1] if way.rows_first else item.cuts
    for cut in cuts:
        for scope in _roomiest(cut, left_D):
            blocks = _in_rows(cut, left_D[scope]) if cut.in_rows else _by_columns(cut, left_D[scope], way.tightest)
            if blocks is not None:
                return _hold(item, cut, scope, blocks)
    if item.grid is not None and (found := _grid(item, left_D)) is not None:
        return found
    known = next((one for one in item.known if one.fit(left_D)), None)
    return None if known is None else (list(known.parts), {at: one.device for at, one in known.taken.items()})


def _hold(item: PackedItem, cut: Cut, scope: Devices, blocks: npt.NDArray[np.int64]) -> _Placed:
    held = {int(scope[at]): int(blocks[at]) for at in np.flatnonzero(blocks)}
    bytes_of = {device: cut.part_bytes + count * cut.block_bytes for device, count in held.items()}
    return cut.parts(item.tables[0], held), bytes_of


def _roomiest(cut: Cut, left_D: npt.NDArray[np.int64]) -> Sequence[Devices]:
    if len(cut.scopes) < 2:
        return cut.scopes
    return sorted(cut.scopes, key=lambda scope: -int(left_D[scope].clip(min=0).sum()))


def most_blocks(cut: Cut, left_D: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Blocks that there is room for on each device; -1 left is no room for any part."""
    left_D = np.where(left_D < 0, -1, left_D - cut.part_bytes)
    most_D = left_D // cut.block_bytes if cut.block_bytes else np.where(left_D < 0, 0, cut.widest)
    most_D = np.asarray(np.where(left_D < 0, 0, most_D.clip(0, cut.widest)))
    return np.where(most_D < cut.least_blocks, 0, most_D)


def _by_columns(cut: Cut, left_D: npt.NDArray[np.int64], tightest: bool) -> npt.NDArray[np.int64] | None:
    most_D = most_blocks(cut, left_D)
    if (found := _in_fewest(cut, most_D, tightest)) is None:
        return None
    chosen, blocks = found
    blocks_D = np.zeros_like(most_D)
    blocks_D[chosen] = blocks
    return blocks_D


def _in_fewest(cut: Cut | Grid, most: npt.NDArray[np.int64], fill: bool) -> tuple[Devices, Devices] | None:
    """Return the fewest places, two at least, with room for all columns, and their blocks."""
    roomy = (-most).argsort(kind="stable")
    enough = most[roomy].cumsum() >= cut.blocks
    if not enough.any():
        return None
    count = max(int(enough.argmax()) + 1, 2)
    chosen = roomy[:count]
    rest = cut.blocks - count * cut.least_blocks
    if len(chosen) < count or not most[chosen[-1]] or rest < 0:
        return None
    return chosen, cut.least_blocks + _spread(rest, most[chosen] - cut.least_blocks, fill)


def _spread(count: int, most: npt.NDArray[np.int64], fill: bool) -> npt.NDArray[np.int64]:
    """Fill one place after the other, or share blocks as evenly as room allows."""
    if fill:
        before = np.concatenate([[0], most.cumsum()[:-1]])
        return np.asarray((count - before).clip(0, most))
    found = np.zeros_like(most)
    for number, at in enumerate(most.argsort(kind="stable").tolist()):
        found[at] = min(-(-(count - int(found.sum())) // (len(most) - number)), int(most[at]))
    return found


def _in_rows(cut: Cut, left_D: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """Share rows evenly, else by room with at least one each; of few rows, over as many devices."""
    most_D = most_blocks(cut, left_D)
    even_D = np.zeros_like(most_D)
    even = cut.even_rows
    in_turn = np.arange(len(most_D)) if len(even) == cut.fills else (-most_D).argsort(kind="stable")
    holders = in_turn[: len(even)]
    even_D[holders] = even.step
    even_D[holders[-1]] -= int(even_D.sum()) - cut.blocks
    if len(holders) == len(even) and (even_D <= most_D).all():
        return even_D
    if len(most_D) < cut.fills or cut.blocks < len(most_D) or not most_D.all():
        return None
    rows = _in_proportion(cut.blocks - len(most_D), most_D - 1)
    return None if rows is None else 1 + rows


def _in_proportion(count: int, most: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    total = int(most.sum())
    if total < count:
        return None
    found = (most * (count / max(total, 1) * (1 - 1e-12))).astype(np.int64)  # whatever is rounded, not too many
    return np.asarray(found + _spread(count - int(found.sum()), most - found, fill=True))


def _grid(item: PackedItem, left_D: npt.NDArray[np.int64]) -> _Placed | None:
    """Cut columns evenly over the fewest nodes, and each part's rows over the node's devices."""
    grid = item.grid
    assert grid is not None
    most = np.array([grid.most_blocks(left_D[node]) for node in grid.nodes])
    if (found := _in_fewest(grid, most, fill=False)) is None:
        return None
    parts: list[TablePart] = []
    bytes_of: dict[int, int] = {}
    chosen, blocks = found
    for at, columns in zip(chosen, lay_out((COLUMN_STEP * blocks).tolist()), strict=True):
        node = grid.nodes[at]
        rows_cut = grid.rows_cut(columns.size // COLUMN_STEP, node)
        if (rows := _in_rows(rows_cut, left_D[node])) is None:
            return None
        of_node, node_bytes = _hold(item, rows_cut, node, rows)
        parts += [replace(part, columns=columns) for part in of_node]
        bytes_of.update(node_bytes)
    return parts, bytes_of
