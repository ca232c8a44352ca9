"""Starts that keep some devices for narrow pieces, for tables of many widths.

The widest piece of a kernel call decides how many lanes all of its rows take. So wide tables belong together, unless
few of their rows are looked up: then it is better to cut them into pieces that are narrow enough for other devices. No
single change leads to such a placement, and with one width for all devices each table is cut, or none.

So devices are divided into classes: a class holds pieces of up to so many columns. How many devices each has is varied
step by step. For each division, a linear programme says which option and class each group takes (``programme.py``).

Legend: G groups, O options of a group, C classes of devices, W windows of a step, M choices of a group (an option on a
class; pieces that live on several devices are on all classes, whose number is then C), N options of all groups, P
looked-up rows of columns, H columns, D devices.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import permutations, product

import numpy as np

from evenshard.measure.price.device_price import Columns, passes_alone_ms
from evenshard.measure.price.step import dense_ms
from evenshard.measure.step_time import Phases, hides_inputs, windows
from evenshard.sharders.search.construction import Construction, Places, beside, first_rows, mean_device
from evenshard.sharders.search.programme import NEVER_MS, Division, Numbers, Programme, Solution
from evenshard.sharders.search.space import FULL_SHARE, SearchSpace
from evenshard.sharders.search.state import Choice, State
from evenshard.tables.reuse import FloatArray

# Steps of the prices: to compare divisions, and for those that become starts.
FEW_STEPS, STEPS = 60, 200
MOST_DIVISIONS, MOST_STARTS = 6, 4
# Limits on the time of a piece, in the bound of the programme: that shares out whatever is whole.
LIMITS = (np.inf, 0.7, 0.5, 0.35)
# Memory that is filled where more than ``FULL_SHARE`` of it is needed, in the least that tables need.
LITTLE_MORE = 1.002


def narrow_starts(construction: Construction, deadline: float = np.inf) -> list[State]:
    """Return the best of these starts; none where all tables take as many lanes, or devices are of several kinds.

    Args:
        construction: finds devices for pieces.
        deadline: of ``time.monotonic``, after which no more are made.
    """
    space = construction.space
    devices, widths = space.task.num_devices, [*space.lane_limits, int(space.widest_G.max())]
    if space.offloads or devices == 1 or len(space.costs.kinds) > 1 or len(widths) == 1:
        return []
    programme = _programme_of(space, widths)
    if programme is None:
        return []
    found: dict[tuple[Division, bytes], State | None] = {}
    limits = LIMITS if space.is_small else LIMITS[:1]
    for (division, bound_ms), limit in product(_best_divisions(programme, deadline), limits):
        if time.monotonic() >= deadline:
            break
        solution = programme.solve(division, STEPS, limit * bound_ms)
        if solution is None or (key := (division, solution.choices_G.tobytes())) in found:
            continue
        choices = _place(construction, programme, division, solution)
        found[key] = None if choices is None else State(space, choices)
    states = (state for state in found.values() if state is not None)
    return sorted(states, key=lambda state: state.cost_ms)[:MOST_STARTS]


def _best_divisions(programme: Programme, deadline: float) -> list[tuple[Division, float]]:
    """Descend to the divisions with the least bounds."""
    known: dict[Division, float] = {}

    def bound_ms(division: Division) -> float:
        if division not in known:
            solution = programme.solve(division, FEW_STEPS)
            known[division] = float("inf") if solution is None else solution.bound_ms
        return known[division]

    devices, classes = programme.num_devices, programme.num_classes
    own, step = devices // classes, max(devices // 4, 1)
    best: Division = (*[own] * (classes - 1), devices - own * (classes - 1))
    while True:
        nearest = min(_neighbours(best, step), key=bound_ms)
        if bound_ms(nearest) < bound_ms(best) and time.monotonic() < deadline:
            best = nearest
        elif step > 1 and time.monotonic() < deadline:
            step //= 2
        else:
            return sorted(known.items(), key=lambda one: one[1])[:MOST_DIVISIONS]


def _neighbours(division: Division, step: int) -> Iterator[Division]:
    """Yield divisions in which a class gives ``step`` devices, or all it has, to another."""
    for giving, taking in permutations(range(len(division)), 2):
        if given := min(step, division[giving]):
            changed = list(division)
            changed[giving] -= given
            changed[taking] += given
            yield tuple(changed)


def _programme_of(space: SearchSpace, widths_C: Sequence[int]) -> Programme | None:
    """Return None if the smallest options exceed memory; ``widths_C`` is of the widest piece of each class."""
    flat, devices = space.flat, space.task.num_devices
    room = float(space.room_D.min())
    needed = float(flat.pad_by_group(flat.bytes_W).min(axis=1).sum())
    if room <= 0 or needed > space.room_D.sum():
        return None
    options = [option for group in space.groups for option in group.options]
    widest_N, counts_N = np.zeros(len(options), dtype=np.int64), np.array([len(one.pieces) for one in options])
    np.maximum.at(widest_N, flat.option_A, _widths_of_pieces(space))
    is_spread_N, homes_N = flat.copies_W > 1, devices // np.array([one.home_span for one in options])
    held_CH = _mean_devices(space, widths_C)
    works_CWN = [
        *(
            np.where(~is_spread_N & (widest_N <= width), _works_beside(space, held_H), np.inf)
            for width, held_H in zip(widths_C, held_CH, strict=True)
        ),
        np.where(is_spread_N, _works_beside(space, held_CH[0]), np.inf),
    ]
    works_CWGO = np.array([[flat.pad_by_group(works_N) for works_N in of_class] for of_class in works_CWN])
    class_M, option_M = np.nonzero(np.isfinite(works_CWGO[:, 0]).any(axis=1))
    works_WGM = np.ascontiguousarray(works_CWGO[class_M, :, :, option_M].transpose(1, 2, 0))

    def of_choices(values_N: FloatArray) -> FloatArray:
        values_GO = flat.pad_by_group(values_N.astype(np.float64))
        return np.where(np.isfinite(values_GO), values_GO, 0.0)[:, option_M]

    return Programme(
        option_M,
        class_M,
        np.where(np.isfinite(works_WGM), works_WGM, NEVER_MS),
        bytes_GM=of_choices(flat.bytes_W),
        pieces_GM=of_choices(counts_N * flat.copies_W),
        needed_GM=of_choices(np.where(is_spread_N, 0, counts_N * homes_N)),
        num_classes=len(widths_C),
        num_devices=devices,
        room=room,
        full_share=min(max(FULL_SHARE, LITTLE_MORE * needed / (devices * room)), 1.0),
    )


def _widths_of_pieces(space: SearchSpace) -> Numbers:
    """Return the columns of all pieces; of tables that stay together, of the widest."""
    return np.array(
        [
            piece.columns if len(group.tables) == 1 else widest
            for group, widest in zip(space.groups, space.widest_G.tolist(), strict=True)
            for option in group.options
            for piece in option.pieces
        ]
    )


def _mean_devices(space: SearchSpace, widths_C: Sequence[int]) -> Columns:
    """Return mean devices as if all tables were of a class: sums over tables, maxima over pieces."""
    (price,), (columns_PH,), flat = space.costs.prices, space.lookups.columns_KPH, space.flat
    width_P, sums = np.zeros(len(columns_PH), dtype=np.int64), slice(columns_PH.shape[1] - price.num_maxima)
    width_P[flat.row_C] = _widths_of_pieces(space)[flat.piece_C]
    wholes, found = first_rows(space), []
    for width in widths_C:
        own = np.array(wholes)[space.widest_G <= width].tolist()
        mean_H = mean_device(space, 0, own, np.flatnonzero(width_P <= width).tolist())
        mean_H[sums] *= len(wholes) / len(own)
        found.append(mean_H)
    return np.array(found)


def _works_beside(space: SearchSpace, held_H: Columns) -> FloatArray:
    """Sum the work that options add to devices that already hold so much, [W, N]."""
    flat, costs, task = space.flat, space.costs, space.task
    (price,), (columns_PH,) = costs.prices, space.lookups.columns_KPH
    added_2P = passes_alone_ms(price, beside(price, columns_PH, held_H)) - passes_alone_ms(price, held_H[None])
    forward_N, backward_N = (flat.sum_by_option(of_pass_P) for of_pass_P in np.maximum(added_2P, 0.0))
    inputs_N, out_N, back_N = (flat.volume_WV @ costs.slopes_V3(np.ones(task.num_devices))).T
    if hides_inputs(costs.pipeline):
        inputs_N = np.zeros_like(inputs_N)
    back_N = back_N + flat.values_W * costs.exchange_slopes[1]
    backward_N = backward_N + flat.values_W * dense_ms(1.0, costs.kinds[0].bytes_per_ns, task.optimizer)
    phases = Phases(inputs_N, forward_N, out_N, back_N, backward_N)
    return np.array([one.total * flat.copies_W for one in windows(phases, costs.pipeline)])


def _place(
    construction: Construction, programme: Programme, division: Division, solution: Solution
) -> list[Choice] | None:
    """Place the costliest piece first, each where windows stay the shortest."""
    space, devices = construction.space, programme.num_devices
    class_D = np.empty(devices, dtype=np.int64)
    by_node = np.arange(devices).reshape(space.task.machine.num_nodes, -1).T.ravel()  # each class is on all nodes alike
    class_D[by_node] = np.repeat(np.arange(len(division)), division)
    groups, chosen_G = np.arange(len(space.groups)), solution.choices_G
    piece_WG = programme.works_WGM[:, groups, chosen_G] / programme.pieces_GM[groups, chosen_G]
    class_G, numbers_G = programme.class_M[chosen_G], programme.option_M[chosen_G].tolist()
    places, loads_WD = Places(construction, devices), np.zeros((len(piece_WG), devices))
    choices: list[Choice | None] = [None] * len(groups)
    for group in np.lexsort((-piece_WG.sum(axis=0), class_G != programme.num_classes)).tolist():
        option, piece_W1 = space.groups[group].options[numbers_G[group]], piece_WG[:, group, None]
        places.load_D = ((loads_WD + piece_W1) / np.maximum(solution.windows_W, 1e-12)[:, None]).max(axis=0)
        # A class that is full leaves the piece to those for wider ones.
        for may_D in (class_D == class_G[group], class_D >= class_G[group]) if option.span == 1 else (None,):
            choice = places.take(group, numbers_G[group], 0.0, may_D)
            if choice is not None:
                break
        else:
            return None
        for place in choice.places:
            loads_WD[:, place * option.span : (place + 1) * option.span] += piece_W1
        choices[group] = choice
    return [choice for choice in choices if choice is not None]
