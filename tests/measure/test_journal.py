"""The journal: what was finished is never lost, whatever happens to the process, and nothing broken is taken in."""

from __future__ import annotations

import json
import logging
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.base.errors import BadFile, MeasurementFailed
from evenshard.measure.journal import Journal, Origin, Visit
from evenshard.price.costs import OUT_OF_MEMORY, DeviceCost, PlacementCost
from support.builders import PROVENANCE, cost, device_costs, provenances

ORIGIN = Origin(PROVENANCE, {"num_batches": 2, "recorded_batch": None})
ANOTHER = Origin(replace(PROVENANCE, versions="none 1"), ORIGIN.settings)
FULL = DeviceCost.out_of_memory()


def visit(job: str = "a", number: int = 0, total_ms: float = 4.0, origin: Origin = ORIGIN) -> Visit:
    return Visit(job, number, cost(total_ms), 1.5e9 + number, origin)


VISITS = [visit("a"), visit("b", total_ms=8.0), visit("a", number=1, total_ms=0.1)]


def written(path: Path, visits: list[Visit]) -> bytes:
    with Journal(path) as journal:
        for one in visits:
            journal.append(one)
    return path.read_bytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def found(path: Path, like: list[Visit]) -> list[Visit | None]:
    with Journal(path) as journal:
        return [journal.find(one.job, one.number, one.origin) for one in like]


# There and back ------------------------------------------------------------------------------------------------------

simple = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
origins = st.builds(Origin, provenances, st.dictionaries(st.text(), simple, max_size=3))
placement_costs = st.builds(
    PlacementCost, st.lists(device_costs, min_size=1, max_size=3).map(tuple), st.sampled_from(["modelled", "measured"])
)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(data=st.data(), some_origins=st.lists(origins, min_size=1, max_size=3), openings=st.integers(1, 3))
def test_every_field_comes_back(data: st.DataObject, some_origins: list[Origin], openings: int) -> None:
    """Visits of several origins in turn, written in several runs."""
    visits = st.builds(
        Visit, st.text(), st.integers(0, 9), placement_costs, st.floats(0, 1e11), st.sampled_from(some_origins)
    )
    runs = [data.draw(st.lists(visits, max_size=4)) for _ in range(openings)]
    every = [one for run in runs for one in run]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        for run in runs:
            written(path, run)
        with Journal(path) as journal:
            assert len(journal) == len(every)
            for one in every:
                same = [other for other in every if (other.job, other.number) == (one.job, one.number)]
                assert journal.find(one.job, one.number) == same[-1]
                assert journal.find(one.job, one.number, one.origin) == [s for s in same if s.origin == one.origin][-1]


def test_a_visit_can_be_found_at_once_and_later(tmp_path: Path) -> None:
    with Journal(tmp_path / "new folder" / "journal.jsonl") as journal:
        assert journal.find("a", 0) is None and len(journal) == 0
        journal.append(VISITS[0])
        assert journal.find("a", 0) == VISITS[0] == journal.find("a", 0, ORIGIN)
        assert journal.find("a", 1) is None and journal.find("b", 0) is None
    assert found(journal.path, [VISITS[0]]) == [VISITS[0]]


def test_what_was_appended_is_in_the_file_before_the_journal_is_closed(path: Path) -> None:
    """In the operating system's hands, where a killed process cannot lose it."""
    with Journal(path) as journal:
        for number, one in enumerate(VISITS, start=1):
            journal.append(one)
            assert path.read_bytes().count(b"\n") == number + 1  # the origin is a line too


def test_a_shard_that_did_not_fit_is_recorded_by_its_status_alone(path: Path) -> None:
    """JSON has no infinity; and what else such a device says of itself has no meaning."""
    waiting = replace(FULL, fwd_wait_ms=3.0)
    full = Visit("full", 0, PlacementCost((cost(1.0).devices[0], waiting), "measured"), 5.0, ORIGIN)
    last = written(path, [full]).splitlines()[-1]
    assert json.loads(last)["devices"][1] == {"status": OUT_OF_MEMORY}
    (back,) = found(path, [full])
    assert back is not None and back.cost.devices == (cost(1.0).devices[0], FULL)


