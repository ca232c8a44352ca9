"""The pod of a part of a round, as a process made to be killed: ``python killable_pod.py INPUTS OUT [AFTER]``.

INPUTS holds tables and tasks; OUT, a folder of its own, gets what the task leaves. Tells the key of each placement that
it measures. Once AFTER measurements are in its journal it says "killed" and waits for that, in a call that no signal
ends, as a kernel is.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

from kfp import dsl

from evenshard.kubeflow import pod_journal
from evenshard.measure.campaign import Job
from evenshard.price.costs import PlacementCost
from evenshard_components.benchmark.component import benchmark

SETTINGS: dict[str, Any] = {
    "config": {"placements_per_round": 10, "shards_per_round": 5, "searched_share": 0.0},
    "measure": {"hardware": "simulated:h200", "visits": 2, "controls": 1, "control_repeats": 2},
}


def artifacts(folder: Path, *names: str) -> dict[str, dsl.Artifact]:
    """As Kubeflow's executor hands them over."""
    kinds = {"metrics": dsl.Metrics}
    return {name: kinds.get(name, dsl.Artifact)(name=name, uri=str(folder / name)) for name in names}


def run(inputs: Path, out: Path, part: int = 1) -> None:
    """The task, in this process."""
    given = {**artifacts(inputs, "tables", "tasks"), **artifacts(out, "costs", "metrics")}
    benchmark.python_func(**given, **SETTINGS, round_number=1, part=part, num_parts=2)


def _tell_and_wait(after: int | None) -> None:
    measure_on, done = Job.measure_on, 0

    def telling(job: Job, hardware: Any) -> PlacementCost:
        nonlocal done
        if done == after:
            print("killed", flush=True)
            hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)
        done += 1
        print(job.key, flush=True)
        return measure_on(job, hardware)

    Job.measure_on = telling  # type: ignore[method-assign]


if __name__ == "__main__":
    pod_journal.UPLOAD_EVERY_S = float(os.environ.get("UPLOAD_EVERY_S", "0.1"))
    _tell_and_wait(int(sys.argv[3]) if len(sys.argv) > 3 else None)
    run(Path(sys.argv[1]), Path(sys.argv[2]))
