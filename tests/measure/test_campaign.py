"""Campaigns: the order of measuring, the time budget, and going on after any kind of end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.base.errors import BadFile, MeasurementFailed
from evenshard.measure import campaign
from evenshard.measure.campaign import Job, insert_controls, load_measured, measure_jobs
from evenshard.measure.config import MeasureConfig
from evenshard.measure.journal import Journal
from evenshard.placement.nodes import Nodes
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import CONTROL, MeasuredPlacement, PlacementCost
from support.builders import PROVENANCE, ROOMY, FakeHardware, every_placement, table, task, working

CONFIG = MeasureConfig(visits=2, repeats=4, seed=5)
TASKS = [task(working(1.0, 2.0, 4.0), task_id=name) for name in "abc"]
JOBS = [
    Job(f"{of_task.task_id}{number}", of_task, placement.parts(of_task.tables), 1, "random", of_task.task_id)
    for of_task in TASKS
    for number, placement in enumerate(every_placement(of_task)[:4])
]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal.jsonl") as opened:
        yield opened


def fresh(tmp_path: Path, name: str) -> Journal:
    return Journal(tmp_path / f"{name}.jsonl")


def timeless(measured: list[MeasuredPlacement]) -> list[MeasuredPlacement]:
    return [replace(one, measured_at=0.0) for one in measured]


# The order of measuring ----------------------------------------------------------------------------------------------


def test_each_job_is_visited_as_often_as_asked_and_comes_back_in_its_place(journal: Journal) -> None:
    hardware = FakeHardware()
    measured = measure_jobs(hardware, JOBS, replace(CONFIG, visits=3), journal)
    assert len(hardware.calls) == 3 * len(JOBS) == len(journal)
    assert all(hardware.calls.count((job.task, job.placement)) == 3 for job in JOBS)
    for one, job in zip(measured, JOBS, strict=True):
        assert one.cost == FakeHardware().measure(job.task, job.placement)
        assert (one.task, one.placement, one.proposed_by) == (job.task, job.placement, "random")
        assert (one.measurement_id, one.round) == (job.measurement_id, 1)


def test_jobs_of_a_group_are_measured_right_after_each_other_and_groups_take_turns(journal: Journal) -> None:
    hardware = FakeHardware()
    interleaved = JOBS[::4] + JOBS[1::4] + JOBS[2::4] + JOBS[3::4]
    measure_jobs(hardware, interleaved, CONFIG, journal)
    visited = [of_task.task_id for of_task, _ in hardware.calls]
    assert visited == (["a"] * 4 + ["b"] * 4 + ["c"] * 4) * 2


def test_the_order_within_a_group_is_random_from_visit_to_visit_but_the_same_for_a_seed(tmp_path: Path) -> None:
    orders = []
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        hardware = FakeHardware()
        with fresh(tmp_path, name) as journal:
            measure_jobs(hardware, JOBS, replace(CONFIG, visits=4, seed=seed), journal)
        orders.append([placement.device_of_table for of_task, placement in hardware.calls if of_task.task_id == "a"])
    assert orders[0] == orders[1] != orders[2]
    visits = [tuple(orders[0][start : start + 4]) for start in range(0, 16, 4)]
    assert len(set(visits)) > 1 and len({frozenset(visit) for visit in visits}) == 1


def test_only_what_is_left_is_measured_and_told_to_the_progress_bar(journal: Journal) -> None:
    seen: list[tuple[int, int]] = []

    def track(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
        seen.extend(steps)
        return steps

    assert measure_jobs(FakeHardware(), [], CONFIG, journal) == []
    measure_jobs(FakeHardware(), JOBS[:5], replace(CONFIG, visits=1), journal)
    finished = measure_jobs(FakeHardware(), JOBS, CONFIG, journal, track=track)
    assert sorted(seen) == [(0, job) for job in range(5, 12)] + [(1, job) for job in range(12)]
    hardware = FakeHardware()
    assert measure_jobs(hardware, JOBS, CONFIG, journal) == finished
    assert measure_jobs(hardware, JOBS[3:5], CONFIG, journal) == finished[3:5] and not hardware.calls
    third = measure_jobs(hardware, JOBS, replace(CONFIG, visits=3), journal)
    assert len(hardware.calls) == 12 and {one.provenance.repeats for one in third} == {12}


# Visits --------------------------------------------------------------------------------------------------------------


def test_a_disturbance_during_one_of_three_visits_does_not_count(tmp_path: Path) -> None:
    disturbed = FakeHardware(slowness=[1.0] * len(JOBS) + [50.0] * len(JOBS) + [1.0] * len(JOBS))
    with fresh(tmp_path, "disturbed") as journal:
        measured = measure_jobs(disturbed, JOBS, replace(CONFIG, visits=3), journal)
    with fresh(tmp_path, "undisturbed") as journal:
        undisturbed = measure_jobs(FakeHardware(), JOBS, replace(CONFIG, visits=3), journal)
    assert [one.cost.max_device_ms for one in measured] == [one.cost.max_device_ms for one in undisturbed]
    devices = [device for one in measured for device in one.cost.devices]
    assert all(device.fwd_compute_spread_ms > 0 for device in devices if device.fwd_compute_ms)


def test_the_repeats_behind_a_median_are_those_of_all_visits_really_made(journal: Journal) -> None:
    """Four repeats in each visit; the second run is stopped after two of the twelve second visits."""
    measure_jobs(FakeHardware(), JOBS, replace(CONFIG, visits=1), journal)
    measured = measure_jobs(FakeHardware(), JOBS, CONFIG, journal, track=lambda steps: steps[:2])
    assert Counter(one.provenance.repeats for one in measured) == {8: 2, 4: 10}
    assert {replace(one.provenance, repeats=3) for one in measured} == {PROVENANCE}


def test_a_placement_was_measured_when_its_last_visit_ended(journal: Journal) -> None:
    before = time.time()
    (first,) = measure_jobs(FakeHardware(), JOBS[:1], replace(CONFIG, visits=1), journal)
    between = time.time()
    (second,) = measure_jobs(FakeHardware(), JOBS[:1], replace(CONFIG, visits=2), journal)
    assert before <= first.measured_at <= between <= second.measured_at <= time.time()


# The budget ----------------------------------------------------------------------------------------------------------


class TenSecondsEach(FakeHardware):
    """Every measurement takes ten seconds of a clock that nothing else moves."""

    now = 0.0

    def measure(self, task: ShardingTask, placement: Placement) -> PlacementCost:
        self.now += 10.0
        return super().measure(task, placement)


@pytest.mark.parametrize(("budget_s", "begun"), [(0.0, 0), (1.0, 1), (25.0, 3), (30.0, 3), (1e9, 24), (None, 24)])
def test_no_measurement_begins_after_the_budget_and_what_was_measured_comes_back(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, budget_s: float | None, begun: int
) -> None:
    """At 25 s, those that began at 0, 10 and 20 s; at 30 s the time is over."""
    hardware = TenSecondsEach()
    clock = SimpleNamespace(monotonic=lambda: 1000.0 + hardware.now, time=lambda: hardware.now)
    monkeypatch.setattr(campaign, "time", clock)
    measured = measure_jobs(hardware, JOBS, CONFIG, journal, budget_s)
    assert len(hardware.calls) == len(journal) == begun
    touched = {(of_task.task_id, placement) for of_task, placement in hardware.calls}
    assert {(one.task.task_id, one.placement) for one in measured} == touched
    ids = [one.measurement_id for one in measured]
    assert ids == [job.measurement_id for job in JOBS if job.measurement_id in ids]


# Going on ------------------------------------------------------------------------------------------------------------


class SometimesFails(FakeHardware):
    """Fails after so many measurements."""

    def __init__(self, succeed: int) -> None:
        super().__init__()
        self._succeed = succeed

    def measure(self, task: ShardingTask, placement: Placement) -> PlacementCost:
        if len(self.calls) == self._succeed:
            raise MeasurementFailed("the kernel is tired")
        return super().measure(task, placement)


def test_a_device_that_measures_what_nobody_can_fails_and_what_was_measured_before_stays(tmp_path: Path) -> None:
    with fresh(tmp_path, "broken") as journal:
        with pytest.raises(MeasurementFailed, match=r"device 0: fwd_compute_ms is nan, not a time"):
            measure_jobs(FakeHardware(slowness=[1.0, 1.0, 1.0, float("nan")]), JOBS, CONFIG, journal)
        assert len(journal) == 3
    with fresh(tmp_path, "broken") as journal:
        assert len(journal) == 3


def test_however_often_it_stops_nothing_is_measured_twice_and_the_costs_are_the_same(tmp_path: Path) -> None:
    calls = []
    for succeed in (3, 0, 1, 9):
        hardware = SometimesFails(succeed)
        with fresh(tmp_path, "stopped") as journal, pytest.raises(MeasurementFailed):
            measure_jobs(hardware, JOBS, CONFIG, journal)
        assert len(hardware.calls) == succeed
        calls += hardware.calls
    last = FakeHardware()
    with fresh(tmp_path, "stopped") as journal:
        measured = measure_jobs(last, JOBS, CONFIG, journal)
    with fresh(tmp_path, "at once") as journal:
        at_once = FakeHardware()
        assert timeless(measure_jobs(at_once, JOBS, CONFIG, journal)) == timeless(measured)
    assert calls + last.calls == at_once.calls  # in the same order, too


def test_settings_that_change_what_a_visit_means_measure_again_and_others_do_not(journal: Journal) -> None:
    measure_jobs(FakeHardware(), JOBS[:2], CONFIG, journal)
    changes: list[tuple[dict[str, Any], int]] = [
        ({"link": "nvlink_h200"}, 4),
        ({"num_batches": 5}, 4),
        ({"warmup": 9}, 4),
        ({"repeats": 5}, 4),
        ({"recorded_batch": "batch.pt"}, 4),
        ({"keep_cache_warm": True}, 4),
        ({"hardware": "simulated:v100", "noise": 0.5}, 4),
        ({"seed": 6}, 4),
        ({"controls": 7, "control_repeats": 1, "timeout_s": 1.0, "hardware": "cpu"}, 0),
    ]
    for change, again in changes:
        hardware = FakeHardware()
        measure_jobs(hardware, JOBS[:2], replace(CONFIG, **change), journal)
        assert len(hardware.calls) == again, change


def test_other_hardware_measures_again_and_does_not_mix(journal: Journal) -> None:
    elsewhere = FakeHardware(slowness=[10.0], provenance=replace(PROVENANCE, hardware="simulated: slow"))
    measure_jobs(elsewhere, JOBS, CONFIG, journal)
    assert measure_jobs(FakeHardware(), JOBS, CONFIG, journal, budget_s=0.0) == []
    here = FakeHardware()
    for one in measure_jobs(here, JOBS, CONFIG, journal):
        assert one.cost == FakeHardware().measure(one.task, one.placement)
        assert one.provenance == replace(PROVENANCE, repeats=8)
    assert len(here.calls) == 24


# Without hardware ----------------------------------------------------------------------------------------------------


def test_a_journal_becomes_costs_without_hardware(tmp_path: Path) -> None:
    """As it comes back from another machine; jobs without a visit are left out."""
    with fresh(tmp_path, "one") as journal:
        measured = measure_jobs(FakeHardware(), JOBS[2:9], CONFIG, journal)
    with fresh(tmp_path, "one") as journal:
        assert load_measured(JOBS, CONFIG, journal) == measured
        assert load_measured(JOBS[9:], CONFIG, journal) == []


def test_a_visit_of_other_devices_than_the_jobs_is_refused(journal: Journal) -> None:
    """As in a file written by hand: the key of the job is right."""
    measure_jobs(FakeHardware(), JOBS[:2], CONFIG, journal)
    visit = journal.find(JOBS[1].key, 1)
    assert visit is not None
    journal.append(replace(visit, cost=replace(visit.cost, devices=visit.cost.devices[:1])))
    with pytest.raises(BadFile, match=rf"visit 1 of job {JOBS[1].key} has 1 devices, but .* has 2\. Remove the line"):
        load_measured(JOBS, CONFIG, journal)
    assert len(load_measured(JOBS[:1], CONFIG, journal)) == 1


def test_without_hardware_each_job_comes_from_where_it_was_measured_last(journal: Journal) -> None:
    """Job 1 was begun again elsewhere, but only its first visit: two origins are never mixed in one cost."""
    elsewhere = replace(PROVENANCE, hardware="simulated: slow")
    measure_jobs(FakeHardware(), JOBS[:2], CONFIG, journal)
    measure_jobs(FakeHardware([10.0], provenance=elsewhere), JOBS[1:2], replace(CONFIG, visits=1), journal)
    first, second = load_measured(JOBS[:2], CONFIG, journal)
    assert first.provenance == replace(PROVENANCE, repeats=8)
    assert second.provenance == replace(elsewhere, repeats=4)
    assert second.cost == FakeHardware([10.0]).measure(JOBS[1].task, JOBS[1].placement)


# Controls ------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(num_jobs=st.integers(0, 20), num_controls=st.integers(0, 3), repeats=st.integers(1, 5))
def test_controls_are_spread_evenly_and_nothing_is_lost(num_jobs: int, num_controls: int, repeats: int) -> None:
    jobs = [replace_job(JOBS[0], measurement_id=f"m{number}", group=str(number)) for number in range(num_jobs)]
    controls = [(of_task, Placement((0, 1, 0), 2).parts(of_task.tables)) for of_task in TASKS[:num_controls]]
    together = insert_controls(jobs, controls, repeats)
    assert [job for job in together if job.proposed_by != CONTROL] == jobs
    assert len({job.measurement_id for job in together}) == len(together) == num_jobs + num_controls * repeats
    for of_task, parts in controls:
        places = [place for place, job in enumerate(together) if job.proposed_by == CONTROL and job.task == of_task]
        assert len(places) == repeats
        assert all(together[place].parts == parts for place in places)
        between = [sum(job in jobs for job in together[low:high]) for low, high in pairwise(places)]
        assert not between or max(between) - min(between) <= 1
        if repeats > 1:
            assert places[0] < num_controls and places[-1] >= len(together) - num_controls


def replace_job(job: Job, **changes: Any) -> Job:
    of_task = changes.get("task", job.task)
    placement = changes.pop("placement", Placement(job.placement.device_of_table, of_task.num_devices))
    return replace(job, parts=placement.parts(of_task.tables), **changes)


def test_controls_are_measured_in_between_and_say_what_they_are(journal: Journal) -> None:
    """A job to each group: four jobs, and the control before, in the middle of and after them."""
    jobs = [replace_job(job, round=4, group=job.measurement_id) for job in JOBS[:4]]
    control = (TASKS[2], Placement((1, 1, 0), 2))
    together = insert_controls(jobs, [(control[0], control[1].parts(control[0].tables))], repeats=3)
    hardware = FakeHardware()
    measured = measure_jobs(hardware, together, CONFIG, journal)
    assert [call == control for call in hardware.calls] == [True, False, False, True, False, False, True] * 2
    assert [one.is_control for one in measured] == [True, False, False, True, False, False, True]
    assert {one.round for one in measured} == {4}


# Keys ----------------------------------------------------------------------------------------------------------------

KEYED_TASK = task([table("ads"), table("users")], devices=2)
KEYED = Job("m0", KEYED_TASK, Placement((0, 1), 2).parts(KEYED_TASK.tables), 1, "random", "g")


def with_task(**changes: Any) -> Job:
    return replace_job(KEYED, task=replace(KEYED.task, **changes))


def with_table(**changes: Any) -> Job:
    first, second = KEYED.task.tables
    return with_task(tables=(replace(first, **changes), second))


def test_the_key_names_what_is_measured_and_not_why() -> None:
    different = [
        KEYED,
        replace_job(KEYED, measurement_id="m1"),
        replace_job(KEYED, placement=Placement((1, 0), 2)),
        with_task(batch_size=65),
        with_task(machine=Nodes.one_node(3), room_bytes=(ROOMY,) * 3),
        with_task(task_id="another"),
        with_task(room_bytes=(5, 5)),
        with_task(tables=KEYED.task.tables[::-1]),
        with_table(name="clicks"),
        with_table(num_rows=101),
        with_table(embedding_dim=8),
        with_table(pooling_factor=2.0000001),
        with_table(reuse_bins=None),
        with_table(weight_bits=16),
    ]
    assert len({job.key for job in different}) == len(different)
    assert replace_job(KEYED, round=2, proposed_by="expert", group="h").key == KEYED.key


# Killed --------------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from evenshard.measure.campaign import measure_jobs
from evenshard.measure.journal import Journal
from measure.test_campaign import CONFIG, JOBS
from support.builders import FakeHardware

class Torn:
    def __init__(self, file, whole_lines):
        self.file, self.left = file, whole_lines

    def write(self, data):
        if not self.left:
            self.file.write(data[: len(data) // 2])
            self.file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)

with Journal(Path(sys.argv[1])) as journal:
    journal._file = Torn(journal._file, int(sys.argv[2]))
    measure_jobs(FakeHardware(), JOBS, CONFIG, journal)
"""


@pytest.mark.slow
def test_a_campaign_killed_in_the_middle_of_a_line_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    path = tmp_path / "killed.jsonl"
    for whole_lines in (5, 7):
        done = subprocess.run([sys.executable, "-c", KILLED, str(path), str(whole_lines)], check=False)
        assert done.returncode == -signal.SIGKILL and not path.read_bytes().endswith(b"\n")
    with fresh(tmp_path, "killed") as journal:
        before = len(journal)
        measured = measure_jobs(hardware := FakeHardware(), JOBS, CONFIG, journal)
    assert 5 + 7 - 2 <= before <= 5 + 7 and before + len(hardware.calls) == 2 * len(JOBS)
    with fresh(tmp_path, "at once") as journal:
        assert timeless(measure_jobs(FakeHardware(), JOBS, CONFIG, journal)) == timeless(measured)
    records = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    visits = [(record["job"], record["visit"]) for record in records if "job" in record]
    assert len(visits) == len(set(visits)) == 2 * len(JOBS)
