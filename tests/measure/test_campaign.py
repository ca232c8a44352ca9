"""Campaigns: the order of measuring, the time budget, and going on after any kind of end."""

from __future__ import annotations

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
from evenshard.price.costs import CONTROL, MeasuredPlacement
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


def test_a_cost_has_the_repeats_of_all_visits_really_made_and_the_time_of_the_last(journal: Journal) -> None:
    """Four repeats in each visit; the second run is stopped after two of the twelve second visits."""
    first = measure_jobs(FakeHardware(), JOBS, replace(CONFIG, visits=1), journal)
    between = time.time()
    measured = measure_jobs(FakeHardware(), JOBS, CONFIG, journal, track=lambda steps: steps[:2])
    assert Counter(one.provenance.repeats for one in measured) == {8: 2, 4: 10}
    assert {replace(one.provenance, repeats=3) for one in measured} == {PROVENANCE}
    assert all(one.measured_at <= between for one in first)
    assert Counter(one.measured_at >= between for one in measured) == {True: 2, False: 10}


@pytest.mark.parametrize(("budget_s", "begun"), [(0.0, 0), (1.0, 1), (25.0, 3), (30.0, 3), (None, 24)])
def test_the_budget_holds(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, budget_s: float | None, begun: int
) -> None:
    """Each takes 10 s. At 25 s, those that began at 0, 10 and 20 s; at 30 s the time is over."""
    hardware = FakeHardware()
    clock = SimpleNamespace(monotonic=lambda: 1000.0 + 10.0 * len(hardware.calls), time=lambda: 1.0)
    monkeypatch.setattr(campaign, "time", clock)
    measured = measure_jobs(hardware, JOBS, CONFIG, journal, budget_s)
    assert len(hardware.calls) == len(journal) == begun
    touched = {(of_task.task_id, placement) for of_task, placement in hardware.calls}
    assert {(one.task.task_id, one.placement) for one in measured} == touched
    ids = [one.measurement_id for one in measured]
    assert ids == [job.measurement_id for job in JOBS if job.measurement_id in ids]


def test_however_often_it_stops_nothing_is_measured_twice_and_the_costs_are_the_same(tmp_path: Path) -> None:
    calls = []
    for succeed in (3, 0, 1, 9):
        hardware = FakeHardware(slowness=[1.0] * succeed + [float("nan")])
        with fresh(tmp_path, "stopped") as journal:
            with pytest.raises(MeasurementFailed, match=r"device 0: fwd_compute_ms is nan, not a time"):
                measure_jobs(hardware, JOBS, CONFIG, journal)
            calls += hardware.calls[:succeed]
            assert len(journal) == len(calls)
    last = FakeHardware()
    with fresh(tmp_path, "stopped") as journal:
        measured = measure_jobs(last, JOBS, CONFIG, journal)
    with fresh(tmp_path, "at once") as journal:
        at_once = FakeHardware()
        assert timeless(measure_jobs(at_once, JOBS, CONFIG, journal)) == timeless(measured)
    assert calls + last.calls == at_once.calls  # in the same order, too


def test_settings_that_change_what_a_visit_means_measure_again_and_others_do_not(journal: Journal) -> None:
    measure_jobs(FakeHardware(), JOBS[:2], CONFIG, journal)
    meaning = {"link": "nvlink_h200", "num_batches": 5, "warmup": 9, "repeats": 5, "recorded_batch": "batch.pt"}
    changes: list[dict[str, Any]] = [{name: value} for name, value in (meaning | {"keep_cache_warm": True}).items()]
    for change in [*changes, {"hardware": "simulated:v100", "noise": 0.5}, {"seed": 6}, {}]:
        hardware = FakeHardware()
        others = {"controls": 7, "control_repeats": 1, "timeout_s": 1.0}
        measure_jobs(hardware, JOBS[:2], replace(CONFIG, **others | change), journal)
        assert len(hardware.calls) == (4 if change else 0), change


def test_a_visit_of_other_devices_than_the_jobs_is_refused(journal: Journal) -> None:
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
    third = FakeHardware(provenance=replace(PROVENANCE, hardware="simulated: third"))
    assert measure_jobs(third, JOBS[:2], CONFIG, journal, budget_s=0.0) == []
    first, second = load_measured(JOBS[:2], CONFIG, journal)
    assert first.provenance == replace(PROVENANCE, repeats=8)
    assert second.provenance == replace(elsewhere, repeats=4)
    assert second.cost == FakeHardware([10.0]).measure(JOBS[1].task, JOBS[1].placement)


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
        assert all(together[place].parts == parts and together[place].round == bool(jobs) for place in places)
        between = [sum(job in jobs for job in together[low:high]) for low, high in pairwise(places)]
        assert not between or max(between) - min(between) <= 1
        if repeats > 1:
            assert places[0] < num_controls and places[-1] >= len(together) - num_controls


def replace_job(job: Job, **changes: Any) -> Job:
    of_task = changes.get("task", job.task)
    placement = changes.pop("placement", Placement(job.placement.device_of_table, of_task.num_devices))
    return replace(job, parts=placement.parts(of_task.tables), **changes)


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
        *(with_table(num_rows=101), with_table(embedding_dim=8), with_table(pooling_factor=2.0000001)),
        *(with_table(reuse_bins=None), with_table(weight_bits=16)),
    ]
    assert len({job.key for job in different}) == len(different)
    assert replace_job(KEYED, round=2, proposed_by="expert", group="h").key == KEYED.key