def test_what_nobody_can_measure_is_no_record_and_the_journal_stays_whole(path: Path) -> None:
    with Journal(path) as journal:
        journal.append(VISITS[0])
        for impossible in (float("nan"), float("inf"), -4.0):
            with pytest.raises(MeasurementFailed, match=r"device 0: fwd_compute_ms is .*, not a time"):
                journal.append(visit("b", total_ms=impossible))
        with pytest.raises(MeasurementFailed, match="measured_at is"):
            journal.append(replace(VISITS[1], measured_at=1e18))
        assert journal.find("b", 0) is None
        journal.append(VISITS[1])
    assert found(path, VISITS[:2]) == VISITS[:2]


# Origins -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        replace(ORIGIN, provenance=replace(PROVENANCE, hardware="cuda: another")),
        replace(ORIGIN, provenance=replace(PROVENANCE, driver="NVIDIA 570.1")),
        ANOTHER,
        replace(ORIGIN, provenance=replace(PROVENANCE, link="gloo")),
        replace(ORIGIN, provenance=replace(PROVENANCE, repeats=4)),
        replace(ORIGIN, provenance=replace(PROVENANCE, seed=8)),
        replace(ORIGIN, settings={"num_batches": 3, "recorded_batch": None}),
        replace(ORIGIN, settings={"num_batches": 2}),
    ],
)
def test_the_visits_of_another_origin_are_not_ours(path: Path, other: Origin) -> None:
    written(path, [visit("a"), visit("b", origin=other)])
    with Journal(path) as journal:
        assert journal.find("b", 0, ORIGIN) is None and journal.find("a", 0, other) is None
        assert journal.find("b", 0, other) == journal.find("b", 0) == visit("b", origin=other)


def test_of_several_visits_the_last_one_counts(path: Path) -> None:
    """Per origin, and over all origins."""
    slow, elsewhere = visit(total_ms=9.0), visit(total_ms=1.0, origin=ANOTHER)
    written(path, [visit(), slow, elsewhere])
    with Journal(path) as journal:
        assert journal.find("a", 0, ORIGIN) == slow
        assert journal.find("a", 0) == journal.find("a", 0, ANOTHER) == elsewhere
        assert len(journal) == 3


def test_an_origin_is_written_once_until_another_one_comes(path: Path) -> None:
    def num_origins(*visits: Visit) -> int:
        return written(path, list(visits)).count(b'"origin"')

    assert num_origins(visit("a"), visit("b")) == 1
    assert num_origins(visit("c")) == 1  # though the journal was closed in between
    assert num_origins(visit("a", origin=ANOTHER), visit("d", origin=ANOTHER)) == 2
    assert num_origins(visit("e"), visit("e", number=1)) == 3


