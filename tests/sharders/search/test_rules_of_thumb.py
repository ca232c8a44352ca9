"""Rules of thumb: each is the placement that it names, and no answer is worse than any of them."""

from __future__ import annotations

import numpy as np
import pytest

from evenshard.measure.collectives import Links
from evenshard.measure.link import LINKS
from evenshard.measure.price.step import PartCosts
from evenshard.measure.simulated.cluster import simulated_kind
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.placement.machine import Machine
from evenshard.placement.parts import TablePart
from evenshard.placement.sharding import (
    COLUMN_WISE,
    DATA_PARALLEL,
    ROW_WISE,
    SHARDING_TYPES,
    TABLE_ROW_WISE,
    TABLE_WISE,
)
from evenshard.placement.sharding import sharding_type as type_of
from evenshard.placement.task import ShardingTask, TableLimits
from evenshard.sharders.search import starts
from evenshard.sharders.search.construction import Construction
from evenshard.sharders.search.rules_of_thumb import RuleOfThumb, rules_of_thumb
from evenshard.sharders.search.search import PlanSearch, PlanSearchEffort
from evenshard.sharders.search.starts import construct_starts
from evenshard.sharders.search.state import State
from evenshard.tables.table import Table

MACHINE = Machine(4, 4)


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


def test_a_rule_is_what_its_name_says() -> None:
    search = search_of(3)
    by_name = {rule.name: rule for rule in rules_of_thumb(search.construction)}
    sizes = {one.name: one.num_rows * one.embedding_dim for one in search.costs.task.tables}
    assert set(types_of(search, by_name["whole"]).values()) == {TABLE_WISE}
    limit = 1_000_000
    replicated = types_of(search, by_name[f"replicated below {limit:,} weights"])
    assert {name for name, one in replicated.items() if one == DATA_PARALLEL} == {
        name for name, size in sizes.items() if size <= limit
    }
    for name, rule in by_name.items():
        found = list(types_of(search, rule).values())
        if name == "whole, 2 in rows":
            assert found.count(ROW_WISE) == 2 and found.count(TABLE_WISE) == len(found) - 2
        if name == "whole, 2 in rows, the others in 4 parts of columns":
            assert found.count(ROW_WISE) == 2 and found.count(COLUMN_WISE) == len(found) - 2
            assert rule.types == {ROW_WISE, COLUMN_WISE}
        if name == "whole, 1 in 2 parts of columns":
            assert found.count(COLUMN_WISE) == 1 and found.count(TABLE_WISE) == len(found) - 1
            whole_G, cut_G = (np.array([one.option for one in own.choices]) for own in (by_name["whole"], rule))
            whole_ms = search.construction.total_ms(whole_G)
            assert whole_ms[cut_G != whole_G] == [whole_ms.max()]


def test_the_costliest_tables_are_cut_by_rows_where_all_others_are_cut_by_columns() -> None:
    search = search_of(3, (TABLE_WISE, COLUMN_WISE, ROW_WISE, DATA_PARALLEL))
    names = [table.name for table in search.costs.task.tables]
    by_name = {rule.name: rule for rule in rules_of_thumb(search.construction)}
    base_ms = search.construction.total_ms(np.array([one.option for one in by_name["whole"].choices]))
    for number in (1, 2, 4):
        found = types_of(search, by_name[f"whole, {number} in rows, the others in 2 parts of columns"])
        costliest = np.argsort(-base_ms, kind="stable")[:number].tolist()
        assert found == {name: ROW_WISE if at in costliest else COLUMN_WISE for at, name in enumerate(names)}


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
    search = search_of(0, (ROW_WISE, TABLE_ROW_WISE), machine=Machine(4, 2, inter="infiniband_ndr"))
    rules, count = rules_of_thumb(search.construction), len(search.costs.task.tables)
    assert {rule.name for rule in rules} == {"whole", *(f"whole, {one} in rows" for one in (1, 2, 4, 8, 16))}
    for rule in rules:
        cut = [types_of(search, rule)[table.name] for table in search.costs.task.tables].count(ROW_WISE)
        assert cut == min(int(rule.name.split()[1]) if "," in rule.name else 0, count), rule.name
