"""What a round measures: placements of every task, random shards, and the same controls in every run."""

from __future__ import annotations

import numpy as np
import pytest

from evenshard.base.errors import BadConfig, InfeasibleTask
from evenshard.loop.propose import SCORES_PER_TABLE, Proposers, mix_controls, placement_jobs, shard_jobs, sharding_jobs
from evenshard.measure.campaign import Job
from evenshard.measure.config import MeasureConfig
from evenshard.placement.placement import check_placement, check_sharding
from evenshard.placement.tasks import sample_shards
from evenshard.price.costs import CONTROL, RANDOM_SHARD
from evenshard.sharders.cost_model.sharder import EvenshardSharder, SearchConfig
from evenshard.sharders.dreamshard.sharder import DreamShardSharder
from support.builders import FakeHardware, cost_net, policy, some_tables, table, task
from support.convex_builders import NORMALIZER, predicted_ms, random_model

POOL = some_tables(100)
TASKS = [task(POOL[10 * n : 10 * n + 10], devices=2, task_id=f"train-{n:03d}") for n in range(5)]
FULL = task([table("big", 1000), table("large", 1000)], 2, cap=10, task_id="train-999")


def test_every_task_comes_before_any_comes_again() -> None:
    jobs = placement_jobs(TASKS, 12, 1, seed=0)
    assert len(jobs) == len({job.measurement_id for job in jobs}) == 12
    assert len({job.task.task_id for job in jobs[:5]}) == len({job.task.task_id for job in jobs[5:10]}) == 5
    assert all(job.proposed_by == "random" and job.round == 1 for job in jobs)
    for job in jobs:
        check_placement(job.task, job.placement)
    assert [job.key for job in placement_jobs(TASKS, 12, 1, seed=0)] == [job.key for job in jobs]
    assert [job.key for job in placement_jobs(TASKS, 15, 1, seed=0)][:10] == [job.key for job in jobs][:10]
    assert [job.placement for job in placement_jobs(TASKS, 12, 2, seed=0)] != [job.placement for job in jobs]


def test_tasks_that_fit_nowhere_are_skipped_and_none_at_all_is_an_error() -> None:
    assert {job.task.task_id for job in placement_jobs([FULL, TASKS[0]], 6, 1, seed=0)} == {"train-000"}
    with pytest.raises(InfeasibleTask, match="No train task fits"):
        placement_jobs([FULL], 3, 1, seed=0)
    assert placement_jobs([FULL], 0, 1, seed=0) == []


def jobs_of_parts(count: int = 6, types: tuple[str, ...] = (), per_node: int = 0) -> list[Job]:
    of_four = [task(one.tables, 4, one.memory_cap_bytes, one.task_id, one.batch_size) for one in TASKS]
    return sharding_jobs(of_four, count, types, per_node, "sgd", 1, seed=0)


def test_placements_of_parts_take_tasks_in_turn_and_fit() -> None:
    jobs = jobs_of_parts(per_node=2)
    assert [job.task.task_id for job in jobs] == [*(f"train-{n:03d}" for n in range(5)), "train-000"]
    assert len({job.key for job in jobs}) == 6 and {job.task.machine.num_nodes for job in jobs} == {2}
    for job in jobs:
        check_sharding(job.task, job.parts)
    assert [job.key for job in jobs_of_parts(per_node=2)] == [job.key for job in jobs]
    assert {job.task.machine.num_nodes for job in jobs_of_parts()} == {1}
    assert {job.task.machine.num_nodes for job in jobs_of_parts(per_node=8)} == {1}


def test_types_and_nodes_that_cannot_be_are_one_line() -> None:
    with pytest.raises(BadConfig, match=r"'rows'\. Choose from table_wise, column_wise"):
        jobs_of_parts(types=("row_wise", "rows"))
    with pytest.raises(BadConfig, match="task train-000: 4 devices cannot be split into nodes of 3"):
        jobs_of_parts(per_node=3)
    with pytest.raises(BadConfig, match=r"torchrun --nproc-per-node 4 -m evenshard benchmark"):
        jobs_of_parts(1)[0].measure_on(FakeHardware())  # one process exchanges nothing


MODEL = random_model()
POLICY = DreamShardSharder(cost_net(), policy(), NORMALIZER)


