"""A policy that chooses the sharding type and the devices of one table after another, and what it adds to the search.

    python -m benchmarks.scripts.type_policy train [--updates 1500]
    python -m benchmarks.scripts.type_policy test [--seed 1] [--only random_0,random_1,mlperf_8]
    python -m benchmarks.scripts.type_policy report

Tables come in the order of their work, the largest first. An action is a way of the search's to shard the table, on the
least busy devices; of ways with one piece, also on the second or third. A small network scores actions; REINFORCE
trains it on random tasks. ``test`` adds a line for each held-out task to a journal: predicted costs of the best
construction, of the best rollout, and of searches without and with the best rollouts among their starts.

Legend: E episodes, A actions of a table, D devices, N nodes, F features.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.scripts.full_space import BATCH_SIZE, DEVICES_PER_NODE, HARDWARE, INTER, INTRA, ROOM_BYTES
from evenshard.placement.machine import Machine
from evenshard.placement.parts import TablePart
from evenshard.placement.sharding import DEVICE, NODE, SHARDING_TYPES
from evenshard.planner.pricing import part_costs
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.model import DeviceModel
from evenshard.sharders.plan_search.construction import Works
from evenshard.sharders.plan_search.search import PlanSearch, PlanSearchEffort
from evenshard.sharders.plan_search.starts import constructed
from evenshard.sharders.plan_search.state import Choice, State
from evenshard.tables.catalog import load_catalog
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.table import Table

TABLES = (20, 40)
TRAINED, FIRST_HELD_OUT = 32, 1000
"""Tasks to train on, and the seed of the first to test on."""
HELD_OUT = tuple(f"random_{number}" for number in range(12))
MLPERF = ("mlperf_8", "mlperf_16")
RANKS = 3
"""Places of a single piece: the least busy one, the second, the third."""
EPISODES, ROLLOUTS, KNOWN = 24, 64, 4
"""In a training step; in a test; of which so many become starts."""
FEATURES = 19 + len(SHARDING_TYPES)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Actions:
    """Of a table.

    Attributes:
        way_A, rank_A: number of the way, and of the least busy place that is left out for it.
        piece_A: work of a piece, ms.
        size_A: memory of a piece.
        last_A: column of ``_places`` with the busiest place that it takes.
        type_A: number of the sharding type.
        fixed_AF: features that the devices do not change.
    """

    way_A: npt.NDArray[np.int64]
    rank_A: npt.NDArray[np.int64]
    piece_A: Floats
    size_A: Floats
    last_A: npt.NDArray[np.int64]
    type_A: npt.NDArray[np.int64]
    fixed_AF: Floats


class Case:
    """A task with the actions of all its tables.

    Args:
        name: of it.
        tables: its tables.
        devices: how many, 8 on a node.
    """

    def __init__(self, name: str, tables: tuple[Table, ...], devices: int) -> None:
        inter = INTER if devices > DEVICES_PER_NODE else ""
        machine = Machine(devices, DEVICES_PER_NODE, intra=INTRA, inter=inter)
        request = PlacementRequest(tables, (ROOM_BYTES,) * devices, BATCH_SIZE, hardware=HARDWARE, machine=machine)
        self.name = name
        self.costs = part_costs(request, DeviceModel(HARDWARE))
        self.search = PlanSearch(self.costs)
        self.options, self.machine = self.search.options, machine
        self._works = Works.of(self.options)
        self.even_ms = self.search.construction.even_ms
        least_U = self._works.total_UW.min(axis=1)
        self.order = np.argsort(-least_U, kind="stable").tolist()
        left = np.cumsum(least_U[self.order][::-1])[::-1] / least_U.sum()
        self.actions = [self._actions(unit, share) for unit, share in zip(self.order, left, strict=True)]
        self.constructed_ms = min(start.cost_ms for start in constructed(self.search.construction))

    def _actions(self, unit: int, left: float) -> Actions:
        table, works, devices = self.options.task.tables[unit], self._works, self.machine.num_devices
        rows = []
        for number, way in enumerate(self.options.units[unit].ways):
            piece, total = works.piece_UW[unit, number], works.total_UW[unit, number]
            places = {DEVICE: devices, NODE: self.machine.num_nodes}.get(way.scope, 0)
            first = {DEVICE: 0, NODE: devices}.get(way.scope, devices + self.machine.num_nodes)
            size = max(one.size_bytes for one in way.pieces)
            kind = SHARDING_TYPES.index(way.sharding_type)
            for rank in range(min(RANKS, places) if len(way.pieces) == 1 and places else 1):
                last = rank + len(way.pieces) - 1 if places else 0
                fixed = [
                    piece / self.even_ms,
                    math.log(piece / self.even_ms) / 4,
                    total / self.even_ms / devices,
                    math.log(total / works.total_UW[unit].min()),
                    math.log(total / self.even_ms) / 4,
                    works.bytes_UW[unit, number] / ROOM_BYTES / devices,
                    len(way.pieces) / devices,
                    float(rank == 1),
                    float(rank == 2),
                    left,
                    math.log10(table.num_rows) / 4,
                    math.log2(table.embedding_dim) / 4,
                    math.log10(table.pooling_factor),
                    float(devices > DEVICES_PER_NODE),
                    *(np.arange(len(SHARDING_TYPES)) == kind),
                ]
                rows.append((number, rank, piece, size, first + last, kind, *fixed))
        found = np.array(rows, dtype=np.float64)
        whole = found[:, [0, 1, 4, 5]].astype(np.int64)
        return Actions(whole[:, 0], whole[:, 1], found[:, 2], found[:, 3], whole[:, 2], whole[:, 3], found[:, 6:])


def random_case(seed: int, least_rows: int = 1) -> Case:
    """Some tables, on 8 devices for even seeds and 16 for odd ones."""
    count = int(np.random.default_rng(seed).integers(TABLES[0], TABLES[1] + 1))
    tables = generate_tables(GeneratorConfig(count), BATCH_SIZE, seed)
    return Case(f"random_{seed}", tuple(one for one in tables if one.num_rows >= least_rows), 8 * (1 + seed % 2))


def held_out(name: str) -> Case:
    """One of ``HELD_OUT`` or ``MLPERF``.

    Random ones have no table with as few rows as a node has devices: rows of it over all devices and over a node are
    the same parts, so that the search's sums and the prediction can take them for different types.
    """
    kind, number = name.split("_")
    if kind == "mlperf":
        return Case(name, load_catalog("mlperf_dlrm_v2", BATCH_SIZE), int(number))
    return random_case(FIRST_HELD_OUT + int(number), DEVICES_PER_NODE + 1)


# Episodes -------------------------------------------------------------------------------------------------------------


def network(seed: int) -> torch.nn.Sequential:
    """Scores actions."""
    torch.manual_seed(seed)
    wide = torch.nn.Linear
    return torch.nn.Sequential(
        wide(FEATURES, 64), torch.nn.ReLU(), wide(64, 64), torch.nn.ReLU(), wide(64, 1, bias=False)
    )


def _sorted(values: Floats, free: Floats) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """Least busy first: order, work, and the least memory of the first ones."""
    order = np.argsort(values, axis=1, kind="stable")
    return order, np.take_along_axis(values, order, 1), np.take_along_axis(free, order, 1)


def roll_out(
    case: Case, policy: torch.nn.Module, episodes: int
) -> tuple[list[list[Choice]], torch.Tensor, torch.Tensor]:
    """Sampled placements, the log-probability of each, and the mean entropy of a choice."""
    devices, nodes = case.machine.num_devices, case.machine.num_nodes
    load_ED, free_ED = np.zeros((episodes, devices)), np.full((episodes, devices), float(ROOM_BYTES))
    used_ET = np.zeros((episodes, len(SHARDING_TYPES)))
    placed: list[list[Choice]] = [[Choice(0)] * len(case.order) for _ in range(episodes)]
    log_E, entropy = torch.zeros(episodes), torch.zeros(())
    for unit, actions in zip(case.order, case.actions, strict=True):
        load_EN = load_ED.reshape(episodes, nodes, -1).max(axis=2)
        order_ED, loads_D, frees_D = _sorted(load_ED, free_ED)
        order_EN, loads_N, frees_N = _sorted(load_EN, free_ED.reshape(episodes, nodes, -1).min(axis=2))
        places = np.concatenate([loads_D, loads_N, loads_D[:, -1:]], axis=1)
        # The least memory of all less busy places, too, stands for that of the places taken.
        frees = [np.minimum.accumulate(frees_D, axis=1), np.minimum.accumulate(frees_N, axis=1)]
        room = np.concatenate([*frees, frees_D.min(axis=1, keepdims=True)], axis=1)[:, actions.last_A] - actions.size_A
        after = (places[:, actions.last_A] + actions.piece_A) / case.even_ms
        most, used = loads_D[:, -1:] / case.even_ms, used_ET[:, actions.type_A]
        mean = load_ED.mean(axis=1, keepdims=True) / case.even_ms
        moving = [after, np.maximum(after, most), after - mean, room / ROOM_BYTES, used > 0]
        fixed = np.broadcast_to(actions.fixed_AF, (episodes, *actions.fixed_AF.shape))
        features = np.concatenate([np.stack(moving, axis=2), fixed], axis=2)
        scores = policy(torch.from_numpy(features.astype(np.float32))).squeeze(2)
        chances = torch.distributions.Categorical(logits=scores.masked_fill(torch.from_numpy(room < 0), -1e9))
        chosen = chances.sample()  # type: ignore[no-untyped-call]
        log_E = log_E + chances.log_prob(chosen)  # type: ignore[no-untyped-call]
        entropy = entropy + chances.entropy().mean()  # type: ignore[no-untyped-call]
        for episode, action in enumerate(chosen.tolist()):
            number, rank = int(actions.way_A[action]), int(actions.rank_A[action])
            way = case.options.units[unit].ways[number]
            order = {DEVICE: order_ED, NODE: order_EN}.get(way.scope)
            homes = () if order is None else tuple(order[episode, rank : rank + len(way.pieces)].tolist())
            load, free = load_ED[episode], free_ED[episode]
            if way.scope == NODE:
                load, free = load.reshape(nodes, -1), free.reshape(nodes, -1)
            where = slice(None) if order is None else list(homes)
            load[where] += actions.piece_A[action]
            free[where] -= actions.size_A[action]
            used_ET[episode, actions.type_A[action]] += 1
            placed[episode][unit] = Choice(number, homes)
    return placed, log_E, entropy / len(case.order)


# Training and test ----------------------------------------------------------------------------------------------------


def train(args: argparse.Namespace) -> None:
    """REINFORCE with the mean of a batch as the baseline; a batch is one task."""
    policy, rng = network(args.seed), np.random.default_rng(args.seed)
    cases = [random_case(seed) for seed in range(TRAINED)]
    print(f"{len(cases)} tasks: {time.process_time():.1f} s", flush=True)
    adam = torch.optim.Adam(policy.parameters(), lr=args.lr)
    recent: list[float] = []
    for update in range(args.updates):
        case = cases[int(rng.integers(len(cases)))]
        placed, log_E, entropy = roll_out(case, policy, EPISODES)
        ratios = np.array([State(case.options, choices).cost_ms for choices in placed]) / case.constructed_ms
        reward = torch.from_numpy(-np.log(ratios).astype(np.float32))
        advantage = (reward - reward.mean()) / (reward.std() + 1e-4)
        share = 1 - update / args.updates
        loss = -(advantage * log_E).mean() - args.entropy * share * entropy * len(case.order)
        for group in adam.param_groups:
            group["lr"] = args.lr * (0.1 + 0.9 * share)
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 5.0)
        adam.step()
        recent.append(float(ratios.mean()))
        if (update + 1) % 20 == 0:
            shown = f"{fmean(recent[-20:]):.3f} of the best construction, entropy {float(entropy.detach()):.2f}"
            print(f"{update + 1}: {shown}, {time.process_time():.0f} s", flush=True)
            torch.save(policy.state_dict(), args.policy)


def test(args: argparse.Namespace) -> None:
    """Adds the tasks' lines to the journal."""
    policy = network(0)
    policy.load_state_dict(torch.load(args.policy))
    for name in args.only.split(","):
        torch.manual_seed(0)
        case, began = held_out(name), time.process_time()
        with torch.no_grad():
            placed, _, _ = roll_out(case, policy, ROLLOUTS)
        states = sorted((State(case.options, choices) for choices in placed), key=lambda state: state.cost_ms)
        known = list(dict.fromkeys(state.parts() for state in states))[:KNOWN]
        rollouts_s = time.process_time() - began
        built = [State(case.options, start.choices).parts() for start in constructed(case.search.construction)]
        line: dict[str, object] = {"task": name, "tables": len(case.order)}
        line["constructed"] = min(case.costs.predict(parts).predicted_ms for parts in built)
        predicted = [case.costs.predict(state.parts()).predicted_ms for state in states]
        line |= {"rollout": min(predicted), "mean_rollout": fmean(predicted)}
        usual = PlanSearchEffort()
        line["search"], search_s = answer(case, usual, args.seed, [])
        line["with_rollouts"], with_s = answer(case, usual, args.seed, known)
        more = (rollouts_s + with_s) / search_s
        changes, kicks = round(more * usual.changes), round(more * usual.idle_kicks)
        line["equal_time"], equal_s = answer(case, replace(usual, changes=changes, idle_kicks=kicks), args.seed, [])
        line["seconds"] = {"rollouts": rollouts_s, "search": search_s, "with": with_s, "equal_time": equal_s}
        with args.journal.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


