"""Runner of units: in parallel over the cores, or in sequence on real hardware.

Files of finished units are complete however the run ends, and are reused by the next run.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

from benchmarks.studies.units import Record, Store, Unit
from evenshard.base.console import log_to_stderr, progress
from evenshard.base.errors import BadInput, EvenshardError, InfeasibleTask
from evenshard.base.process import on_sigterm, one_thread

log = logging.getLogger(__name__)


def run_units(units: Sequence[Unit], folder: Path, commit: str, num_jobs: int, description: str) -> None:
    """Run all units whose results the folder lacks."""
    missing = [unit for unit in units if not Store(folder).has(unit)]
    if len(missing) < len(units):
        log.info("%d of %d units are in %s", len(units) - len(missing), len(units), folder)
    with on_sigterm(_interrupt):  # SIGTERM ends it like Ctrl-C
        if num_jobs == 1:
            with one_thread():
                for number, unit in enumerate(missing, start=1):  # measuring shows a bar of its own
                    log.info("%s: %d of %d, %s", description, number, len(missing), unit.name)
                    _do(unit, folder, commit)
        elif missing:
            _side_by_side(missing, folder, commit, num_jobs, description)


def _side_by_side(units: Sequence[Unit], folder: Path, commit: str, num_jobs: int, description: str) -> None:
    waiting = {unit.key: unit for unit in units}
    running: dict[Future[None], str] = {}
    pool = ProcessPoolExecutor(num_jobs, multiprocessing.get_context("spawn"), _begin)
    try:
        for _ in progress(range(len(units)), description):
            open_keys = {*waiting, *running.values()}
            ready = [unit for unit in waiting.values() if not any(need.key in open_keys for need in unit.needs)]
            for unit in ready[: 2 * num_jobs - len(running)]:
                running[pool.submit(_do, unit, folder, commit)] = waiting.pop(unit.key).key
            done = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
            running.pop(done)
            done.result()
        pool.shutdown()
    except BaseException:
        workers = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:  # their unfinished units are lost and repeated
            worker.terminate()
        raise


def _begin() -> None:
    """Prepare a worker: one thread, no own interrupts, and an end with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = "1"  # torch looks at it when the first unit imports it
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    log_to_stderr()
    logging.getLogger("evenshard").setLevel(logging.WARNING)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _do(unit: Unit, folder: Path, commit: str) -> None:
    store, start = Store(folder), time.perf_counter()
    try:
        result = unit.do(store)
    except (BadInput, InfeasibleTask, EvenshardError) as error:
        kind = next(one for one in (BadInput, InfeasibleTask, EvenshardError) if isinstance(error, one))
        raise kind(f"{unit.name}: {error}") from error
    except Exception as error:
        error.add_note(f"in the unit {unit.name}")
        raise
    store.save(unit, Record(result, commit, time.perf_counter() - start))


def _interrupt() -> None:
    raise KeyboardInterrupt