def test_the_search_proposes_its_share_and_the_policy_the_rest_or_chance_as_without_it() -> None:
    without, mixed = (placement_jobs(TASKS, 4, 2, 0, Proposers(POLICY, *of)) for of in ((), (MODEL, 0.25)))
    assert {job.proposed_by for job in without} == {"dreamshard"}
    assert [job.proposed_by for job in mixed] == ["dreamshard"] * 3 + ["evenshard"]
    assert mixed[:3] == without[:3] and mixed[3].task == without[3].task
    unsearched, plain = (placement_jobs(TASKS, 8, 1, 0, of) for of in (Proposers(searched_share=1.0), None))
    assert [job.key for job in unsearched] == [job.key for job in plain]
    jobs = placement_jobs(TASKS, 4, 1, 0, Proposers(None, MODEL, 0.5))
    assert [job.proposed_by for job in jobs] == ["random", "evenshard"] * 2


def test_the_search_alone_proposes_what_evenshard_answers() -> None:
    for job in placement_jobs([FULL, *TASKS[:2]], 2, 3, seed=2, proposers=Proposers(None, MODEL, 1.0)):
        assert (job.proposed_by, job.round) == ("evenshard", 3)
        sharder = EvenshardSharder(MODEL, None, SearchConfig(scores_per_table=SCORES_PER_TABLE, seed=2003))
        assert job.placement == sharder.place(job.task)


def test_the_share_holds_for_any_beginning_of_a_round() -> None:
    """A time budget cuts off the end."""
    for share in (0.0, 0.1, 0.2, 0.5, 0.9, 1.0):
        searches = [Proposers(None, MODEL, share).searches(number) for number in range(100)]
        assert all(sum(searches[:count]) == pytest.approx(share * count, abs=1) for count in range(1, 101))
        assert sum(searches) == round(100 * share)


def test_a_task_that_is_searched_again_gives_its_next_best_candidate_as_long_as_there_is_one() -> None:
    jobs = placement_jobs(TASKS[:1], 4, 2, seed=0, proposers=Proposers(None, MODEL, 1.0))
    assert len({job.placement for job in jobs}) == 4
    predicted = [predicted_ms(MODEL, job.task, job.placement) for job in jobs]
    assert predicted == sorted(predicted)
    two = task(POOL[:2], devices=2, task_id="train-000")  # together or apart
    jobs = placement_jobs([two], 5, 2, seed=0, proposers=Proposers(None, MODEL, 1.0))
    searched = [job.placement for job in jobs if job.proposed_by == "evenshard"]
    assert 1 <= len(set(searched)) == len(searched) <= 2
    assert {job.proposed_by for job in jobs} == {"evenshard", "random"}


def test_random_shards_stand_alone_on_one_device() -> None:
    jobs = shard_jobs(POOL, TASKS[0], 50, 3, seed=0)
    assert len({job.key for job in jobs}) == len({job.group for job in jobs}) == 50
    for job in jobs:
        assert job.task.num_devices == 1 and set(job.placement.device_of_table) == {0}
        assert (job.proposed_by, job.round, job.task.batch_size) == (RANDOM_SHARD, 3, TASKS[0].batch_size)


def test_shards_have_one_to_64_tables_few_as_often_as_many_within_the_memory() -> None:
    """Log-uniform over [1, 65): the part from 1 to 7 is log(8) / log(65)."""
    shards = sample_shards(POOL, 1000, 64, 10**12, np.random.default_rng(0))
    sizes = np.array([len(shard.tables) for shard in shards])
    assert sizes.min() == 1 and sizes.max() == 64
    assert np.mean(sizes < 8) == pytest.approx(np.log(8) / np.log(65), abs=0.06)
    assert all(len(set(shard.tables)) == len(shard.tables) for shard in shards)
    cap = sorted(one.size_bytes for one in POOL)[50]
    for shard in sample_shards(POOL, 100, 64, cap, np.random.default_rng(0)):
        assert 0 < sum(one.size_bytes for one in shard.tables) <= cap
    with pytest.raises(BadConfig, match="no table of the pool fits"):
        sample_shards(POOL, 1, 64, 10, np.random.default_rng(0))


def test_the_controls_are_the_same_in_every_round() -> None:
    config = MeasureConfig(controls=2, control_repeats=3)
    rounds = [mix_controls(placement_jobs(TASKS, 20, k, seed=0), TASKS, config) for k in (1, 2)]
    controls = [[job for job in jobs if job.proposed_by == CONTROL] for jobs in rounds]
    assert len(controls[0]) == 6 and len(rounds[0]) == 26
    assert [(job.task, job.placement) for job in controls[0]] == [(job.task, job.placement) for job in controls[1]]
    assert len({job.placement for job in controls[0]}) == 2
    assert len({job.measurement_id for job in rounds[0]}) == 26
    assert mix_controls([], TASKS, MeasureConfig(controls=0)) == []
    jobs = mix_controls([], [FULL, *TASKS], MeasureConfig(controls=2, control_repeats=1))
    assert [job.task.task_id for job in jobs] == ["train-000", "train-001"]
