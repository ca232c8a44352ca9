"""The knobs of ``evenshard.place``: a made-up one is everywhere as soon as the function has it."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import TypeAdapter

import evenshard
from evenshard.api.serving import served_code
from evenshard.cli import main
from evenshard.kubeflow.requests import place_tables
from evenshard.planner.options import option_field, place_options
from evenshard.planner.request import PlacementRequest
from evenshard.utils.errors import BadConfig, BadInput

PLACE = evenshard.place


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """``place`` with one argument more; what it is called with."""
    received: dict[str, Any] = {}

    @functools.wraps(PLACE)
    def place(*args: Any, **named: Any) -> None:
        received.update(named)
        raise BadInput("that is enough")

    known = inspect.signature(PLACE)
    made_up = inspect.Parameter("made_up_gb", inspect.Parameter.KEYWORD_ONLY, default=1.5, annotation=float)
    place.__signature__ = known.replace(parameters=[*known.parameters.values(), made_up])  # type: ignore[attr-defined]
    place.__doc__ = str(PLACE.__doc__).replace(
        "        seed: seed of the search.",
        "        seed: seed of the search.\n        made_up_gb: memory for ``nothing``,\n            100 % of it.",
    )
    monkeypatch.setattr("evenshard.api.place.place", place)
    return received


def test_it_is_an_argument_of_python(received: dict[str, Any]) -> None:
    assert inspect.signature(evenshard.place).parameters["made_up_gb"].default == 1.5
    option = place_options()[-1]
    assert (option.name, option.kind, option.default, option.unit) == ("made_up_gb", float, 1.5, "GB")
    assert option.help == "memory for nothing, 100 % of it"


def test_it_is_a_flag(received: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["place", "t.yaml"]) == 2 and received["made_up_gb"] == 1.5
    assert main(["place", "t.yaml", "--made-up-gb", "7"]) == 2 and received["made_up_gb"] == 7.0
    with pytest.raises(SystemExit):
        main(["place", "--help"])
    assert "--made-up-gb GB memory for nothing, 100 % of it (default: 1.5)" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit):
        main(["place", "t.yaml", "--made-up-gb", "much"])
    assert "--made-up-gb: 'much' is not a number" in capsys.readouterr().err


def asked_of_a_pipeline(request: dict[str, Any]) -> None:
    place_tables("t.yaml", None, request, None)


def test_it_is_a_key_of_a_pipelines_request(received: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="enough"):
        asked_of_a_pipeline({"made_up_gb": 7})
    assert received["made_up_gb"] == 7.0
    with pytest.raises(BadConfig, match="place: made_up_gb: Input should be a valid number"):
        asked_of_a_pipeline({"made_up_gb": "much"})
    with pytest.raises(BadConfig, match=r"'made_up'\. Did you mean 'made_up_gb'"):
        asked_of_a_pipeline({"made_up": 7})


def test_it_is_a_parameter_of_a_served_model(received: dict[str, Any]) -> None:
    from evenshard.tracking.pyfunc import signature

    assert served_code().parameters["made_up_gb"] == 1.5
    parameter = next(one for one in signature(served_code()).params if one.name == "made_up_gb")
    assert (parameter.dtype.name, parameter.default) == ("double", 1.5)


def test_it_is_in_the_schema_of_a_request_that_keeps_it(received: dict[str, Any]) -> None:
    @dataclass(frozen=True)
    class Keeping(PlacementRequest):
        made_up_gb: float = option_field("made_up_gb")

    schema = TypeAdapter(Keeping).json_schema()["properties"]["made_up_gb"]
    assert (schema["type"], schema["default"], schema["description"]) == (
        "number",
        1.5,
        "memory for nothing, 100 % of it",
    )


def test_every_knob_has_a_meaning_and_a_kind_that_can_be_a_flag() -> None:
    known = place_options()
    assert [option.name for option in known if not option.help] == []
    assert [option.name for option in known if isinstance(option.kind, str)] == ["model", "constraints"], (
        "quoted types are not read"
    )
    assert len({option.help for option in known}) == len(known) == len(inspect.signature(PLACE).parameters) - 2
    assert "progress" not in {option.name for option in known}, "a function is no knob"


def test_the_scalar_of_a_knob_is_the_type_of_its_plain_value() -> None:
    scalars = {option.name: option.scalar for option in place_options()}
    assert (scalars["allow_column_split"], scalars["num_devices"], scalars["embedding_dim"]) == (bool, int, int)
    assert (scalars["memory_cap_gb"], scalars["traffic"], scalars["together"]) == (float, str, None)
