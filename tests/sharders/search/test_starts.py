"""What a search begins with: constructions by the work of options, alone and beside the widest table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evenshard.measure.collectives import Links
from evenshard.measure.link import LINKS
from evenshard.measure.price.step import PartCosts
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.measure.simulated.price import simulated_kind
from evenshard.placement.machine import Machine
from evenshard.placement.parts import Span, TablePart, row_spans
from evenshard.placement.sharding import COLUMN_WISE, TABLE_WISE
from evenshard.placement.task import ShardingTask
from evenshard.sharders.search import starts
from evenshard.sharders.search.construction import Construction, SpreadPlaces, Works
from evenshard.sharders.search.nested import search_with_fewer_types
from evenshard.sharders.search.search import PlanSearch, PlanSearchEffort
from evenshard.sharders.search.sharding_option import Choice
from evenshard.sharders.search.space import SearchSpace
from evenshard.tables.sources import load_catalog
from evenshard.tables.table import Table


def costs_of(tables: tuple[Table, ...], profile: str, devices: int = 8, batch: int = 65_536) -> PartCosts:
    """On one node of a simulated GPU."""
    machine = Machine.one_node(devices)
    task = ShardingTask(tables, machine, (120 * 10**9,) * devices, batch)
    kind = simulated_kind(gpu_profile(profile), machine)
    return PartCosts(task, [kind], [0] * devices, Links(LINKS[f"nvlink_{profile}"]))


@pytest.mark.parametrize(("profile", "times"), [("h100", 1.8), ("v100", 1.0)])
def test_beside_the_widest_table_narrow_parts_save_no_lanes(profile: str, times: float) -> None:
    """Of four parts of 32 columns, against the whole table of 128; the V100's profile knows no lanes."""
    space = SearchSpace(costs_of(tuple(Table(f"t{at}", 10**6, 128, 20.0) for at in range(4)), profile))
    options = space.groups[0].options
    whole, narrow = (
        next(at for at, option in enumerate(options) if (option.sharding_type, len(option.pieces)) == wanted)
        for wanted in ((TABLE_WISE, 1), (COLUMN_WISE, 4))
    )
    alone, beside = (Works.of(space, beside_largest=one).total_GW[0] for one in (False, True))
    assert (beside[narrow] / beside[whole]) / (alone[narrow] / alone[whole]) == pytest.approx(times, rel=0.1)


def test_constructions_of_far_too_much_work_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best one is the same; how many are placed is counted."""
    search = PlanSearch(costs_of(tuple(Table(f"t{at}", 10**4 * 3**at, 64, 8.0 + at) for at in range(9)), "h100"))
    made: list[int] = []
    place = Construction.place

    def counted(self: Construction, *args: Any, **kwargs: Any) -> list[Choice] | None:
        made[-1] += 1
        return place(self, *args, **kwargs)

    monkeypatch.setattr(Construction, "place", counted)
    least = []
    for hopeless in (float("inf"), starts.HOPELESS):
        monkeypatch.setattr(starts, "HOPELESS", hopeless)
        made.append(0)
        least.append(min(one.cost_ms for one in starts.construct_starts(search.construction)))
    assert made[1] < made[0] and least[1] == least[0]


@pytest.mark.slow
def test_the_costliest_table_in_rows_beside_whole_ones_is_found() -> None:
    """A plan by hand of a kind that TorchRec's planner finds, and that no limit on a piece makes.

    MLPerf DLRM v2 on 8 H200: one table in rows, the next four cut in two, the small ones on every device, others whole.
    """
    costs = costs_of(load_catalog("mlperf_dlrm_v2", 65_536), "h200")
    halves = {"C1": (2, 3), "C10": (6, 7), "C20": (2, 3), "C22": (0, 1)}
    wholes = {"C2": 5, "C3": 4, "C5": 7, "C11": 2, "C12": 6, "C15": 5, "C23": 4, "C24": 3}
    parts: list[TablePart] = []
    for table in costs.task.tables:
        whole = TablePart(table.name, Span(0, table.num_rows), Span(0, table.embedding_dim), tuple(range(8)))
        if table.name == "C21":
            cut = enumerate(row_spans(table, 8))
            parts += [replace(whole, rows=rows, devices=(device,)) for device, rows in cut]
        elif table.name in halves:
            own = zip((Span(0, 64), Span(64, 128)), halves[table.name], strict=True)
            parts += [replace(whole, columns=columns, devices=(device,)) for columns, device in own]
        else:
            parts.append(replace(whole, devices=(wholes[table.name],)) if table.name in wholes else whole)
    by_hand_ms = costs.predict(parts).predicted_ms
    _, found = search_with_fewer_types(costs, PlanSearchEffort(), 0, lambda task, limit_s: ())
    assert found.best.predicted_ms < 0.98 * by_hand_ms


def test_pieces_that_live_on_several_devices_go_to_the_least_busy_sets_with_memory() -> None:
    """Of four pairs of devices, the first is the busiest, the second may not be used, and the third is half full."""
    load_D, free_D = np.array([9.0, 1, 1, 1, 2, 3, 4, 1]), np.array([90, 90, 90, 90, 90, 40, 90, 90])
    allowed_D = np.array([True] * 3 + [False] + [True] * 4)
    pairs = SpreadPlaces.of(2, load_D, free_D, allowed_D)
    assert pairs.order == [1, 2, 3, 0]
    assert [pairs.first(size, ()) for size in (40, 41, 90, 91)] == [2, 3, 3, None]
    assert pairs.first(40, [2]) == 3 and pairs.first(40, (), np.array([True, True, False, False])) == 0
    pieces = SearchSpace(costs_of((Table("a", 1_000, 8, 1.0),), "h100")).groups[0].options[0].pieces
    small, large = (replace(pieces[0], size_bytes=size) for size in (40, 90))
    assert pairs.place([small, large, large]) == (2, 3, 0)
    assert pairs.place([large] * 3) is None
    assert SpreadPlaces.of(2, load_D, free_D, None).first(90, ()) == 1


def test_so_many_of_the_cheapest_starts_are_predicted_and_those_that_cost_as_much() -> None:
    search = PlanSearch(costs_of(load_catalog("criteo_kaggle", 65_536), "h100"), PlanSearchEffort(changes=100))
    begun = sorted(starts.construct_starts(search.construction), key=lambda one: one.cost_ms)
    dearer = next(one for one in begun if one.cost_ms > 1.02 * begun[0].cost_ms)
    states = search._states([begun[0], dearer, begun[-1]])
    found = {least: [one.predicted_ms for one, _ in search._predict_cheapest(states, least)] for least in (1, 2, 3)}
    assert [len(found[least]) for least in (1, 2, 3)] == [1, 2, 3]
    assert found[3] == sorted(found[3]) and found[1] == found[3][:1] and found[2] == found[3][:2]
