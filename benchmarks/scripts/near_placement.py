"""Step time against bytes moved: tables drift, and are placed near the placement from before the drift.

python -m benchmarks.scripts.near_placement
python -m benchmarks.scripts.near_placement --generated 1000 --devices 64 --nodes 8 --inter ib_400g --shares 0.05 \\
    --seeds 1 --free
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import evenshard
from evenshard.planner.file import save_answer
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.reuse import FloatArray
from evenshard.tables.sources import tables_from
from evenshard.tables.table import Table
from evenshard.utils.units import bytes_to_gb

# Of the bytes of all tables that may move.
SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0)
NUM_NEW = 3
BATCH_SIZE = 65_536


def drift(tables: tuple[Table, ...], seed: int) -> tuple[Table, ...]:
    """The tables with pooling factors a factor of up to three off, and three new ones like some of them."""
    rng = np.random.default_rng(seed)
    factors = drift_factors(len(tables), rng)
    changed = [
        replace(table, pooling_factor=max(float(table.pooling_factor * factor), 1.0))
        for table, factor in zip(tables, factors, strict=True)
    ]
    alike = rng.choice(len(tables), NUM_NEW, replace=False).tolist()
    return (*changed, *(replace(changed[one], name=f"new_{number}") for number, one in enumerate(alike)))


def drift_factors(count: int, rng: np.random.Generator) -> FloatArray:
    """[count] random factors between 1/3 and 3."""
    return np.exp(rng.uniform(-np.log(3), np.log(3), count))


def main() -> None:
    """Prints a table for each set of tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", default="mlperf_dlrm_v2")
    parser.add_argument("--generated", type=int, help="so many generated tables in place of public sets")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--inter", default="")
    parser.add_argument("--hardware", default="simulated:h100")
    parser.add_argument("--shares", default=",".join(map(str, SHARES)), help="of all bytes, that may move")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--free", action="store_true", help="time a search with nothing near, too")
    args = parser.parse_args()
    shares = [float(share) for share in args.shares.split(",")]
    machine = {"num_devices": args.devices, "nodes": args.nodes, "inter": args.inter, "hardware": args.hardware}
    for name in [f"{args.generated} generated tables"] if args.generated else args.sets.split(","):
        if args.generated:
            tables = generate_tables(GeneratorConfig(args.generated), BATCH_SIZE, seed=0)
        else:
            tables = tables_from(name, BATCH_SIZE).tables
        print(f"\n{name}, {args.devices} x {args.hardware}\n")
        print(
            "| seed | may move, GB | moves, GB | tables | ms | against free | s |\n|---:|---:|---:|---:|---:|---:|---:|"
        )
        for seed in range(args.seeds):
            study(tables, machine, shares, seed, args.free)


def study(tables: tuple[Table, ...], machine: dict[str, Any], shares: list[float], seed: int, free: bool) -> None:
    """One drift, with one line for each bound, and if asked one for a placement with nothing near."""
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder, "old.json")
        save_answer(evenshard.place(tables, seed=seed, **machine), old)
        today = drift(tables, seed)
        total = sum(table.size_bytes for table in tables)
        if free:
            begun = time.monotonic()
            answer = evenshard.place(today, seed=seed, **machine)
            took = time.monotonic() - begun
            print(f"| {seed} | not near | | | {answer.predicted_ms:.3f} | | {took:.0f} |", flush=True)
        for share in (*shares, None):
            most = None if share is None else bytes_to_gb(share * total)
            begun = time.monotonic()
            answer = evenshard.place(today, seed=seed, near=old, max_move_gb=most, **machine)
            took = time.monotonic() - begun
            near = answer.nearness
            assert near is not None
            bound = "any" if most is None else f"{most:.2f}"
            over = 100 * (answer.predicted_ms / near.free_ms - 1)
            print(
                f"| {seed} | {bound} | {bytes_to_gb(near.moved_bytes):.2f} | {len(near.moved_tables)} | "
                f"{answer.predicted_ms:.3f} | {over:+.1f} % | {took:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
