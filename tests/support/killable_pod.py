"""The pod of a part of a round, as a process made to be killed: ``python killable_pod.py INPUTS OUT [AFTER]``.

Tells the key of each placement that it measures. Once AFTER measurements are in its journal it says "killed" and waits
for that, in a call that no signal ends, as a kernel is.
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

CONFIG = {"placements_per_round": 10, "shards_per_round": 5, "searched_share": 0.0}
MEASURE = {"hardware": "simulated:h200", "visits": 2, "controls": 1, "control_repeats": 2}


def main(inputs: Path, out: Path, after: int | None = None) -> None:
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
    pod_journal.UPLOAD_EVERY_S = float(os.environ.get("UPLOAD_EVERY_S", "0.1"))
    places = {"tables": inputs, "tasks": inputs, "costs": out}
    artifacts = {name: dsl.Artifact(name=name, uri=str(folder / name)) for name, folder in places.items()}
    metrics = dsl.Metrics(name="metrics", uri=str(out / "metrics"))
    settings = {"config": CONFIG, "measure": MEASURE, "round_number": 1, "part": 1, "num_parts": 2}
    benchmark.python_func(**artifacts, metrics=metrics, **settings)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
