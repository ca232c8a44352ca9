"""Which class of devices each group of tables goes to, and how it is sharded there: a linear programme, by prices.

Devices are of classes, such as those for pieces of up to so many columns; a division says how many each class has. Each
group takes a choice: an option on a class, or one that lives on all devices. Each class shares its work out evenly over
its devices, and has memory for it. A step takes, in each of its windows, what its slowest class does. The least that
can be is a linear programme. Its dual has a price for each window on each class, which sum up to 1 for a window, and
one for the memory of each class. What groups take at any prices is a bound of the programme.

Prices are found by multiplicative weights (Arora, Hazan and Kale, "The Multiplicative Weights Update Method", 2012):
each group takes what is cheapest, and what is overloaded grows dearer. What groups took on the way, on the mean, nearly
solves the programme; the best of some random roundings of that is the solution.

Legend: G groups, C classes of devices, W windows of a step, M choices of a group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenshard.tables.reuse import FloatArray

Numbers = npt.NDArray[np.int64]
Division = tuple[int, ...]
# How much an overload changes a price at first, after how many steps that is less, and the same of memory.
RATE, RATE_STEPS, MEMORY_RATE = 0.5, 4.0, 0.3
ROUNDINGS = 48
# How much longer than its bound a solution takes for each part of a device's memory that is missing.
MISSING_MEMORY = 10.0
NEVER_MS = 1e9


@dataclass(frozen=True)
class Solution:
    """What the groups choose.

    Attributes:
        choices_G: numbers of choices.
        bound_ms: of the linear programme.
        windows_W: what each window takes in its slowest class.
    """

    choices_G: Numbers
    bound_ms: float
    windows_W: FloatArray


@dataclass(frozen=True)
class Programme:
    """The linear programme, for any division of devices.

    Attributes:
        option_M, class_M: of each choice; of one that lives on all devices, the class is C.
        works_WGM: what all pieces of a choice take on all devices together; ``NEVER_MS`` where there is none.
        bytes_GM: their memory.
        pieces_GM: devices among which a choice is shared out evenly.
        needed_GM: devices that a class has at least for it.
        num_classes, num_devices: C and D.
        room: memory of a device.
        full_share: part of it that is filled.
    """

    option_M: Numbers
    class_M: Numbers
    works_WGM: FloatArray
    bytes_GM: FloatArray
    pieces_GM: FloatArray
    needed_GM: FloatArray
    num_classes: int
    num_devices: int
    room: float
    full_share: float

    def solve(self, division: Division, steps: int, most_ms: float = np.inf) -> Solution | None:
        """Return the choices of groups if the devices are divided so; None if a group has no choice, or memory none.

        Args:
            division: devices of each class.
            steps: of the prices.
            most_ms: of a piece; of groups without such pieces, of any.
        """
        devices_C = np.array(division)
        may_GM = self.may_choose(devices_C, most_ms)
        if not may_GM.any(axis=1).all():
            return None
        barred_GM = np.where(may_GM, 0.0, np.inf)
        shares_CM, groups = self.shares(devices_C), np.arange(len(may_GM))
        weight_WC = np.repeat((devices_C / self.num_devices)[None], len(self.works_WGM), axis=0)
        memory_C, taken_GM, bound_ms = np.zeros(self.num_classes), np.zeros(may_GM.shape), 0.0
        for step in range(steps):
            priced_GM = np.einsum("wm,wgm->gm", weight_WC @ shares_CM, self.works_WGM) + barred_GM
            if memory_C.any():
                priced_GM += self.bytes_GM * (memory_C @ shares_CM / self.room)
            chosen_G = priced_GM.argmin(axis=1)
            bound_ms = max(bound_ms, float(priced_GM[groups, chosen_G].sum() - memory_C.sum() * self.full_share))
            if bound_ms >= NEVER_MS:  # prices of memory grow without end where it is too small
                return None
            taken_GM[groups, chosen_G] += step >= steps // 3
            loads_WC, full_C = self._loads(shares_CM, chosen_G)
            rate = RATE / np.sqrt(1 + step / RATE_STEPS)
            memory_C = np.maximum(memory_C + MEMORY_RATE * rate * bound_ms * (full_C - self.full_share), 0.0)
            weight_WC *= np.exp(rate * (loads_WC / np.maximum(loads_WC.max(axis=1, keepdims=True), 1e-12) - 1))
            weight_WC /= weight_WC.sum(axis=1, keepdims=True)
        chosen_G, windows_W = self._round(taken_GM, shares_CM, bound_ms)
        return Solution(chosen_G, bound_ms, windows_W)

    def may_choose(self, devices_C: Numbers, most_ms: float) -> npt.NDArray[np.bool_]:
        """[G, M] whether a division allows a choice."""
        has_M = np.append(devices_C, self.num_devices)[self.class_M]
        may_GM = (self.works_WGM[0] < NEVER_MS) & (self.needed_GM <= has_M) & (has_M > 0)
        is_short_GM = may_GM & (self.works_WGM.sum(axis=0) <= most_ms * np.maximum(self.pieces_GM, 1.0))
        return np.asarray(np.where(is_short_GM.any(axis=1, keepdims=True), is_short_GM, may_GM))

    def shares(self, devices_C: Numbers) -> FloatArray:
        """[C, M] the part of each choice's work that a device of each class has."""
        own_CM = (self.class_M == np.arange(self.num_classes)[:, None]) / np.maximum(devices_C, 1)[:, None]
        everywhere_CM = np.where(devices_C > 0, 1 / self.num_devices, 0.0)[:, None]
        return np.asarray(np.where(self.class_M == self.num_classes, everywhere_CM, own_CM))

    def _loads(self, shares_CM: FloatArray, chosen_G: Numbers) -> tuple[FloatArray, FloatArray]:
        """Return each class's window times, [W, C], and the taken part of its memory, [C]."""
        groups, windows, count = np.arange(len(chosen_G)), len(self.works_WGM), len(self.class_M)
        bins_WG = chosen_G + count * np.arange(windows)[:, None]
        works_WG = self.works_WGM[:, groups, chosen_G]
        sums_WM = np.bincount(bins_WG.ravel(), works_WG.ravel(), windows * count).reshape(windows, count)
        bytes_M = np.bincount(chosen_G, self.bytes_GM[groups, chosen_G], count)
        return sums_WM @ shares_CM.T, shares_CM @ bytes_M / self.room

    def _round(self, taken_GM: FloatArray, shares_CM: FloatArray, bound_ms: float) -> tuple[Numbers, FloatArray]:
        """Return the best of some random choices, drawn by how often each was taken."""
        rng, sums_GM = np.random.default_rng(0), taken_GM.cumsum(axis=1) / taken_GM.sum(axis=1, keepdims=True)
        best, least = (taken_GM.argmax(axis=1), np.zeros(0)), np.inf
        for number in range(ROUNDINGS):
            drawn_G = (rng.random(len(sums_GM))[:, None] < sums_GM).argmax(axis=1) if number else best[0]
            loads_WC, full_C = self._loads(shares_CM, drawn_G)
            windows_W = loads_WC.max(axis=1)
            missing = max(float(full_C.max()) - 1, 0.0)
            if (cost := float(windows_W.sum()) + MISSING_MEMORY * missing * bound_ms) < least:
                best, least = (drawn_G, windows_W), cost
        return best
