"""Units of work are done once, whatever ends a run; results are found by all that they depend on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.studies import units as units_module
from benchmarks.studies.runner import run_units
from benchmarks.studies.units import Record, Store
from evenshard.base.errors import BadFile, BadInput, InfeasibleTask
from support import killable_study
from support.killable_study import Add, Fail, began, chain
from support.patience import wait_until


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_unit_is_done_after_those_it_needs(tmp_path: Path, jobs: int) -> None:
    units = chain()
    run_units(units, tmp_path, "some commit", jobs, "test")
    order = [number for number, _ in began(tmp_path)]
    assert sorted(order) == [0, 1, 2, 3, 4, 5]
    assert order.index(3) > max(order.index(0), order.index(1), order.index(2))
    assert Store(tmp_path).result(units[3]) == {"sum": 6}
    assert Store(tmp_path).record(units[5]).commit == "some commit"
    assert Store(tmp_path).result(units[5]) == {"sum": 11}


def test_what_is_there_is_not_done_again_unless_forgotten(tmp_path: Path) -> None:
    units = chain()
    run_units(units, tmp_path, "first", 1, "test")
    Store(tmp_path).forget(units[4])
    run_units(units, tmp_path, "second", 1, "test")
    assert [number for number, _ in began(tmp_path)] == [0, 1, 2, 3, 4, 5, 4]
    assert [Store(tmp_path).record(unit).commit for unit in units] == ["first"] * 4 + ["second", "first"]


def test_the_key_covers_the_units_own_fields_what_it_needs_its_kind_and_the_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Add(1, (Add(2),))
    assert one.key == Add(1, (Add(2),)).key
    others = [Add(2, (Add(2),)), Add(1, (Add(3),)), Add(1), Add(1, (Add(2),), 1.0), Add(1, (Add(2, (Add(4),)),))]
    assert len({one.key, *(other.key for other in others)}) == 6
    monkeypatch.setattr(units_module, "__version__", "0.0.0")
    assert replace(one).key != one.key


def test_a_torn_result_names_its_file(tmp_path: Path) -> None:
    unit, store = Add(1), Store(tmp_path)
    store.save(unit, Record({"sum": 1}, "commit", 0.5))
    (path,) = tmp_path.glob("*.json")
    assert json.loads(path.read_text())["unit"] == "unit 1"
    path.write_text("{")
    with pytest.raises(BadFile, match=r"unit-1-\w{12}\.json.*Remove it"):
        store.result(unit)
    with pytest.raises(ValueError, match="JSON"):
        store.save(Add(2), Record({"sum": float("inf")}, "commit", 0.5))
    assert not store.has(Add(2))


@pytest.mark.parametrize(("way", "kind"), [("bad", BadInput), ("full", InfeasibleTask), ("bug", ZeroDivisionError)])
def test_a_failing_unit_names_itself(tmp_path: Path, way: str, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        run_units([Add(1), Fail(way)], tmp_path, "commit", 1, "test")
    notes = getattr(caught.value, "__notes__", [])
    assert f"failing {way}" in str(caught.value) + "".join(notes)
    assert Store(tmp_path).has(Add(1))


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return not Path(f"/proc/{process}/stat").exists() or " Z " not in Path(f"/proc/{process}/stat").read_text()


@pytest.mark.parametrize(("by", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 130)])
def test_a_killed_study_leaves_no_worker_and_goes_on(tmp_path: Path, by: signal.Signals, code: int) -> None:
    command = [sys.executable, killable_study.__file__, str(tmp_path), "2"]
    study = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: 4 in [number for number, _ in began(tmp_path)], "the long unit begins")
    study.send_signal(by)
    assert study.wait(10) == code
    for _, process in began(tmp_path):
        wait_until(lambda process=process: not is_alive(process), "the workers end")  # type: ignore[misc]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]

    finished = chain(pause_s=60.0)[:4]
    assert all(Store(tmp_path).has(unit) for unit in finished)
    before = len(began(tmp_path))
    run_units([*finished, Add(9, tuple(finished))], tmp_path, "commit", 1, "test")  # type: ignore[arg-type]
    assert [number for number, _ in began(tmp_path)[before:]] == [9]
