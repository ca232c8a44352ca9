"""Moves and swaps: against all placements of small tasks, within memory, within the budget."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest
import torch

from evenshard.placement.placement import Placement
from evenshard.placement.plan import check_placement
from evenshard.placement.task import ShardingTask
from evenshard.sharders.convex_search.local_search import LocalSearch, SearchEffort
from support.builders import ROOMY, every_placement, some_tables, table, task


class Additive:
    """A device costs the sum of its tables' weights."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.columns_TH = torch.tensor(weights)[:, None]
        self.empty_H = torch.zeros(1)
        self.wait_T = torch.zeros(len(weights))
        self.num_scores = 0

    def device_ms(self, sums: torch.Tensor) -> torch.Tensor:
        self.num_scores += sums.shape[:-1].numel()
        return sums[..., 0]


class Fused(Additive):
    """The square root of the sum, and 1 on top from a weight of 10 on: neither convex nor linear."""

    def device_ms(self, sums: torch.Tensor) -> torch.Tensor:
        return super().device_ms(sums).clamp(min=0).sqrt() + (sums[..., 0] >= 10).float()


class Coupled(Fused):
    """All devices wait for the heaviest by a second weight, which the largest table by the first has least of."""

    def __init__(self, weights: Sequence[float]) -> None:
        super().__init__(weights)
        self.wait_T = 10 - self.columns_TH[:, 0]


def cost_of(cost_model: Additive, placement: Placement) -> float:
    """The slowest device and the longest wait; no rounding."""
    shards = [list(shard) for shard in placement.shards()]
    sums_DH = torch.stack([cost_model.columns_TH[shard].sum(dim=0) for shard in shards])
    waits = [float(cost_model.wait_T[shard].sum()) for shard in shards]
    return float(cost_model.device_ms(sums_DH).max()) + max(waits)


def loads(weights: Sequence[float], placement: Placement) -> list[float]:
    return sorted((sum(weights[i] for i in shard) for shard in placement.shards()), reverse=True)


def search(
    of_task: ShardingTask, cost_model: Additive, starts: Sequence[Sequence[int]], scores: int = 300, seed: int = 0,
    limit_s: float | None = None,
) -> list[Placement]:  # fmt: skip
    effort = SearchEffort(scores_per_table=scores, kicked_tables=2, time_limit_s=limit_s)
    placements = [Placement(tuple(start), of_task.num_devices) for start in starts]
    return LocalSearch(of_task, cost_model, effort, torch.Generator().manual_seed(seed)).improve(placements)


def equal_tables(count: int) -> tuple:
    return tuple(table(f"t{number}") for number in range(count))


def test_a_move_relieves_the_slowest_device() -> None:
    (found,) = search(task(equal_tables(2), 2), Additive([1.0, 2.0]), [(0, 0)])
    assert found.device_of_table in ((0, 1), (1, 0))


def test_a_swap_helps_where_no_move_does() -> None:
    """5 + 4 against 3 + 3: every move makes it worse; 5 + 3 against 4 + 3 is the best there is."""
    weights = [5.0, 4.0, 3.0, 3.0]
    (found,) = search(task(equal_tables(4), 2), Additive(weights), [(0, 0, 1, 1)])
    assert loads(weights, found) == [8.0, 7.0]


def test_behind_one_huge_table_the_others_are_balanced_too() -> None:
    """The model may be wrong about the huge one: the devices behind it must not be left as they are."""
    weights = [100.0, 1.0, 2.0, 3.0, 4.0]
    (found,) = search(task(equal_tables(5), 3), Additive(weights), [(0, 1, 1, 1, 1)])
    assert loads(weights, found) == [100.0, 5.0, 5.0]


