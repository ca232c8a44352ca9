"""Measurement of a plan with only torch, NumPy and FBGEMM; under torchrun, on all GPUs of the machine."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from evenshard.base.errors import BadInput, EvenshardError
from evenshard.base.outputs import File, check_distinct, check_writable
from evenshard.measure.campaign import measure_jobs
from evenshard.measure.distributed import collective
from evenshard.measure.journal import Journal
from evenshard.measure.local_hardware import open_hardware
from evenshard.measure.plan import load_measure_plan
from evenshard.price.hardware import CHOICES

_LOG_EVERY_S = 10.0  # seconds between progress lines
log = logging.getLogger("evenshard.measure")


def main(argv: list[str] | None = None) -> int:
    """Run the plan and return the exit code: 0 done (or out of budget), 1 failed, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m evenshard.measure", description=__doc__)
    parser.add_argument("plan", type=Path, help="plan file of evenshard benchmark --plan-out")
    parser.add_argument("--journal", type=Path, required=True, help="file that stores each measurement at once")
    parser.add_argument("--hardware", help=f"{CHOICES} (default: hardware of the plan)")
    parser.add_argument("--budget-minutes", type=float, help="start no measurement after this many minutes")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    log.setLevel(logging.INFO)
    try:
        check_writable(File(), args.journal)
        File().require(args.journal)
        check_distinct({"--journal": (args.journal,)}, {"plan": (args.plan,)})
        jobs, config = load_measure_plan(args.plan)
        config = replace(config, hardware=args.hardware or config.hardware)
        if collective.is_follower():
            collective.serve(config)
            return 0
        budget_s = None if args.budget_minutes is None else 60 * args.budget_minutes
        with closing(open_hardware(config)) as hardware, Journal(args.journal) as journal:
            log.info("%d jobs on %s (%s)", len(jobs), hardware.provenance.hardware, hardware.provenance.versions)
            measured = measure_jobs(hardware, jobs, config, journal, budget_s, _log_progress)
            share = hardware.time_share
        log.info("%d of %d jobs measured; kernels took %.0f %% of %.0f s",
                 len(measured), len(jobs), 100 * share.kernel_share, share.wall_s)  # fmt: skip
    except BadInput as error:
        print(f"python -m evenshard.measure: {error}", file=sys.stderr)
        return 2
    except (EvenshardError, OSError) as error:
        print(f"python -m evenshard.measure failed: {error}", file=sys.stderr)
        return 1
    return 0


def _log_progress(steps: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    last = time.monotonic()
    for number, step in enumerate(steps):
        if time.monotonic() - last > _LOG_EVERY_S:
            last = time.monotonic()
            log.info("%d of %d", number, len(steps))
        yield step


if __name__ == "__main__":
    sys.exit(main())
