"""The arguments of TorchRec's planner in evenshard's: their order, their defaults, and reservations of memory."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torchrec.distributed import planner as torchrec_planner
from torchrec.distributed.planner import EmbeddingShardingPlanner, planners
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner
from torchrec.distributed.planner.perf_models import NoopStorageModel
from torchrec.distributed.planner.proposers import GreedyProposer, UniformProposer
from torchrec.distributed.planner.storage_reservations import (
    FixedAbsoluteStorageReservation,
    FixedPercentageStorageReservation,
    HeuristicalStorageReservation,
    InferenceStorageReservation,
)
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, PlannerErrorType, Topology
from torchrec.distributed.types import ShardingPlanner

from evenshard.base.errors import BadConfig, InfeasibleTask
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.torchrec import EvenshardPlanner
from support.torchrec_builders import MB, WARNINGS, Only, Sparse, bags, entries, planner, topology, two_gpus


def test_it_takes_what_torchrecs_planner_takes_in_its_order() -> None:
    theirs = inspect.signature(EmbeddingShardingPlanner.__init__).parameters
    own = inspect.signature(EvenshardPlanner.__init__).parameters
    positional = [name for name, one in own.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert positional[: len(theirs)] == list(theirs)
    assert {name: own[name].default for name in theirs} == {name: one.default for name, one in theirs.items()}
    assert set(positional) == set(theirs) and isinstance(planner(), ShardingPlanner)
    for method in ("plan", "collective_plan"):
        asked = inspect.signature(getattr(EmbeddingShardingPlanner, method)).parameters
        assert list(inspect.signature(getattr(EvenshardPlanner, method)).parameters) == list(asked)


def test_a_batch_is_torchrecs_where_none_is_given() -> None:
    for batch_size, expected in ((None, 2 * 512), (100, 200)):
        one = planner(two_gpus(100), batch_size=batch_size)
        one.plan(Sparse(bags(2)))
        assert one.answer is not None and one.answer.request.batch_size == expected


def test_arguments_of_torchrecs_search_are_listed_once_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    model, machine = Sparse(bags(2)), two_gpus(100)
    caplog.set_level(logging.DEBUG, "evenshard")
    own = planner(machine).plan(model)
    assert "does not use" not in caplog.text
    idle = {"partitioner": GreedyPerfPartitioner(), "performance_model": NoopStorageModel(machine)}
    one = planner(machine, proposer=[GreedyProposer(), UniformProposer()], **idle)
    assert one.plan(model) == one.plan(model) == own and one.notes == ()
    listed = [record for record in caplog.records if "does not use" in record.message]
    assert [(one.levelno, one.message) for one in listed] == [
        (logging.DEBUG, "evenshard does not use these arguments: proposer, partitioner, performance_model")
    ]


def test_an_argument_of_a_newer_torchrec_is_handed_on_and_a_misspelt_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Newer(EmbeddingShardingPlanner):  # type: ignore[misc]
        def __init__(self, topology: Any = None, *, shadow: int = 0, **others: Any) -> None:
            super().__init__(topology, **others)
            seen.append(shadow)

    seen: list[int] = []
    for module in (planners, torchrec_planner):
        monkeypatch.setattr(module, "EmbeddingShardingPlanner", Newer)
    caplog.set_level(logging.DEBUG, "evenshard")
    one = EvenshardPlanner(two_gpus(100), shadow=3, fallback=True, sharder=Failing())  # type: ignore[arg-type]
    assert len(entries(one.plan(Sparse(bags(2)), [Only("table_wise")]))) == 2
    assert seen == [3] and "evenshard does not use these arguments: shadow" in caplog.messages
    with pytest.raises(TypeError, match="unexpected keyword argument 'shadows'"):
        planner(shadows=3)


class Failing:
    """A sharder that finds no placement."""

    name = "failing"

    def place(self, task: ShardingTask) -> Placement:
        raise InfeasibleTask("found none")


def test_an_enumerator_bounds_the_ways() -> None:
    """This one's constraints leave whole tables, which evenshard would replicate; its estimates fill the statistics."""
    machine, model = two_gpus(100), Sparse(bags(2))
    constraints = {f"table_{at}": ParameterConstraints(sharding_types=["table_wise"]) for at in range(2)}
    enumerator = EmbeddingEnumerator(machine, batch_size=512, constraints=constraints)
    found = planner(machine, enumerator=enumerator).plan(model)
    assert {entry.sharding_type for entry in entries(found).values()} == {"table_wise"}
    assert {entry.sharding_type for entry in entries(planner(machine).plan(model)).values()} == {"data_parallel"}


