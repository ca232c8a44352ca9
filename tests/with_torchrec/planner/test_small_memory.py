"""Planning as TorchRec's own tests ask for it: on GPUs of 2 MB, on one rank of a node of 8, and where nothing fits.

``make test-torchrec-planner`` runs those tests themselves, from a checkout of TorchRec.
"""

from __future__ import annotations

import pytest
from torch import nn
from torchrec.distributed.planner import storage_reservations
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType, Topology

from evenshard.torchrec import EvenshardPlanner
from support.drop_in_builders import MB, Sparse, TableOrRowWise, TableWise, bags, entries, two_gpus
from support.request_builders import untrained
from support.torchrec_builders import META


def of_two_mb(**given: object) -> EvenshardPlanner:
    """With everything that counts by default: 15 % are kept, and training holds inputs of several batches."""
    return EvenshardPlanner(two_gpus(2), model=untrained(), **given)  # type: ignore[arg-type]


def test_small_tables_fit_small_memory_with_less_kept() -> None:
    """Two outputs of 256 KB on each rank, sent as many again, 512 KB received: 1.98 MB are more than 85 % of 2."""
    one = of_two_mb()
    plan = one.plan(Sparse(bags(4)), [TableWise()])
    assert sorted(rank for entry in entries(plan).values() for rank in entry.ranks) == [0, 0, 1, 1]
    note = one.notes[0]
    assert note.startswith("The tables fit only if 0.0 % of each device's memory is reserved, not")
    assert "not 15 %. " in note and "own samples (672 KB)" in note
    assert one.answer is not None and one.answer.request.reserved_share == 0


def test_what_the_user_keeps_is_kept() -> None:
    for kept in ({"reserved_gb": 0.15 * 2 / 1024}, {"heuristical_storage_reservation_percentage": 0.15}):
        with pytest.raises(PlannerError):
            of_two_mb(**kept).plan(Sparse(bags(4)), [TableWise()])


def test_nothing_less_is_kept_where_all_fit() -> None:
    one = EvenshardPlanner(two_gpus(4), model=untrained())
    one.plan(Sparse(bags(4)), [TableWise()])
    assert one.answer is not None and one.answer.request.reserved_share == 0.15 and one.notes == ()


def test_a_refusal_of_small_memory_is_in_its_units() -> None:
    """A table as large as a rank: whole it fits neither, which is the constraint's fault; by rows it fits both."""
    one, model = of_two_mb(), Sparse(bags(1, rows=4096, dim=128))
    with pytest.raises(PlannerError, match=r"table_0 needs 3\.0\d MB \(2\.00 MB of weights") as caught:
        one.plan(model, [TableWise()])
    assert caught.value.error_type is PlannerErrorType.STRICT_CONSTRAINTS
    assert " 0.00" not in str(caught.value) and "\n" not in str(caught.value)
    plan = one.plan(model, [TableOrRowWise()])
    assert [entry.ranks for entry in entries(plan).values()] == [[0, 1]]


def test_a_single_rank_is_a_node_whatever_its_topology_says() -> None:
    """TorchRec's own default for one rank."""
    one = EvenshardPlanner(Topology(world_size=1, local_world_size=8, compute_device="cuda"), model=untrained())
    plan = one.plan(Sparse(bags(2)))
    assert [entry.ranks for entry in entries(plan).values()] == [[0], [0]]
    assert one.answer is not None and one.answer.request.nodes.devices_per_node == 1


def test_a_dense_model_larger_than_a_rank_is_a_lack_of_storage() -> None:
    model = Sparse(bags(2, dim=10_000_000))  # tables of which evenshard would say that they are too wide
    model.over = nn.Linear(1024, 1024, device=META)
    message = r"the dense model needs 16\.\d MB per device, but only 1\.70 MB of 2\.00 MB are not reserved"
    with pytest.raises(PlannerError, match=message) as caught:
        of_two_mb().plan(model)
    assert caught.value.error_type is PlannerErrorType.INSUFFICIENT_STORAGE


def test_a_reservation_of_more_than_a_rank_says_what_it_keeps() -> None:
    reservation = storage_reservations.FixedAbsoluteStorageReservation(512 * MB)
    with pytest.raises(PlannerError, match=r"reserves 0\.50 GB of the 2\.00 MB per device") as caught:
        of_two_mb(storage_reservation=reservation).plan(Sparse(bags(2)))
    assert caught.value.error_type is PlannerErrorType.INSUFFICIENT_STORAGE


def test_a_model_that_cannot_be_planned_is_torchrecs_error() -> None:
    with pytest.raises(PlannerError, match="table 'table_0': embedding_dim is 10000000") as caught:
        EvenshardPlanner(two_gpus(100), model=untrained()).plan(Sparse(bags(1, dim=10_000_000)))
    assert caught.value.error_type is PlannerErrorType.INPUT_VALIDATION
