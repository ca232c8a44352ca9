"""Rules of thumb: each is the placement that it names, and no answer is worse than any of them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from evenshard.measure.collectives import Links
from evenshard.measure.link import LINKS
from evenshard.measure.price.step import PartCosts
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.measure.simulated.price import simulated_kind
from evenshard.placement.machine import Machine
from evenshard.placement.parts import TablePart
from evenshard.placement.sharding import (
    COLUMN_WISE,
    DATA_PARALLEL,
    ROW_WISE,
    SHARDING_TYPES,
    TABLE_COLUMN_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
)
from evenshard.placement.sharding import sharding_type as type_of
from evenshard.placement.task import ShardingTask, TableLimits
from evenshard.sharders.search import rules_of_thumb as rules_module
from evenshard.sharders.search import starts
from evenshard.sharders.search.construction import Construction
from evenshard.sharders.search.rules_of_thumb import RuleOfThumb, rules_of_thumb
from evenshard.sharders.search.search import PlanSearch, PlanSearchEffort
from evenshard.sharders.search.starts import construct_starts
from evenshard.sharders.search.state import State
from evenshard.tables.table import Table

MACHINE, TWO_NODES = Machine(4, 4), Machine(4, 2, inter="infiniband_ndr")


def search_of(
    seed: int, types: tuple[str, ...] = SHARDING_TYPES, room_bytes: int = 2**36, machine: Machine = MACHINE
) -> PlanSearch:
    rng = np.random.default_rng(seed)
    tables = tuple(
        Table(f"t{n}", int(10 ** rng.uniform(2, 6.5)), int(rng.choice([16, 64, 128])), float(rng.choice([1, 5, 40])))
        for n in range(int(rng.integers(3, 12)))
    )
    limits = tuple(TableLimits(types=frozenset(types)) for _ in tables)
    task = ShardingTask(tables, machine, (room_bytes,) * 4, 16_384, limits=limits)
    kind = simulated_kind(gpu_profile("h200"), Machine(1, 1))
    inter = LINKS["infiniband_ndr"] if machine.num_domains > 1 else None
    costs = PartCosts(task, [kind], [0] * 4, Links(LINKS["nvlink_h200"], inter))
    return PlanSearch(costs, PlanSearchEffort(changes=60, idle_kicks=2))


def types_of(search: PlanSearch, rule: RuleOfThumb) -> dict[str, str]:
    parts: dict[str, list[TablePart]] = {}
    for part in State(search.space, rule.choices).parts():
        parts.setdefault(part.table, []).append(part)
    by_name = {table.name: table for table in search.costs.task.tables}
    return {name: type_of(of_table, by_name[name], search.costs.task.machine) for name, of_table in parts.items()}


@pytest.mark.parametrize("seed", range(20))
def test_no_answer_is_worse_than_a_rule(seed: int) -> None:
    search = search_of(seed)
    rules = rules_of_thumb(search.construction)
    assert rules == sorted(rules, key=lambda one: one.cost_ms)
    found_ms = search.run().best.predicted_ms
    for rule in rules:
        assert found_ms <= search.costs.predict(State(search.space, rule.choices).parts()).predicted_ms * (1 + 1e-6)


def parts_of(search: PlanSearch, rule: RuleOfThumb) -> dict[str, int]:
    """Parts by columns of each table; rows apart."""
    parts: dict[str, set[tuple[int, int]]] = {}
    for part in State(search.space, rule.choices).parts():
        parts.setdefault(part.table, set()).add((part.columns.start, part.columns.stop))
    return {name: len(of_table) for name, of_table in parts.items()}


CUT = re.compile(r"(\d+|all|the others) in (rows of a node|rows|(\d+) parts of columns)$")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("machine", [MACHINE, TWO_NODES])
def test_a_rule_is_what_its_name_says(seed: int, machine: Machine) -> None:
    search = search_of(seed, machine=machine)
    rules, tables = rules_of_thumb(search.construction), search.costs.task.tables
    works_ms = {}
    for rule in rules:
        if rule.name == "whole":
            options_G = np.array([one.option for one in rule.choices])
            works_ms = dict(zip([one.name for one in tables], search.construction.total_ms(options_G), strict=True))
    assert len(rules) == len({rule.name for rule in rules})
    for rule in rules:
        first, *cuts = rule.name.split(", ")
        limit = int(first.split()[2].replace(",", "")) if first.startswith("replicated below") else 0
        if first != "whole" and not limit:
            cuts = [first, *cuts]
        types, parts = types_of(search, rule), parts_of(search, rule)
        left = {table.name: table.embedding_dim for table in tables if table.num_rows * table.embedding_dim > limit}
        assert {name for name, one in types.items() if one == DATA_PARALLEL} == set(types) - set(left)
        for cut in cuts:
            said = CUT.fullmatch(cut)
            assert said is not None, rule.name
            number, way, num_parts = said.groups()
            wanted = (
                (COLUMN_WISE, TABLE_COLUMN_WISE) if num_parts else (TABLE_ROW_WISE,) if "node" in way else (ROW_WISE,)
            )
            may = {name for name, dim in left.items() if not num_parts or dim >= 4 * int(num_parts)}
            own = {name for name in may if types[name] in wanted and parts[name] == int(num_parts or 1)}
            assert len(own) == (min(int(number), len(may)) if number.isdigit() else len(may)), rule.name
            if works_ms and not limit and number.isdigit():
                least_ms = min((works_ms[name] for name in own), default=np.inf)
                assert all(works_ms[name] <= least_ms for name in may - own), rule.name
            left = {name: dim for name, dim in left.items() if name not in own}
        assert {types[name] for name in left} <= {TABLE_WISE}, rule.name


def test_the_costliest_tables_are_cut_by_rows_where_all_others_are_cut_by_columns() -> None:
    search = search_of(3, (TABLE_WISE, COLUMN_WISE, ROW_WISE))
    names = [table.name for table in search.costs.task.tables]
    by_name = {rule.name: rule for rule in rules_of_thumb(search.construction)}
    whole_ms = search.construction.total_ms(np.array([one.option for one in by_name["whole"].choices]))
    for number in (1, 2, 4):
        found = types_of(search, by_name[f"{number} in rows, the others in 2 parts of columns"])
        costliest = np.argsort(-whole_ms, kind="stable")[:number].tolist()
        assert found == {name: ROW_WISE if at in costliest else COLUMN_WISE for at, name in enumerate(names)}


@pytest.mark.parametrize("seed", [2, 31, 82])
def test_the_fastest_rules_are_tried_with_every_limit_on_replicated_tables(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two nodes, a cut is the best with another limit than no cut is."""
    construction = search_of(seed, machine=TWO_NODES).construction
    with_limits = rules_of_thumb(construction)
    monkeypatch.setattr(rules_module, "MOST_WITH_LIMITS", 0)
    without = rules_of_thumb(construction)
    assert {one.choices for one in with_limits} > {one.choices for one in without}
    assert with_limits[0].cost_ms < 0.97 * without[0].cost_ms


