"""The search near an earlier placement: against brute force, within its bound, and where not everything can stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from evenshard.base.errors import BadConfig
from evenshard.placement.memory import STATE_NUMBERS
from evenshard.placement.moves import EarlierPlacement
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import USUAL_KERNELS, TablePart, whole_part
from evenshard.placement.placement import check_sharding, parts_by_table
from evenshard.placement.sharding import TABLE_WISE
from evenshard.placement.task import TableLimits
from evenshard.price.loads import Indices
from evenshard.price.step import PartCosts
from evenshard.search.chains import Chains
from evenshard.search.moves import BEYOND, PRICE, Moves
from evenshard.search.near_placement import ALIKE, NearResult, NearSearch
from evenshard.search.placer import GreedyPlacer
from evenshard.search.proposals import Proposals
from evenshard.search.search import PlanSearch, PlanSearchEffort, PlanSearchResult
from evenshard.search.sharding_option import Choice, arrays_of, edits_of
from evenshard.search.space import SearchSpace, choices_of, parts_of, parts_of_group
from evenshard.tables.table import Table
from support import search_builders
from support.search_builders import GB, random_choice, some_tables

SHORT = PlanSearchEffort(changes=8_000)
WHOLE = TableLimits(frozenset({TABLE_WISE}))


def costs_of(tables: Sequence[Table], devices: int, of_each: TableLimits | None = None, **changes: object) -> PartCosts:
    costs = search_builders.costs_of(tables, Nodes.one_node(devices))
    limits = {} if of_each is None else {"limits": (of_each,) * len(tables)}
    return costs.of_task(replace(costs.task, **(limits | changes)))  # type: ignore[arg-type]


def placed(tables: Sequence[Table], devices: Sequence[int]) -> list[TablePart]:
    return [whole_part(table, (device,)) for table, device in zip(tables, devices, strict=True)]


def earlier(parts: Sequence[TablePart], devices: int, optimizer: str = "sgd") -> EarlierPlacement:
    by_table: dict[str, list[TablePart]] = {}
    for part in parts:
        by_table.setdefault(part.table, []).append(part)
    placed_so = {name: tuple(own) for name, own in by_table.items()}
    return EarlierPlacement(placed_so, Nodes.one_node(devices), dict.fromkeys(by_table, optimizer))


def near(
    costs: PartCosts, before: EarlierPlacement, most_bytes: float = float("inf"), known: Sequence[TablePart] = ()
) -> tuple[PlanSearchResult, NearResult]:
    search = PlanSearch(costs, SHORT)
    free = search.run([known] if known else ())
    return free, NearSearch(search, before, most_bytes).run(free)


def test_more_may_only_help_and_without_a_bound_it_is_as_good_as_free() -> None:
    tables = some_tables(10, 2)
    loads = np.random.default_rng(0).permutation(10)
    changed = [replace(table, pooling_factor=float(tables[loads[n]].pooling_factor)) for n, table in enumerate(tables)]
    old = earlier(PlanSearch(costs_of(tables, 4), SHORT).run().best.parts, 4, "adam")
    costs = costs_of(changed, 4, optimizer="adam")
    total = 3 * sum(table.size_bytes for table in changed)
    times = []
    for share in (0, 0.1, float("inf")):
        free, found = near(costs, old, share * total)
        assert found.moved_bytes <= share * total
        check_sharding(costs.task, found.best.parts)
        times.append(found.best.predicted_ms)
    assert all(later <= sooner * 1.01 for sooner, later in pairwise(times))
    assert times[0] == found.stay.predicted_ms and times[-1] <= free.best.predicted_ms * (1 + ALIKE)


def table(name: str, gigabytes: float) -> Table:
    return Table(name, int(gigabytes * GB / 4 / 64), 64, 1.0)


def test_where_tables_do_not_fit_any_more_the_fewest_bytes_move() -> None:
    """a and b on 4 GB, c on 3: a new table d of 2.5 GB fits beside c, one of 2.7 GB only once c is gone."""
    for new_gb, moved_gb, devices in ((2.5, 0, (0, 0, 1, 1)), (2.7, 0.4, (0, 0, 0, 1))):
        tables = [table("a", 2), table("b", 1.5), table("c", 0.4), table("d", new_gb)]
        costs = costs_of(tables, 2, WHOLE, room_bytes=(4 * GB, 3 * GB), pipeline="")
        before, fits = earlier(placed(tables[:3], (0, 0, 1)), 2), placed(tables, devices)
        if moved_gb:
            with pytest.raises(BadConfig, match=r"max_move_gb is 0, .*: 'c' must move. Raise .* to 0\.4"):
                near(costs, before, 0, fits)
        _, found = near(costs, before, moved_gb * GB, fits)
        assert found.moved_bytes == found.stay_bytes == pytest.approx(moved_gb * GB, rel=1e-6)
        assert list(found.best.parts) == fits


def places_of(moves: Moves, *choices: tuple[int, Choice]) -> tuple[Indices, Indices]:
    """Options and places of choices of groups as arrays."""
    edits = edits_of(moves.table, [{group: choice} for group, choice in choices])
    return edits.option_E, edits.place_ES


def test_chains_know_the_moved_bytes_of_changes() -> None:
    """Changes that are tried out, and made, count as placements that are filled anew."""
    costs, rng = costs_of(some_tables(6, 6), 4), np.random.default_rng(0)
    space = SearchSpace(costs)
    before = parts_by_table(costs.task, parts_of(space, [random_choice(space, group, rng) for group in range(6)]))
    moves = Moves(space, EarlierPlacement({name: tuple(own) for name, own in before.items()}, costs.task.machine))
    placer = GreedyPlacer(space)
    option_NG = np.repeat(moves.home_G[None], 3, axis=0)
    chains = Chains(space, option_NG, np.repeat(moves.home_GS[None], 3, axis=0), moves=moves)
    assert chains.moved_N.tolist() == [0, 0, 0]
    proposals = Proposals(placer, rng)
    for _ in range(10):
        chain_M, edits = proposals.draw(chains, 1)
        moved_M = chains.moved_bytes_after(chain_M, edits)
        chains.apply(chain_M, edits, chains.list_changed_shards(chain_M, edits), np.arange(3))
        assert chains.moved_N.tolist() == moved_M.tolist()
    anew = chains.with_placements(chains.option_NG, chains.place_NGS)
    assert anew.moved_N.tolist() == chains.moved_N.tolist() != [0, 0, 0]
    moves.most_bytes, moves.all_bytes = 10, 40
    weights = [PRICE * 5 / 40, PRICE * 20 / 40 + 3.0 * (10 / 40 + BEYOND)]
    assert moves.weigh(np.array([5, 20]), overflow=3.0).tolist() == pytest.approx(weights)


def test_of_placements_that_take_as_long_or_part_tables_the_one_that_moves_least_is_the_answer() -> None:
    tables = [Table("a", 10**6, 64, 5.0), Table("b", 10**6, 64, 5.0)]
    _, found = near(costs_of(tables, 2, WHOLE), earlier(placed(tables, (1, 0)), 2))
    assert found.moved_bytes == 0
    tables = [table("a", 1), table("b", 0.5), table("c", 2)]
    before = earlier(placed(tables, (0, 0, 1)), 2)
    _, found = near(costs_of(tables, 2, WHOLE, apart=((0, 1),)), before, 0.5 * GB)
    assert {part.table: part.device for part in found.best.parts} == {"a": 0, "b": 1, "c": 1}


def any_machine(rng: np.random.Generator) -> Nodes:
    nodes, each = int(rng.choice([1, 2, 3])), int(rng.choice([1, 2, 4]))
    inter = "ib_400g" if nodes > 1 else ""
    return Nodes(nodes * each, each, inter=inter, host_bytes=(64 * GB,) * nodes)


@pytest.mark.parametrize("seed", range(4))
def test_moved_bytes_as_arrays_are_those_of_the_shared_pieces(seed: int) -> None:
    """Random types, widths, storages, joined tables, optimizers and machines, before and after."""
    rng = np.random.default_rng(seed)
    tables = tuple(replace(one, weight_bits=int(rng.choice([8, 16, 32]))) for one in some_tables(7, seed))
    names = list(STATE_NUMBERS)
    optimizers = {table.name: names[int(rng.integers(len(names)))] for table in tables[:-1]}  # the last one is new
    more: dict[str, object] = {"kernels": USUAL_KERNELS, "pipeline": "", "together": ((1, 2),)}
    old, new = (
        SearchSpace(costs_of(tables, one.num_devices, machine=one, **more), offloads=True)
        for one in (any_machine(rng), any_machine(rng))
    )
    before = parts_by_table(old.task, parts_of(old, [random_choice(old, at, rng) for at in range(len(old.groups))]))
    kept = {name: tuple(before[name]) for name in optimizers}
    was = EarlierPlacement(kept, old.task.machine, optimizers)
    moves = Moves(new, was)
    found = [(group, random_choice(new, group, rng)) for group in range(len(new.groups)) for _ in range(30)]
    expected = [
        sum(
            shard.moved_bytes
            for position, after in parts_of_group(new, group, choice).items()
            for shard in was.list_overlaps([tables[position]], {tables[position].name: after}, new.task.machine)
        )
        for group, choice in found
    ]
    assert moves.count_bytes(*places_of(moves, *found)).tolist() == expected


def test_groups_return_home_as_far_as_the_bound_demands() -> None:
    tables = [table(name, 1) for name in "abcd"]
    search, before = PlanSearch(costs_of(tables, 2, WHOLE), SHORT), earlier(placed(tables, (0,) * 4), 2)
    one, space = NearSearch(search, before), search.space
    one._moves = Moves(space, before)
    away = arrays_of(space.table, choices_of(space, placed(tables, (1,) * 4)) or [])
    moved = [one._bytes(one._return_home(away, bound)) for bound in (0, 2.5 * GB, 4.5 * GB)]
    assert [round(size / GB) for size in moved] == [0, 2, 4]
