"""The models that come with the package: one for every profile but two, small, and as good as they say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evenshard.cli import main
from evenshard.measure.config import MeasureConfig
from evenshard.measure.profiles import profile_names
from evenshard.measure.simulated.hardware import SimulatedHardware
from evenshard.placement.task import ShardingTask
from evenshard.sharders.bundled.broad_data import (
    BroadConfig,
    draw_task,
    draw_world,
    split_in_half,
    world_placement_jobs,
    world_shard_jobs,
)
from evenshard.sharders.bundled.train import BundleConfig, train_bundle
from evenshard.sharders.convex_search.fit import CostModelFitConfig
from evenshard.sharders.convex_search.local_search import SearchEffort
from evenshard.sharders.convex_search.sharder import EvenshardSharder, SearchConfig
from evenshard.sharders.convex_search.train import EvenshardConfig
from evenshard.sharders.dreamshard.train import DreamShardConfig
from evenshard.sharders.greedy import expert_sharders
from evenshard.sharders.models import bundled_models, digest_of, load_model, save_model
from evenshard.sharders.random import random_placement
from evenshard.sharders.trained_on import TrainedOn
from evenshard.tables.catalog import load_catalog
from evenshard.tables.table import duplicate_name
from evenshard.utils.units import gb_to_bytes
from support.builders import table
from support.repository import ROOT

MEMORY_BYTES = gb_to_bytes(64)
BROAD = BroadConfig(num_worlds=6, max_tables=20, shards_per_world=4, tasks_per_world=1, placements_per_task=3)
TINY = BundleConfig(
    broad=BROAD,
    search_tasks=4,
    evenshard=EvenshardConfig(
        num_shards=0,
        own_placements=3,
        own_rounds=2,
        fit=CostModelFitConfig(num_updates=20, across_batches=True),
        search=SearchConfig(num_rollouts=0, effort=SearchEffort(num_chains=2, scores_per_table=20)),
    ),
    policy_tasks=3,
    dreamshard=DreamShardConfig(num_rounds=2, placements_per_round=3, cost_updates=5, policy_updates=2),
)


def hardware(profile: str = "h200") -> SimulatedHardware:
    return SimulatedHardware(MeasureConfig(f"simulated:{profile}"))


# What comes with the package -----------------------------------------------------------------------------------------


def test_every_profile_has_one_but_a_smaller_card_and_what_nothing_confirms() -> None:
    assert set(profile_names()) - set(bundled_models()) == {"a100_40gb", "b200"}
    assert set(bundled_models()) < set(profile_names())


@pytest.mark.parametrize("profile", bundled_models())
def test_it_is_small_and_made_for_this_profile(profile: str) -> None:
    model = load_model(None, f"simulated:{profile}")
    assert model.source == f"bundled:{profile}"
    assert model.trained_on.hardware == f"simulated: {profile}"
    assert model.policy is not None
    root = ROOT / "src" / "evenshard" / "sharders" / "bundled" / profile
    assert digest_of(root) == model.digest
    files = {path.relative_to(root).as_posix(): path.stat().st_size for path in root.rglob("*") if path.is_file()}
    assert sum(files.values()) < 300_000
    assert set(files) == {
        *("cost_model/config.json", "cost_model/state.pt", "cost_model/trained_on.json"),
        *("cost_net/config.json", "cost_net/state.pt", "policy/config.json", "policy/state.pt"),
    }


@pytest.mark.parametrize("profile", bundled_models())
def test_it_foretells_mlperf_whose_tables_it_has_never_seen(profile: str) -> None:
    gpu, model = hardware(profile), load_model(None, f"simulated:{profile}")
    dim = 128 if gpu.profile.memory_gb > 30 else 32  # of the published dim, one table fills two small GPUs
    tables = load_catalog("mlperf_dlrm_v2", 65536, dim)
    of_task = ShardingTask.whole("mlperf", tables, 8, int(gpu.profile.memory_bytes), 65536)
    assert model.trained_on.outside(of_task) == ()
    quick = SearchConfig(num_rollouts=4, effort=SearchEffort(num_chains=2, scores_per_table=300))
    own = EvenshardSharder(model.cost_model, model.policy, quick).place(of_task)
    experts = [expert.place(of_task) for expert in expert_sharders()]
    others = [random_placement(of_task, np.random.default_rng(seed)) for seed in range(3)]
    actual = [cost.max_device_ms for cost in gpu.measure_many([(of_task, one) for one in (own, *experts, *others)])]
    predicted, low, high = (part.numpy() for part in model.cost_model.placement_ms(of_task, [own, *experts, *others]))
    errors = np.abs(predicted / actual - 1)
    assert np.median(errors) < 0.03 and errors[0] < 0.04
    assert np.mean((low <= actual) & (actual <= high)) >= 0.8
    assert actual[0] <= min(actual[1:]) * 1.01


# How they are made ---------------------------------------------------------------------------------------------------


def test_the_same_command_gives_the_same_files(tmp_path: Path) -> None:
    for name in ("one", "same"):
        trained = train_bundle(hardware(), TINY)
        networks = (trained.dreamshard.cost_net, trained.dreamshard.policy, trained.dreamshard.normalizer)
        save_model(tmp_path / name, trained.evenshard.model, TrainedOn.of(trained.measured), networks)
    assert digest_of(tmp_path / "one") == digest_of(tmp_path / "same")


def test_only_simulated_devices_can_be_bundled_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bundle", "--hardware", "cpu", "--out", str(tmp_path / "cpu")]) == 2
    assert "simulated:<profile>" in capsys.readouterr().err
    assert not (tmp_path / "cpu").exists()


def test_worlds_hold_what_people_bring() -> None:
    config = BroadConfig(num_worlds=40)
    worlds = [draw_world(f"w{n}", config, MEMORY_BYTES, np.random.default_rng(n)) for n in range(40)]
    for world in worlds:
        assert 8 <= len(world.tables) <= 2 * config.max_tables
        assert duplicate_name(world.tables) is None
        assert all(one.problem() is None and one.size_bytes <= MEMORY_BYTES for one in world.tables)
    tables = [one for world in worlds for one in world.tables]
    batches = [world.batch_size for world in worlds]
    assert 1024 <= min(batches) < 4096 and 131_072 < max(batches) <= 262_144
    assert max(batches, key=batches.count) == 65_536
    assert {one.weight_bits for one in tables} == {8, 16, 32}
    assert {4, 512} <= {one.embedding_dim for one in tables}
    assert min(one.num_rows for one in tables) < 5 and max(one.num_rows for one in tables) > 200e6
    assert min(one.pooling_factor for one in tables) < 0.02 and max(one.pooling_factor for one in tables) > 200
    assert all(one.pooling_factor <= one.num_rows for one in tables)
    uncounted = np.mean([one.reuse_bins is None for one in tables])
    assert 0.5 <= uncounted < 0.9
    split_in_half = [one for one in tables if one.name.endswith("[1]")]
    assert 0.02 < len(split_in_half) / len(tables) < 0.15


def test_the_two_halves_of_a_split_table_share_its_dims() -> None:
    first, second = split_in_half(table("wide", rows=100, dim=64, pooling=3.0))
    assert (first.name, second.name) == ("wide[0]", "wide[1]")
    assert replace(first, name="") == replace(second, name="") == table("", rows=100, dim=32, pooling=3.0)


def test_tasks_have_enough_devices_for_their_tables() -> None:
    """On devices of 1 GB, most worlds need more of them than are drawn."""
    rng, memory_bytes = np.random.default_rng(0), gb_to_bytes(1)
    worlds = [draw_world(f"w{n}", BroadConfig(), memory_bytes, rng) for n in range(5)]
    tasks = [draw_task(world, "task", rng) for world in worlds for _ in range(4)]
    assert all(sum(t.size_bytes for t in task.tables) < task.num_devices * memory_bytes for task in tasks)


def test_shards_and_placements_of_a_world() -> None:
    rng = np.random.default_rng(0)
    world = draw_world("w", BroadConfig(), MEMORY_BYTES, rng, batch_size=2048)
    shards = world_shard_jobs(world, 8, rng)
    assert [who for who, _, _ in shards] == ["random_shard"] * 8
    assert len(shards[0][1].tables) == len(shards[4][1].tables) == 1
    tasks = [draw_task(world, f"task-{n}", rng) for n in range(30)]
    assert {task.batch_size for task in tasks} == {2048}
    assert len({task.num_devices for task in tasks}) > 10
    assert all(set(task.tables) <= set(world.tables) for task in tasks)
    assert all(sum(t.size_bytes for t in task.tables) <= task.num_devices * MEMORY_BYTES for task in tasks)
    several = max(tasks, key=lambda task: task.num_devices)
    assert {who for who, _, _ in world_placement_jobs(several, 6, rng)} - {one.name for one in expert_sharders()} == {
        "random"
    }
