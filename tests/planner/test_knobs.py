"""The knobs of a placement: a made-up one is everywhere as soon as a dataclass has it."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import evenshard
from evenshard import InUse, Memory, Search, Training
from evenshard.base.errors import BadConfig, BadInput
from evenshard.base.knobs import Range, knob
from evenshard.base.typed import check_arguments
from evenshard.cli import main
from evenshard.loop.decisions.requests import place_tables
from evenshard.planner import knobs
from evenshard.planner.hosts import devices_of
from evenshard.planner.knobs import (
    Knobs,
    group_knobs,
    groups,
    knob_field,
    place_knob,
    place_knobs,
    shared_knobs,
)
from evenshard.planner.optimizers import TableOptimizers
from evenshard.planner.place import build_request
from evenshard.planner.request import PlacementRequest
from evenshard.tables.assumptions import TableSet
from evenshard.torchrec import EvenshardPlanner
from evenshard.torchrec.planner.arguments import planner_knobs
from support.builders import table

TABLES = [table("a", 1000, 16, 2.0), table("b", 500, 16, 1.0)]


# A made-up knob ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MoreMemory(Memory):
    made_up_gb: float = knob(1.5, "memory for nothing, 100 % of it", torchrec="Topology.nothing", range=Range(0, 10))


@dataclass(frozen=True)
class MoreKnobs(Knobs):
    memory: MoreMemory = field(default_factory=MoreMemory, metadata={"heading": "memory", "kind": MoreMemory})


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What ``place`` is called with, which has one knob more."""
    received: dict[str, Any] = {}
    monkeypatch.setattr(knobs, "Knobs", MoreKnobs)

    @check_arguments((*place_knobs(), *group_knobs(place_knobs())))
    def place(
        tables: Any,
        num_devices: int | None = None,
        memory_cap_gb: float | Sequence[float] | None = None,
        *,
        progress: Callable[[float], None] | None = None,
        **knobs: Any,
    ) -> None:
        """As it is.

        Args:
            knobs: all.
        """
        received.update(vars(Knobs.of(knobs).memory))
        raise BadInput("that is enough")

    monkeypatch.setattr("evenshard.cli.place.place", place)
    monkeypatch.setattr("evenshard.loop.decisions.requests.place", place)
    received["place"] = place
    return received


def test_it_is_an_argument_of_python(received: dict[str, Any]) -> None:
    place = received["place"]
    assert inspect.signature(place).parameters["made_up_gb"].default == 1.5
    assert "made_up_gb: memory for nothing, 100 % of it. TorchRec: ``Topology.nothing``." in place.__doc__
    one = place_knob("made_up_gb")
    assert (one.name, one.kind, one.default, one.unit) == ("made_up_gb", float, 1.5, "GB")
    for given in ({"made_up_gb": 7}, {"memory": MoreMemory(made_up_gb=7)}):
        with pytest.raises(BadInput, match="enough"):
            place("t.yaml", **given)
        assert received["made_up_gb"] == 7.0
    with pytest.raises(BadConfig, match=r"made_up_gb is 11, not a number from 0 to 10. Correct it."):
        place("t.yaml", made_up_gb=11)
    with pytest.raises(BadConfig, match=r"made_up_gb is 'much', not a number. Correct it."):
        place("t.yaml", memory=MoreMemory(made_up_gb="much"))  # type: ignore[arg-type]


def test_it_is_a_flag(received: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["place", "t.yaml"]) == 2 and received["made_up_gb"] == 1.5
    assert main(["place", "t.yaml", "--made-up-gb", "7"]) == 2 and received["made_up_gb"] == 7.0
    with pytest.raises(SystemExit):
        main(["place", "--help"])
    assert "--made-up-gb GB memory for nothing, 100 % of it (default: 1.5)" in " ".join(capsys.readouterr().out.split())
    for value, said in (("much", ": 'much' is not a number"), ("11", " is 11.0, not a number from 0 to 10")):
        with pytest.raises(SystemExit):
            main(["place", "t.yaml", "--made-up-gb", value])
        assert f"--made-up-gb{said}" in capsys.readouterr().err


