"""Small tables, tasks, costs and stand-ins that many tests share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import TypeVar

import torch
from hypothesis import strategies as st

from evenshard.base.errors import InfeasibleTask
from evenshard.measure.hardware import TimeShare
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import DeviceCost, MeasuredPlacement, PlacementCost, Provenance
from evenshard.sharders.autoshard.env import AutoShardCostNet
from evenshard.sharders.autoshard.sharder import AutoShardPolicy
from evenshard.sharders.dreamshard.env import CostNet, Policy
from evenshard.sharders.dreamshard.sharder import DreamShardCostNet, DreamShardPolicy
from evenshard.sharders.features import NUM_FEATURES, FeatureNormalizer
from evenshard.tables.reuse import NUM_REUSE_BINS
from evenshard.tables.table import Table

Net = TypeVar("Net", DreamShardCostNet, DreamShardPolicy, AutoShardCostNet, AutoShardPolicy)

BATCH_SIZE = 64
ROOMY = 10**12
READ_ONCE = (1.0,) + (0.0,) * (NUM_REUSE_BINS - 1)
PROVENANCE = Provenance(
    hardware="simulated: adds up", driver="none", versions="none 0", link="ethernet_25g", seed=7, repeats=3
)
# Leaves the features as they are, so that a hand-made cost model can read dims and pooling factors out of them.
PLAIN_FEATURES = FeatureNormalizer(mean=(0.0,) * NUM_FEATURES, scale=(1.0,) * NUM_FEATURES)


def column_parts(table: Table, cuts: Iterable[int] = ()) -> tuple[TablePart, ...]:
    """The parts of a table that is cut before these columns, which ascend; the whole one without any."""
    edges = (0, *cuts, table.embedding_dim)
    return tuple(TablePart(table.name, Span(0, table.num_rows), Span(*columns)) for columns in pairwise(edges))


def table(name: str = "t", rows: int = 100, dim: int = 4, pooling: float = 2.0, bits: int = 32) -> Table:
    return Table(name, rows, dim, pooling, READ_ONCE, bits)


def parts_of(tables: Sequence[Table], cuts: Mapping[str, tuple[int, ...]] | None = None) -> tuple[TablePart, ...]:
    """Tables cut before the columns that are given by their names."""
    return tuple(part for one in tables for part in column_parts(one, (cuts or {}).get(one.name, ())))


def cuts_of(parts: Sequence[TablePart]) -> dict[str, tuple[int, ...]]:
    """The columns before which tables are cut, by name."""
    cuts: dict[str, tuple[int, ...]] = {}
    for part in parts:
        if part.columns.start:
            cuts[part.table] = (*cuts.get(part.table, ()), part.columns.start)
    return cuts


def some_tables(count: int, seed: int = 0) -> tuple[Table, ...]:
    """Tables that differ in everything, 10 to 1000 rows."""
    rng = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=rng))

    return tuple(table(f"t{number}", draw(10, 1000), 4 * draw(1, 9), draw(1, 400) / 10) for number in range(count))


def task(
    tables: Sequence[Table], devices: int = 2, cap: int = ROOMY, task_id: str = "task", batch_size: int = BATCH_SIZE
) -> ShardingTask:
    return ShardingTask.whole(task_id, tuple(tables), devices, cap, batch_size)


def capped(of_task: ShardingTask, cap: int) -> ShardingTask:
    """The task with so many bytes on each device."""
    return replace(of_task, room_bytes=(cap,) * of_task.num_devices)


def sized(*sizes: int) -> tuple[Table, ...]:
    """Tables of 4 * size bytes: one dim, ``size`` rows of 32 bits."""
    return tuple(table(f"s{number}", size, 1) for number, size in enumerate(sizes))


def working(*works: float) -> tuple[Table, ...]:
    """Tables of one dim that differ in nothing but their pooling factor, so ``AdditiveCostNet`` adds up the works."""
    return tuple(table(f"w{number}", 100, 1, work) for number, work in enumerate(works))


def cost(*totals: float, all_to_all: str = "modelled") -> PlacementCost:
    """A placement cost whose devices take the given times, a quarter in each part."""
    return PlacementCost(tuple(DeviceCost(*[total / 4] * 4) for total in totals), all_to_all)


def measured(
    of_task: ShardingTask,
    device_of_table: Sequence[int],
    of_cost: PlacementCost,
    measurement_id: str = "m0",
    round_number: int = 1,
) -> MeasuredPlacement:
    placement = Placement(tuple(device_of_table), of_task.num_devices)
    return MeasuredPlacement(
        measurement_id, round_number, "random", of_task, placement.parts(of_task.tables), of_cost, PROVENANCE
    )


def split_by(placement: Placement) -> set[tuple[int, ...]]:
    """Which tables are together, whatever their devices are called: equal devices are interchangeable."""
    return set(placement.shards()) - {()}


def every_placement(of_task: ShardingTask) -> list[Placement]:
    """All placements of a tiny task, legal or not."""
    choices = product(range(of_task.num_devices), repeat=len(of_task.tables))
    return [Placement(choice, of_task.num_devices) for choice in choices]


times_ms = st.floats(0, 1e6)
# Any device's cost, out of memory too.
device_costs = st.builds(DeviceCost, *[times_ms] * 7) | st.just(DeviceCost.out_of_memory())

provenances = st.builds(
    Provenance,
    st.sampled_from(["cpu", "cuda", "simulated"]).flatmap(lambda kind: st.text().map(lambda name: f"{kind}: {name}")),
    st.text(),
    st.text(),
    st.sampled_from(["ethernet_25g", "gloo", "?"]),
    st.integers(0, 2**62),
    st.integers(1, 99),
    st.floats(0, 1000),
    st.integers(0, 10_000),
)


# Analytic costs ------------------------------------------------------------------------------------------------------

FWD_MS = 1.0  # per unit of embedding_dim * pooling_factor
BWD_MS = 2.0
EXCHANGE_MS = 0.5  # per unit of embedding_dim


@dataclass
class FakeHardware:
    """Hardware on which costs add up: a device's times are those of its tables, one after the other.

    A single device exchanges nothing.

    Attributes:
        slowness: factors on all times, one per call of ``measure``, in turn: the neighbour's noise.
        calls: what was measured so far.
    """

    slowness: Sequence[float] = (1.0,)
    calls: list[tuple[ShardingTask, Placement]] = field(default_factory=list)
    provenance: Provenance = PROVENANCE

    @property
    def time_share(self) -> TimeShare:
        return TimeShare(kernel_s=1.0, wall_s=4.0)

    def measure(self, task: ShardingTask, placement: Placement) -> PlacementCost:
        factor = self.slowness[len(self.calls) % len(self.slowness)]
        self.calls.append((task, placement))
        shards = [[task.tables[position] for position in shard] for shard in placement.shards()]
        exchange_ms = EXCHANGE_MS if task.num_devices > 1 else 0.0
        return PlacementCost(tuple(_device_cost(shard, factor, exchange_ms) for shard in shards), "modelled")

    def close(self) -> None:
        pass


def _device_cost(shard: Sequence[Table], factor: float, exchange_ms: float) -> DeviceCost:
    work = sum(one.embedding_dim * one.pooling_factor for one in shard)
    dims = sum(one.embedding_dim for one in shard)
    exchange = factor * exchange_ms * dims
    return DeviceCost(factor * FWD_MS * work, exchange, exchange, factor * BWD_MS * work)


class AdditiveCostNet:
    """The cost model of ``FakeHardware``, exact; reads ``PLAIN_FEATURES``. Representations are (work, dim)."""

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        dims, pooling = features[:, 0].square(), features[:, 2].square()
        return torch.stack([dims * pooling, dims], dim=1)

    def device_costs(self, sums: torch.Tensor) -> torch.Tensor:
        work, dims = sums.unbind(-1)
        return torch.stack([FWD_MS * work, EXCHANGE_MS * dims, BWD_MS * work], dim=-1)

    def overall_cost(self, sums_BDH: torch.Tensor, device_mask_BD: torch.Tensor) -> torch.Tensor:
        work_BD, dims_BD = sums_BDH.unbind(-1)
        total_BD = (FWD_MS + BWD_MS) * work_BD + 2 * EXCHANGE_MS * dims_BD
        return total_BD.masked_fill(~device_mask_BD, -torch.inf).amax(dim=1)


class ByPredictedCost:
    """A policy by hand: a factor on the predicted costs of a device."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(features), 1)

    def device_logits(self, sums: torch.Tensor, costs: torch.Tensor) -> torch.Tensor:
        return self._factor * costs.sum(dim=-1)


