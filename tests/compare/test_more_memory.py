"""What more device memory would save: never less than less memory does, and said in one line."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from evenshard.cli import main
from evenshard.compare.more_memory import MemoryOption, MoreMemory, more_memory
from evenshard.placement.machine import Machine
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.file import save_answer
from evenshard.planner.model import model_of
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.planner.request import PlacementRequest
from evenshard.report.more_memory import print_more_memory, worth_it_text
from evenshard.sharders.models import PlacementModel
from evenshard.utils.errors import InfeasibleTask
from support.builders import table
from support.effort import LITTLE

GB = 2**30
CONFIG = PlaceConfig(LITTLE)


@cache
def model() -> PlacementModel:
    return model_of(None, "simulated:h100")


@cache
def short_of_memory(cap: int = GB // 2, host: int = 8 * GB) -> PlacementAnswer:
    """Two GB of tables, one of which has next to all lookups, on two devices."""
    tables = (table("busy", 2**20, 64, 50.0), table("idle", 7 * 2**20, 64, 1.0))
    request = PlacementRequest(
        tables,
        (cap, cap),
        8192,
        training_pipeline="none",
        hardware="simulated:h100",
        machine=Machine(2, 2, host_bytes=(host,)),
    )
    return place_request(request, model(), CONFIG)


@cache
def found() -> MoreMemory:
    return more_memory(short_of_memory(), model(), CONFIG)


@pytest.mark.slow
def test_more_memory_is_never_slower_and_ends_with_everything_in_device_memory() -> None:
    assert [one.factor for one in found().less] == [0.75]
    assert [one.factor for one in found().more[:3]] == [1.25, 1.5, 2.0] and found().more[3].factor > 2
    assert [one.cap_bytes for one in found().more[:3]] == [5 * GB // 8, 3 * GB // 4, GB]
    times = [one.predicted_ms for one in (found().now, *found().more)]
    assert times == sorted((one for one in times if one is not None), reverse=True)
    assert found().now.offloaded_tables == 1 and found().now.offloaded_bytes == 7 * GB // 4
    assert (found().more[-1].offloaded_tables, found().more[-1].offloaded_bytes) == (0, 0)


def test_what_is_worth_it_is_placed_again_and_is_as_fast() -> None:
    best = found().worth_it
    assert best is not None and best.predicted_ms is not None
    request = replace(short_of_memory().request, caps_bytes=(best.cap_bytes,) * 2)
    assert place_request(request, model(), CONFIG).predicted_ms == best.predicted_ms


@pytest.mark.parametrize(
    ("cap", "factors"),
    [
        (GB // 2, [1.25, 1.5, 2.0, 2.25]),  # 2 GB and a tenth on two devices, with inputs and outputs
        (8 * GB, [1.25, 1.5, 2.0]),
        (GB // 8, [1.25, 1.5, 2.0]),  # more than eight times as much is not tried
    ],
)
def test_as_much_as_everything_needs_is_tried(cap: int, factors: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(request: PlacementRequest, *_: object) -> PlacementAnswer:
        return replace(short_of_memory(), request=request)

    monkeypatch.setattr("evenshard.compare.more_memory.place_request", answered)
    one = replace(short_of_memory(), request=replace(short_of_memory().request, caps_bytes=(cap, cap)))
    assert [option.factor for option in more_memory(one, model()).more] == pytest.approx(factors)


def test_what_is_legal_with_less_memory_is_legal_with_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds something slower, or nothing, with more memory says nothing of that memory."""
    now_ms, tried = short_of_memory().predicted_ms, iter((2.0, 1.5, 0.5, None, 0.8))

    def answered(*_: object) -> PlacementAnswer:
        factor = next(tried)
        if factor is None:
            raise InfeasibleTask("none was found")
        return replace(short_of_memory(), predicted_ms=factor * now_ms)

    monkeypatch.setattr("evenshard.compare.more_memory.place_request", answered)
    one = more_memory(short_of_memory(), model())
    assert [option.predicted_ms for option in one.less] == [2 * now_ms]
    assert [option.predicted_ms for option in one.more] == [now_ms, now_ms / 2, now_ms / 2, now_ms / 2]
    assert [option.factor for option in one.more[:3]] == [1.25, 1.5, 2.0]
    assert one.more[1].cap_bytes < one.more[2].cap_bytes
    assert one.worth_it == one.more[1]


