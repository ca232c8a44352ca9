"""The arguments of TorchRec's planner in evenshard's: their order, their defaults, and what is said of them."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from typing import Any

import pytest
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner
from torchrec.distributed.planner.perf_models import NoopStorageModel
from torchrec.distributed.planner.proposers import GreedyProposer, UniformProposer
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ShardingPlanner

from evenshard.torchrec import EvenshardPlanner
from evenshard.utils.errors import BadConfig, MissingPackage
from support.documented import ROOT, snippet
from support.drop_in_builders import Sparse, TableWise, bags, entries, planner, two_gpus

GUIDE, REFERENCE = "docs/torchrec.md", "docs/torchrec_planner.md"


def test_it_takes_what_torchrecs_planner_takes_in_its_order() -> None:
    theirs = inspect.signature(EmbeddingShardingPlanner.__init__).parameters
    own = inspect.signature(EvenshardPlanner.__init__).parameters
    positional = [name for name, one in own.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert positional[: len(theirs)] == list(theirs)
    assert {name: own[name].default for name in theirs} == {name: one.default for name, one in theirs.items()}
    assert set(positional) - set(theirs) <= {"plan_loader"}, "which TorchRec has since 1.4"
    for method in ("plan", "collective_plan"):
        asked = inspect.signature(getattr(EmbeddingShardingPlanner, method)).parameters
        assert list(inspect.signature(getattr(EvenshardPlanner, method)).parameters) == list(asked)


def test_it_is_one_of_torchrecs_planners() -> None:
    assert isinstance(planner(), ShardingPlanner)


def test_what_is_no_topology_is_said() -> None:
    with pytest.raises(BadConfig, match=r"topology is a list. Give TorchRec's Topology; a sharder is sharder="):
        EvenshardPlanner([])  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match=r"timeout_seconds is 0\. Give a number above 0"):
        planner(timeout_seconds=0)


def test_a_batch_is_torchrecs_where_none_is_given() -> None:
    for batch_size, expected in ((None, 2 * 512), (100, 200)):
        one = planner(two_gpus(100), batch_size=batch_size)
        one.plan(Sparse(bags(2)))
        assert one.answer is not None and one.answer.request.batch_size == expected


def test_proposer_and_partitioner_decide_nothing_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    model = Sparse(bags(2))
    alone, several = (
        planner(partitioner=GreedyPerfPartitioner()),
        planner(proposer=[GreedyProposer(), UniformProposer()]),
    )
    assert alone.plan(model) == several.plan(model) == planner().plan(model)
    assert alone.notes == (
        "partitioner (GreedyPerfPartitioner) decides nothing: evenshard's own search proposes and places.",
    )
    assert several.notes[0].startswith("proposer (GreedyProposer, UniformProposer) decides nothing")
    assert several.answer is not None and several.answer.notes[-1:] == several.notes
    assert several.notes[0] in caplog.messages


def test_an_enumerator_bounds_the_ways() -> None:
    """This one's constraints leave whole tables, which evenshard would replicate; its estimates fill the statistics."""
    machine, model = two_gpus(100), Sparse(bags(2))
    constraints = {f"table_{at}": ParameterConstraints(sharding_types=["table_wise"]) for at in range(2)}
    enumerator = EmbeddingEnumerator(machine, batch_size=512, constraints=constraints)
    found = planner(machine, enumerator=enumerator).plan(model)
    assert {entry.sharding_type for entry in entries(found).values()} == {"table_wise"}
    assert {entry.sharding_type for entry in entries(planner(machine).plan(model)).values()} == {"data_parallel"}


def test_a_performance_model_rates_the_plan() -> None:
    machine = two_gpus(100)
    one = planner(machine, performance_model=NoopStorageModel(machine))
    one.plan(Sparse(bags(2)), [TableWise()])
    assert one._best_plan is not None
    most = max(NoopStorageModel(machine).rate([option]) for option in one._best_plan)
    assert one.notes[0].startswith(f"performance_model (NoopStorageModel) rates the plan {most:.4g}; it chose nothing")


def test_the_search_ends_after_the_timeout() -> None:
    one = planner(two_gpus(100), timeout_seconds=1e-6)
    assert len(entries(one.plan(Sparse(bags(20, rows=5000))))) == 20
    assert one.notes[-1] == "The search ended after timeout_seconds=1e-06: this is the best plan until then."
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
    for name in (*inspect.signature(EmbeddingShardingPlanner.__init__).parameters, "plan_loader"):
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