def test_it_is_a_key_of_a_pipelines_request(received: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="enough"):
        place_tables("t.yaml", None, {"made_up_gb": 7}, None)
    assert received["made_up_gb"] == 7.0
    with pytest.raises(BadConfig, match="place: made_up_gb is 11"):
        place_tables("t.yaml", None, {"made_up_gb": 11}, None)


def test_what_if_and_the_planner_for_torchrec_have_it(received: dict[str, Any]) -> None:
    for known in (shared_knobs(), planner_knobs()):
        assert "made_up_gb" in {one.name for one in known}


def test_a_request_that_keeps_it_gets_it(received: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Keeping(PlacementRequest):
        made_up_gb: float = knob_field("made_up_gb")

    monkeypatch.setattr("evenshard.planner.place.PlacementRequest", Keeping)
    knobs, tables = Knobs.of({"made_up_gb": 7.0}), TableSet.of([table()])
    devices = devices_of(knobs.machine, replace(knobs.memory, memory_cap_gb=1.0))
    built = build_request(knobs, tables, TableOptimizers(), devices, 0)
    assert isinstance(built, Keeping) and built.made_up_gb == 7.0


# The real ones -------------------------------------------------------------------------------------------------------


def test_every_knob_has_a_meaning_and_a_kind_that_can_be_a_flag() -> None:
    known = place_knobs()
    assert [one.name for one in known if not one.help] == []
    assert [one.name for one in known if isinstance(one.kind, str)] == ["constraints", "model"], (
        "quoted types are not read"
    )
    assert len({one.help for one in known}) == len({one.name for one in known}) == len(known)
    of_python = {"tables", "progress", *(one.name for one in groups())}
    assert set(inspect.signature(evenshard.place).parameters) - of_python == {one.name for one in known}


# In groups -----------------------------------------------------------------------------------------------------------


def test_a_group_says_the_same_as_its_knobs() -> None:
    flat = evenshard.place(TABLES, 2, 4, batch_size=64, dense_gb=1, seed=1, effort="quick")
    search = Search(seed=1, effort="quick")
    grouped = evenshard.place(TABLES, 2, 4, memory=Memory(dense_gb=1), training=Training(batch_size=64), search=search)
    assert flat == grouped


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dense_gb": 2, "memory": Memory(dense_gb=1)}, "dense_gb is given twice: as an argument and in memory. Give"),
        ({"memory": Memory(dense_gb="1")}, "dense_gb is '1', not a number (write 1). Correct it."),  # type: ignore[arg-type]
        ({"memory": Memory(dense_gb=-1)}, "dense_gb is -1, not a number from 0 to 1,048,576. Correct it."),
        ({"memory": {"dense_gb": 1}}, "memory is {'dense_gb': 1}, not a Memory. Correct it."),
        ({"in_use": InUse(max_move_gb=1)}, "max_move_gb is 1, but near is not set"),
    ],
)
def test_a_group_that_cannot_be_used_is_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadConfig) as raised:
        evenshard.place(TABLES, 2, **given)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_what_if_and_the_planner_take_groups_of_what_they_take() -> None:
    with pytest.raises(BadConfig, match=r"num_measured \(in search\) is not supported here. Leave it out."):
        evenshard.what_if(TABLES, ["h100"], [2], search=Search(num_measured=1))
    EvenshardPlanner(world_size=2, compute_device="cuda", memory=Memory(memory_cap_gb=4))
    with pytest.raises(BadConfig, match=r"batch_size \(in training\) is not supported here. Leave it out."):
        EvenshardPlanner(world_size=2, compute_device="cuda", training=Training(batch_size=64))


def test_a_name_of_nothing_is_pythons_error_and_names_what_may_be_meant() -> None:
    for name, said in (("dense_gbs", "Did you mean dense_gb"), ("world_size", "Use num_devices for TorchRec's world_")):
        with pytest.raises(TypeError, match=f"got an unexpected keyword argument '{name}'. {said}"):
            evenshard.place(TABLES, **{name: 1})
