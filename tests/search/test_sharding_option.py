"""Collections with MEAN tables in a search: in rows as a whole or not at all, with the time of the division."""

from __future__ import annotations

import numpy as np
import pytest

from evenshard.placement.placement import check_sharding, is_legal_sharding, parts_by_table, row_wise_means
from evenshard.placement.sharding import ROWS_ALONE
from evenshard.placement.task import allow_row_wise_means
from evenshard.price.step import PartCosts
from evenshard.search.chains import Chains
from evenshard.search.placer import GreedyPlacer
from evenshard.search.search import PlanSearch, PlanSearchEffort
from evenshard.search.sharding_option import WRONG, choices_from
from evenshard.search.space import SearchSpace, parts_of
from evenshard.tables.table import MEAN, Table
from support.search_builders import FOUR, TWO_NODES, costs_of, types_of

SHORT = PlanSearchEffort(6_000)


def some_means(seed: int) -> tuple[Table, ...]:
    """Tables of two collections, about two of three with means."""
    rng = np.random.default_rng(seed)
    return tuple(
        Table(
            f"t{number}",
            int(10 ** rng.uniform(4.5, 7.5)),
            int(rng.choice([8, 32, 64, 128])),
            float(rng.choice([1, 30, 200])),
            pooling=str(rng.choice([MEAN, MEAN, "sum"])),
            module=str(rng.choice(["one", "other"])),
        )
        for number in range(int(rng.integers(3, 7)))
    )


def means_costs(seed: int, allow: bool = False) -> PartCosts:
    costs = costs_of(some_means(seed), (FOUR, TWO_NODES)[seed % 2])
    return costs.of_task(allow_row_wise_means(costs.task)) if allow else costs


def test_means_go_in_rows_as_a_whole_or_not_at_all() -> None:
    """Of a collection with means in rows, no table has another type; that holds for all candidates."""
    num_in_rows = 0
    for seed in range(5):
        task, found = means_costs(seed).task, PlanSearch(means_costs(seed, allow=True), SHORT).run()
        for parts in found.candidates:
            check_sharding(task, parts)
            by_table = parts_by_table(task, parts)
            types = types_of(task, parts)
            in_rows = {name for name, own in types.items() if own in ROWS_ALONE}
            cut = {one.collection for one in task.tables if one.pooling == MEAN and one.name in in_rows}
            assert cut == row_wise_means(task, by_table)
            assert {one.name for one in task.tables if one.collection in cut} <= in_rows
        num_in_rows += bool(row_wise_means(task, parts_by_table(task, found.best.parts)))
    assert 1 <= num_in_rows <= 4


@pytest.mark.parametrize("seed", range(2))
def test_chains_count_what_is_wrong_and_add_the_time_of_the_division(seed: int) -> None:
    """Random options of all tables, in every second placement mostly rows."""
    costs, free = means_costs(seed), means_costs(seed, allow=True)
    space = SearchSpace(free)
    table, rng = space.table, np.random.default_rng(seed)
    option_NG = table.first_option_G + (rng.random((30, len(space.groups))) * table.num_options_G).astype(np.int64)
    placer = GreedyPlacer(space)
    rows_G = placer.cheapest(~space.means.is_row_O)
    option_NG[::2] = np.where(rng.random(option_NG[::2].shape) < 0.7, rows_G, option_NG[::2])
    chains = Chains(space, option_NG, placer.place(option_NG, np.zeros(30, dtype=bool)))
    for number, option_G in enumerate(option_NG):
        in_rows = np.array([table.types[table.type_O[one]] in ROWS_ALONE for one in option_G])
        is_mean = np.array([one.pooling == MEAN for one in costs.task.tables])
        wrong, division_ms = 0, 0.0
        for collection, name in enumerate(space.means.names):
            own = space.means.number_G == collection
            wrong += min((own & in_rows & is_mean).sum(), (own & ~in_rows).sum())
            division_ms += free.division_ms({name}) * bool((own & in_rows & is_mean).any())
        assert chains.overflow_N[number] == pytest.approx(WRONG * wrong)
        parts = parts_of(space, choices_from(table, option_G, chains.place_NGS[number]))
        assert chains.cost_N[number] == pytest.approx(free.predict(parts).predicted_ms + division_ms, rel=1e-3)
        assert wrong or (
            is_legal_sharding(costs.task, parts) and free.divisions_ms(parts) == pytest.approx(division_ms)
        )
