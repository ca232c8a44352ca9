"""TorchRec's storage reservations as the memory that the search gets."""

from __future__ import annotations

from typing import Any

import pytest
from torchrec.distributed.planner.storage_reservations import (
    FixedAbsoluteStorageReservation,
    FixedPercentageStorageReservation,
    HeuristicalStorageReservation,
    InferenceStorageReservation,
)
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, PlannerErrorType, Topology

from evenshard.base.errors import BadConfig
from support.drop_in_builders import MB, WARNINGS, Sparse, bags, planner, two_gpus
from support.torchrec_builders import topology


def rooms_with(reservation: Any, machine: Topology | None = None, **given: Any) -> tuple[int, ...]:
    one = planner(machine or two_gpus(100), storage_reservation=reservation, **given)
    one.plan(Sparse(bags(2)))
    assert one.answer is not None and one.answer.request.dense_bytes == 0
    return one.answer.request.rooms_bytes


@WARNINGS
def test_tables_get_what_a_reservation_leaves() -> None:
    """25 % of the memory; the dense model six times, which is 440 bytes, and 20 times the inputs; all ranks alike."""
    inputs = 2 * 512 * 8
    assert rooms_with(FixedPercentageStorageReservation(0.25)) == (75 * MB,) * 2
    assert rooms_with(HeuristicalStorageReservation(0.25)) == (75 * MB - 6 * 440 - 20 * inputs,) * 2
    assert rooms_with(HeuristicalStorageReservation(0.25, dense_tensor_estimate=MB)) == (74 * MB - 20 * inputs,) * 2
    assert rooms_with(InferenceStorageReservation(0.25)) == (75 * MB - 440 - inputs,) * 2
    assert (
        rooms_with(None, heuristical_storage_reservation_percentage=0.25, batch_size=100)
        == (75 * MB - 6 * 440 - 20 * 2 * 100 * 8,) * 2
    )


def test_a_reservation_of_so_many_bytes() -> None:
    assert rooms_with(FixedAbsoluteStorageReservation(30 * MB)) == (70 * MB,) * 2


def test_a_reservation_leaves_each_rank_its_own_and_goes_with_a_cap() -> None:
    uneven = two_gpus(100)
    uneven.devices[1].storage.hbm = 10 * MB
    assert rooms_with(FixedPercentageStorageReservation(0.5), uneven) == (50 * MB, 5 * MB)
    assert rooms_with(FixedPercentageStorageReservation(0.5), memory_cap_gb=1) == (512 * MB,) * 2


@WARNINGS
def test_a_reservation_that_leaves_nothing_is_torchrecs_error() -> None:
    for reservation in (HeuristicalStorageReservation(1.0), FixedPercentageStorageReservation(1.0)):
        with pytest.raises(PlannerError) as caught:
            planner(storage_reservation=reservation).plan(Sparse(bags(2)))
        assert caught.value.error_type is PlannerErrorType.INSUFFICIENT_STORAGE


def test_memory_is_kept_once() -> None:
    with pytest.raises(BadConfig, match="storage_reservation and reserved_gb both set"):
        planner(storage_reservation=FixedPercentageStorageReservation(0.1), reserved_gb=1)
    with pytest.raises(BadConfig, match="storage_reservation and heuristical_storage_reservation_percentage are both"):
        planner(
            storage_reservation=FixedPercentageStorageReservation(0.1), heuristical_storage_reservation_percentage=0.1
        )


def room_of(reservation: Any, machine: Topology | None = None, **given: Any) -> int:
    """What each rank has left, of 100 MB."""
    (room,) = set(rooms_with(reservation, machine, **given))
    return room


@WARNINGS
def test_parameters_of_the_dense_model_count_as_often_as_asked() -> None:
    """110 parameters of 4 bytes, 6 times or 3 times; nothing is kept beside them and the inputs."""
    inputs = 20 * 2 * 512 * 8
    assert room_of(HeuristicalStorageReservation(0.0, parameter_multiplier=3.0)) == 100 * MB - 3 * 440 - inputs
    assert room_of(HeuristicalStorageReservation(0.0)) == 100 * MB - 6 * 440 - inputs
    assert room_of(InferenceStorageReservation(0.0, dense_tensor_estimate=MB)) == 99 * MB - inputs // 20


def test_nothing_kept_is_nothing_kept() -> None:
    assert room_of(FixedPercentageStorageReservation(0.0)) == 100 * MB
    for wrong in (-0.1, 1.1):
        with pytest.raises(AssertionError):
            FixedPercentageStorageReservation(wrong)


@WARNINGS
def test_of_cpu_ranks_their_hosts_memory_is_kept() -> None:
    """A share is of GPU memory alone in TorchRec; what is counted is taken of the memory that tables have."""
    ranks = topology(2, "cpu", ddr_cap_bytes=100 * MB)
    own: dict[str, Any] = {"host_memory_gb": None}
    assert room_of(HeuristicalStorageReservation(0.25), ranks, **own) == 100 * MB - 6 * 440 - 20 * 2 * 512 * 8
    assert room_of(FixedPercentageStorageReservation(0.25), ranks, **own) == 100 * MB


@WARNINGS
def test_inputs_are_those_of_the_constraints() -> None:
    """1,024 samples of 3 lookups of the one table, 512 of 1 of the other; 20 copies of 8 bytes."""
    constraints = {"table_0": ParameterConstraints(pooling_factors=[3.0], batch_sizes=[1024])}
    left = room_of(HeuristicalStorageReservation(0.0, dense_tensor_estimate=MB), constraints=constraints)
    assert left == 99 * MB - 20 * 8 * (3 * 1024 + 512)