def test_rules_keep_to_the_types_that_tables_may_have() -> None:
    search = search_of(4, (TABLE_WISE, ROW_WISE))
    rules = rules_of_thumb(search.construction)
    assert {one for rule in rules for one in types_of(search, rule).values()} == {TABLE_WISE, ROW_WISE}
    assert not any("replicated" in rule.name or "columns" in rule.name for rule in rules)


def test_rules_without_room_are_left_out() -> None:
    roomy, full = search_of(5), search_of(5, room_bytes=1)
    assert rules_of_thumb(roomy.construction) and not rules_of_thumb(full.construction)


def test_rules_with_too_much_work_are_skipped() -> None:
    """What the mean device would do is the limit, whatever the placement would cost."""
    construction = search_of(3).construction
    rules = rules_of_thumb(construction)
    works_ms = [construction.mean_ms(np.array([one.option for one in rule.choices])) for rule in rules]
    most_ms = float(np.median(works_ms))
    kept = {rule.name for rule in rules_of_thumb(construction, most_ms)}
    assert {rule.name for rule, ms in zip(rules, works_ms, strict=True) if ms <= most_ms} >= kept
    assert kept and len(kept) < len(rules) and "whole" in kept


def test_a_large_task_skips_hopeless_rules_and_a_small_one_none(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def spy(construction: Construction, most_ms: float = np.inf) -> list[RuleOfThumb]:
        limits.append(most_ms)
        return rules_of_thumb(construction, most_ms)

    monkeypatch.setattr(starts, "rules_of_thumb", spy)
    construction = search_of(3).construction
    begun = starts.construct_starts(construction)
    monkeypatch.setattr(starts, "EVERY_RULE", 0)
    starts.construct_starts(construction)
    assert limits[0] == np.inf and min(one.cost_ms for one in begun) <= limits[1] / starts.HOPELESS


def test_a_table_that_fits_nowhere_whole_is_cut_and_the_others_are_whole() -> None:
    """The largest table takes more than a device has: no rule and no construction leaves it whole."""
    roomy = search_of(3)
    sizes = [table.size_bytes for table in roomy.costs.task.tables]
    largest = roomy.costs.task.tables[int(np.argmax(sizes))].name
    tight = search_of(3, room_bytes=int(0.9 * max(sizes)))
    rules = rules_of_thumb(tight.construction)
    assert all(types_of(tight, rule)[largest] not in (TABLE_WISE, DATA_PARALLEL) for rule in rules)
    whole = types_of(tight, next(rule for rule in rules if rule.name == "whole"))
    assert {one for name, one in whole.items() if name != largest} == {TABLE_WISE}
    assert construct_starts(tight.construction)


def test_each_rule_cuts_as_many_tables_as_it_says_beside_those_that_are_never_whole() -> None:
    """All tables are cut over the rows of a node, but for those that a rule cuts over the rows of all devices."""
    search = search_of(0, (ROW_WISE, TABLE_ROW_WISE), machine=TWO_NODES)
    rules, count = rules_of_thumb(search.construction), len(search.costs.task.tables)
    assert {rule.name for rule in rules} == {"whole", *(f"whole, {one} in rows" for one in (1, 2, 4, 8, 16))}
    for rule in rules:
        cut = [types_of(search, rule)[table.name] for table in search.costs.task.tables].count(ROW_WISE)
        assert cut == min(int(rule.name.split()[1]) if "," in rule.name else 0, count), rule.name