@pytest.mark.parametrize("costs_of", [Additive, Fused, Coupled])
@pytest.mark.parametrize("seed", range(4))
def test_small_tasks_are_solved(seed: int, costs_of: type[Additive]) -> None:
    weights = (torch.rand(7, generator=torch.Generator().manual_seed(seed)) * 9).tolist()
    of_task = task(equal_tables(7), 3)
    cost_model = costs_of(weights)
    best = min(cost_of(cost_model, placement) for placement in every_placement(of_task))
    found = search(of_task, cost_model, [(0,) * 7, (0, 1, 2, 0, 1, 2, 0)], scores=2000, seed=seed)
    assert min(cost_of(cost_model, placement) for placement in found) == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_a_descent_never_makes_a_placement_slower_as_a_whole(seed: int) -> None:
    """Also where relieving two devices would let all wait longer for one of them."""
    weights = (torch.rand(12, generator=torch.Generator().manual_seed(seed)) * 9).tolist()
    cost_model, starts = Coupled(weights), [tuple((number * k) % 4 for number in range(12)) for k in (1, 2, 3)]
    for start, found in zip(starts, search(task(equal_tables(12), 4), cost_model, starts), strict=True):
        assert cost_of(cost_model, found) <= cost_of(cost_model, Placement(start, 4)) * (1 + 1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_a_descent_ends_where_no_step_helps_any_device(seed: int) -> None:
    """No move or swap leaves both devices faster than the slower one was, behind the slowest device too."""
    weights = torch.randint(1, 60, (14,), generator=torch.Generator().manual_seed(seed)).float().tolist()
    of_task, effort = task(equal_tables(14), 4), SearchEffort(scores_per_table=3000, kicked_tables=0)
    start = Placement((0,) * 14, 4)
    (end,) = LocalSearch(of_task, Additive(weights), effort, torch.Generator()).improve([start])
    shards = [list(shard) for shard in end.shards()]
    load = [sum(weights[i] for i in shard) for shard in shards]
    for home, away in permutations(range(4), 2):
        for leaves in shards[home]:
            for comes in [0.0, *(weights[i] for i in shards[away])]:
                change = weights[leaves] - comes
                assert max(load[home] - change, load[away] + change) >= load[home]


def test_kicks_also_help_the_devices_behind_the_slowest() -> None:
    """Nothing can be done about the 100; the others have a perfect split, 38 each, that descents miss."""
    weights = [100.0, 19.0, 17.0, 13.0, 11.0, 7.0, 5.0, 3.0, 1.0]
    starts = [(0, 1, 2, 2, 1, 1, 2, 1, 2), (0, *[1] * 8), (0, 1, 1, 1, 1, 2, 2, 2, 2)]
    for seed in range(3):
        for found in search(task(equal_tables(9), 3), Additive(weights), starts, 3000, seed):
            assert loads(weights, found) == [100.0, 38.0, 38.0]


@pytest.mark.parametrize("seed", range(6))
def test_memory_is_kept_and_no_start_gets_worse(seed: int) -> None:
    tables = some_tables(12, seed)
    weights = [one.pooling_factor * one.embedding_dim for one in tables]
    rng = torch.Generator().manual_seed(seed)
    starts = torch.randint(3, (5, 12), generator=rng).tolist()
    used = [
        max(sum(tables[i].size_bytes for i in shard) for shard in Placement(tuple(start), 3).shards())
        for start in starts
    ]
    of_task = task(tables, 3, cap=max(used))
    found = search(of_task, Additive(weights), starts, seed=seed)
    assert len(found) == 5
    for start, placement in zip(starts, found, strict=True):
        check_placement(of_task, placement)
        assert loads(weights, placement)[0] <= loads(weights, Placement(tuple(start), 3))[0] * (1 + 1e-6)


def test_a_full_memory_leaves_only_swaps_of_tables_that_fit() -> None:
    """Two devices of 10 rows, both full: only the two tables of 4 rows may change places, or the two of 6."""
    tables = [table("a", 4, 1), table("b", 6, 1), table("c", 4, 1), table("d", 6, 1)]
    weights = [3.0, 3.0, 1.0, 1.0]
    (found,) = search(task(tables, 2, cap=10 * 4), Additive(weights), [(0, 0, 1, 1)])
    check_placement(task(tables, 2, cap=10 * 4), found)
    assert loads(weights, found) == [4.0, 4.0]


def test_one_device_leaves_nothing_to_do() -> None:
    (found,) = search(task(equal_tables(3), 1), Additive([1.0, 2.0, 3.0]), [(0, 0, 0)])
    assert found.device_of_table == (0, 0, 0)


def test_the_same_seed_gives_the_same_placements_and_another_seed_others() -> None:
    weights = (torch.rand(30, generator=torch.Generator().manual_seed(0)) * 9).tolist()
    of_task, start = task(equal_tables(30), 4), [(0,) * 30]
    first, same, other = (search(of_task, Additive(weights), start, 5000, seed) for seed in (1, 1, 2))
    assert first == same != other


def test_more_scores_find_better_placements() -> None:
    weights = (torch.rand(40, generator=torch.Generator().manual_seed(3)) ** 3 * 9).tolist()
    of_task, start = task(equal_tables(40), 5), [tuple(n % 5 for n in range(40))]
    few, many = (loads(weights, search(of_task, Additive(weights), start, scores)[0])[0] for scores in (100, 20_000))
    assert sum(weights) / 5 <= many < few


def test_the_budget_of_scores_ends_the_search() -> None:
    """A descent may finish the step it is in: 20 tables to 40 places each, moves and swaps, in two chains."""
    cost_model = Additive((torch.rand(20, generator=torch.Generator().manual_seed(0)) * 9).tolist())
    search(task(equal_tables(20), 4), cost_model, [(0,) * 20, (1,) * 20], scores=500)
    assert 500 * 20 <= cost_model.num_scores < 500 * 20 + 2 * 20 * 40 * 2


def test_without_time_the_starts_come_back() -> None:
    starts = [(0, 0, 0), (1, 1, 1)]
    found = search(task(equal_tables(3), 2, cap=ROOMY), Additive([1.0, 2.0, 3.0]), starts, limit_s=0.0)
    assert [placement.device_of_table for placement in found] == starts


def test_with_any_budget_the_search_ends_when_nothing_gets_better() -> None:
    of_task, cost_model = task(equal_tables(3), 2), Additive([2.0, 3.0, 4.0])
    (found,) = search(of_task, cost_model, [(0, 0, 0)], scores=10**12)
    assert loads([2.0, 3.0, 4.0], found) == [5.0, 4.0]
    kicks = 3 * SearchEffort().idle_kicks_per_table
    assert kicks < cost_model.num_scores < 100 * kicks
