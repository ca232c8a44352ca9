"""Random changes: all of them legal, every kind of them drawn, and large changes of all groups alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import USUAL_KERNELS
from evenshard.placement.placement import check_sharding
from evenshard.placement.sharding import TABLE_COLUMN_WISE, TABLE_WISE
from evenshard.placement.task import TableLimits
from evenshard.search.annealing import _keep_apart
from evenshard.search.chains import Chains
from evenshard.search.greedy import GreedyStarts
from evenshard.search.proposals import Proposals
from evenshard.search.sharding_option import Choice, Edits, choices_from
from evenshard.search.space import parts_of
from support.constraint_builders import only
from support.search_builders import FOUR, GB, TWO_NODES, costs_of, some_tables, starts_of

TABLES = some_tables(8)
# The old and the new choice of groups.
Changed = dict[int, tuple[Choice, Choice]]


def limits_of(**of_table: TableLimits) -> tuple[TableLimits, ...]:
    return tuple(of_table.get(table.name, TableLimits()) for table in TABLES)


RULES = {
    "none": {},
    "allowed": {"limits": limits_of(t0=TableLimits(devices=only(2)), t1=TableLimits(devices=only(0, 1, 3)))},
    "apart": {"apart": ((0, 3), (1, 2, 4))},
    "together": {"together": ((0, 3), (4, 5))},
    "homes": {"limits": limits_of(t7=TableLimits(frozenset({TABLE_COLUMN_WISE, TABLE_WISE})))},
}


def some_chains(of: GreedyStarts, count: int = 3) -> Chains:
    """The best starts side by side."""
    found = [one for one in of.make_all() if not one.overflow][:count]
    return Chains(of.space, np.stack([one.start.option_G for one in found]), np.stack([one.place_GS for one in found]))


def changed(
    chains: Chains, chain_M: np.ndarray, edits: Edits
) -> Iterator[tuple[int, dict[int, tuple[Choice, Choice]]]]:
    """Yield each change that has edits."""
    for change in np.unique(edits.change_E).tolist():
        own = edits.select(edits.change_E == change)
        number = int(chain_M[change])
        old = choices_from(chains.table, chains.option_NG[number], chains.place_NGS[number])
        new = list(old)
        for group, option, place_S in zip(own.group_E.tolist(), own.option_E.tolist(), own.place_ES, strict=True):
            count = int(chains.table.count_O[option])
            new[group] = Choice(option - int(chains.table.first_option_G[group]), tuple(place_S[:count].tolist()))
        yield change, {group: (old[group], new[group]) for group in own.group_E.tolist()}


def check_chains(chains: Chains) -> None:
    for option_G, place_GS in zip(chains.option_NG, chains.place_NGS, strict=True):
        check_sharding(chains.task, parts_of(chains.space, choices_from(chains.table, option_G, place_GS)))


def make_some(chains: Chains, chain_M: np.ndarray, edits: Edits) -> None:
    """Make changes that touch other devices, whatever they cost."""
    shards = chains.list_changed_shards(chain_M, edits)
    passes_M = np.bincount(shards.change_F, minlength=len(chain_M)) > 0
    chains.apply(chain_M, edits, shards, _keep_apart(chains, chain_M, edits, shards, passes_M))


@pytest.mark.parametrize("rule", RULES)
def test_all_changes_are_legal(rule: str) -> None:
    """Each by itself, and several of each batch together, from wherever those before lead."""
    of = starts_of(costs_of(TABLES, FOUR if rule == "together" else TWO_NODES, **RULES[rule]))
    proposals, chains = Proposals(of.placer, np.random.default_rng(0)), some_chains(of)
    for _ in range(8):
        chain_M, edits = proposals.draw(chains, 16)
        for change, choices in changed(chains, chain_M, edits):
            placement = choices_from(chains.table, chains.option_NG[chain_M[change]], chains.place_NGS[chain_M[change]])
            for group, (_, new) in choices.items():
                placement[group] = new
            check_sharding(chains.task, parts_of(chains.space, placement))
        make_some(chains, chain_M, edits)
        check_chains(chains)
        assert of.placer.is_legal(chains).all()
    assert len(edits.change_E) > 16


def kind_of(of: GreedyStarts, choices: Changed) -> str:
    """The kind of a change by what it does."""
    (group, (old, new)), *others = choices.items()
    options = of.space.options(group)
    if old.option != new.option:
        before, after = options[old.option], options[new.option]
        if before.storage != after.storage and old.places == new.places and before.widths == after.widths:
            return "other memory, two groups" if others else "other memory"
        return "option with ejection" if others else "option"
    moved = sum(one != other for one, other in zip(old.places, new.places, strict=True))
    if not others:
        return "move" if moved == 1 else "same option elsewhere" if moved else "none"
    ((_, (other_old, other_new)),) = others
    if moved > 1 and (old.places, new.places) == (other_new.places, other_old.places):
        return "trade of all places"
    ours, theirs = set(old.places) ^ set(new.places), set(other_old.places) ^ set(other_new.places)
    return "swap" if ours == theirs else "move with ejection"


def test_every_kind_of_change_is_drawn() -> None:
    kinds: Counter[str] = Counter()
    fits = {}
    machine = Nodes(4, 4, host_bytes=(64 * GB,))
    size = sum(table.size_bytes for table in TABLES)
    for room_bytes in (64 * GB, size // 4):
        of = starts_of(costs_of(TABLES, machine, room_bytes, kernels=USUAL_KERNELS))
        proposals, chains = Proposals(of.placer, np.random.default_rng(0)), some_chains(of)
        fits[room_bytes] = of.space.offloads
        for _ in range(10):
            chain_M, edits = proposals.draw(chains, 32)
            kinds.update(kind_of(of, choices) for _, choices in changed(chains, chain_M, edits))
            make_some(chains, chain_M, edits)
    assert list(fits.values()) == [False, True]
    common = ("move", "swap", "option", "move with ejection", "option with ejection", "other memory")
    assert all(kinds[kind] > 20 for kind in common), kinds
    assert kinds["other memory, two groups"] and kinds["trade of all places"], kinds


def test_large_changes_take_all_groups_of_a_type_or_all_small_ones() -> None:
    of, rng = starts_of(costs_of(TABLES, TWO_NODES)), np.random.default_rng(0)
    table, (chains, proposals) = of.table, (some_chains(of), Proposals(of.placer, rng))
    bytes_G = (table.bytes_O * table.count_O)[table.first_option_G].astype(float)
    of_type = of_size = 0
    for _ in range(20):
        proposals.draw(chains, 4)
        number_M, option_MG, place_MGS = proposals.change_many(chains, np.arange(chains.num))
        for number, option_G in zip(number_M, option_MG, strict=True):
            now_G = chains.option_NG[number]
            is_changed_G = option_G != now_G
            assert is_changed_G.any()
            old, new = ({*table.shape_O[one[is_changed_G]].tolist()} for one in (now_G, option_G))
            replicas_G = table.is_replica_O[option_G]
            if len(old) == len(new) == 1:
                alike_G = table.shape_O[now_G] == old.pop()
                wanted = new.pop()
                has_G = np.array([(table.shape_O[table.group_O == group] == wanted).any() for group in range(8)])
                if (is_changed_G == alike_G & has_G).all():
                    of_type += 1
                    continue
            of_size += 1
            assert replicas_G.any() and bytes_G[replicas_G].max() <= bytes_G[~replicas_G].min(initial=np.inf)
        tried = chains.with_placements(option_MG, place_MGS)
        check_chains(tried)
        chains.replace(number_M, option_MG, place_MGS)
    assert of_type > 5 and of_size > 5
