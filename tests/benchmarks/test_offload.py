"""The study of tables that do not fit: its models, its journal, and the table that it makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.scripts import offload
from benchmarks.scripts.offload import (
    EVENSHARD,
    MODELS,
    TORCHREC,
    Model,
    append,
    counted_miss_ratios,
    line_of,
    parts_of,
    read,
    report,
    settings_of,
    torchrec_lines,
)
from evenshard.placement.plan import check_sharding
from evenshard.sharders.torchrec_planner import machine_bandwidths
from evenshard.sharders.torchrec_rival import TorchRecPlanner
from evenshard.tables.cache import LOAD_FACTORS, miss_ratio

SMALL = Model("mixed_4 2", "power 1.1", 2, 1.5, "rowwise_adagrad")


def test_twenty_models_do_not_fit() -> None:
    assert len(MODELS) == len(set(map(str, MODELS))) == 20
    small = [model for model in MODELS if not model.tables.startswith("nvidia")]
    assert all(1.2 <= model.times_larger <= 10 for model in small)
    assert {model.optimizer for model in MODELS} == {"sgd", "rowwise_adagrad", "adam"}


def test_a_counted_curve_is_that_of_a_simulated_cache() -> None:
    """1000 rows drawn with probability r**-1, 300 a batch, through an LRU cache of 20 % of the rows."""
    rng, rows, lookups = np.random.default_rng(0), 1000, 300
    weights = 1.0 / np.arange(1, rows + 1)
    last_used, missed, seen = np.full(rows, -1), 0, 0
    for batch in range(400):
        drawn = np.unique(rng.choice(rows, lookups, p=weights / weights.sum()))
        cached = np.argsort(-last_used)[:200]
        if batch >= 100:
            missed, seen = missed + len(np.setdiff1d(drawn, cached)), seen + len(drawn)
        last_used[drawn] = batch
    curve = counted_miss_ratios(rows, lookups, 1.0)
    assert curve[LOAD_FACTORS.index(0.2)] == pytest.approx(missed / seen, abs=0.02)
    assert curve[-1] == 0 and sorted(curve, reverse=True) == list(curve)
    table = offload.looked_up(SMALL.request.tables[0], "counted 1", 4096)
    assert miss_ratio(table, 4096, 0.2) == curve_at(table.miss_ratios, 0.2)
    assert SMALL.request.tables[0].miss_ratios is None


def curve_at(curve: tuple[float, ...] | None, load_factor: float) -> float:
    assert curve is not None
    return curve[LOAD_FACTORS.index(load_factor)]


def test_a_journal_goes_on_and_its_placements_are_priced_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload, "MODELS", (SMALL,))
    journal, settings = tmp_path / "folder" / "journal.jsonl", settings_of(SMALL)
    bandwidths = machine_bandwidths(offload.HARDWARE, SMALL.task.machine, SMALL.links)
    planner = TorchRecPlanner(SMALL.task, bandwidths)
    ours = next(one for one in settings if one.memory == "evenshard")
    plan = planner.plan(ours)
    check_sharding(SMALL.task, plan.parts)
    line = line_of(SMALL, TORCHREC, str(ours), plan.parts, plan.rating_ms, 1.0)
    assert parts_of(line) == plan.parts and line.fits
    append(journal, replace(line, true_ms=99.0))
    append(journal, replace(line, side=EVENSHARD, setting="", true_ms=None, seconds=2.0))
    known = [replace(line, setting=str(one)) for one in settings[:-1]]
    assert [one.setting for one in torchrec_lines(SMALL, known, 5)] == [str(settings[-1])]
    row = next(row for row in report(read(journal)) if "mixed_4" in row)
    ms = f"{line.true_ms:.3f}"
    assert f"| {ms} | {ms} | +0.0 % |  |  | 0 of 0 | 2 | 1 |" in row
    assert str(SMALL) in capsys.readouterr().out
