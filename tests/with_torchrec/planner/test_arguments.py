"""The arguments of TorchRec's planner in evenshard's: their order, their defaults, and what is said of them."""

from __future__ import annotations

import inspect
import logging
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from torchrec.distributed import planner as torchrec_planner
from torchrec.distributed.planner import EmbeddingShardingPlanner, planners
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner
from torchrec.distributed.planner.perf_models import NoopStorageModel
from torchrec.distributed.planner.proposers import GreedyProposer, UniformProposer
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ShardingPlanner

from evenshard.base.errors import BadConfig, InfeasibleTask, MissingPackage
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.torchrec import EvenshardPlanner
from support.documented import ROOT, snippet
from support.drop_in_builders import Sparse, TableWise, bags, entries, planner, two_gpus

GUIDE, REFERENCE = "docs/torchrec.md", "docs/torchrec_planner.md"


def test_it_takes_what_torchrecs_planner_takes_in_its_order() -> None:
    theirs = inspect.signature(EmbeddingShardingPlanner.__init__).parameters
    own = inspect.signature(EvenshardPlanner.__init__).parameters
    positional = [name for name, one in own.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert positional[: len(theirs)] == list(theirs)
    assert {name: own[name].default for name in theirs} == {name: one.default for name, one in theirs.items()}
    assert set(positional) == set(theirs)
    for method in ("plan", "collective_plan"):
        asked = inspect.signature(getattr(EmbeddingShardingPlanner, method)).parameters
        assert list(inspect.signature(getattr(EvenshardPlanner, method)).parameters) == list(asked)


def test_it_is_one_of_torchrecs_planners() -> None:
    assert isinstance(planner(), ShardingPlanner)


def test_what_is_no_topology_is_said() -> None:
    with pytest.raises(BadConfig, match=r"topology is a list. Give TorchRec's Topology, or sharder="):
        EvenshardPlanner([])  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match=r"timeout_seconds is 0\. Give a number above 0"):
        planner(timeout_seconds=0)


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
    assert len(entries(one.plan(Sparse(bags(2)), [TableWise()]))) == 2
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


def test_the_pages_snippet_runs() -> None:
    tables = [*bags(1), replace(bags(1)[0], name="clicks", feature_names=["clicks"])]
    named: dict[str, Any] = {"model": Sparse(tables), "sharders": get_default_sharders()}
    exec(snippet(GUIDE, "fallback=True"), named)
    one = named["planner"]
    assert set(entries(named["plan"])) == {"table_0", "clicks"} and one.notes == ()
    assert one.answer.request.batch_size == 8 * 1024 and one.answer.request.tables[1].pooling_factor == 37.5


def test_the_page_says_of_every_argument_what_it_does() -> None:
    page = (ROOT / REFERENCE).read_text(encoding="utf-8")
    for name in inspect.signature(EmbeddingShardingPlanner.__init__).parameters:
        assert name == "self" or f"`{name}`" in page, name


def test_the_page_says_of_every_field_of_constraints_what_it_does() -> None:
    page = (ROOT / REFERENCE).read_text(encoding="utf-8")
    for one in fields(ParameterConstraints):
        assert f"`{one.name}`" in page or f"`{one.name}." in page, one.name


def test_without_torchrec_nothing_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torchrec.distributed.model_parallel", None)
    with pytest.raises(MissingPackage):
        EvenshardPlanner(world_size=2, fallback=True)


def test_a_torchrec_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchrec-1.6.2.dist-info").mkdir()
    (tmp_path / "torchrec-1.6.2.dist-info" / "METADATA").write_text("Name: torchrec\nVersion: 1.6.2\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadConfig, match=r"^TorchRec 1\.6\.2 is installed, but evenshard needs 1\.7 or newer\. Upgrade"):
        EvenshardPlanner(world_size=2, fallback=True)
