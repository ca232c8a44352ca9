"""What may pass is tried again in the same pod; the rest is reported at once."""

from __future__ import annotations

import pytest

from evenshard.base.errors import (
    BadConfig,
    EvenshardError,
    InfeasibleTask,
    MeasurementFailed,
    StorageFailed,
    TrackingFailed,
)
from evenshard.base.retry import PAUSES, with_retries


class Stage:
    """Fails as often as it is asked to, then returns its argument."""

    def __init__(self, error: EvenshardError, times: int) -> None:
        self.error, self.times, self.calls = error, times, 0

    def run(self, argument: str) -> str:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return argument


@pytest.mark.parametrize("kind", [MeasurementFailed, StorageFailed, TrackingFailed])
def test_what_may_pass_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: type[EvenshardError]
) -> None:
    monkeypatch.setenv(PAUSES, "0 0.001")
    stage = Stage(kind("away."), times=2)
    assert (with_retries(stage.run)("costs"), stage.calls) == ("costs", 3)
    assert caplog.messages == ["away. (retrying in 0 s)", "away. (retrying in 0.001 s)"]
    stage = Stage(kind("away."), times=3)
    with pytest.raises(kind, match="away"):
        with_retries(stage.run)("costs")
    assert stage.calls == 3


@pytest.mark.parametrize("kind", [BadConfig, InfeasibleTask])
def test_what_stays_is_not(monkeypatch: pytest.MonkeyPatch, kind: type[EvenshardError]) -> None:
    monkeypatch.setenv(PAUSES, "0 0")
    stage = Stage(kind("bad"), times=1)
    with pytest.raises(kind):
        with_retries(stage.run)("costs")
    assert stage.calls == 1


def test_outside_of_a_pod_nothing_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PAUSES, raising=False)
    stage = Stage(StorageFailed("away"), times=1)
    with pytest.raises(StorageFailed):
        with_retries(stage.run)("costs")
    assert stage.calls == 1


def test_a_caller_states_its_own_pauses_and_failures(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(BadConfig("at once"), times=2)
    assert with_retries(stage.run, (0, 0), lambda error: "once" in str(error))("costs") == "costs"
    assert (stage.calls, caplog.messages) == (3, [])
    stage = Stage(BadConfig("bad"), times=1)
    with pytest.raises(BadConfig):
        with_retries(stage.run, (0, 0), lambda error: "once" in str(error))("costs")
    assert stage.calls == 1
