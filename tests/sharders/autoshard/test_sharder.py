"""AutoShard's policy and sharder, and the MDP they act in: against one slow episode, and by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import pytest
import torch

from evenshard.base.errors import InfeasibleTask
from evenshard.placement.placement import Placement, check_placement
from evenshard.placement.task import ShardingTask
from evenshard.sharders.autoshard.env import BalanceEnv, Observation
from evenshard.sharders.autoshard.sharder import AutoShardSharder
from evenshard.sharders.dreamshard.env import EpisodeBatch, choose_best
from support.autoshard_builders import MIXED, NORMALIZER, AdditiveShardModel, balance_policy, shard_net, slow_logits
from support.builders import PLAIN_FEATURES, sized, split_by, task, working


def sharder(seed: int = 0) -> AutoShardSharder:
    return AutoShardSharder(shard_net(), balance_policy(seed, scale_ms=2.0), NORMALIZER)


def best_of(one: AutoShardSharder, tasks: Sequence[ShardingTask]) -> list[Placement | None]:
    """The placements of the most probable devices, played side by side."""
    return one._play_feasible(tasks, choose_best)


def seen_so_far(tasks: Sequence[ShardingTask], steps: int, seed: int = 0) -> Observation:
    """[steps, B, ...] observations of random legal play; a slot that ends begins its task again."""
    env = BalanceEnv(EpisodeBatch.of(tasks, NORMALIZER), shard_net(), len(tasks))
    generator = torch.Generator().manual_seed(seed)
    observations = []
    for _ in range(steps):
        observations.append(env.observe())
        device_B = torch.multinomial(observations[-1].legal_BD.float(), 1, generator=generator)[:, 0]
        done_B = env.step(device_B).done_B
        env.restart(done_B, env.task_B)
    return Observation.stack(observations)


def part_of(seen: Observation, steps: slice, slots: slice = slice(None)) -> Observation:
    return Observation(*(getattr(seen, field.name)[steps, slots] for field in fields(seen)))


def test_steps_one_by_one_equal_one_long_unroll_and_memory_ends_with_the_episode() -> None:
    """TIGHT and the single-table task begin again several times within the unroll."""
    net, seen = balance_policy(), seen_so_far(MIXED, steps=20)
    assert seen.fresh_B[1:].sum() > 20
    whole = net(seen, net.initial_memory(4))
    memory, logits, values = net.initial_memory(4), [], []
    for step in range(20):
        judged = net(part_of(seen, slice(step, step + 1)), memory)
        memory = judged.memory
        logits.append(judged.logits_UBD)
        values.append(judged.value_UB)
    torch.testing.assert_close(torch.cat(logits), whole.logits_UBD)
    torch.testing.assert_close(torch.cat(values), whole.value_UB)
    torch.testing.assert_close(memory, whole.memory)

    begins = next(step for step in range(1, 20) if seen.fresh_B[step, 1])
    alone = net(part_of(seen, slice(begins, begins + 3), slice(1, 2)), net.initial_memory(1))
    torch.testing.assert_close(alone.logits_UBD, whole.logits_UBD[begins : begins + 3, 1:2])


def test_renamed_devices_swap_their_logits_and_keep_the_value() -> None:
    net, seen, order = balance_policy(), seen_so_far(MIXED, steps=5), [3, 0, 4, 1, 2]
    judged = net(seen, net.initial_memory(4))
    devices = {"costs_BD", "used_gb_BD", "device_mask_BD", "legal_BD"}
    renamed = replace(
        seen, sums_BDH=seen.sums_BDH[:, :, order], **{name: getattr(seen, name)[..., order] for name in devices}
    )
    swapped = net(renamed, net.initial_memory(4))
    torch.testing.assert_close(swapped.logits_UBD, judged.logits_UBD[..., order])
    torch.testing.assert_close(swapped.value_UB, judged.value_UB)


def test_values_read_the_state_and_the_mean_and_largest_device() -> None:
    net, seen = balance_policy(scale_ms=2.0), seen_so_far([MIXED[0], MIXED[2]], steps=4)
    judged = net(seen, net.initial_memory(2))
    state_S = net.lstm(torch.cat([seen.table_BH, seen.step_ratio_B[..., None]], dim=-1)[:, :1])[0][-1, 0]
    loads = torch.stack([seen.costs_BD[-1, 0] / 2, seen.used_gb_BD[-1, 0]], dim=-1)
    devices = torch.cat([seen.sums_BDH[-1, 0], net.load_mlp(loads)], dim=-1)[:3]  # of 5 that the other task has
    read = torch.cat([state_S, devices.mean(dim=0), devices.amax(dim=0)])
    torch.testing.assert_close(judged.value_UB[-1, 0], net.value_head(read)[0])


def place_slowly(of_task: ShardingTask, seed: int = 0) -> Placement:
    """One table after the other, every quantity computed again from the lists of tables."""
    net, policy = shard_net(), balance_policy(seed, scale_ms=2.0)
    with torch.no_grad():
        repr_TH = net.encode(NORMALIZER(of_task.tables, of_task.batch_size))
        order = sorted(range(len(of_task.tables)), key=lambda i: -float(net.shard_cost(repr_TH[i])))
        device_of: dict[int, int] = {}
        for step, position in enumerate(order):
            shards = [[i for i in device_of if device_of[i] == d] for d in range(of_task.num_devices)]
            used = [sum(of_task.tables[i].size_bytes for i in shard) for shard in shards]
            sums = torch.stack([repr_TH[shard].sum(dim=0) for shard in shards])
            costs = [float(net.shard_cost(row)) if shard else 0.0 for row, shard in zip(sums, shards, strict=True)]
            ratios = torch.arange(step + 1) / len(order)
            inputs = torch.cat([repr_TH[order[: step + 1]], ratios[:, None]], dim=1)
            state_S = policy.lstm(inputs[:, None])[0][-1, 0]
            loads = torch.tensor([[ms / 2, size / 2**30] for ms, size in zip(costs, used, strict=True)])
            logits = slow_logits(policy, state_S, torch.cat([sums, policy.load_mlp(loads)], dim=1))
            room = [size + of_task.tables[position].size_bytes <= of_task.memory_cap_bytes for size in used]
            if not any(room):
                raise InfeasibleTask(of_task.task_id)
            device_of[position] = int(logits.masked_fill(~torch.tensor(room), -torch.inf).argmax())
    return Placement(tuple(device_of[i] for i in range(len(order))), of_task.num_devices)


def slowly_or_none(of_task: ShardingTask, seed: int) -> Placement | None:
    try:
        return place_slowly(of_task, seed)
    except InfeasibleTask:
        return None


def splits(placements: Sequence[Placement | None]) -> list[set[tuple[int, ...]] | None]:
    """Which tables are together. Equal devices have equal logits but for the last bits: either may be taken."""
    return [None if one is None else split_by(one) for one in placements]


def test_placements_are_those_of_the_slow_reference() -> None:
    seeds = (0, 2, 7)
    expected = [[slowly_or_none(one, seed) for one in MIXED] for seed in seeds]
    assert [splits(best_of(sharder(seed), MIXED)) for seed in seeds] == [splits(one) for one in expected]
    assert {one[1] is None for one in expected} == {True, False}  # the tight one


def test_the_prediction_is_of_the_slowest_device_with_tables() -> None:
    one = AutoShardSharder(AdditiveShardModel(), balance_policy(), PLAIN_FEATURES)  # type: ignore[arg-type]
    assert one.predict_ms(task(working(4.0, 7.0, 5.0), devices=3), Placement((0, 2, 0), 3)) == pytest.approx(9.0)


def test_many_samples_of_a_task_explore() -> None:
    first, second, none = sharder().sample(
        [MIXED[0], MIXED[0], task(sized(9), cap=4 * 8)], torch.Generator().manual_seed(0)
    )
    assert first is not None and second is not None and first != second and none is None
    check_placement(MIXED[0], first)


def test_a_dead_end_names_the_table_and_the_room() -> None:
    of_task = task(sized(3, 3, 3), cap=4 * 5, task_id="stuck")  # 9 of 10, but no two of them on a device
    with pytest.raises(InfeasibleTask, match=r"stuck: table s\d needs .* no device has more than .* Raise"):
        sharder().place(of_task)
    assert splits(best_of(sharder(), [of_task, MIXED[0]])) == splits([None, sharder().place(MIXED[0])])
    with pytest.raises(InfeasibleTask, match="more than a whole device"):
        sharder().place(task(sized(9), cap=4 * 8))
