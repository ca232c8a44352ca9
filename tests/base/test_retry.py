"""What may pass is tried again in the same pod; the rest is reported at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from evenshard.base.errors import BadConfig, InfeasibleTask, MeasurementFailed, StorageFailed, TrackingFailed
from evenshard.base.retry import PAUSES, with_retries


def calls_of(error: Exception, times: int, *how: Sequence[float] | Callable[[Exception], bool]) -> tuple[str, int]:
    """Return the result of a stage that fails so often, or its error, and the number of calls."""
    calls: list[str] = []

    def stage(argument: str) -> str:
        calls.append(argument)
        if len(calls) <= times:
            raise error
        return argument

    try:
        return with_retries(stage, *how)("costs"), len(calls)  # type: ignore[arg-type]
    except type(error) as raised:
        assert raised is error
        return "failed", len(calls)


def test_what_may_pass_is_tried_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(PAUSES, "0 0.001")
    for kind in (MeasurementFailed, StorageFailed, TrackingFailed):
        caplog.clear()
        assert calls_of(kind("away."), 2) == ("costs", 3)
        assert caplog.messages == ["away. (retrying in 0 s)", "away. (retrying in 0.001 s)"]
        assert calls_of(kind("away."), 3) == ("failed", 3)
    for lasting in (BadConfig("bad"), InfeasibleTask("bad")):
        assert calls_of(lasting, 1) == ("failed", 1)
    monkeypatch.delenv(PAUSES)
    assert calls_of(StorageFailed("away"), 1) == ("failed", 1), "outside of a pod"


def test_a_caller_states_its_own_pauses_and_failures(caplog: pytest.LogCaptureFixture) -> None:
    assert calls_of(BadConfig("at once"), 2, (0, 0), lambda error: "once" in str(error)) == ("costs", 3)
    assert calls_of(BadConfig("bad"), 1, (0, 0), lambda error: "once" in str(error)) == ("failed", 1)
    assert caplog.messages == []
