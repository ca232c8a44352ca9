"""Integer programs by hand: values, proofs, costs and numbers of any size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings

from evenshard.base.errors import InfeasibleTask
from evenshard.placement.placement import Placement, check_placement
from evenshard.placement.task import ShardingTask
from evenshard.search import legal_parts as packing
from evenshard.search.integer_program import IntegerProgram, Solution, solve_program
from evenshard.search.items import PackedItems
from support.builders import capped, sized, task
from support.constraint_builders import any_placement, legal_placements, limited, limited_tasks


def test_values_cost_least_within_the_limits_and_limits_without_values_are_a_proof() -> None:
    """2 a + 2 b = 3 has a solution in fractions alone; without variables, only constants count."""
    costly, odd, possible, impossible = (IntegerProgram() for _ in range(4))
    cheap, dear = costly.variable(5), costly.variable(5)
    costly.limit([(cheap, 2)], most=5)
    costly.equate([(cheap, 1), (dear, 1)], constant=4)
    assert costly.solve(10.0, costs=[1, 3]) == Solution([2, 2])
    odd.equate([(odd.variable(), 2), (odd.variable(), 2)], constant=3)
    possible.limit([], most=0)
    impossible.limit([], least=1)
    assert possible.solve(10.0) == Solution()
    assert odd.solve(10.0) == impossible.solve(10.0) == Solution(is_infeasible=True)


@pytest.mark.parametrize(("room", "fits"), [(10**11, True), (10**11 - 10**4, False)])
def test_bytes_of_single_rows_count_beside_a_table_of_100_gb(room: int, fits: bool) -> None:
    """Of coefficients below 1e-9 of the room, HiGHS would know nothing."""
    program = IntegerProgram()
    rows, rest = program.variable(10**9), program.variable()
    program.limit([(rows, 16), (rest, 84 * 10**9)], most=room)
    program.equate([(rows, 1)], constant=10**9)
    program.equate([(rest, 1)], constant=1)
    assert program.solve(10.0) == (Solution([10**9, 1]) if fits else Solution(is_infeasible=True))


def refusal(of_task: ShardingTask, **more: float) -> str:
    with pytest.raises(InfeasibleTask) as raised:
        any_placement(of_task, **more)  # type: ignore[arg-type]
    return str(raised.value)


def test_the_solver_finds_what_no_order_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve tables of three sizes that fill three unlike devices to the last byte."""
    of_task = limited(task(sized(*[7] * 4, *[5] * 4, *[3] * 4), 3), room_bytes=(4 * 25, 4 * 20, 4 * 15))
    monkeypatch.setattr(packing, "pack_in_order", lambda *_: None)
    check_placement(of_task, any_placement(of_task))


def test_a_program_that_presolve_spoils_is_solved_without_it() -> None:
    """SciPy 1.17's HiGHS ends this program with "Solve error"."""
    of_task = limited(task(sized(1, 4, 5, 6), 2, 32), room_bytes=(32, 32), apart=((0, 1),))
    assert solve_program(PackedItems.of(of_task.as_whole), 10.0).impossible


@settings(max_examples=60, deadline=None)
@given(of_task=limited_tasks())
def test_the_solver_alone_knows_exactly_what_is_possible(of_task: ShardingTask) -> None:
    items = PackedItems.of(of_task.as_whole)
    assume(all(item.allowed_D.any() for item in items.items))
    both = (len({*item.positions} & {*group}) > 1 for item in items.items for group in of_task.apart)
    assume(not any(both))  # together and apart: a plain reason
    ended = solve_program(items, 10.0)
    if legal := legal_placements(of_task):
        assert ended.parts is not None and not ended.impossible
        device_of = {part.table: part.device for part in ended.parts}
        devices = tuple(device_of[one.name] for one in of_task.tables)
        assert Placement(devices, of_task.num_devices) in legal
    else:
        assert ended.impossible and ended.parts is None


def test_giving_up_is_not_called_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    hard = task(sized(*rng.integers(10**5, 2 * 10**5, 60).tolist()), 20)
    hard = capped(hard, -(-sum(one.size_bytes for one in hard.tables) // 20) + 40)
    assert "the solver found no placement in 0.01 s: " in refusal(hard, time_limit_s=0.01)
    monkeypatch.setattr(packing, "MAX_PAIRS", 60 * 20 - 1)
    assert "packing found no placement, and the task is too large for the solver: " in refusal(hard)
