"""The host's stopwatch, and the flush that a CPU does not need."""

from __future__ import annotations

import pytest
import torch

from evenshard.measure import clock
from evenshard.measure.clock import Stopwatch

CPU = torch.device("cpu")


def test_laps_are_the_milliseconds_between_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([10.0, 10.5, 10.75, 13.0])
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(seconds))
    watch = Stopwatch(CPU)
    for _ in range(4):
        watch.mark()
    laps = watch.laps_ms()
    monkeypatch.undo()
    assert laps == [500.0, 250.0, 2250.0]


def test_one_mark_is_no_lap_and_each_stopwatch_has_its_own() -> None:
    for _ in range(2):
        watch = Stopwatch(CPU)
        watch.mark()
        assert watch.laps_ms() == []
