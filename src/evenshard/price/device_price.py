"""The interface of a price: what a device of one kind takes for the tables that its kernel calls look up.

A table that is looked up is a row of columns. Most of them add up over the tables of a kernel call; of the last few,
the maxima, a call has the largest. From the sums of a call follow its times, from those of all its calls the time of a
device. A model may also price all calls of a device as one (``is_by_call``).

Two implementations: ``simulated/price.py``, the device model itself, and a learned model's (``sharders``).

Legend: P tables looked up, N devices or calls asked for, D devices, G sums of a device (one, or one for each call),
H columns, Q times of a call, M members of an ensemble.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from evenshard.price.kernel_calls import HeldPart, Lookup
from evenshard.tables.reuse import FloatArray

Columns = npt.NDArray[Any]
# Sums of 32-bit numbers in another order differ by less, relatively.
ROUNDING = 1e-5


@dataclass(frozen=True)
class TangentLine:
    """Straight lines below the forward and backward kernel time of a device with one kernel call.

    They are ``at_0_2 + slopes_2H @ columns``, for columns that are sums.
    """

    at_0_2: FloatArray
    slopes_2H: FloatArray

    def works(self, columns_PH: Columns) -> FloatArray:
        """[2, P] work of tables along the lines, ms."""
        return np.asarray(self.slopes_2H @ columns_PH.T)


class SharedSteps:
    """Work of tables for steps that devices take because of all the rows that they hold, as far as none can be saved.

    Together, tables need such steps which none of them needs alone (``DevicePrice.own_steps_ms``). ``at_0_2`` is the
    forward and backward work of a mean device that holds no table; below 0, for what devices may save.
    """

    def __init__(self) -> None:
        self.at_0_2: FloatArray = np.zeros(2)

    def works(self, columns_PH: Columns) -> FloatArray:
        """[2, P] work of tables, ms."""
        return np.zeros((2, len(columns_PH)))


class DevicePrice(Protocol):
    """Compute times of one kind of device, ms.

    The methods from ``least_ms`` on are for lower bounds; as they stand here they are right of any price whose times
    grow with what a device holds.
    """

    @property
    def num_maxima(self) -> int:
        """How many columns, the last ones, are maxima."""
        ...

    @property
    def is_by_call(self) -> bool:
        """Whether each kernel call of a device is priced by itself; else all of them as one."""
        ...

    @property
    def lane_limits(self) -> tuple[int, ...]:
        """Largest dims of calls whose rows take so many lanes, the fewest first; none where lanes cost nothing."""
        return ()

    @property
    def sees_hot_rows(self) -> bool:
        """True if times depend on hot rows that lie side by side in memory (``tables/locality.py``)."""
        return False

    def columns(self, lookups: Sequence[Lookup], dims_P: npt.NDArray[np.int64] | None = None) -> Columns:
        """[P, H] columns of tables.

        Args:
            dims_P: dims in place of the tables' own, so that parts of a table can share a ``Lookup``.
        """
        ...

    def call_ms(self, sums_NH: Columns) -> FloatArray:
        """[Q, N] times of calls, from the sums of their columns; zero where nothing is looked up."""
        ...

    def device_ms(self, times_QGN: FloatArray, calls_N: npt.NDArray[np.int64]) -> FloatArray:
        """[2, N] forward and backward time of devices, from the times of their calls.

        Args:
            times_QGN: of ``call_ms``.
            calls_N: kernel calls of each device; one without any takes no time.
        """
        ...

    def held_ms(self, held: Sequence[HeldPart], num_devices: int) -> FloatArray:
        """[D, M, 2] forward and backward time of devices that hold these parts, by each member of an ensemble."""
        ...

    def interval(self, members_M: FloatArray) -> float:
        """Half the 90 % interval of a step, of its logarithm, by the model alone; 0 of a device model.

        Args:
            members_M: time of the slowest device by each member.
        """
        ...

    def line_at(self, sums_H: FloatArray) -> TangentLine:
        """Lines below the kernel times of a device, close to them at these sums; of one call where it is by call."""
        ...

    def own_steps_ms(self, columns_PH: Columns) -> FloatArray:
        """[2, P] time above every such line that each table takes wherever it is: steps that its own rows need."""
        ...

    def shared_steps(self, columns_PH: Columns, num_devices: int, total_rows: int) -> SharedSteps:
        """Steps above every line, besides those of ``own_steps_ms``, that alike devices take for all of their rows.

        Args:
            columns_PH: tables for which the work is as large as can be; it is right for any others, too.
            num_devices: of the machine.
            total_rows: rows that all devices hold together at least.
        """
        return SharedSteps()

    def least_call_ms(self, columns_PH: Columns) -> FloatArray:
        """[2, P] what a call with each table takes at least above such a line, once, whatever else it looks up."""
        return np.zeros((2, len(columns_PH)))

    def least_ms(self, columns_PH: Columns) -> FloatArray:
        """[P] what a device that holds each table takes at least, forward and backward, whatever else it holds."""
        return alone_ms(self, columns_PH)

    def always_has_backward(self, columns_PH: Columns) -> bool:
        """Whether every call of any of these tables has a backward pass: where nothing is looked up there is none."""
        return True

    @property
    def further_call_ms_2(self) -> FloatArray:
        """[2] what each further call of a device adds to the kernel times at least."""
        return np.zeros(2)

    def launched_ms_2(self, calls: int) -> FloatArray:
        """[2] what a device with so many calls takes at least, however short its kernels are."""
        return np.zeros(2)


def alone_ms(price: DevicePrice, columns_PH: Columns) -> FloatArray:
    """[P] forward and backward time, together, of tables that have a call and a device to themselves."""
    return np.asarray(passes_alone_ms(price, columns_PH).sum(axis=0))


def passes_alone_ms(price: DevicePrice, columns_PH: Columns) -> FloatArray:
    """[2, P] the same, each by itself."""
    calls_P = np.ones(len(columns_PH), dtype=np.int64)
    return np.asarray(price.device_ms(price.call_ms(columns_PH)[:, None], calls_P))