def test_less_memory_than_there_can_be_a_placement_with() -> None:
    """A device that holds nothing in its memory but what it looks up needs that."""
    one = short_of_memory()
    (less,) = more_memory(replace(one, request=replace(one.request, machine=None)), model(), CONFIG).less
    assert less.predicted_ms is None and "GB is missing" in less.problem
    text = printed(MoreMemory(found().now, (less,), ()))
    assert "no placement" in text and f"With 384 MB: {less.problem[:30]}" in text


def option(factor: float, ms: float | None, tables: int = 0) -> MemoryOption:
    return MemoryOption(factor, round(factor * 8 * GB), ms, tables, tables * GB)


@pytest.mark.parametrize(
    ("times", "text"),
    [
        ((9.5, 9.0, 8.0), "With 8.00 GB more per device, {} 8.00 ms per step instead of 10.0."),
        ((9.5, 8.1, 8.0), "With 4.00 GB more per device, {} 8.10 ms per step instead of 10.0."),
        ((8.0, 8.0, 8.0), "With 2.00 GB more per device, {} 8.00 ms per step instead of 10.0."),
        ((10.0, 9.95, 9.91), "More device memory saves nothing: embedding work takes 10.0 ms per step."),
        ((), "More device memory saves nothing: embedding work takes 10.0 ms per step."),
    ],
)
def test_the_least_memory_that_saves_most_is_named(times: tuple[float, ...], text: str) -> None:
    more = tuple(option(factor, ms) for factor, ms in zip((1.25, 1.5, 2.0), times, strict=False))
    assert worth_it_text(MoreMemory(option(1, 10.0), (), more)) == text.format("embedding work is predicted to take")


def printed(one: MoreMemory) -> str:
    file = io.StringIO()
    print_more_memory(one, file)
    return " ".join(file.getvalue().split())


def test_a_line_for_each_size() -> None:
    text = printed(MoreMemory(option(1, 10.0, 3), (option(0.75, 10.5, 4),), (option(1.25, 9.5, 1), option(2, 8.0))))
    for said in (
        "6.00 GB x 0.75 10.50 +0.50 4.00 GB of 4 tables",
        "8.00 GB now 10.00 3.00 GB of 3 tables",
        "10.0 GB x 1.25 9.50 -0.50 1.00 GB of 1 table",
        "16.0 GB x 2 8.00 -2.00 nothing",
    ):
        assert said in text, said


def test_the_command_answers_it_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_answer(short_of_memory(), tmp_path / "placement.json")
    asked: list[object] = []
    monkeypatch.setattr("evenshard.compare.more_memory.more_memory", lambda *args: asked.append(args[0]) or found())
    assert main(["explain", str(tmp_path / "placement.json"), "--what-if", "memory"]) == 0
    assert asked == [short_of_memory()]
    assert " ".join(capsys.readouterr().out.split()).endswith(worth_it_text(found()))
    assert main(["explain", str(tmp_path / "placement.json"), "--what-if", "memory", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["now"]["offloaded_tables"] == 1


def test_explain_answers_one_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "placement.json", "--table", "a", "--what-if", "memory"]) == 2
    assert "name one of two" in capsys.readouterr().err


def test_place_answers_it_below_the_placement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tables.csv").write_text("name,num_rows,embedding_dim,pooling_factor\na,1000,16,3\n")
    monkeypatch.setattr("evenshard.compare.more_memory.more_memory", lambda answer, model: found())
    flags = ["--devices", "2", "--hardware", "simulated:h100", "--what-if", "memory"]
    assert main(["place", str(tmp_path / "tables.csv"), *flags]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "ms of embedding work per step" in out and out.endswith(worth_it_text(found()))
