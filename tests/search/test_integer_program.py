"""Integer programs by hand: values, proofs, costs and numbers of any size."""

from __future__ import annotations

import pytest

from evenshard.search.integer_program import IntegerProgram, Solution


def test_values_cost_least_within_the_limits() -> None:
    program = IntegerProgram()
    cheap, dear = program.variable(5), program.variable(5)
    program.limit([(cheap, 2)], most=5)
    program.equate([(cheap, 1), (dear, 1)], constant=4)
    assert program.solve(10.0, costs=[1, 3]) == Solution([2, 2])


def test_limits_without_values_are_a_proof() -> None:
    """2 a + 2 b = 3 has a solution in fractions alone."""
    program = IntegerProgram()
    both = [program.variable(), program.variable()]
    program.equate([(one, 2) for one in both], constant=3)
    assert program.solve(10.0) == Solution(is_infeasible=True)


def test_without_variables_only_constants_count() -> None:
    possible, impossible = IntegerProgram(), IntegerProgram()
    possible.limit([], most=0)
    impossible.limit([], least=1)
    assert possible.solve(10.0) == Solution()
    assert impossible.solve(10.0) == Solution(is_infeasible=True)


@pytest.mark.parametrize(("room", "fits"), [(10**11, True), (10**11 - 10**4, False)])
def test_bytes_of_single_rows_count_beside_a_table_of_100_gb(room: int, fits: bool) -> None:
    """Of coefficients below 1e-9 of the room, HiGHS would know nothing."""
    program = IntegerProgram()
    rows, rest = program.variable(10**9), program.variable()
    program.limit([(rows, 16), (rest, 84 * 10**9)], most=room)
    program.equate([(rows, 1)], constant=10**9)
    program.equate([(rest, 1)], constant=1)
    assert program.solve(10.0) == (Solution([10**9, 1]) if fits else Solution(is_infeasible=True))
