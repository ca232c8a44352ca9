"""Time and memory of ``evenshard place`` and ``evenshard what-if``, including the start of the process.

    python -m benchmarks.scripts.place_speed [--runs 5] [--json out.json] [--only NAME ...]

Every run is a new process of the installed command. Printed are medians over the runs: wall time from the start of the
process to its end, its processor time, and its peak resident memory. On a busy machine the wall time includes other
processes; the processor time hardly does. ``import torch`` is listed for comparison. The cases take turns, so that a
busy minute affects all of them.

The large cases have tables with the row counts, pooling factors and reuse of the DLRM 2021 data and dims from 4 to 128,
on devices with 1.5 times the memory of an equal share, and at least twice the largest table; 8 devices per node.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median

# Tables, and devices.
LARGE, HUGE = (2_000, 128), (10_000, 1_024)
BATCH_SIZE = 65_536
PYTHON = (sys.executable,)
EVENSHARD = (*PYTHON, "-m", "evenshard")
MLPERF = ("place", "mlperf_dlrm_v2")
TWELVE_MACHINES = ("--hardware", "h100,h200,a100", "--devices", "8,16,32,64")
NODES = ("--devices-per-node", "8", "--inter", "infiniband_ndr")


@dataclass(frozen=True)
class Run:
    """One process: wall time, processor time and peak resident MB (1024**2 bytes)."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def large(path: Path, num_tables: int, num_devices: int) -> tuple[str, ...]:
    """Write the tables of a large case and return the command that places them."""
    from evenshard.base.units import bytes_to_gb
    from evenshard.tables.files import save_tables
    from evenshard.tables.generator import GeneratorConfig, generate_tables

    tables = generate_tables(GeneratorConfig(num_tables), BATCH_SIZE, seed=0)
    save_tables(tables, path)
    sizes = [table.size_bytes for table in tables]
    cap_gb = bytes_to_gb(max(2 * max(sizes), sum(sizes) * 3 // (2 * num_devices)))
    return ("place", str(path), "--devices", str(num_devices), "--memory-cap-gb", f"{cap_gb:.3f}", *NODES)


def commands(folder: Path, only: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the timed commands by name; the largest case only if requested."""
    out = ("-o", str(folder / "placement.json"))
    found = {
        "import torch": (*PYTHON, "-c", "import torch"),
        "help": (*EVENSHARD, "--help"),
        "mlperf": (*EVENSHARD, *MLPERF, "--devices", "8", *out),
        "mlperf, 128": (*EVENSHARD, *MLPERF, "--devices", "128", *NODES, *out),
        "what-if": (*EVENSHARD, "what-if", "mlperf_dlrm_v2", *TWELVE_MACHINES),
    }
    # Drawn in a separate process, because a child's peak memory starts with the memory of this process.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        for name, sizes in (("large", LARGE), ("huge", HUGE)):
            if name in only or (not only and name == "large"):
                placed = pool.submit(large, folder / f"{name}.json", *sizes).result()
                found[name] = (*EVENSHARD, *placed, *out)
    return {name: command for name, command in found.items() if not only or name in only}


def run(command: Sequence[str]) -> Run:
    """Run a command on one thread; exit if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each run compiles all modules, which users' runs do not
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: {said}")
    peak_bytes = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Run(wall_s, used.ru_utime + used.ru_stime, peak_bytes / 1024**2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="runs of each case (default: 5)")
    parser.add_argument("--json", type=Path, help="also write every run to this file")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="names of cases, as in the table")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        of_case = commands(Path(folder), args.only)
        run((*EVENSHARD, *MLPERF, "--devices", "2", "-o", str(Path(folder) / "placement.json")))  # compiles
        runs: dict[str, list[Run]] = {name: [] for name in of_case}
        for _ in range(args.runs):
            for name, command in of_case.items():
                runs[name].append(run(command))
                print(f"{name}: {runs[name][-1].wall_s:.2f} s", file=sys.stderr)
    print("| case | wall, s (fastest to slowest) | processor, s | peak memory, MB |")
    print("|---|---:|---:|---:|")
    for name, of_name in runs.items():
        walls = sorted(one.wall_s for one in of_name)
        cpu_s, peak_mb = median(one.cpu_s for one in of_name), max(one.peak_mb for one in of_name)
        print(f"| {name} | {median(walls):.2f} ({walls[0]:.2f} to {walls[-1]:.2f}) | {cpu_s:.2f} | {peak_mb:.0f} |")
    if args.json is not None:
        args.json.write_text(json.dumps({name: [vars(one) for one in of] for name, of in runs.items()}, indent=1))


if __name__ == "__main__":
    main()
