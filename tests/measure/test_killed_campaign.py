"""A campaign that is killed at any moment loses no finished measurement and repeats none."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evenshard.base.errors import BadFile
from evenshard.measure.campaign import measure_jobs
from evenshard.measure.cost_dataset import save_costs
from evenshard.measure.journal import Journal
from support import killable_campaign

NUM_KILLS = 20


class Child:
    """The killable campaign, running."""

    def __init__(self, journal: Path) -> None:
        command = [sys.executable, killable_campaign.__file__, str(journal)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._lines: list[str] = []

    def wait_for(self, num_visits: int) -> None:
        assert self._process.stdout is not None
        self._lines += [self._process.stdout.readline() for _ in range(num_visits)]

    def kill(self) -> set[tuple[str, int]]:
        """The visits that it had reported as finished."""
        self._process.send_signal(signal.SIGKILL)
        self._end(-signal.SIGKILL)
        return self.visits

    def finish(self) -> set[tuple[str, int]]:
        self._end(0)
        return self.visits

    def _end(self, expected: int) -> None:
        rest, errors = self._process.communicate()
        self._lines += rest.splitlines(keepends=True)
        assert self._process.returncode == expected, errors

    @property
    def visits(self) -> set[tuple[str, int]]:
        words = [line.split() for line in self._lines if line.endswith("\n")]
        return {(job, int(number)) for job, number in words}


def on_record(journal: Path) -> list[tuple[str, int]]:
    """(job, visit) of each whole line, read by other means than the journal's own."""
    content = journal.read_bytes() if journal.exists() else b""
    records = [json.loads(line) for line in content.split(b"\n")[:-1]]
    return [(record["job"], record["visit"]) for record in records if "job" in record]


@pytest.mark.slow
def test_a_campaign_killed_again_and_again_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    """At most 20 visits, or a quarter of a second's, are done before each kill, of 1200 in all.

    Every fifth kill comes at any time after the start: while modules load, while the journal is read. The others come
    within one step of 2 ms, half of which is spent in the middle of writing a line.
    """
    path, rng = tmp_path / "journal.jsonl", random.Random(0)
    finished: set[tuple[str, int]] = set()
    torn = 0
    for number in range(NUM_KILLS):
        child = Child(path)
        if number % 5 == 4:
            time.sleep(rng.uniform(0.0, 0.25))
        else:
            child.wait_for(rng.randrange(20))
            time.sleep(rng.uniform(0.0, 2.5e-3))
        finished |= child.kill()
        recorded = on_record(path)
        assert len(set(recorded)) == len(recorded)
        assert finished <= set(recorded)
        torn += path.exists() and not path.read_bytes().endswith(b"\n")
    assert torn > 0
    finished |= Child(path).finish()
    expected = {(job.key, visit) for job in killable_campaign.JOBS for visit in range(killable_campaign.CONFIG.visits)}
    assert Counter(on_record(path)) == Counter(expected)
    assert finished <= expected

    at_once = tmp_path / "at once.jsonl"
    for each in (path, at_once):
        with Journal(each) as journal:
            measured = measure_jobs(
                killable_campaign.DeterministicHardware(), killable_campaign.JOBS, killable_campaign.CONFIG, journal
            )
        save_costs(measured, each.with_suffix(".parquet"))
    assert costs_of(path).equals(costs_of(at_once), check_metadata=True)


def costs_of(journal: Path) -> pa.Table:
    """The cost dataset, but for the time of day."""
    return pq.read_table(journal.with_suffix(".parquet")).drop_columns(["measured_at"])


@pytest.mark.slow
def test_a_second_process_keeps_off_until_the_first_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    child = Child(path)
    child.wait_for(1)
    try:
        with pytest.raises(BadFile, match="another process is writing it"):
            Journal(path)
    finally:
        child.kill()
    with Journal(path) as journal:
        assert len(journal) >= 1