# The traces of a kill ------------------------------------------------------------------------------------------------


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_last_line_torn_anywhere_is_dropped_with_one_warning_and_the_journal_goes_on(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = written(path, VISITS)
    whole = content[: content[:-1].rfind(b"\n") + 1]
    for torn in range(len(whole) + 1, len(content)):
        path.write_bytes(content[:torn])
        caplog.clear()
        with Journal(path) as journal:
            assert len(journal) == 2 and journal.find("a", 1) is None
            assert path.read_bytes() == whole
            journal.append(VISITS[2])
        assert len(warnings_of(caplog)) == 1 and str(path) in warnings_of(caplog)[0]
        assert path.read_bytes() == content
    assert found(path, VISITS) == VISITS
    assert len(warnings_of(caplog)) == 1  # none from the whole file


@pytest.mark.slow
def test_a_torn_origin_is_written_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first one, which leaves nothing, and a later one, which must not lend its visits to the one before."""
    first = written(path, [visit("a")])
    content = written(path, [visit("b", origin=ANOTHER)])
    second_origin = content[len(first) :].splitlines(keepends=True)[0]
    for torn in range(1, len(second_origin)):
        path.write_bytes(first + second_origin[:torn])
        assert written(path, [visit("b", origin=ANOTHER)]) == content
    for torn in range(1, len(first.splitlines(keepends=True)[0])):
        path.write_bytes(first[:torn])
        assert written(path, [visit("a")]) == first
    assert len(warnings_of(caplog)) == torn + len(second_origin) - 1


def test_a_file_cut_between_two_lines_is_whole(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = written(path, VISITS).splitlines(keepends=True)
    for kept in range(len(lines) + 1):
        path.write_bytes(b"".join(lines[:kept]))
        with Journal(path) as journal:
            assert len(journal) == max(kept - 1, 0)
    assert not warnings_of(caplog)


def test_a_journal_takes_in_what_another_holds_and_it_does_not(tmp_path: Path) -> None:
    elsewhere, again = visit("a", origin=ANOTHER), visit("a", total_ms=5.0)
    written(tmp_path / "earlier", [VISITS[0], VISITS[1], elsewhere])
    written(tmp_path / "mine", [again])
    with Journal(tmp_path / "mine") as mine, Journal(tmp_path / "earlier") as earlier:
        mine.add_all(earlier)
        assert len(mine) == 3 and mine.find("a", 0, ORIGIN) == again
    assert found(tmp_path / "mine", [VISITS[1], elsewhere]) == [VISITS[1], elsewhere]


# Broken journals -----------------------------------------------------------------------------------------------------


def as_line(record: Any) -> bytes:
    return json.dumps(record).encode()


A_VISIT: dict[str, Any] = {"job": "a", "visit": 0, "measured_at": 1.0, "all_to_all": "modelled", "devices": []}
FINE = {name: value for name, value in asdict(cost(1.0).devices[0]).items() if value is not None}


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        b"\x00\xff\xfe",
        b"",
        b'{"job": "a", "vis',
        b"[]",
        b"{}",
        as_line({name: value for name, value in A_VISIT.items() if name != "visit"}),
        as_line({name: value for name, value in A_VISIT.items() if name != "devices"}),
        as_line({**A_VISIT, "devices": None}),
        as_line({**A_VISIT, "devices": [{"mood": "good"}]}),
        as_line({**A_VISIT, "devices": [{}]}),
        as_line({**A_VISIT, "devices": [{"status": "ok"}]}),
        as_line({**A_VISIT, "devices": [{**FINE, "mood": "good"}]}),
        as_line({**A_VISIT, "devices": [{name: FINE[name] for name in FINE if name != "bwd_compute_ms"}]}),
        as_line({"journal": 1, "origin": {}}),
        as_line({"journal": 1, "origin": {"provenance": {"mood": "good"}, "settings": {}}}),
        as_line({"journal": 1, "origin": {"provenance": asdict(PROVENANCE)}}),
        as_line({"origin": asdict(ORIGIN)}),
        b"[" * 100_000,
        as_line({**A_VISIT, "devices": []}),
        as_line({**A_VISIT, "devices": [FINE], "job": {"a": 1}}),
        as_line({**A_VISIT, "devices": [FINE], "job": ["a"]}),
        as_line({**A_VISIT, "devices": [FINE], "visit": -1}),
        as_line({**A_VISIT, "devices": [FINE], "visit": "0"}),
        as_line({**A_VISIT, "devices": [FINE], "visit": True}),
        as_line({**A_VISIT, "devices": [FINE], "all_to_all": None}),
        as_line({**A_VISIT, "devices": [FINE], "more": 1}),
        *(
            as_line({**A_VISIT, "devices": [FINE], "measured_at": moment})
            for moment in (None, "1.0", -1.0, 1e18, float("nan"), float("inf"))
        ),
        *(
            as_line({**A_VISIT, "devices": [FINE, {**FINE, name: time}]})
            for name in FINE
            for time in (None, "1.0", True, [1.0], -1e-9, float("nan"), float("inf"), 1e13, 10**400)
        ),
        as_line({**A_VISIT, "devices": [{**FINE, "status": OUT_OF_MEMORY}]}),
        as_line({"journal": 1, "origin": asdict(ORIGIN), "more": 1}),
        *(
            as_line({"journal": 1, "origin": {**asdict(ORIGIN), "provenance": {**asdict(PROVENANCE), **change}}})
            for change in ({"hardware": "abacus"}, {"driver": None}, {"seed": 1.5}, {"repeats": "3"}, {"link": []})
        ),
        as_line({"journal": 1, "origin": {**asdict(ORIGIN), "settings": []}}),
    ],
)
def test_garbage_among_the_lines_is_named_and_nothing_is_thrown_away(path: Path, line: bytes) -> None:
    lines = written(path, VISITS).splitlines()
    content = b"\n".join([*lines[:2], line, *lines[2:], b'{"torn'])
    path.write_bytes(content)
    for _ in range(2):  # the first failure leaves no lock behind
        with pytest.raises(BadFile, match="line 3: is not a journal line") as caught:
            Journal(path)
        assert str(path) in str(caught.value) and "Repair" in str(caught.value) and len(str(caught.value)) < 500
    assert path.read_bytes() == content


def test_without_the_line_that_is_garbage_nothing_else_is_lost(path: Path) -> None:
    """Its removal is what the message says; that of an origin would give its visits another one."""
    lines = written(path, VISITS).splitlines(keepends=True)
    broken = lines[3].replace(b'"fwd_compute_ms": 0.025', b'"fwd_compute_ms": NaN')
    assert broken != lines[3]
    path.write_bytes(b"".join([*lines[:3], broken]))
    with pytest.raises(BadFile, match=r"line 4: .*'NaN' is not a valid number.*remove it"):
        Journal(path)
    path.write_bytes(b"".join(lines[:3]))
    assert found(path, VISITS) == [*VISITS[:2], None]
    path.write_bytes(b"".join([lines[0].replace(b'"seed": 7', b'"seed": null'), *lines[1:]]))
    with pytest.raises(BadFile, match=r"line 1: .*seed is None, not a whole number") as caught:
        Journal(path)
    assert "remove" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        *(
            (as_line({"journal": version, "origin": asdict(ORIGIN)}) + b"\n", rf"version is {version!r}, but this ev")
            for version in (0, 2, "1")
        ),
        (as_line({**A_VISIT, "devices": [FINE]}) + b"\n", r"line 1: .*there is no origin line before this visit"),
        (b"PAR1\x15\x04\x15", "journal"),
        (b'[{"name": "ads", "num_rows": 9}]', "journal"),
        (b"name,num_rows\n", "journal"),
    ],
)
def test_a_file_that_does_not_begin_as_a_journal_is_left_alone(path: Path, content: bytes, why: str) -> None:
    """Even where it has no line end, so that all of it might be a torn line."""
    path.write_bytes(content)
    with pytest.raises(BadFile, match=why) as caught:
        Journal(path)
    assert str(path) in str(caught.value) and path.read_bytes() == content


# Two at once ---------------------------------------------------------------------------------------------------------


def test_a_journal_has_one_writer_until_it_is_closed_and_closing_twice_is_closing_once(path: Path) -> None:
    with Journal(path) as journal:
        journal.append(VISITS[0])
        with pytest.raises(BadFile, match="another process is writing it") as caught:
            Journal(path)
        assert str(path) in str(caught.value)
        journal.append(VISITS[1])
    journal.close()
    assert found(path, VISITS[:2]) == VISITS[:2]
