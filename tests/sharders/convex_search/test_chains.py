"""Placements side by side: what they hold and cost after steps is what a fresh count says."""

from __future__ import annotations

import pytest
import torch

from evenshard.sharders.convex_search.chains import Chains, OtherDevices, Steps
from evenshard.sharders.convex_search.item_tensors import ItemTensors
from support.builders import some_tables, task
from support.constraint_builders import limited

TABLES = some_tables(9)
LIMITS = {"together": ((0, 4), (7, 8)), "apart": ((1, 2, 3), (0, 5)), "room_bytes": (10**6, 10**5, 10**7)}
TASK = limited(task(TABLES, 3), **LIMITS)


class Pairs:
    """Whole numbers, so that sums are exact; a device costs a mixture of both columns."""

    columns_TH = torch.tensor([[float(one.num_rows), float(one.embedding_dim)] for one in TABLES])
    empty_H = torch.tensor([1.0, 2.0])
    wait_T = torch.tensor([float(one.embedding_dim) for one in TABLES])

    def device_ms(self, sums: torch.Tensor) -> torch.Tensor:
        return sums[..., 0] + 3 * sums[..., 1]


ITEMS = ItemTensors.of(TASK, Pairs())


def chains_at(device_SI: torch.Tensor) -> Chains:
    return Chains.of(ITEMS, Pairs(), device_SI)


def assert_same(found: Chains, expected: Chains) -> None:
    for name in ("device_SI", "sums_SDH", "over_RSD", "ms_SD", "wait_SD"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=0, atol=0)


def test_what_is_over_the_room_by_hand() -> None:
    """All on device 0: all bytes there, three tables of the first group apart and two of the second."""
    chains = chains_at(torch.zeros(1, 7, dtype=torch.int64))
    total = sum(one.size_bytes for one in TABLES)
    assert chains.over_RSD[:, 0].tolist() == [[total - 10**6, -(10**5), -(10**7)], [2, -1, -1], [1, -1, -1]]
    assert chains.sums_SDH[0, 1].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("swap", [False, True])
def test_steps_leave_what_a_fresh_count_says(swap: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    chains = chains_at(torch.randint(3, (4, 7), generator=generator))
    for _ in range(20):
        chain_N = torch.tensor([0, 2, 3])
        item_N = torch.randint(7, (3,), generator=generator)
        other_N = (item_N + torch.randint(1, 7, (3,), generator=generator)) % 7
        home_N = chains.device_SI[chain_N, item_N]
        to_N = chains.device_SI[chain_N, other_N] if swap else (home_N + 1) % 3
        apart_N = to_N != home_N
        steps = Steps(chain_N, item_N, to_N, other_N if swap else torch.full((3,), -1), torch.zeros(3))
        chains.apply(ITEMS, Pairs(), Steps(*(getattr(steps, name)[apart_N] for name in Steps.__dataclass_fields__)))
        assert_same(chains, chains_at(chains.device_SI))


def test_chains_are_replaced_whole() -> None:
    generator = torch.Generator().manual_seed(1)
    ours, theirs = (torch.randint(3, (3, 7), generator=generator) for _ in range(2))
    mask_S = torch.tensor([True, False, True])
    found = chains_at(ours).merge(mask_S, chains_at(theirs))
    assert_same(found, chains_at(torch.where(mask_S[:, None], theirs, ours)))


def test_a_copy_changes_by_itself() -> None:
    chains = chains_at(torch.zeros(1, 7, dtype=torch.int64))
    step = Steps(*(torch.tensor([value]) for value in (0, 3, 1, -1)), torch.zeros(1))
    chains.clone().apply(ITEMS, Pairs(), step)
    assert_same(chains, chains_at(torch.zeros(1, 7, dtype=torch.int64)))


@pytest.mark.parametrize(("wait", "slower", "longest"), [(4.0, 10 + 4, 4.0), (2.0, 3 + 2, 2.0), (0.5, 3 + 1, 1.0)])
def test_the_other_devices_count_where_a_step_lets_them_wait_longer(wait: float, slower: float, longest: float) -> None:
    """They take 10 and cause a wait of 1; before the step all waited 2."""
    others = OtherDevices(torch.tensor([[10.0]]), torch.tensor([[1.0]]), torch.tensor([[2.0]]))
    found = others.after_step(torch.tensor([[3.0]]), torch.tensor([[wait]]))
    assert [one.item() for one in found] == [slower, longest]
