"""Greedy on a cost model: by hand, within memory, and with few rows kept together."""

from __future__ import annotations

from dataclasses import replace

import torch

from evenshard.placement.plan import check_placement
from evenshard.sharders.convex_search.marginal_greedy import marginal_greedy
from support.builders import sized, some_tables, table, task


class Weights:
    """A device costs the sum of its tables' weights, and double where its rows need a third pass."""

    def __init__(self, weights: list[float], rows: list[int] | None = None) -> None:
        self.columns_TH = torch.tensor([weights, rows or [0] * len(weights)], dtype=torch.float32).T
        self.empty_H = torch.zeros(2)
        self.wait_T = torch.zeros(len(weights))

    def device_ms(self, sums: torch.Tensor) -> torch.Tensor:
        return sums[..., 0] * (1 + (sums[..., 1] >= 2**16).float())


def test_the_costliest_table_comes_first_and_goes_to_the_fastest_device() -> None:
    """7; 5 to the other; 4 joins the 5, as 9 is less than 11; 3 joins the 7."""
    of_task = task(some_tables(4), 2)
    (found,) = marginal_greedy(of_task, Weights([3.0, 7.0, 4.0, 5.0]))
    assert {frozenset(shard) for shard in found.shards()} == {frozenset({1, 0}), frozenset({2, 3})}


def test_memory_is_kept_and_a_dead_end_is_no_answer() -> None:
    """6 and 6 fill one device each; the 4 has room nowhere unless a cap of 10 is raised."""
    tables = sized(6, 6, 4)
    (found,) = marginal_greedy(task(tables, 2, cap=40), Weights([1.0, 1.0, 9.0]))
    check_placement(task(tables, 2, cap=40), found)
    assert marginal_greedy(task(tables, 2, cap=36), Weights([1.0, 1.0, 9.0])) == []


def test_one_placement_keeps_the_tables_of_many_rows_away_from_the_others() -> None:
    """Two tables of 50,000 rows: with either, the four of 10,000 would be sorted in three passes."""
    rows = [50_000, 50_000, 10_000, 10_000, 10_000, 10_000]
    tables = [replace(table(f"t{n}"), num_rows=count) for n, count in enumerate(rows)]
    weights = [3.0, 3.0, 4.0, 4.0, 4.0, 4.0]
    cost_model = Weights(weights, rows)
    found = marginal_greedy(task(tables, 2), cost_model)
    assert len(found) > 1
    costs = []
    for placement in found:
        sums = torch.stack([cost_model.columns_TH[list(shard)].sum(dim=0) for shard in placement.shards()])
        costs.append(float(cost_model.device_ms(sums).max()))
    assert min(costs[1:]) == 16.0 < costs[0]


def test_no_more_ways_than_the_rows_give_reason_for() -> None:
    """Rows of all tables together below 2**16: no pass to save that counts."""
    tables = [table(f"t{n}", rows=1000) for n in range(5)]
    assert len(marginal_greedy(task(tables, 3), Weights([1.0] * 5, [1000] * 5))) == 1
