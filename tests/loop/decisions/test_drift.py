"""Drift: what lies outside of a model's training data, what is rare there, and what a new placement would move."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evenshard.cli import main
from evenshard.loop.decisions.drift import Drift, compute_drift
from evenshard.planner.file import load_answer
from evenshard.sharders.training_domain import TrainingDomain, mean_reuse
from evenshard.tables.files import save_tables
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.reuse import NUM_REUSE_BINS
from evenshard.tables.table import Table
from support.builders import BATCH_SIZE, cost, measured, some_tables, table, task
from support.learned import LEARNED

DIMS = (4, 8, 16, 32, 64)


def pool(count: int, seed: int = 0) -> tuple[Table, ...]:
    return generate_tables(GeneratorConfig(count, DIMS, 100_000, 32), BATCH_SIZE, seed)


def trained_on(tables: Sequence[Table]) -> TrainingDomain:
    return TrainingDomain.of([measured(task(tables), [n % 2 for n in range(len(tables))], cost(1.0, 1.0))])


SEEN = trained_on(pool(400))
NOW = pool(200, seed=1)


def drift(tables: Sequence[Table], seen: TrainingDomain = SEEN, batch_size: int = BATCH_SIZE) -> Drift:
    return compute_drift(seen, tables, batch_size)


def all_reused(times: int) -> tuple[float, ...]:
    """Every index of a batch is looked up up to 2**times times."""
    return tuple(float(one == times) for one in range(NUM_REUSE_BINS))


def test_tables_of_the_same_kind_are_covered() -> None:
    found = drift(NOW)
    assert not found.retrain_due and found.reasons == ()
    assert found.num_tables == 200 and found.rare_pct is not None and found.rare_pct < 3
    assert [one.name for one in found.quantities] == ["num_rows", "embedding_dim", "pooling_factor", "reuse"]
    dims = found.quantities[1]
    assert dims.trained_on is not None and dims.now is not None
    assert (dims.trained_on.low, dims.trained_on.high, dims.now.low, dims.now.high) == (4, 64, 4, 64)
    assert dims.num_outside == 0 and dims.num_rare == 0
    counted = trained_on([table(f"t{number}", rows=number, dim=4) for number in range(1, 101)])
    assert counted.num_rows_quantiles == (1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 100)
    assert set(counted.embedding_dim_quantiles) == {4} and set(counted.reuse_quantiles) == {1}
    largest = drift([table(rows=100, dim=4)], counted).quantities[0]
    assert largest.num_rare == 0  # many are a little smaller
    for bins, reuse in ((all_reused(1), 2), ((0.5, 0.5, *(0.0,) * 15), 1.5), (None, None)):
        assert mean_reuse(replace(table(pooling=100.0), reuse_bins=bins), 64) == reuse


@pytest.mark.parametrize(
    ("change", "quantity"),
    [
        (lambda one: {"num_rows": one.num_rows * 30}, 0),
        (lambda one: {"embedding_dim": one.embedding_dim * 8}, 1),
        (lambda one: {"pooling_factor": one.pooling_factor * 10}, 2),
        (lambda one: {"pooling_factor": one.pooling_factor / 1000}, 2),
        (lambda one: {"reuse_bins": all_reused(16)}, 3),
    ],
)
def test_each_quantity_is_watched(change: Callable[[Table], dict[str, Any]], quantity: int) -> None:
    found = drift([replace(one, **change(one)) for one in NOW])
    assert found.retrain_due and found.outside_load_pct > 5
    assert found.quantities[quantity].num_outside > 0
    assert len(found.reasons) >= 2 and "of the load is in" in found.reasons[0]


def test_weights_batch_and_devices_are_watched_and_unread_tables_are_not() -> None:
    found = drift([replace(one, weight_bits=8) for one in NOW])
    assert found.retrain_due and found.outside_load_pct == pytest.approx(100)
    assert any("weights of 8 bits" in reason for reason in found.reasons)
    for many, words in (
        (drift(NOW, batch_size=BATCH_SIZE * 10), "samples is larger"),
        (compute_drift(SEEN, NOW, BATCH_SIZE, 64), "64 devices"),
    ):
        assert many.retrain_due and words in many.reasons[0]
    assert not compute_drift(SEEN, NOW, BATCH_SIZE, 2).retrain_due
    unread = [replace(one, name=f"{one.name}-unread", pooling_factor=0.0) for one in NOW]
    assert not drift([*NOW, *unread]).retrain_due
    only = drift(unread)
    assert not only.retrain_due and only.outside_load_pct == 0
    assert only.quantities[2].now is None and only.quantities[3].now is None


def test_what_is_hardly_read_does_not_matter() -> None:
    """One huge dim among 200 tables: with few lookups it is a remark, with many a reason."""
    idle = replace(table("idle", 1000, 1024, 0.5), reuse_bins=None)
    busy = replace(idle, pooling_factor=50.0)
    load = sum(one.pooling_factor * one.embedding_dim for one in NOW)
    found = drift([*NOW, idle])
    assert not found.retrain_due
    assert found.outside_load_pct == pytest.approx(100 * 512 / (load + 512))
    assert found.quantities[1].num_outside == 1 and any("a larger dim" in one for one in found.remarks)
    assert drift([*NOW, busy]).retrain_due


def test_a_range_that_one_table_made_covers_little() -> None:
    """400 tables of up to 64 dims and one of 1024: there, nearly nothing has been seen."""
    seen = trained_on([*pool(400), table("one", 1000, 1024, 5.0)])
    wide = [replace(one, embedding_dim=300) for one in NOW]
    found = drift(wide, seen)
    assert found.quantities[1].num_outside == 0 and found.outside_load_pct < 5
    assert found.rare_pct == pytest.approx(100, abs=3) and found.quantities[1].num_rare == 200
    assert found.retrain_due and any("hardly any similar table" in reason for reason in found.reasons)
    unexpected = drift(wide, replace(seen, embedding_dim_quantiles=()))
    assert unexpected.quantities[1].num_rare is None and not unexpected.retrain_due


def test_a_table_outside_is_not_rare_too() -> None:
    """It is outside in its dim, and rare in its rows: it counts once."""
    seen = trained_on([*pool(400), table("one", 10**9, 8, 5.0)])
    rare = [replace(one, num_rows=5 * 10**8) for one in NOW]
    assert drift(rare, seen).rare_pct == pytest.approx(100, abs=3)
    found = drift([replace(one, embedding_dim=5000) for one in rare], seen)
    assert (found.quantities[1].num_outside, found.quantities[1].num_rare) == (len(NOW), 0)
    assert found.quantities[0].num_rare and found.rare_pct == 0


def test_how_much_is_tolerated_and_what_ranges_alone_tell() -> None:
    """A tenth of the load outside: 5 % are tolerated, or as many as one says."""
    load = sum(one.pooling_factor * one.embedding_dim for one in NOW)
    tenth = replace(table("tenth", 1000, 1024, load / 9 / 1024), reuse_bins=None)
    assert drift([*NOW, tenth]).outside_load_pct == pytest.approx(10)
    for tolerated_pct, due in ((5.0, True), (9.5, True), (10.5, False)):
        assert compute_drift(SEEN, [*NOW, tenth], BATCH_SIZE, tolerated_pct=tolerated_pct).retrain_due == due
    names = ("num_rows", "embedding_dim", "pooling_factor", "reuse")
    without: dict[str, Any] = dict.fromkeys((f"{name}_quantiles" for name in names), ())
    old = drift(NOW, replace(SEEN, **without))
    assert not old.retrain_due and old.rare_pct is None
    assert old.quantities[3].trained_on is None and old.quantities[0].num_rare is None
    assert any("ranges" in remark for remark in old.remarks)


@pytest.fixture
def tables(workdir: Path) -> Path:
    """Twelve tables in a file."""
    save_tables(some_tables(12), workdir / "tables.csv")
    return workdir


AGAINST = ["--against", str(LEARNED), "--batch-size", "4096"]
PLACE = ["place", "tables.csv", "--batch-size", "4096", "-o", "old.json"]


def test_covered_is_0_and_not_covered_is_3(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drift", "--tables", "tables.csv", *AGAINST]) == 0
    assert f"12 tables are covered by {LEARNED}" in capsys.readouterr().out
    save_tables([replace(one, embedding_dim=8192) for one in some_tables(12)], Path("wide.csv"))
    assert main(["drift", "--tables", "wide.csv", *AGAINST, "--json"]) == 3
    printed = json.loads(capsys.readouterr().out)
    assert printed["retrain_due"] and printed["outside_load_pct"] == pytest.approx(100)
    assert printed["model"]["source"] == str(LEARNED) and printed["difference"] is None
    assert main(["drift", "--tables", "tables.csv", *AGAINST, "--devices", "1000"]) == 3
    of_model = ["drift", "--tables", "tables.csv", "--against", str(LEARNED)]  # and its batch
    assert main(of_model) == 0 and main([*of_model, "--batch-size", "1"]) == 3


@pytest.mark.slow
@pytest.mark.full_search
def test_a_new_placement_says_what_moves_and_what_it_saves(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The busiest tables have become idle and the idle ones busy; one is gone, with the rule that pinned it."""
    place = [*PLACE, "--devices", "3", "--memory-cap-gb", "1", "--model", str(LEARNED)]
    assert main([*place, "--pin", "t0=1", "--pin", "t3=2", "--together", "t1,t0"]) == 0
    ranked = sorted(some_tables(12), key=lambda one: -one.pooling_factor)
    lookups = [5 * one.pooling_factor for one in ranked[::-1]]
    now = [replace(one, pooling_factor=rate) for one, rate in zip(ranked, lookups, strict=True) if one.name != "t0"]
    save_tables(now, Path("now.csv"))
    capsys.readouterr()
    command = ["drift", "--tables", "now.csv", "--against", str(LEARNED), "--placement", "old.json"]
    assert main([*command, "-o", "new.json", "--link-gb-s", "10"]) == 0
    shown = capsys.readouterr().out
    assert "Removed: t0 (1 table)" in shown and "Moves" in shown and "Embedding work takes" in shown
    old, new = load_answer(Path("old.json")), load_answer(Path("new.json"))
    assert new.num_devices == 3 and new.request.caps_bytes == old.request.caps_bytes
    assert new.request.batch_size == 4096 and main([*command, "--batch-size", "4800", "-o", "new.json"]) == 0
    assert load_answer(Path("new.json")).request.batch_size == 4800
    assert dict(new.request.rules.pinned) == {"t3": (2,)} and new.request.rules.together == ()


def test_tables_that_do_not_fit_any_more_are_expected(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLACE, "--devices", "2"]) == 0
    save_tables([replace(one, num_rows=400_000_000) for one in some_tables(12)], Path("grown.csv"))
    capsys.readouterr()
    command = ["drift", "--tables", "grown.csv", "--against", str(LEARNED), "--placement", "old.json"]
    assert main([*command, "-o", "new.json"]) == 2
    shown = capsys.readouterr().out
    assert "are covered" in shown and "No new placement:" in shown
    assert not Path("new.json").exists()  # with exit code 0, a job would go on with that of the last time
    for argv, expected in (
        (["--against", "nowhere"], "nowhere: no such folder"),
        (["--against", str(LEARNED), "--out", "x.json"], "Name it with --placement"),
        (["--against", "models:/evenshard-cost@champion"], "or name a model's folder"),
    ):
        assert main(["drift", "--tables", "tables.csv", *argv]) == 2
        err = capsys.readouterr().err
        assert expected in err and err.count("\n") == 1
