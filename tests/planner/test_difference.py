"""When a move pays back."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from evenshard.base.errors import BadConfig
from evenshard.base.units import BYTES_PER_GB
from evenshard.cli import main
from evenshard.placement.nodes import Nodes
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.diff import diff
from evenshard.planner.difference import Difference, Payback, payback
from evenshard.planner.file import save_answer
from evenshard.planner.intervals import KERNELS_OWN, KERNELS_UNLIKE
from evenshard.price.evidence import DeviceError
from evenshard.price.link import LINKS
from evenshard.report.comparisons import payback_lines
from support.explain_builders import additive, answered, asked
from support.request_builders import untrained

THREE = {"a": 5.0, "b": 3.0, "c": 2.0}  # 10 rows of 8 dims of 32 bits: 320 bytes each
# GB per second with which a table takes a second.
LINK = 320 / BYTES_PER_GB


def paid_back(
    difference: Difference, new: PlacementAnswer, steps: int, link_gb_s: float = LINK, restart_minutes: float = 0.0
) -> tuple[Payback, str]:
    found = payback(difference, new, steps, link_gb_s=link_gb_s, restart_minutes=restart_minutes)
    assert found is not None
    return found, " ".join(payback_lines(found))


def saving(low_ms: float, ms: float, high_ms: float) -> tuple[Difference, PlacementAnswer]:
    """A move of a table of 320 bytes that saves so much of each step."""
    old, new = answered(asked(THREE, 2), (0, 0, 1)), answered(asked(THREE, 2), (0, 1, 1))
    found = diff(old, new, additive(), LINK)
    times = replace(found.times, saves_ms=ms, saves_low_ms=low_ms, saves_high_ms=high_ms)
    return replace(found, times=times), new


def test_a_move_pays_back_where_the_steps_have_saved_what_it_took() -> None:
    paid, text = paid_back(*saving(1.0, 2.0, 4.0), steps=1000, restart_minutes=0.05)
    assert (paid.transfer_seconds, paid.restart_seconds) == (pytest.approx(1), 3)
    assert paid.break_even_steps == pytest.approx(4000 / 2)
    assert (paid.soonest_steps, paid.latest_steps) == (pytest.approx(1000), pytest.approx(4000))
    assert paid.gained_seconds == pytest.approx(1000 * 0.002 - 4)
    assert (paid.gained_low_seconds, paid.gained_high_seconds) == (pytest.approx(1 - 4), pytest.approx(4 - 4))
    assert "Pays back after 2,000 steps (90 %: 1,000 to 4,000)." in text
    assert "the move takes 4 s over 2.98e-07 GB/s, including 3 s for a restart." in text
    assert "After 1,000 steps: 2 s LOST" in text
    assert "After 10,000 steps: 19 s saved (90 %: 9 s to 39 s)." in paid_back(*saving(1.0, 2.0, 4.0), steps=10_000)[1]
    quick = replace(paid, break_even_steps=0.4, soonest_steps=0.2, latest_steps=0.8)  # no step is a part of one
    assert "Pays back after 1 step (90 %: 1 to 1)." in " ".join(payback_lines(quick))


def test_an_interval_with_0_may_never_pay_back_and_a_slower_placement_does_not() -> None:
    paid, text = paid_back(*saving(-1.0, 2.0, 4.0), steps=1000)
    assert paid.break_even_steps == pytest.approx(500) and paid.latest_steps is None
    assert paid.gained_low_seconds == pytest.approx(-2)
    assert "or never: the interval of the saving includes 0" in text
    paid, text = paid_back(*saving(-3.0, -2.0, -1.0), steps=1000)
    assert paid.break_even_steps is paid.soonest_steps is paid.latest_steps is None
    assert "The new placement is slower: the move does not pay back." in text
    assert "saves -2.00 ms (90 %: -3.00 to -1.00)" in text


def test_the_interval_of_a_saving_has_the_errors_of_both_placements_and_the_device_scales_it() -> None:
    request = asked(THREE, 2)
    old = replace(answered(request, (0, 0, 1)), predicted_ms=8.0, model_low_ms=5.0, model_high_ms=12.0)
    new = replace(answered(request, (0, 1, 1)), predicted_ms=5.0, model_low_ms=2.0, model_high_ms=9.0)
    note_other_model = {"model": {"source": "other", "sha256": "other"}}
    times = diff(old, replace(new, lineage=note_other_model)).times  # which errs in ways of its own
    assert times.saves_low_ms == pytest.approx(3 - math.hypot(3, 4))
    assert times.saves_high_ms == pytest.approx(3 + math.hypot(4, 3))
    times = diff(old, new).times  # a is on both slowest devices: 5 of 8 and 5 ms, so that 0.8 * 5 * 5 / (8 * 5) is 1/2
    assert times.saves_low_ms == pytest.approx(3 - math.sqrt(9 + 16 - 3 * 4))
    assert times.saves_high_ms == pytest.approx(3 + math.sqrt(16 + 9 - 3 * 4))
    drifted = replace(old, request=asked({**THREE, "a": 5.5}, 2))  # another a
    assert diff(drifted, new).times.saves_high_ms == pytest.approx(3 + math.hypot(4, 3))
    sure = {"model_low_ms": 8.0, "model_high_ms": 8.0}, {"model_low_ms": 5.0, "model_high_ms": 5.0}
    off = DeviceError(100 * math.log(2), 20)  # a factor of two
    times = diff(replace(old, **sure[0]), replace(new, **sure[1], device_error=off)).times
    unlike = math.log(2) * math.hypot(8, 5) * math.sqrt(KERNELS_UNLIKE * (1 - 5 / 8) + KERNELS_OWN)
    ends = 3 - math.hypot(1.5, unlike), 3 + math.hypot(3, unlike)
    assert (times.saves_low_ms, times.saves_high_ms) == pytest.approx(ends)
    times = diff(replace(new, **sure[1]), replace(old, **sure[0], device_error=off)).times
    assert (times.saves_high_ms, times.saves_low_ms) == pytest.approx([-end for end in ends])


def test_the_same_placement_saves_nothing_for_sure() -> None:
    answer = answered(asked(THREE, 2), (0, 0, 1), model=untrained())
    times = diff(answer, answer, untrained()).times
    assert times.saves_low_ms == times.saves_ms == times.saves_high_ms == 0


@pytest.mark.parametrize(("nodes", "name"), [(1, "nvlink_h100"), (2, "infiniband_ndr")])
def test_bytes_go_over_the_link_of_the_machine(nodes: int, name: str) -> None:
    machine = Nodes(4, 4 // nodes, intra="nvlink_h100", inter="infiniband_ndr" if nodes > 1 else "")
    request = asked(THREE, 4, machine=machine)
    old, new = answered(request, (0, 0, 1)), answered(request, (0, 3, 1))
    paid = payback(diff(old, new, additive()), new, 10, additive())
    assert paid is not None and paid.link == name
    assert paid.transfer_seconds == pytest.approx(float(LINKS[name].bytes_ms(320, 320, 320, 4)) / 1000) != 0
    with pytest.raises(BadConfig, match="--link-gb-s"):
        payback(diff(old, new), new, 10)


def test_placements_of_other_tables_do_not_say_what_a_step_saves() -> None:
    old, new = answered(asked({"a": 5.0}, 2), (0,)), answered(asked(THREE, 2), (0, 1, 1))
    with pytest.raises(BadConfig, match=r"2 tables, such as 'b'.*--near OLD --max-move-gb 0"):
        payback(diff(old, new), new, 10, link_gb_s=1)


def test_a_replica_less_is_a_restart_and_equal_placements_have_no_move() -> None:
    old, replicated = (answered(asked(THREE, 2), (0, 0, home)) for home in (1, (0, 1)))
    assert paid_back(diff(replicated, old), old, 10, link_gb_s=1, restart_minutes=1)[0].restart_seconds == 60
    assert payback(diff(old, old), old, 10, link_gb_s=1) is None


def test_the_command_says_when_the_move_pays_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "old.json", tmp_path / "new.json"]
    for file, devices in zip(files, ((0, 0, 1), (2, 1, 0)), strict=True):
        save_answer(answered(asked(THREE, 3), devices), file)
    words = ["diff", *map(str, files), "--link-gb-s", "1"]
    assert main([*words, "--steps", "100000", "--restart-minutes", "10"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    # 8 ms become 5: 3 ms of each step; 600 s of restart.
    assert "Pays back after 200,000 steps" in text and "After 100,000 steps: 5.0 min LOST" in text
    assert main([*words, "--steps", "100000", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["payback"]["steps"] == 100_000
    assert main([*words, "--restart-minutes", "1"]) == 2
    assert "--steps" in capsys.readouterr().err
