"""Comparison of sixty answers of ``evenshard.place`` before and after a change to the search.

    python -m benchmarks.scripts.answers --out before.json [--truth FOLDER] [--only NAME ...]
    python -m benchmarks.scripts.answers --out after.json --against before.json

Each answer has its predicted time, the time of the same parts by the device model of the case's hardware ("true", as
from ``--measure``), the memory of the fullest device, and the processor time. The cases are public sets of tables on 2
to 128 devices, with placement rules, tiers, sequences, several nodes, optimizers, narrow types, drawn tables, and
recorded tables if a folder has them. Each case runs in its own process, so that no case warms caches for another.

Against an earlier file it prints each case whose true time moved by more than 0.1 %, then the mean over all.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import evenshard
from benchmarks.references.rows import read_rows, run_script
from evenshard.base.errors import EvenshardError
from evenshard.measure.placements import simulate_cost
from evenshard.planner.answer import PlacementAnswer
from evenshard.price.collectives import Links
from evenshard.price.gpu_profile import gpu_profile
from evenshard.price.hardware import HardwareName
from evenshard.price.link import link
from evenshard.tables.generator import GeneratorConfig, generate_tables

RECORDED = "dlrm_2021_tables.csv"
# Relative change of a true time that is reported.
MOVED = 1e-3
SETS = (
    "avazu",
    "criteo_1tb",
    "criteo_kaggle",
    "mlperf_dlrm_v2",
    "nvidia_colossal",
    "nvidia_jumbo",
    "nvidia_large",
    "nvidia_medium",
    "nvidia_small",
    "nvidia_tiny",
)
NDR = {"devices_per_node": 8, "inter": "infiniband_ndr"}
WHOLE, COLUMNS = ("table_wise",), ("table_wise", "column_wise")


def cases() -> dict[str, dict[str, Any]]:
    """Return the arguments of ``evenshard.place`` by the name of a case."""
    found: dict[str, dict[str, Any]] = {}

    def add(tables: Any, devices: int, hardware: str, note: str = "", **more: Any) -> None:
        name = f"{tables if isinstance(tables, str) else tables[0]} {devices} {hardware} {note}".strip()
        found[name] = {"tables": tables, "num_devices": devices, "hardware": hardware, "optimizer": "sgd", **more}

    unlimited = {"memory_cap_gb": 4096.0}  # more than all tables need
    for name in SETS:
        more = unlimited if name in ("nvidia_colossal", "nvidia_jumbo", "nvidia_large", "nvidia_medium") else {}
        add(name, 2, "h200", **more)
        add(name, 8, "h100", **more)
    for name in ("mlperf_dlrm_v2", "criteo_1tb", "nvidia_tiny", "nvidia_small"):
        add(name, 16, "h100", **NDR)
        add(name, 64, "h200", **NDR)
    add("mlperf_dlrm_v2", 128, "h100", **NDR)
    for name in ("mlperf_dlrm_v2", "criteo_1tb", "nvidia_tiny", "criteo_kaggle"):
        add(name, 8, "h200", "whole", sharding_types=WHOLE, **unlimited)
        add(name, 8, "a100_80gb", "columns", sharding_types=COLUMNS, **unlimited)
    for optimizer in ("rowwise_adagrad", "adam"):
        for name in ("mlperf_dlrm_v2", "nvidia_tiny"):
            add(name, 8, "h200", optimizer, **{**unlimited, "optimizer": optimizer})
    add("mlperf_dlrm_v2", 8, "h100", "host", memory_cap_gb=16.0, host_memory_gb=512.0)
    add("criteo_1tb", 4, "h200", "host", memory_cap_gb=8.0, host_memory_gb=512.0)
    add("nvidia_small", 8, "h100", "host", memory_cap_gb=4.0, host_memory_gb=1024.0)
    add("criteo_kaggle", 4, "v100", batch_size=8_192)
    add("criteo_kaggle", 4, "rtx_2080_ti", batch_size=4_096)
    add("criteo_1tb", 8, "a100_80gb", "small batch", batch_size=4_096)
    apart = {"apart": [["C1", "C2", "C3"]], "together": [["C4", "C5"]], "pinned": {"C6": 0}, "forbidden": {"C7": [1]}}
    add("criteo_kaggle", 4, "h200", "rules", **apart)
    add("criteo_1tb", 8, "h100", "rules", **apart, **NDR | {"devices_per_node": 4})
    add(("sequences",), 8, "h100")
    add(("sequences",), 16, "h200", **NDR)
    for count, devices in ((20, 2), (40, 4), (80, 8), (200, 32), (1_000, 64)):
        add(("drawn", count), devices, "h200", f"{count} tables", **(NDR if devices > 8 else {}))
    for count, devices in ((40, 4), (80, 8)):
        add(("recorded", count), devices, "h100", f"{count} tables")
        add(("recorded", count), devices, "h100", f"{count} whole", sharding_types=WHOLE)
    return found


def tables_of(what: Any, truth: Path | None) -> Any:
    """Return the tables of a case; None if they are not public and there is no folder with them."""
    if isinstance(what, str):
        return what
    kind, *numbers = what
    if kind == "sequences":
        return [
            {
                "name": f"s{at}",
                "num_rows": 10 ** (4 + at % 4),
                "embedding_dim": 32 * (1 + at % 4),
                "pooling_factor": float(1 + 7 * at % 40),
                "pooling": "none" if at % 2 else "sum",
            }
            for at in range(24)
        ]
    if kind == "drawn":
        return list(generate_tables(GeneratorConfig(*numbers), 65_536, seed=1))
    if truth is None:
        return None
    rows = read_rows(truth / RECORDED)
    rng = np.random.default_rng(2)
    chosen = rng.choice(len(rows), numbers[0], replace=False).tolist()
    return [
        {"name": f"t{at}", "embedding_dim": int(rng.choice((16, 32, 64, 128))), **rows[at]}
        | {"num_rows": int(rows[at]["num_rows"]), "pooling_factor": float(rows[at]["pooling_factor"])}
        for at in chosen
    ]


def true_ms(answer: PlacementAnswer) -> float:
    """Predict the step time by the device model of the answer's hardware and optimizer, ms."""
    request = answer.request
    machine = request.nodes
    profile = gpu_profile(HardwareName.parse(request.hardware).device)
    links = Links(link(machine.intra or profile.link), link(machine.inter) if machine.num_domains > 1 else None)
    cost = simulate_cost(answer.task, answer.parts, [profile] * request.num_devices, links)
    return cost.step_ms(request.training_pipeline)