def answer(
    case: Case, effort: PlanSearchEffort, seed: int, known: Sequence[Sequence[TablePart]]
) -> tuple[float, float]:
    """What the search's answer is predicted to cost, ms, and its processor time, s."""
    began = time.process_time()
    found = PlanSearch(case.costs, effort, seed).run(known)
    return found.best.predicted_ms, time.process_time() - began


PAIRS = (
    ("mean_rollout", "constructed"),
    ("rollout", "constructed"),
    ("rollout", "search"),
    ("search", "constructed"),
    ("with_rollouts", "search"),
    ("with_rollouts", "equal_time"),
)


def report(args: argparse.Namespace) -> None:
    """Markdown: ratios on held-out tasks, the mean of their seeds; over random ones, means with 95 % intervals."""
    lines = [json.loads(text) for text in args.journal.read_text().splitlines()]
    print("| ratio of costs | random tasks | lower, higher | " + " | ".join(MLPERF) + " |\n|---|---:|---:|---:|---:|")
    for above, below in PAIRS:
        ratios = [
            fmean(line[above] / line[below] for line in lines if line["task"] == name) for name in (*HELD_OUT, *MLPERF)
        ]
        own, public = ratios[: len(HELD_OUT)], ratios[len(HELD_OUT) :]
        half = 2.2 * stdev(own) / math.sqrt(len(own))  # Student's t for 11 degrees of freedom
        signs = f"{sum(one < 0.9999 for one in own)}, {sum(one > 1.0001 for one in own)}"
        shown = " | ".join(f"{one:.4f}" for one in public)
        print(f"| {above} / {below} | {fmean(own):.4f} ± {half:.4f} | {signs} | {shown} |")
    means = {name: fmean(line["seconds"][name] for line in lines) for name in lines[0]["seconds"]}
    print("processor seconds: " + ", ".join(f"{name} {mean:.2f}" for name, mean in means.items()))


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=["train", "test", "report"])
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--entropy", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join((*HELD_OUT, *MLPERF)))
    parser.add_argument("--policy", type=Path, default=Path("work/type_policy.pt"))
    parser.add_argument("--journal", type=Path, default=Path("work/type_policy.jsonl"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.policy.parent.mkdir(parents=True, exist_ok=True)
    {"train": train, "test": test, "report": report}[args.step](args)


if __name__ == "__main__":
    main()
