"""One machine to train the tables on: its step time and its price."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from evenshard.base.documents import read_yaml
from evenshard.base.errors import BadConfig, BadFile, blame_file
from evenshard.base.knobs import REQUIRED, Range, knob, range_problems
from evenshard.base.messages import brief
from evenshard.base.typed import read_record
from evenshard.placement.nodes import Nodes
from evenshard.planner.answer import PlacementAnswer
from evenshard.price.dense import StepTime
from evenshard.price.hardware import HardwareName
from evenshard.price.step import step_shares_ms

SAMPLES_OF_COST = 10**9  # costs are per 10**9 samples, so that they are numbers of a few digits


@dataclass(frozen=True)
class PredictedInterval:
    """A predicted value with its 90 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} (90 %: {self.low:.4g} to {self.high:.4g})"

    def times(self, factor: float) -> PredictedInterval:
        """Return the value and its interval times a factor."""
        return PredictedInterval(factor * self.value, factor * self.low, factor * self.high)


@dataclass(frozen=True)
class Sync:
    """The all-reduce of weights between groups that each hold all tables: TorchRec's ``DMPCollection.sync``.

    Attributes:
        every: number of steps from one all-reduce to the next.
        bytes_per_device: most bytes that a device averages.
        bytes_of_all: bytes that all devices of the machine average.
        sent_bytes: bytes that the device with the most bytes sends.
        once_ms: time of one all-reduce, without overlap.
    """

    every: int
    bytes_per_device: int
    bytes_of_all: int
    sent_bytes: int
    once_ms: float

    @property
    def step_ms(self) -> float:
        """Return the mean time of the all-reduce per step."""
        return self.once_ms / self.every


@dataclass(frozen=True)
class WhatIfOption:
    """A machine with the times of a training step on it, ms.

    Attributes:
        hardware: full name of the hardware, such as simulated:h100.
        machine: nodes and links.
        batch_size: samples of a step over all devices.
        group_size: number of devices that the tables are sharded over; each group holds all tables.
        layout: contiguous or strided, if there are several groups; see ``machines``.
        problem: reason that the tables do not fit; empty if they do.
        answer: placement on one group; None if the tables do not fit.
        dense_ms: given step time without embeddings; 0 to predict it from the answer's dense layers, if it has any.
        overlap: fraction of the shorter of embedding time and ``dense_ms`` that is hidden behind the longer.
        price_per_hour: price of the machine; None without prices.
        sync: averaging of weights over groups; None for one group.
        replicas_ms: additional time of averaging gradients of replicas over all groups instead of one.
        memory_cap_gb: memory of each device; None for the hardware's own.
    """

    hardware: str
    machine: Nodes
    batch_size: int
    group_size: int
    layout: str = ""
    problem: str = ""
    answer: PlacementAnswer | None = field(default=None, repr=False)
    dense_ms: float = 0.0
    overlap: float = 0.0
    price_per_hour: float | None = None
    sync: Sync | None = None
    replicas_ms: float = 0.0
    memory_cap_gb: float | None = None

    @property
    def num_devices(self) -> int:
        """Return the number of devices of the machine."""
        return self.machine.num_devices

    @property
    def num_groups(self) -> int:
        """Return the number of groups that each hold all tables."""
        return self.num_devices // self.group_size

    @property
    def fits(self) -> bool:
        """Return True if the tables have a placement."""
        return self.answer is not None

    @property
    def device_factor(self) -> float:
        """Return the factor within which 90 % of simulated times match the real device; 1 for real hardware."""
        error = self._fitting_answer.device_error
        return error.factor if error is not None else 1.0

    @property
    def link_factor(self) -> float:
        """Return the factor within which 90 % of modelled communication is right; ``device_factor`` if unknown."""
        error = self._fitting_answer.link_error
        return error.factor if error is not None else self.device_factor

    @property
    def embeddings_ms(self) -> PredictedInterval:
        """Return the time of the embeddings in a step, without ``sync``."""
        placed = self._fitting_answer
        return PredictedInterval(placed.predicted_ms, placed.low_ms, placed.high_ms).times(self._replicas_factor)

    @cached_property
    def step(self) -> StepTime | None:
        """Return the predicted time of the whole step; None if the dense part is unknown, or its time is given."""
        return None if self.dense_ms or self.answer is None else self.answer.step_on(self.machine)

    @property
    def dense_part_ms(self) -> float:
        """Return the time that the dense part adds to the embeddings, without overlap."""
        return self.dense_ms if self.step is None else self.step.total_ms - self._fitting_answer.predicted_ms

    @property
    def step_ms(self) -> PredictedInterval:
        """Return the step time: embeddings, dense part, and mean time of ``sync``. A given dense time counts as exact.

        The interval of predicted dense layers is that of ``StepTime``, without ``overlap`` at its upper end.
        """
        off, sync = self.link_factor, self.sync_ms
        own = self.embeddings_ms
        if self.step is not None:
            value, more = self._with_dense(own.value) + sync, self.replicas_ms
            low = self.step.low_ms + more - self.overlap * min(own.value, self.dense_part_ms)
            return PredictedInterval(value, low + sync / off, self.step.high_ms + more + sync * off)
        ends = ((own.value, sync), (own.low, sync / off), (own.high, sync * off))
        return PredictedInterval(*(self._with_dense(embeddings) + averaging for embeddings, averaging in ends))

    @property
    def model_ms(self) -> PredictedInterval:
        """Return ``step_ms`` with the cost model's own interval, to compare options on the same hardware."""
        placed, more, sync = self._fitting_answer, self._replicas_factor, self.sync_ms
        ends = (placed.predicted_ms, placed.model_low_ms, placed.model_high_ms)
        return PredictedInterval(*(self._with_dense(more * end) + sync for end in ends))

    @property
    def sync_ms(self) -> float:
        """Return the mean time of ``sync`` per step."""
        return 0.0 if self.sync is None else self.sync.step_ms

    def scale_step_ms(self, kernels: float, links: float) -> float:
        """Return the step time with kernel and communication times scaled by the given factors."""
        compute_ms, _ = step_shares_ms(self._fitting_answer.devices, self._fitting_answer.request.training_pipeline)
        communication_ms = self._fitting_answer.predicted_ms - compute_ms + self.replicas_ms
        return self._with_dense(kernels * compute_ms + links * communication_ms) + links * self.sync_ms

    @property
    def samples_per_s(self) -> PredictedInterval:
        """Return the samples per second of all devices."""
        step = self.step_ms
        return PredictedInterval(*(1e3 * self.batch_size / end for end in (step.value, step.high, step.low)))

    @property
    def cost_per_ms(self) -> float | None:
        """Return the cost of 10**9 samples for each millisecond that a step takes; None without a price."""
        if self.price_per_hour is None:
            return None
        return self.price_per_hour / 3.6e6 * SAMPLES_OF_COST / self.batch_size  # 3.6e6 ms per hour

    @property
    def cost(self) -> PredictedInterval | None:
        """Return the cost of 10**9 samples; None without a price."""
        return None if self.cost_per_ms is None else self.step_ms.times(self.cost_per_ms)

    @property
    def _fitting_answer(self) -> PlacementAnswer:
        assert self.answer is not None, "tables that do not fit have no times"
        return self.answer

    @property
    def _replicas_factor(self) -> float:
        return 1 + self.replicas_ms / self._fitting_answer.predicted_ms

    def _with_dense(self, embeddings_ms: float) -> float:
        dense_ms = self.dense_part_ms
        return embeddings_ms + dense_ms - self.overlap * min(embeddings_ms, dense_ms)


