"""What more device memory would save: the same request answered with more of it, and with less.

All devices get more by the same factor; shares that are reserved grow with it. What is legal with less memory is legal
with more, so that no placement for more is slower than one for less, the answer included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from evenshard.placement.parts import whole_tables
from evenshard.placement.task import memory_of_part
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.model import Model
from evenshard.utils.errors import InfeasibleTask

FACTORS = (0.75, 1.25, 1.5, 2.0)
# The memory that all tables need is tried too, up to this many times the memory that there is.
MOST_TIMES = 8.0
# Tables that all should fit get so many times what they take: a search needs some play.
EASE = 1.1
# Steps that are less faster are as fast.
WORTH_IT = 0.01
# The memory that saves this share of what the largest one saves is the one to name.
MOST_OF_IT = 0.9


@dataclass(frozen=True)
class MemoryOption:
    """The answer with some memory of each device.

    Attributes:
        factor: of the memory that there is.
        cap_bytes: memory of a device; of several sizes, the largest.
        predicted_ms: predicted time of a step; None where no placement was found.
        offloaded_tables: tables that are not in device memory.
        offloaded_bytes: what they take elsewhere, weights and optimizer state.
        problem: why no placement was found; empty otherwise.
    """

    factor: float
    cap_bytes: int
    predicted_ms: float | None
    offloaded_tables: int = 0
    offloaded_bytes: int = 0
    problem: str = ""


@dataclass(frozen=True)
class MoreMemory:
    """What other sizes of device memory lead to.

    Attributes:
        now: the answer.
        less, more: with less memory, and with more, in ascending order.
    """

    now: MemoryOption
    less: tuple[MemoryOption, ...]
    more: tuple[MemoryOption, ...]

    @property
    def worth_it(self) -> MemoryOption | None:
        """The least memory that saves most of what can be saved; None where more saves nothing."""
        now_ms = self.now.predicted_ms or 0.0
        saved = [(now_ms - (one.predicted_ms or now_ms), one) for one in self.more]
        most_ms = max((saves_ms for saves_ms, _ in saved), default=0.0)
        if most_ms <= WORTH_IT * now_ms:
            return None
        return next(one for saves_ms, one in saved if saves_ms >= MOST_OF_IT * most_ms)


def more_memory(answer: PlacementAnswer, model: Model, config: PlaceConfig | None = None) -> MoreMemory:
    """The answer's request with other sizes of memory.

    Args:
        model: of the answer; predicts all.
        config: how to search; by default as for the answer.
    """
    config = config or PlaceConfig.of_lineage(answer.lineage)
    request, now = answer.request, _option(1.0, answer)
    found: dict[float, MemoryOption] = {}
    best = now
    for factor in (*FACTORS, *_enough(request)):
        asked = replace(request, caps_bytes=tuple(round(factor * cap) for cap in request.caps_bytes))
        try:
            option = _option(factor, place_request(asked, model, replace(config, compare=(), num_measured=0)))
        except InfeasibleTask as error:
            option = MemoryOption(factor, max(asked.caps_bytes), None, problem=str(error))
        if factor > 1:
            if option.predicted_ms is None or option.predicted_ms > (best.predicted_ms or 0.0):
                option = replace(best, factor=factor, cap_bytes=option.cap_bytes)
            best = option
        found[factor] = option
    return MoreMemory(
        now,
        tuple(one for factor, one in found.items() if factor < 1),
        tuple(one for factor, one in found.items() if factor > 1),
    )


def _option(factor: float, answer: PlacementAnswer) -> MemoryOption:
    return MemoryOption(
        factor,
        max(answer.request.caps_bytes),
        answer.predicted_ms,
        len({one.part.table for one in answer.offloaded}),
        sum(one.used_bytes + one.ssd for one in answer.host_memory),
    )


def _enough(request: PlacementRequest) -> Iterator[float]:
    """The factor with which all tables have room in device memory, where it is more than is tried anyway."""
    task = request.task()
    needed = EASE * sum(
        memory_of_part(task, table, part).device_bytes
        for table, part in zip(request.tables, whole_tables(request.tables), strict=True)
    )
    besides = request.num_devices * (request.reserved_bytes + request.dense_bytes + request.sample_memory.total)
    factor = (needed + besides) / ((1 - request.reserved_share) * max(sum(request.caps_bytes), 1))
    if max(FACTORS) < factor <= MOST_TIMES:
        yield -(-factor // 0.05) * 0.05
