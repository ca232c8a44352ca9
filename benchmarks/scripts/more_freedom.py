"""Count of random requests whose answer is slower with more sharding types or memory, or than a rule of thumb.

python -m benchmarks.scripts.more_freedom --requests 2000
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np

import evenshard
from evenshard.base.errors import InfeasibleTask
from evenshard.base.units import bytes_to_gb
from evenshard.placement.sharding import BY_COLUMNS, SHARDING_TYPES, TABLE_WISE
from evenshard.planner.baselines import BASELINES, FULL_SPACE, TORCHREC
from evenshard.search.search import NORMAL
from evenshard.tables.table import Table

GPUS = ("h100", "h200", "a100_80gb", "v100", "b200")
BATCH_SIZE = 16_384
# Factor on the memory of a request.
MORE_MEMORY = 1.5
# Relative slowdown that is only rounding.
TOLERANCE = 1e-6
# All baselines but TorchRec's planner.
RULES = tuple(name for name in BASELINES if name not in (*TORCHREC, FULL_SPACE))
# Additional freedom of the second request, or the baselines of the answer.
KINDS = ("columns and whole tables", "all sharding types", "1.5 times the memory", "rules of thumb")


def random_request(seed: int, most_tables: int) -> dict[str, Any]:
    """Draw arguments of ``place``: tables on devices with 1.2 to 4 times the memory of their weights."""
    rng = np.random.default_rng(seed)

    def table(number: int) -> Table:
        rows, dim = int(10 ** rng.uniform(3, 7)), int(rng.choice([16, 32, 64, 128]))
        return Table(f"t{number}", rows, dim, float(rng.choice([1, 5, 20, 60])))

    tables = tuple(map(table, range(int(rng.integers(3, most_tables + 1)))))
    devices = int(rng.choice([2, 4, 8]))
    nodes = int(rng.choice([1, 1, 2])) if devices > 2 else 1
    cap_bytes = sum(one.size_bytes for one in tables) / devices * rng.uniform(1.2, 4)
    return {
        "tables": tables,
        "num_devices": devices,
        "nodes": nodes,
        "inter": "infiniband_ndr" if nodes > 1 else "",
        "hardware": f"simulated:{rng.choice(GPUS)}",
        "memory_cap_gb": max(bytes_to_gb(cap_bytes), 0.05),
        "reserved_gb": 0.0,
        "batch_size": BATCH_SIZE,
        "seed": seed,
        "effort": NORMAL,
    }


def step_ms(asked: dict[str, Any], types: Sequence[str] = SHARDING_TYPES, **changed: Any) -> float:
    """Return the predicted time of the answer, ms; infinite if the request is infeasible."""
    try:
        return evenshard.place(sharding_types=types, **{**asked, **changed}).predicted_ms
    except InfeasibleTask:
        return float("inf")


def slowdowns(seed: int, most_tables: int) -> list[float]:
    """Compute the relative slowdown of the answer with each of ``KINDS`` of freedom; negative if it is faster.

    NaN where there is no answer with either, -1 where there is none without.
    """
    asked = random_request(seed, most_tables)
    whole, columns = step_ms(asked, (TABLE_WISE,)), step_ms(asked, BY_COLUMNS)
    try:
        answer = evenshard.place(sharding_types=SHARDING_TYPES, compare=RULES, **asked)
        every = answer.predicted_ms
        rules = [one.predicted_ms for one in answer.comparison if one.predicted_ms and not one.note]
    except InfeasibleTask:
        every, rules = float("inf"), []
    more = step_ms(asked, memory_cap_gb=MORE_MEMORY * asked["memory_cap_gb"])
    pairs = ((whole, columns), (columns, every), (every, more), (min(rules, default=np.inf), every))
    return [_slowdown(less, more) for less, more in pairs]


def _slowdown(less_ms: float, more_ms: float) -> float:
    """Compute the slowdown from two times, which are infinite if infeasible."""
    if np.isinf(less_ms):
        return float("nan") if np.isinf(more_ms) else -1.0
    return more_ms / less_ms - 1


def main() -> None:
    """Print a line for each kind of freedom."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--most-tables", type=int, default=12)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args()
    seeds = range(args.first, args.first + args.requests)
    with ProcessPoolExecutor(args.processes) as pool:
        found = []
        for seed, one in zip(seeds, pool.map(partial(slowdowns, most_tables=args.most_tables), seeds), strict=True):
            found.append(one)
            for kind, slower in zip(KINDS, one, strict=True):
                if slower > TOLERANCE:
                    print(f"seed {seed}: {kind} {100 * slower:.4f} % slower", file=sys.stderr, flush=True)
    print("| with more freedom | answers | worse | by more than 1 % | worst |\n|---|---:|---:|---:|---:|")
    for kind, slower_R in zip(KINDS, np.array(found).T, strict=True):
        slower_R = slower_R[~np.isnan(slower_R)]
        worse = int((slower_R > TOLERANCE).sum())
        worst = f"{100 * slower_R.max():.2f} %" if worse else "none"
        print(f"| {kind} | {len(slower_R):,} | {worse} | {int((slower_R > 0.01).sum())} | {worst} |")


if __name__ == "__main__":
    main()