# Prices ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HardwarePrice:
    """Price of devices of one kind, and of their hosts."""

    per_device_hour: float = knob(REQUIRED, "price per device and hour", range=Range(0, 1_000_000))
    per_node_hour: float = knob(0.0, "price per host and hour, without its devices", range=Range(0, 1_000_000))

    def per_hour(self, num_devices: int, num_nodes: int) -> float:
        """Return the price of a machine for an hour."""
        return num_devices * self.per_device_hour + num_nodes * self.per_node_hour


@dataclass(frozen=True)
class Prices:
    """Prices by name of the hardware (simulated:h100, or h100 for short), with their currency and a note."""

    hardware: dict[str, HardwarePrice]
    currency: str = ""
    note: str = ""

    def price_of(self, hardware: str) -> HardwarePrice | None:
        """Return the price of hardware, given its full name; None if there is none."""
        return next((price for name, price in self.hardware.items() if str(HardwareName.parse(name)) == hardware), None)


@blame_file
def load_prices(path: str | Path) -> Prices:
    """Load prices from a YAML file; raise BadFile if it is missing, not YAML, or invalid."""
    remedy = (
        "Its keys are currency, note and hardware; each entry of hardware, such as h100, has per_device_hour and, if "
        "hosts cost extra, per_node_hour."
    )
    found = read_record(Prices, read_yaml(Path(path), remedy), path, remedy)
    if not found.hardware:
        raise BadFile(path, "hardware is empty", remedy)
    seen: dict[str, str] = {}
    for name, price in found.hardware.items():
        try:
            full = str(HardwareName.parse(name))
        except BadConfig as error:
            raise BadFile(path, f"hardware: {str(error).rstrip('.')}", "Correct the name.") from None
        if full in seen:
            raise BadFile(path, f"hardware: {brief(seen[full])} and {brief(name)} are the same", "Keep one of them.")
        seen[full] = name
        if problem := next(range_problems(price), None):
            raise BadFile(path, f"hardware, {brief(name)}: {problem}", "Correct it.")
    return found
