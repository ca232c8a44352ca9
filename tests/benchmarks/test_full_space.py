"""The study of every way to shard: its journal, and the table that it makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.scripts.full_space import (
    BEST_KNOWN,
    EVENSHARD,
    TORCHREC,
    Case,
    append,
    parts_of,
    read,
    report,
    torchrec_lines,
)
from evenshard.sharders.torchrec.settings import PlannerSetting, free_hands


@pytest.mark.slow
def test_a_journal_goes_on_and_its_placements_are_priced_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case, journal = Case.of("mixed_4", 8), tmp_path / "folder" / "journal.jsonl"
    settings = [str(setting) for setting in free_hands(case.task, thorough=True)]
    plan = case.torchrec().plan(PlannerSetting())
    first = case.line(TORCHREC, settings[0], plan.parts, 1.0)
    append(journal, replace(first, true_ms=99.0))
    assert read(journal) == [replace(first, true_ms=99.0)] and parts_of(first) == plan.parts
    assert first.rating_ms == pytest.approx(plan.rating_ms)
    known = [replace(first, setting=setting) for setting in settings[:-1]]
    assert [line.setting for line in torchrec_lines(case, known, 5)] == settings[-1:]
    append(journal, replace(first, side=EVENSHARD, setting="", true_ms=None))
    append(journal, replace(first, side=BEST_KNOWN, setting=""))
    ms = f"{first.true_ms:.3f}"
    row = next(row for row in report(read(journal)) if row.startswith("| mixed_4 |"))
    assert row == f"| mixed_4 | 8 | {ms} | {ms} | {ms} | {ms} | {ms} | +0.0 % | {ms} | 0.0 % |"
    assert "mixed_4 8 best_known" in capsys.readouterr().out
