"""How busy were CPU, memory and GPU while a stage ran? Asked by a thread, sent when the stage is done.

MLflow's own monitor would send each sample at once, which a training waits for where the server is slow.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenshard.tracking.runs import StageRun

INTERVAL_S = 5.0
PREFIX = "system/"
"""MLflow's pages show metrics with this prefix on a tab of their own."""
log = logging.getLogger(__name__)


@contextmanager
def watched(run: StageRun, interval_s: float = INTERVAL_S) -> Iterator[None]:
    """Samples while the block runs: at its start, every few seconds, and at its end."""
    samples: list[tuple[int, dict[str, float]]] = []
    monitors, done = _monitors(), threading.Event()

    def sample() -> None:
        values: dict[str, float] = {}
        for monitor in list(monitors):
            try:
                monitor.collect_metrics()
                values |= monitor.aggregate_metrics()
                monitor.clear_metrics()
            except Exception as error:  # of NVIDIA's library, of psutil or of MLflow: no reason to end a training
                monitors.remove(monitor)
                log.warning("%s failed (%s): its part is not watched any more", type(monitor).__name__, error)
        samples.append((int(time.time() * 1000), values))

    def watch() -> None:
        while not done.wait(interval_s):
            sample()

    sample()
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        sample()
        run.points(
            [
                (f"{PREFIX}{name}", float(value), when, step)
                for step, (when, values) in enumerate(samples)
                for name, value in values.items()
            ]
        )


def _monitors() -> list[Any]:
    """MLflow's own, as far as this machine has what they ask."""
    monitors: list[Any] = []
    with suppress(ImportError):
        import psutil  # type: ignore[import-untyped]
        from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor

        psutil.cpu_percent()  # its first answer is always 0
        monitors.append(CPUMonitor())  # type: ignore[no-untyped-call]
    with suppress(Exception):  # without a GPU, without NVIDIA's library, or with one that raises errors of its own
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor

        monitors.append(GPUMonitor())  # type: ignore[no-untyped-call]
    return monitors