def test_the_search_ends_after_the_timeout() -> None:
    one = planner(two_gpus(100), timeout_seconds=1e-6)
    assert len(entries(one.plan(Sparse(bags(20, rows=5000))))) == 20
    assert one.notes[-1] == "The search stopped after timeout_seconds=1e-06 with the best plan found so far."
    patient = planner(two_gpus(100), timeout_seconds=1000)
    patient.plan(Sparse(bags(2)))
    assert patient.notes == ()


def test_a_torchrec_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchrec-1.6.2.dist-info").mkdir()
    (tmp_path / "torchrec-1.6.2.dist-info" / "METADATA").write_text("Name: torchrec\nVersion: 1.6.2\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadConfig, match=r"^TorchRec 1\.6\.2 is installed, but evenshard needs 1\.7 or newer\. Upgrade"):
        EvenshardPlanner(world_size=2, fallback=True)


def rooms_with(reservation: Any, machine: Topology | None = None, **given: Any) -> tuple[int, ...]:
    one = planner(machine or two_gpus(100), storage_reservation=reservation, **given)
    one.plan(Sparse(bags(2)))
    assert one.answer is not None and one.answer.request.dense_bytes == 0
    return one.answer.request.rooms_bytes


def test_a_reservation_leaves_each_rank_its_own_and_goes_with_a_cap() -> None:
    uneven = two_gpus(100)
    uneven.devices[1].storage.hbm = 10 * MB
    assert rooms_with(FixedPercentageStorageReservation(0.5), uneven) == (50 * MB, 5 * MB)
    assert rooms_with(FixedPercentageStorageReservation(0.5), memory_cap_gb=1) == (512 * MB,) * 2


@WARNINGS
def test_a_reservation_that_leaves_nothing_is_torchrecs_error() -> None:
    for reservation, message in (
        (HeuristicalStorageReservation(1.0), None),
        (FixedPercentageStorageReservation(1.0), "no memory is left for tables"),
    ):
        with pytest.raises(PlannerError, match=message) as caught:
            planner(storage_reservation=reservation).plan(Sparse(bags(2)))
        assert caught.value.error_type is PlannerErrorType.INSUFFICIENT_STORAGE


INPUTS = 20 * 2 * 512 * 8
CPU = topology(2, "cpu", ddr_cap_bytes=100 * MB)


@WARNINGS
@pytest.mark.parametrize(
    ("reservation", "machine", "given", "left"),
    [
        (partial(FixedPercentageStorageReservation, 0.25), None, {}, 75 * MB),
        (partial(FixedAbsoluteStorageReservation, 30 * MB), None, {}, 70 * MB),
        # The dense model of 440 bytes as often as asked, by default six times, and 20 times the inputs.
        (partial(HeuristicalStorageReservation, 0.25), None, {}, 75 * MB - 6 * 440 - INPUTS),
        (partial(HeuristicalStorageReservation, 0.0, parameter_multiplier=3.0), None, {}, 100 * MB - 3 * 440 - INPUTS),
        (partial(HeuristicalStorageReservation, 0.25, dense_tensor_estimate=MB), None, {}, 74 * MB - INPUTS),
        (partial(InferenceStorageReservation, 0.25), None, {}, 75 * MB - 440 - INPUTS // 20),
        (
            None,
            None,
            {"heuristical_storage_reservation_percentage": 0.25, "batch_size": 100},
            75 * MB - 6 * 440 - 20 * 2 * 100 * 8,
        ),
        # 1,024 samples of 3 lookups of the one table, 512 of 1 of the other.
        (
            partial(HeuristicalStorageReservation, 0.0, dense_tensor_estimate=MB),
            None,
            {"constraints": {"table_0": ParameterConstraints(pooling_factors=[3.0], batch_sizes=[1024])}},
            99 * MB - 20 * 8 * (3 * 1024 + 512),
        ),
        # A share is of GPU memory alone in TorchRec; what is counted is taken of the memory that tables have.
        (partial(HeuristicalStorageReservation, 0.25), CPU, {"host_memory_gb": None}, 100 * MB - 6 * 440 - INPUTS),
        (partial(FixedPercentageStorageReservation, 0.25), CPU, {"host_memory_gb": None}, 100 * MB),
    ],
)
def test_tables_get_what_a_reservation_leaves(
    reservation: Callable[[], Any] | None, machine: Topology | None, given: dict[str, Any], left: int
) -> None:
    assert rooms_with(reservation and reservation(), machine, **given) == (left,) * 2


def test_memory_is_kept_once() -> None:
    given: dict[str, Any] = {"storage_reservation": FixedPercentageStorageReservation(0.1)}
    for more in ({"reserved_gb": 1}, {"heuristical_storage_reservation_percentage": 0.1}):
        with pytest.raises(BadConfig, match=r"storage_reservation and .* both"):
            planner(**given, **more)