# Networks ------------------------------------------------------------------------------------------------------------


def cost_net(seed: int = 0, scale_ms: float = 3.0) -> DreamShardCostNet:
    """An untrained cost network that is not all the same everywhere."""
    return seeded(DreamShardCostNet, seed, scale_ms)


def policy(seed: int = 0, scale_ms: float = 3.0) -> DreamShardPolicy:
    """An untrained policy with opinions: its logits differ by several units between devices."""
    net = seeded(DreamShardPolicy, seed, scale_ms)
    with torch.no_grad():
        net.device_head.weight.mul_(5.0)
    return net


def seeded(kind: type[Net], seed: int, scale_ms: float) -> Net:
    """An untrained network."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = kind()
    net.cost_scale_ms.fill_(scale_ms)
    return net


# The slow reference --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One choice of one episode, [D] each, computed with nothing remembered from the step before.

    Attributes:
        position: of the table in the task.
        legal: devices with room.
        logits: unmasked, with gradients.
        costs: [D, C] predicted costs the policy sees.
    """

    position: int
    legal: torch.Tensor
    logits: torch.Tensor
    costs: torch.Tensor


class SlowEpisode:
    """One episode as the paper describes it: every state is encoded again from the lists of tables on the devices."""

    def __init__(self, task: ShardingTask, normalizer: FeatureNormalizer, model: CostNet, policy: Policy) -> None:
        self._task, self._normalizer, self._model, self._policy = task, normalizer, model, policy
        self.device_of: dict[int, int] = {}
        singles = [model.device_costs(self._encoded(model, [p])[0]).detach() for p in range(len(task.tables))]
        single_ms = [float(costs.sum()) for costs in singles]
        self._order = sorted(range(len(task.tables)), key=lambda p: -single_ms[p])

    def next(self) -> Step:
        position = self._order[len(self.device_of)]
        size, cap = self._task.tables[position].size_bytes, self._task.memory_cap_bytes
        used = [sum(self._task.tables[p].size_bytes for p in shard) for shard in self._shards()]
        costs = self._model.device_costs(self._sums(self._model)).detach()
        return Step(
            position=position,
            legal=torch.tensor([bytes_used + size <= cap for bytes_used in used]),
            logits=self._policy.device_logits(self._sums(self._policy), costs),
            costs=costs,
        )

    def put(self, position: int, device: int) -> None:
        self.device_of[position] = device

    @property
    def done(self) -> bool:
        return len(self.device_of) == len(self._task.tables)

    def overall_ms(self) -> float:
        mask = torch.ones(1, self._task.num_devices, dtype=torch.bool)
        return float(self._model.overall_cost(self._sums(self._model)[None], mask).detach())

    def placement(self) -> Placement:
        return Placement(tuple(self.device_of[p] for p in range(len(self._task.tables))), self._task.num_devices)

    def _shards(self) -> list[list[int]]:
        return [[p for p, d in self.device_of.items() if d == device] for device in range(self._task.num_devices)]

    def _encoded(self, net: CostNet | Policy, positions: Sequence[int]) -> torch.Tensor:
        tables = [self._task.tables[position] for position in positions]
        return net.encode(self._normalizer(tables, self._task.batch_size))

    def _sums(self, net: CostNet | Policy) -> torch.Tensor:
        """[D, H]; a device without tables is zero."""
        width = self._encoded(net, [0]).shape[1]
        return torch.stack(
            [self._encoded(net, shard).sum(dim=0) if shard else torch.zeros(width) for shard in self._shards()]
        )


def play_slowly(task: ShardingTask, normalizer: FeatureNormalizer, model: CostNet, policy: Policy) -> Placement:
    """The placement of the most probable devices.

    Raises:
        InfeasibleTask: at a dead end.
    """
    episode = SlowEpisode(task, normalizer, model, policy)
    while not episode.done:
        step = episode.next()
        if not step.legal.any():
            raise InfeasibleTask(task.task_id)
        logits = step.logits.detach().masked_fill(~step.legal, -torch.inf)
        episode.put(step.position, int(logits.argmax()))
    return episode.placement()
