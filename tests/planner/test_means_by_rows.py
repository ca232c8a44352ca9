"""Rows of MEAN tables: collections cut by rows as a whole where that is faster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import evenshard
from evenshard.base.errors import InfeasibleTask
from evenshard.placement.nodes import Nodes
from evenshard.placement.placement import check_sharding
from evenshard.placement.sharding import ROWS_ALONE
from evenshard.placement.task import allow_row_wise_means
from evenshard.planner.pricing import model_of, part_costs
from evenshard.planner.request import PlacementRequest
from evenshard.tables.table import Table
from support.builders import table

MEANS = tuple(Table(f"m{number}", 10**7, 64, 100.0, pooling="mean", module="means") for number in range(2))
SUMS = tuple(Table(f"s{number}", 10**5, 16, 1.0, module="sums") for number in range(2))
HARDWARE = {"hardware": "simulated:h100", "nodes": 2, "devices_per_node": 4, "inter": "ib_400g"}


def placed(*tables: Table, **named: Any) -> evenshard.PlacementAnswer:
    return evenshard.place(tables, **{**HARDWARE, "batch_size": 32_768, **named})


def types(answer: evenshard.PlacementAnswer, *tables: Table) -> set[str]:
    return {answer.type_of_table[one.name] for one in tables}


@pytest.mark.slow
def test_a_collection_of_means_alone_is_cut_by_rows_where_that_is_faster() -> None:
    """A note says what no time counts."""
    answer = placed(*MEANS, *SUMS)
    columns = placed(*MEANS, *SUMS, sharding_types=("table_wise", "column_wise", "table_column_wise", "grid_shard"))
    assert types(answer, *MEANS) <= {*ROWS_ALONE}
    assert answer.predicted_ms < 0.95 * columns.predicted_ms
    assert answer.lower_bound_ms <= answer.predicted_ms
    (note,) = answer.notes
    assert note.startswith("In collections with MEAN tables, all tables are cut by rows: TorchRec handles")
    check_sharding(answer.request.task(), answer.parts)


def test_a_mean_table_that_must_be_cut_by_rows_takes_its_collection_along() -> None:
    small = tuple(table(name, 1000, 16) for name in "xy")
    request = {"sharding_types": ("table_wise", "row_wise"), "table_types": {"m": "row_wise"}}
    mean = replace(table("m", 1000, 16), pooling="mean")
    answer = evenshard.place([mean, *small], 2, **request)
    assert set(answer.type_of_table.values()) == {"row_wise"}
    with pytest.raises(InfeasibleTask, match="TorchRec handles row-wise MEAN correctly only if"):
        evenshard.place([mean, *small], 2, **{**request, "table_types": {"m": "row_wise", "x": "table_wise"}})


def test_a_placement_near_one_in_rows_stays_in_rows_where_little_may_move(tmp_path: Path) -> None:
    """Without a bound, the search cuts nothing by rows. A new table of the collection joins the others in rows."""
    tables = tuple(replace(table(name, 1000, 16), pooling="mean", module="m") for name in "ab")
    free = {"sharding_types": ("table_wise", "row_wise")}
    near = {**free, "near": tmp_path / "placement.json"}
    by_rows = evenshard.place(tables, 2, sharding_types=ROWS_ALONE)
    evenshard.save_answer(by_rows, tmp_path / "placement.json")
    assert types(evenshard.place(tables, 2, **free), *tables) == {"table_wise"}
    assert evenshard.place(tables, 2, max_move_gb=0.0, **near).parts == by_rows.parts
    assert types(evenshard.place(tables, 2, **near), *tables) == {"table_wise"}
    joined = (*tables, replace(table("c", 1000, 16), module="m"))
    assert types(evenshard.place(joined, 2, max_move_gb=0.0, **near), *joined) == {"row_wise"}


def test_who_may_be_cut_by_rows() -> None:
    """Not with a table of one row, a sequence's rules, or weighted means; and only what the types ask for."""

    def of(*tables: Table, **named: Any) -> tuple[int, bool]:
        request = PlacementRequest(tables, (10**9,) * 4, 64, machine=Nodes(4, 2, inter="ib_400g"), **named)
        task = request.task()
        free = allow_row_wise_means(task)
        able = [
            name
            for name, own in zip(task.tables, free.types, strict=True)
            if name.pooling == "mean" and own & {*ROWS_ALONE}
        ]
        return len(able), bool(task.may_be_row_wise)

    mean, other = replace(table("m", 100, 8), pooling="mean"), table("x", 100, 8)
    assert of(mean, other) == (1, True)
    assert of(mean, replace(other, num_rows=1)) == (0, False)
    assert of(mean, replace(other, num_rows=1, module="else")) == (1, True)
    assert of(replace(mean, num_rows=1), other) == (0, False)
    assert of(replace(mean, is_weighted=True), other) == (0, False)
    assert of(other) == (0, False)
    assert of(mean, other, sharding_types=("table_wise", "column_wise")) == (0, False)
    assert of(mean, other, sharding_types=ROWS_ALONE) == (1, False), "all are cut by rows anyway"


def test_dividing_sums_takes_memory_traffic() -> None:
    """Nine times the outputs of a device's samples: 64 x (8 + 16) x 4 bytes, at what the memory moves."""
    both = (replace(table("a", 100, 8), pooling="mean"), replace(table("b", 100, 16), module="m"))
    request = PlacementRequest(both, (10**9,) * 2, 128, hardware="simulated:h100")
    costs = part_costs(request, model_of(None, "simulated:h100"))
    moved = 9 * 4 * 64 * 8
    assert costs.division_ms({both[0].collection}) == pytest.approx(moved / costs.kinds[0].bytes_per_ns * 1e-6)
    assert costs.division_ms(()) == 0
