"""Sums of chains: after changes they are those of chains that begin with the changed placements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from evenshard.base.process import one_thread
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import USUAL_KERNELS
from evenshard.placement.task import ShardingTask, used_bytes, used_host_bytes
from evenshard.price.collectives import Links
from evenshard.price.gpu_profile import gpu_profile
from evenshard.price.link import link
from evenshard.price.simulated_price import build_device_kind
from evenshard.price.step import DeviceKind, PartCosts
from evenshard.price.step_time import LARGEST_SUM
from evenshard.search.chains import Chains, Outcome, chains_of
from evenshard.search.sharding_option import Choice, Edits, choices_from, edits_of
from evenshard.search.space import SearchSpace, choices_of, parts_of
from evenshard.sharders.cost_model.price import LearnedPrice
from evenshard.tables.table import Table
from support.convex_builders import random_model
from support.search_builders import random_choice

DEVICES = 4
H200, A100, LEARNED = "h200", "a100_80gb", "learned"


def costs_of(kinds: Sequence[str], nodes: int = 1, pipeline: str = "", room_bytes: int = 2**33) -> PartCosts:
    """Six tables of unlike sizes on four devices of these kinds by turns; the rows of each are cut evenly."""
    tables = tuple(Table(f"t{at}", 10 ** (3 + at % 4), (32, 64, 128)[at % 3], 4.0 + 3 * at) for at in range(6))
    machine = Nodes(DEVICES, DEVICES // nodes, host_bytes=(2**26,) * nodes)
    task = ShardingTask(tables, machine, (room_bytes,) * DEVICES, 65_536, kernels=USUAL_KERNELS)
    links = Links(link("nvlink_h200"), link("infiniband_ndr") if nodes > 1 else None)
    of_kinds = [
        DeviceKind(LearnedPrice(random_model()), 100.0)
        if kind == LEARNED
        else build_device_kind(gpu_profile(kind), machine)
        for kind in kinds
    ]
    return PartCosts(task, of_kinds, [at % len(kinds) for at in range(DEVICES)], links, pipeline or None)


def random_placements(space: SearchSpace, count: int, rng: np.random.Generator) -> list[list[Choice]]:
    return [[random_choice(space, group, rng) for group in range(len(space.groups))] for _ in range(count)]


def random_changes(space: SearchSpace, count: int, rng: np.random.Generator) -> list[dict[int, Choice]]:
    """Up to three groups each."""
    groups = np.arange(len(space.groups))
    chosen = [rng.permutation(groups)[: 1 + rng.integers(3)].tolist() for _ in range(count)]
    return [{group: random_choice(space, group, rng) for group in own} for own in chosen]


def placements_of(chains: Chains) -> list[list[Choice]]:
    pairs = zip(chains.option_NG, chains.place_NGS, strict=True)
    return [choices_from(chains.table, option_G, place_GS) for option_G, place_GS in pairs]


def tried_out(
    chains: Chains, chain_M: np.ndarray, changes: Sequence[dict[int, Choice]]
) -> tuple[Edits, Outcome, Chains]:
    """The edits of changes, their outcome, and chains that begin with what they lead to."""
    edits, before = edits_of(chains.table, changes), placements_of(chains)
    outcome = chains.try_out(chain_M, chains.list_changed_shards(chain_M, edits))
    placements = [
        [change.get(group, choice) for group, choice in enumerate(before[number])]
        for number, change in zip(chain_M.tolist(), changes, strict=True)
    ]
    return edits, outcome, chains_of(chains.space, placements)


@pytest.mark.parametrize(
    ("nodes", "kinds", "pipeline", "room_bytes"),
    [
        (1, (H200,), "base", 2**33),
        (2, (H200,), "", 10**8),
        (2, (H200, A100), LARGEST_SUM, 10**8),
        (1, (LEARNED,), "", 10**8),
        (2, (LEARNED, H200), "", 2**33),
    ],
)
def test_changes_that_are_tried_out_take_what_they_take_when_made(
    nodes: int, kinds: tuple[str, ...], pipeline: str, room_bytes: int
) -> None:
    """Several groups each, of all types and storages: times, memory, and the sums after many changes."""
    space, rng = SearchSpace(costs_of(kinds, nodes, pipeline, room_bytes)), np.random.default_rng(nodes)
    rel = 2e-5 if LEARNED in kinds else 1e-9  # its columns have 32 bits
    with one_thread():
        chains = chains_of(space, random_placements(space, 3, rng))
        for _ in range(6):
            chain_M, changes = rng.integers(3, size=20), random_changes(space, 20, rng)
            edits, outcome, expected = tried_out(chains, chain_M, changes)
            assert outcome.windows_BMD == pytest.approx(expected.windows_BND, rel=rel)
            assert (outcome.used_3MD == expected.used_3ND).all()
            assert outcome.overflow_M == pytest.approx(expected.overflow_N)
            _, chosen_M = np.unique(chain_M, return_index=True)
            chains.apply(chain_M, edits, chains.list_changed_shards(chain_M, edits), chosen_M)
            assert placements_of(chains) == [placements_of(expected)[at] for at in chosen_M]
            again = chains_of(space, placements_of(chains))
            assert chains.windows_BND == pytest.approx(again.windows_BND, rel=1e-9)
            assert (chains.used_3ND == again.used_3ND).all()


def test_changes_of_one_chain_that_touch_other_devices_are_made_at_once() -> None:
    space = SearchSpace(costs_of((H200,)))
    groups = range(len(space.groups))
    whole = [next(n for n, option in enumerate(space.options(at)) if option.span == 1) for at in groups]
    chains = chains_of(space, [[Choice(number, (at % 2,)) for at, number in enumerate(whole)]] * 2)
    changes = [{0: Choice(whole[0], (2,))}, {1: Choice(whole[1], (3,))}, {2: Choice(whole[2], (3,))}]
    chain_M = np.array([1, 1, 0])
    edits = edits_of(chains.table, changes)
    shards = chains.list_changed_shards(chain_M, edits)
    chains.apply(chain_M, edits, shards, np.array([0, 1]))
    first, second = placements_of(chains)
    assert [one.places for one in first] == [(0,), (1,)] * 3
    assert [one.places for one in second] == [(2,), (3,), *[(0,), (1,)] * 2]
    assert chains.windows_BND == pytest.approx(chains_of(space, [first, second]).windows_BND, rel=1e-9)


@pytest.mark.parametrize(
    ("kinds", "nodes", "rel", "room_bytes"),
    [((H200,), 1, 1e-4, 10**8), ((H200, A100), 2, 1e-4, 2**33), ((LEARNED,), 1, 1e-5, 10**8)],
)
def test_chains_take_what_is_predicted_of_their_parts(
    kinds: tuple[str, ...], nodes: int, rel: float, room_bytes: int
) -> None:
    """But for the grid of windows of the L2; also of tables that are kept outside of device memory."""
    costs = costs_of(kinds, nodes, room_bytes=room_bytes)
    space, rng = SearchSpace(costs), np.random.default_rng(0)
    placements = random_placements(space, 12, rng)
    with one_thread():
        chains = chains_of(space, placements)
        for number, placement in enumerate(placements):
            parts = parts_of(space, placement)
            assert choices_of(space, parts) == placement
            assert chains.cost_N[number] == pytest.approx(costs.predict(parts).predicted_ms, rel=rel)
            assert chains.used_3ND[0, number].tolist() == pytest.approx(used_bytes(costs.task, parts))
            by_host = chains.used_3ND[1, number].reshape(nodes, -1).sum(axis=1)
            assert by_host.tolist() == pytest.approx(used_host_bytes(costs.task, parts), rel=1e-3)


@pytest.mark.parametrize(("host_bytes", "fits"), [(3 * 2**29, True), (2**29, False)])
def test_memory_is_exceeded_by_devices_and_by_hosts(host_bytes: int, fits: bool) -> None:
    """Two tables of 1 GB on a device with 1.2 GB: one of them is kept in the host's memory."""
    costs = costs_of((H200,))
    tables = tuple(Table(name, 2**21, 128, 4.0) for name in ("a", "b"))
    machine = Nodes(1, 1, host_bytes=(host_bytes,))
    task = replace(costs.task, tables=tables, machine=machine, room_bytes=(int(1.2 * 2**30),))
    space = SearchSpace(PartCosts(task, costs.kinds, [0], costs.links))
    outside = next(
        number
        for number, option in enumerate(space.options(0))
        if space.shard_arrays.host_P[[*option.shards]].sum() >= 2**30
    )
    chains = chains_of(space, [[Choice(0)] * 2])
    assert chains.overflow_N == pytest.approx([2 / 1.2 - 1], abs=0.05)
    _, outcome, after = tried_out(chains, np.zeros(1, dtype=np.int64), [{0: Choice(outside)}])
    assert ((outcome.overflow_M == 0) == fits).all()
    assert (after.overflow_N == outcome.overflow_M).all()
