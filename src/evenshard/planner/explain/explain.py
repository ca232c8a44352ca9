"""An explanation: what each device would cost with a table on it, whether that is legal, and the next best move.

What moves is an item: a part of a table, or tables that a rule keeps together. A swap moves one item there and another
one back. Either leaves all other devices as they are: two are predicted again, and a step takes the slowest of all.

Legend: T parts, I items, D devices, H columns, R kinds of room.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from evenshard.measure.evidence import device_text
from evenshard.placement.feasibility import gb_rounded_up
from evenshard.placement.items import Items
from evenshard.placement.parts import TablePart
from evenshard.placement.placement import legal_mask, tables_text
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.explain.explanation import DeviceOption, Explanation, Move, PartExplanation
from evenshard.sharders.convex_search.cost_model import ROUNDING, CostModel
from evenshard.sharders.models import PlacementModel
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief, cut
from evenshard.utils.process import one_thread

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@one_thread()
def explain(answer: PlacementAnswer, model: PlacementModel, table: str) -> Explanation:
    """What a table costs where it lives, and what it would elsewhere.

    Args:
        model: predicts everything again; the answer's own figures are not used.
        table: its name, or that of a part such as "clicks[64:128]".

    Raises:
        BadConfig: if the answer has no such table, or keeps tables apart that its own rules keep together.
    """
    wholes = {part.table for part in answer.parts}
    named = [
        number
        for number, (part, as_table) in enumerate(zip(answer.parts, answer.task.tables, strict=True))
        if table == (part.table if table in wholes else as_table.name)
    ]
    if not named:
        raise BadConfig(f"there is no table {brief(table)} in this placement. {_close(table, answer.parts)}")
    now = _Now(answer, model.cost_model)
    return Explanation(
        table=answer.parts[named[0]].table,
        model=model.source,
        device=device_text(model.trained_on.hardware, model.trained_on.device_error),
        step_ms=now.step_ms,
        slowest_device=int(now.ms_D.argmax()),
        parts=tuple(_explained(answer, now, number) for number in named),
    )


def _close(table: str, parts: tuple[TablePart, ...]) -> str:
    names = list(dict.fromkeys(part.table for part in parts))
    close = difflib.get_close_matches(cut(table), names) or [one for one in names if one.lower() == table.lower()]
    if close:
        return f"Did you mean {' or '.join(map(brief, close))}?"
    return f"It has {len(names)}: {', '.join(map(cut, names[:3]))}{', ...' if len(names) > 3 else ''}."


def _explained(answer: PlacementAnswer, now: _Now, number: int) -> PartExplanation:
    part, item, task = answer.parts[number], int(now.items.item_of_T[number]), answer.task
    as_table, device = task.tables[number], answer.device_of_table[number]
    left_1H = (now.sums_DH[device] - now.columns_TH[number])[None]
    (left_ms,), _, (without_ms,) = (ms.tolist() for ms in now.step(device, left_1H, np.array([device]), left_1H))
    return PartExplanation(
        name=as_table.name,
        rows=part.rows,
        columns=part.columns,
        device=device,
        weight_bytes=as_table.size_bytes,
        state_bytes=task.table_bytes[number] - as_table.size_bytes,
        moves_with=tuple(task.tables[other].name for other in now.items.members[item] if other != number),
        alone_ms=now.alone_ms(number),
        adds_ms=float(now.ms_D[device]) - left_ms,
        device_ms=float(now.ms_D[device]),
        on_slowest=bool(now.ms_D[device] >= now.step_ms),
        without_ms=without_ms,
        options=tuple(_options(answer, now, item)),
        best=_best(now, item),
    )


class _Now:
    """The placement as it is, and what a device costs as a function of what it holds.

    Sums are kept in float64 and predicted in float32: what comes and goes leaves nothing behind.
    """

    def __init__(self, answer: PlacementAnswer, model: CostModel) -> None:
        task = answer.task
        self.items = Items.of(task)
        for members in self.items.members:
            devices = sorted({answer.device_of_table[position] for position in members})
            if len(devices) > 1:
                raise BadConfig(
                    f"tables {tables_text(task, members)} must stay together, but are on {devices_text(devices)}. "
                    f"Place them again."
                )
        self.names = [table.name for table in task.tables]
        self.device_of_I = np.array(self.items.devices(answer))
        self.columns_TH = model.represent(task.tables, task.batch_size).double()
        num_columns = self.columns_TH.shape[1]
        self.columns_IH = self.columns_TH.new_zeros(len(self.items.members), num_columns)
        self.columns_IH.index_add_(0, torch.from_numpy(self.items.item_of_T), self.columns_TH)
        self.sums_DH = self.columns_TH.new_zeros(task.num_devices, num_columns)
        self.sums_DH.index_add_(0, torch.tensor(answer.device_of_table), self.columns_TH)
        self.used_DR = np.zeros_like(self.items.room_DR)
        np.add.at(self.used_DR, self.device_of_I, self.items.needs_IR)
        self._model, self._task, self._total_dims = model, task, float(self.columns_TH[:, 0].sum())
        self.dims_D = self.sums_DH[:, 0].numpy()
        self.ms_D = self.device_ms(self.sums_DH, self.dims_D.max())
        self.step_ms = float(self.ms_D.max())

    def device_ms(self, sums_NH: torch.Tensor, most_dims: Floats | None = None) -> Floats:
        """[N] predicted times of devices with these sums of columns; 0 for an empty one.

        Args:
            most_dims: dims of the device that then holds most; None takes each device for that one.
        """
        most = None if most_dims is None else torch.as_tensor(most_dims)
        context = (self._total_dims, self._task.num_devices, self._task.batch_size, most)
        return np.asarray(self._model.device_ms(sums_NH.float(), *context).double().numpy())

    def step(
        self, home: int, home_NH: torch.Tensor, there_N: Ints, there_NH: torch.Tensor
    ) -> tuple[Floats, Floats, Floats]:
        """[N] predicted times of two devices with other sums of columns, and of the slowest of all devices then.

        Args:
            home: the first device.
            home_NH: its sums.
            there_N: the second device; the first one where it is the only one that changes.
            there_NH: the second's sums.
        """
        most_N = np.maximum(home_NH[:, 0].numpy(), there_NH[:, 0].numpy())
        most_N = np.maximum(most_N, _highest_of_rest(self.dims_D, home)[there_N])
        home_ms_N, there_ms_N = self.device_ms(home_NH, most_N), self.device_ms(there_NH, most_N)
        waits = torch.from_numpy(np.append(most_N, self.dims_D.max()))
        *wait_N, wait = self._model.wait_ms(waits, self._task.num_devices, self._task.batch_size).tolist()
        rest_N = _highest_of_rest(self.ms_D, home)[there_N]
        rest_N = np.where(rest_N > 0, rest_N + np.array(wait_N) - wait, 0.0)
        return home_ms_N, there_ms_N, np.maximum(np.maximum(home_ms_N, there_ms_N), rest_N)

    def alone_ms(self, number: int) -> float:
        """What a device takes at least that holds a part. An exchange is shortest at the even share of the dims."""
        column_1H = self.columns_TH[number : number + 1].clone()
        column_1H[:, 0].clamp_(min=self._total_dims / self._task.num_devices)
        return float(self.device_ms(column_1H)[0])


def _highest_of_rest(values_D: Floats, device: int) -> Floats:
    """[D] the highest value of all devices but ``device`` and each; 0 where there is no other."""
    rest_DD = np.where(np.eye(len(values_D), dtype=bool), 0.0, values_D)
    rest_DD[:, device] = 0.0
    return np.asarray(rest_DD.max(axis=1))


def _options(answer: PlacementAnswer, now: _Now, item: int) -> Iterator[DeviceOption]:
    """The devices with the item on them."""
    home = int(now.device_of_I[item])
    column_H = now.columns_IH[item]
    with_it_DH = now.sums_DH + column_H
    with_it_DH[home] = now.sums_DH[home]
    left_DH = (now.sums_DH[home] - column_H).expand_as(with_it_DH)
    _, ms_D, step_D = now.step(home, left_DH, np.arange(len(now.ms_D)), with_it_DH)
    ms_D[home], step_D[home] = now.ms_D[home], now.step_ms
    used_DR = now.used_DR.copy()
    used_DR[home] -= now.items.needs_IR[item]
    legal_D = now.items.legal_D(item, used_DR)
    for device in range(len(ms_D)):
        yield DeviceOption(
            device=device,
            device_ms=float(ms_D[device]),
            step_ms=float(step_D[device]),
            change_ms=float(step_D[device]) - now.step_ms,
            used_bytes=int(used_DR[device, 0] + now.items.needs_IR[item, 0]),
            room_bytes=int(now.items.room_DR[device, 0]),
            illegal=() if legal_D[device] else tuple(_reasons(answer, now, item, device, used_DR[device])),
        )


def _reasons(answer: PlacementAnswer, now: _Now, item: int, device: int, used_R: Ints) -> Iterator[str]:
    """Why an item may not live on a device that holds so much already, in clauses."""
    items, rules = now.items, answer.request.rules
    if not items.allowed_ID[item, device]:
        if device in rules.forbidden_devices:
            yield "no table may live there"
        for name in dict.fromkeys(answer.parts[position].table for position in items.members[item]):
            if device not in rules.pinned.get(name, (device,)):
                yield f"{name} is pinned to {devices_text(rules.pinned[name])}"
            if device in rules.forbidden.get(name, ()):
                yield f"forbidden for {name}"
    need_R, room_R = items.needs_IR[item], items.room_DR[device]
    legal_R = legal_mask(used_R, need_R, room_R) | (need_R == 0)
    if not legal_R[0]:
        yield f"{gb_rounded_up(int(used_R[0] + need_R[0] - room_R[0]))} GB is missing"
    for kind in np.flatnonzero(~legal_R[1:]).tolist():
        group = answer.task.constraints.apart[kind]
        there = [n for n in group if answer.device_of_table[n] == device and n not in items.members[item]]
        yield f"must stay apart from {tables_text(answer.task, there)}"


def devices_text(devices: Sequence[int]) -> str:
    """Device ids for a person."""
    return f"device{'s' if len(devices) > 1 else ''} {', '.join(map(str, devices))}"


def _best(now: _Now, item: int) -> Move | None:
    """The legal move or swap with the fastest step; of equals, the one after which the devices work least together.

    Every swap and every move is asked for in one go: a move is a swap with nothing.
    """
    items, home = now.items, int(now.device_of_I[item])
    # [N] what comes back (-1: nothing), and the device it comes from.
    devices = np.arange(len(now.ms_D))
    back_N = np.concatenate([np.full(len(devices), -1), np.arange(len(items.members))])
    there_N = np.concatenate([devices, now.device_of_I])
    legal_N = (there_N != home) & items.allowed_ID[item, there_N]
    legal_N &= (back_N < 0) | items.allowed_ID[back_N, home]
    zero_H, none_R = now.columns_IH.new_zeros(1, now.columns_IH.shape[1]), np.zeros_like(items.needs_IR[:1])
    back_NR = np.concatenate([items.needs_IR, none_R])[back_N]
    own_R = items.needs_IR[item]
    legal_N &= _fits_N(now.used_DR[home] - own_R, back_NR, items.room_DR[home])
    legal_N &= _fits_N(now.used_DR[there_N] - back_NR, np.broadcast_to(own_R, back_NR.shape), items.room_DR[there_N])
    back_N, there_N = back_N[legal_N], there_N[legal_N]
    if not len(back_N):
        return None

    back_NH = torch.cat([now.columns_IH, zero_H])[torch.from_numpy(back_N)]
    from_NH = now.sums_DH[home] - now.columns_IH[item] + back_NH
    to_NH = now.sums_DH[torch.from_numpy(there_N)] - back_NH + now.columns_IH[item]
    from_ms_N, to_ms_N, step_ms_N = now.step(home, from_NH, there_N, to_NH)
    # Two devices that trade what they hold, or parts that are alike: nothing but names would change.
    home_ms, there_ms_N = now.ms_D[home], now.ms_D[there_N]
    same_N = np.isclose(np.maximum(from_ms_N, to_ms_N), np.maximum(home_ms, there_ms_N), ROUNDING, atol=0)
    same_N &= np.isclose(np.minimum(from_ms_N, to_ms_N), np.minimum(home_ms, there_ms_N), ROUNDING, atol=0)
    if same_N.all():
        return None
    more_ms_N = from_ms_N + to_ms_N - there_ms_N  # of the two devices together, but for what never changes
    grain_ms = ROUNDING * now.step_ms
    best = int(np.lexsort(((more_ms_N / grain_ms).round(), (step_ms_N / grain_ms).round(), same_N))[0])
    change_ms = float(step_ms_N[best]) - now.step_ms
    return Move(
        to_device=int(there_N[best]),
        swap_with=tuple(now.names[n] for n in items.members[back_N[best]]) if back_N[best] >= 0 else (),
        from_ms=float(from_ms_N[best]),
        to_ms=float(to_ms_N[best]),
        step_ms=float(step_ms_N[best]),
        change_ms=change_ms,
        helps=change_ms < -grain_ms,
    )


def _fits_N(used: Ints, needs_NR: Ints, room: Ints) -> Bools:
    """[N] whether all kinds of room suffice; what needs nothing of a kind asks nothing of it."""
    return np.asarray((legal_mask(used, needs_NR, room) | (needs_NR == 0)).all(axis=1))
