"""Measuring in a pod with GPUs: in a process of its own, or with torchrun over all GPUs at once.

After a kernel that fails, a process can do no more with its GPU: another try needs another process.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evenshard.stages.stage import Stage, flags
from evenshard.utils.errors import BadConfig, MeasurementFailed
from evenshard.utils.process import on_sigterm, terminate
from evenshard.utils.scratch import scratch_folder

log = logging.getLogger(__name__)


def on_gpus(stage: Stage, num_gpus: int, params: Mapping[str, Any], inputs: Any, outputs: Any) -> dict[str, float]:
    """Run the command of a stage that measures, one process for each GPU under torchrun; return its metrics.

    Args:
        num_gpus: GPUs of the pod. 2 or more must be the devices of the tasks.
        params: sections of params.yaml.

    Raises:
        BadConfig: if the one process says that its input is bad.
        MeasurementFailed: if the command fails otherwise; what it said stands in the pod's log.
    """
    with scratch_folder() as scratch:
        settings, metrics = scratch / "params.yaml", scratch / "metrics.json"
        settings.write_text(json.dumps(dict(params)))
        words = [sys.executable]
        if num_gpus > 1:
            words += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_gpus)]
        words += ["-m", "evenshard", stage.command, "--params", str(settings), "--metrics", str(metrics)]
        for of in (inputs, outputs):
            for name, flag in flags(type(of)).items():
                value = getattr(of, name)
                if value is not None:
                    words += [flag, *map(str, value if isinstance(value, tuple) else (value,))]
        log.info("%d GPUs: %s", num_gpus, " ".join(words))
        code = _exit_code(words, scratch)
        if code == 2 and num_gpus == 1:  # torchrun tells 1 of everything
            raise BadConfig(f"{stage.command}: bad input. See above.")
        if code:
            raise MeasurementFailed(f"{stage.command} on {num_gpus} GPUs ended with exit code {code}. See above.")
        found: dict[str, float] = json.loads(metrics.read_text())
        return found


def _exit_code(words: Sequence[str], folder: Path) -> int:
    """Return the exit code of a command, which is told of a SIGTERM too and has time to end properly."""
    stopped = []
    with subprocess.Popen(words, cwd=folder) as child:

        def stop() -> None:
            stopped.append(True)
            child.terminate()

        with on_sigterm(stop):
            code = child.wait()
    if stopped:
        terminate()
    return code
