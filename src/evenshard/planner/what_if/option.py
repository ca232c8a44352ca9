"""One machine that tables might be trained on: the times of a step, and its price."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from evenshard.base.documents import read_yaml
from evenshard.base.errors import BadConfig, BadFile, blame_file
from evenshard.base.knobs import REQUIRED, Range, knob, range_problems
from evenshard.base.messages import brief
from evenshard.base.typed import read_record
from evenshard.placement.nodes import Nodes
from evenshard.planner.answer import PlacementAnswer
from evenshard.price.hardware import HardwareName
from evenshard.price.step import step_shares_ms

# Samples that a cost is of.
SAMPLES_OF_COST = 10**9


@dataclass(frozen=True)
class PredictedInterval:
    """A predicted number with its 90 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} (90 %: {self.low:.4g} to {self.high:.4g})"

    def times(self, factor: float) -> PredictedInterval:
        """Return the number in another unit."""
        return PredictedInterval(factor * self.value, factor * self.low, factor * self.high)


@dataclass(frozen=True)
class Sync:
    """The all-reduce of weights between groups that each hold all tables: TorchRec's ``DMPCollection.sync``.

    The device with the most bytes to average sends ``sent_bytes`` for ``once_ms``; nothing else runs meanwhile.
    """

    every: int
    bytes_per_device: int
    bytes_of_all: int
    sent_bytes: int
    once_ms: float

    @property
    def step_ms(self) -> float:
        """Its share in a step."""
        return self.once_ms / self.every


@dataclass(frozen=True)
class WhatIfOption:
    """A machine and the times of a training step there, ms.

    Attributes:
        batch_size: samples of a step over all devices together.
        group_size: devices that the tables are sharded over; each group of so many holds all tables.
        layout: contiguous or strided, where there is more than one group: see ``machines``.
        problem: the reason why the tables do not fit; empty where they do.
        answer: the placement on the devices of one group; None where the tables do not fit.
        overlap: share of the shorter of embeddings and ``dense_ms`` that runs beside the longer one.
        sync: keeps groups alike; None for one group.
        replicas_ms: time that the all-reduce of replicas over all groups takes longer than in one group.
        memory_cap_gb: memory of each device, GB of 1024**3 bytes; None for that of the hardware.
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
        """Devices of the machine."""
        return self.machine.num_devices

    @property
    def num_groups(self) -> int:
        """Groups that each hold all tables."""
        return self.num_devices // self.group_size

    @property
    def fits(self) -> bool:
        """The tables have a placement."""
        return self.answer is not None

    @property
    def device_factor(self) -> float:
        """Nine of ten times on the device are within this factor of the real one's; 1 for real hardware."""
        error = self._fitting_answer.device_error
        return error.factor if error is not None else 1.0

    @property
    def link_factor(self) -> float:
        """Nine of ten exchanges are within this factor of real ones; the device's if nothing is known of links."""
        error = self._fitting_answer.link_error
        return error.factor if error is not None else self.device_factor

    @property
    def embeddings_ms(self) -> PredictedInterval:
        """Time of the embeddings in a step, without ``sync``."""
        placed = self._fitting_answer
        return PredictedInterval(placed.predicted_ms, placed.low_ms, placed.high_ms).times(self._replicas_factor)

    @property
    def step_ms(self) -> PredictedInterval:
        """Time of a step: embeddings, the dense rest, and the share of ``sync``. The dense time counts as exact."""
        off, sync = self.link_factor, self.sync_ms
        one = self.embeddings_ms
        ends = ((one.value, sync), (one.low, sync / off), (one.high, sync * off))
        return PredictedInterval(*(self._with_dense(embeddings) + averaging for embeddings, averaging in ends))

    @property
    def model_ms(self) -> PredictedInterval:
        """``step_ms`` with the interval of the cost model alone, to compare with others on the same hardware."""
        placed, more, sync = self._fitting_answer, self._replicas_factor, self.sync_ms
        ends = (placed.predicted_ms, placed.model_low_ms, placed.model_high_ms)
        return PredictedInterval(*(self._with_dense(more * end) + sync for end in ends))

    @property
    def sync_ms(self) -> float:
        """Share of ``sync`` in a step."""
        return 0.0 if self.sync is None else self.sync.step_ms

    def step_if_ms(self, kernels: float, links: float) -> float:
        """Time of a step if kernels, or exchanges, take so many times as long as predicted."""
        compute_ms, _ = step_shares_ms(self._fitting_answer.devices, self._fitting_answer.request.training_pipeline)
        exchange_ms = self._fitting_answer.predicted_ms - compute_ms + self.replicas_ms
        return self._with_dense(kernels * compute_ms + links * exchange_ms) + links * self.sync_ms

    @property
    def samples_per_s(self) -> PredictedInterval:
        """Samples that all devices train on in a second."""
        one = self.step_ms
        return PredictedInterval(*(1e3 * self.batch_size / end for end in (one.value, one.high, one.low)))

    @property
    def cost_per_ms(self) -> float | None:
        """Cost of 10**9 samples for each millisecond of a step; None without a price."""
        if self.price_per_hour is None:
            return None
        return self.price_per_hour / 3.6e6 * SAMPLES_OF_COST / self.batch_size

    @property
    def cost(self) -> PredictedInterval | None:
        """Cost of 10**9 samples; None without a price."""
        return None if self.cost_per_ms is None else self.step_ms.times(self.cost_per_ms)

    @property
    def _fitting_answer(self) -> PlacementAnswer:
        assert self.answer is not None, "there are times of tables that fit"
        return self.answer

    @property
    def _replicas_factor(self) -> float:
        return 1 + self.replicas_ms / self._fitting_answer.predicted_ms

    def _with_dense(self, embeddings_ms: float) -> float:
        return embeddings_ms + self.dense_ms - self.overlap * min(embeddings_ms, self.dense_ms)


# Prices ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HardwarePrice:
    """The price of devices of one kind, and of the host around them."""

    per_device_hour: float = knob(REQUIRED, "price of a device for an hour", range=Range(0, 1_000_000))
    per_node_hour: float = knob(0.0, "price of a host for an hour, beside its devices", range=Range(0, 1_000_000))

    def per_hour(self, num_devices: int, num_nodes: int) -> float:
        """Return the price of a machine for an hour."""
        return num_devices * self.per_device_hour + num_nodes * self.per_node_hour


@dataclass(frozen=True)
class Prices:
    """Prices by the name of the hardware, such as simulated:h100 or short h100, with their currency and a note."""

    hardware: dict[str, HardwarePrice]
    currency: str = ""
    note: str = ""

    def price_of(self, hardware: str) -> HardwarePrice | None:
        """The price of some hardware by its full name; None where there is none."""
        return next((price for name, price in self.hardware.items() if str(HardwareName.parse(name)) == hardware), None)


@blame_file
def load_prices(path: str | Path) -> Prices:
    """Load prices from a YAML file; a BadFile if it is missing, is not YAML, or makes no sense."""
    remedy = (
        "Its keys are currency, note and hardware; under hardware each kind, such as h100, has per_device_hour and, "
        "where hosts cost extra, per_node_hour."
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