def answer_of_case(arguments: dict[str, Any], truth: Path | None) -> dict[str, Any]:
    """Run a case and return its answer as a JSON record."""
    tables = tables_of(arguments["tables"], truth)
    if tables is None:
        return {"problem": "recorded tables need --truth"}
    began, elapsed = time.process_time(), time.perf_counter()
    try:
        answer = evenshard.place(**{**arguments, "tables": tables})
    except EvenshardError as error:
        return {"problem": str(error)}
    return {
        "predicted_ms": answer.predicted_ms,
        "true_ms": true_ms(answer),
        "bound_ms": answer.lower_bound_ms,
        "fullest_gb": max(answer.used_bytes) / 2**30,
        "types": {kind: list(answer.type_of_table.values()).count(kind) for kind in {*answer.type_of_table.values()}},
        "cpu_s": round(time.process_time() - began, 3),
        "wall_s": round(time.perf_counter() - elapsed, 3),
    }


def comparison(before: dict[str, Any], after: dict[str, Any]) -> str:
    """List the cases with a different true time, and summarize the differences over all cases."""
    lines, ratios = [], []
    for name, new in after.items():
        old = before.get(name)
        if old is None:
            continue
        if "problem" in old or "problem" in new:
            if ("problem" in old) != ("problem" in new):
                lines.append(f"{name}: {old.get('problem', 'answered')} -> {new.get('problem', 'answered')}")
            continue
        ratio = new["true_ms"] / old["true_ms"]
        ratios.append(ratio)
        if abs(ratio - 1) > MOVED:
            lines.append(
                f"{name}: true {old['true_ms']:.4g} -> {new['true_ms']:.4g} ms ({ratio - 1:+.2%}), predicted "
                f"{old['predicted_ms']:.4g} -> {new['predicted_ms']:.4g}, {old['cpu_s']:.1f} -> {new['cpu_s']:.1f} s"
            )
    if ratios:
        mean = math.exp(fmean(map(math.log, ratios))) - 1
        lines.append(
            f"{len(ratios)} answers: mean {mean:+.2%}, worst {max(ratios) - 1:+.2%}, best {min(ratios) - 1:+.2%}"
        )
    return "\n".join(lines)


def _one(job: tuple[str, dict[str, Any], Path | None]) -> tuple[str, dict[str, Any]]:
    name, arguments, truth = job
    return name, answer_of_case(arguments, truth)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the answers")
    parser.add_argument("--against", type=Path, help="earlier answers to compare with")
    parser.add_argument("--truth", type=Path, help=f"a folder with {RECORDED}")
    parser.add_argument("--only", nargs="+", help="cases whose names contain one of these words")
    args = parser.parse_args(argv)
    chosen = {
        name: arguments
        for name, arguments in cases().items()
        if not args.only or any(word in name for word in args.only)
    }
    found: dict[str, Any] = {}
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name, record in pool.imap(_one, ((name, arguments, args.truth) for name, arguments in chosen.items())):
            found[name] = record
            shown = {key: f"{value:.4g}" for key, value in record.items() if isinstance(value, float)} or record
            print(f"{name}: {' '.join(f'{key} {value}' for key, value in shown.items())}", flush=True)
            args.out.write_text(json.dumps(found, indent=1) + "\n")
    if args.against is not None:
        print(comparison(json.loads(args.against.read_text()), found))


if __name__ == "__main__":
    run_script(main)
