"""Gives spoilt inputs to everything that reads what others wrote: make fuzz.

Each stretch of inputs is read in a process of its own, so that a reader that crashes or eats memory ends that process.
What fails stays in a folder, with the problem beside it:

    PYTHONPATH=tests python -m support.fuzz --replay work/fuzz/rules-1-205
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.fuzz_readers import READERS, SECONDS, problem_with, spoilt

STRETCH = 1000
PROBLEM = "problem.txt"
# pyarrow 25 ends the process where a damaged file's statistics contradict its schema, as soon as it is asked about a
# column of a row group: nothing in Python can catch that.
OF_PYARROW = "parquet::ParquetException"


def _folder(out: Path, name: str, seed: int, number: int) -> Path:
    return out / f"{name.replace(' ', '_')}-{seed}-{number}"


def _read_stretch(name: str, seed: int, first: int, last: int, out: Path) -> None:
    """Reads inputs; the folder of one that fails, or ends the process, stays."""
    warnings.simplefilter("ignore")
    logging.disable()
    for number in range(first, last):
        folder = _folder(out, name, seed, number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        faulthandler.dump_traceback_later(3 * SECONDS, exit=True)  # where no signal gets through
        problem = problem_with(READERS[name], spoilt(name, seed, number), folder)
        faulthandler.cancel_dump_traceback_later()
        if problem is None:
            shutil.rmtree(folder)
        else:
            (folder / PROBLEM).write_text(f"{name}\n{problem}\n")


def _run_stretch(name: str, seed: int, first: int, last: int, out: Path) -> None:
    """Reads a stretch in processes of its own, a new one after each crash."""
    while first < last:
        words = [name, str(seed), str(first), str(last)]
        command = [sys.executable, __file__, "--out", str(out), "--stretch", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return
        left = [number for number in range(first, last) if _unfinished(_folder(out, name, seed, number))]
        if not left:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
        report = f"{name}\nthe process ended with {done.returncode}\n{done.stderr[-3000:]}\n"
        (_folder(out, name, seed, left[0]) / PROBLEM).write_text(report)
        first = left[0] + 1


def _unfinished(folder: Path) -> bool:
    return folder.is_dir() and not (folder / PROBLEM).exists()


def _replay(folder: Path) -> None:
    name, report = (folder / PROBLEM).read_text().split("\n", 1)
    reader = READERS[name]
    again = folder.with_name(f"{folder.name}.again")
    shutil.rmtree(again, ignore_errors=True)
    again.mkdir()
    problem = problem_with(reader, (folder / reader.file).read_bytes(), again)
    print(f"{name}\nthen: {report.strip()}\nnow: {problem or 'nothing'}")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--count", type=int, default=100_000, help="inputs in all (default: 100000)")
    add("--readers", nargs="*", choices=READERS, default=list(READERS), metavar="NAME", help="(default: all)")
    add("--seed", type=int, default=int(time.time()), help="of the inputs (default: the time)")
    add("--jobs", type=int, default=os.cpu_count(), help="processes side by side (default: one per core)")
    add("--out", type=Path, default=Path("work/fuzz"), help="folder for what fails (default: work/fuzz)")
    add("--replay", type=Path, metavar="FOLDER", help="read the input in this folder again, and nothing else")
    add("--stretch", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.replay is not None:
        _replay(args.replay)
        return 0
    if args.stretch is not None:
        name, *numbers = args.stretch
        _read_stretch(name, *map(int, numbers), args.out)
        return 0
    each = -(-args.count // len(args.readers))
    print(f"seed {args.seed}: {each} inputs for each of {len(args.readers)} readers", flush=True)
    stretches = [(name, first) for first in range(0, each, STRETCH) for name in args.readers]

    def run(stretch: tuple[str, int]) -> None:
        name, first = stretch
        _run_stretch(name, args.seed, first, min(first + STRETCH, each), args.out)

    with ThreadPoolExecutor(args.jobs) as pool:
        for _ in pool.map(run, stretches):
            pass
    failed = []
    for path in sorted(args.out.glob(f"*-{args.seed}-*/{PROBLEM}")):
        report = " ".join(path.read_text().splitlines()[1:])
        print(f"{path.parent}: {report[:300]}{' (known, of pyarrow)' * (OF_PYARROW in report)}")
        failed += [path] * (OF_PYARROW not in report)
    print(f"{len(failed)} of {each * len(args.readers)} inputs failed (seed {args.seed})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
