"""What tables outside of device memory cost, against what a real GPU took, and the fit that it comes from."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks.scripts import fit_offload
from benchmarks.scripts.fit_offload import (
    BATCHES,
    HELD_OUT,
    OF_CACHE,
    OF_LINK,
    Configuration,
    Measurement,
    compare_other_gpu,
    expected_cold_miss,
    expected_miss,
    expected_uniques,
    fit,
    measurements,
    outside,
    predictions,
    report,
    shipped_constants,
    timed_cases,
)
from evenshard.placement.storage import FUSED_UVM, FUSED_UVM_CACHING
from support.dvc_store import stored
from support.repository import ROOT
from support.truth import truth_file

PAGE = ROOT / "benchmarks" / "offload_h100_202611.md"


@cache
def every() -> tuple[Measurement, ...]:
    return tuple(measurements(truth_file(fit_offload.POINTS).parent))


def errors(label: str, kernel: str) -> np.ndarray:
    """Of whole times of tables that are kept so."""
    own = [one.storage.kernel == kernel for one in outside(every())]
    off = np.abs(predictions(every())[label] / [one.times_ms for one in outside(every())] - 1)[own]
    return np.asarray(off[np.isfinite(off)])


@pytest.mark.slow
def test_times_of_an_h100_are_as_published() -> None:
    """Whole times, forward and backward, of UVM and of caches that miss more and less, with large and small batches."""
    kinds = {
        (one.storage.kernel, one.run.footprint_ratio, one.run.load_factor, one.run.optimizer)
        for one in outside(every())
    }
    sizes = ((FUSED_UVM, 0.0, 0.0), *((FUSED_UVM_CACHING, *one) for one in ((0.8, 0.0), (1.0, 0.0), (0.0, 0.125))))
    assert kinds == {(*size, optimizer) for size in sizes for optimizer in ("sgd", "adam")}
    assert {one.run.batch_size for one in outside(every())} == {65_536, 104_857, 1_048_576}
    for kernel in (FUSED_UVM, FUSED_UVM_CACHING):
        assert errors("fit", kernel).size == 24
        assert np.median(errors("fit", kernel)) <= 0.02 and errors("fit", kernel).max() <= 0.08
        assert np.median(errors("simulated device", kernel)) <= 0.03
        assert errors("simulated device", kernel).max() <= 0.175


@pytest.mark.slow
def test_times_of_other_tables_and_another_optimizer_are_as_published() -> None:
    for kernel in (FUSED_UVM, FUSED_UVM_CACHING):
        for label in HELD_OUT:
            off = errors(f"fit to {label}", kernel)
            assert np.median(off) <= 0.045 and off.max() <= 0.08
    assert set(HELD_OUT) == {"other tables", "other optimizer"}


def test_the_fit_finds_the_constants_that_evenshard_has() -> None:
    found = fit(outside(every()), every())
    for constant in OF_LINK + OF_CACHE:
        assert getattr(shipped_constants(), constant) == pytest.approx(getattr(found, constant), rel=0.01), constant


def test_batches_are_drawn_as_the_published_ones_were() -> None:
    published = [one for one in every() if one.uniques]
    assert len({one.uniques for one in published}) == 4
    for one in published:
        assert expected_uniques(one.run) == pytest.approx(one.uniques, rel=1e-4)


@pytest.mark.slow
def test_the_report_has_a_line_for_each_time() -> None:
    assert report(every()).count(" forward ") == report(every()).count(" backward ") == 24
    assert compare_other_gpu(truth_file(fit_offload.POINTS).parent).count("x 0.") == 4


# The cache, by a simulation of it ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.6, 0.8, 1.0])
def test_a_cache_of_sets_misses_what_is_expected(ratio: float) -> None:
    """LRU sets of 32 rows, batches of a power law that come round three times; the last round counts."""
    run = Configuration(1, 300_000, 16, 3000, 1.05, "sgd", ratio)
    rng, power = np.random.default_rng(0), 1 - run.alpha
    draws = (rng.random((BATCHES, run.batch_size)) * (float(run.num_rows) ** power - 1) + 1) ** (1 / power)
    batches = [np.unique(batch).tolist() for batch in draws.astype(np.int64)]
    assert np.mean([len(batch) for batch in batches]) == pytest.approx(expected_uniques(run), rel=0.01)
    footprint = sorted({row for batch in batches for row in batch})
    sets = -(-round(ratio * len(footprint)) // 32)
    set_of_row = dict(zip(footprint, rng.integers(sets, size=len(footprint)).tolist(), strict=True))
    used: list[dict[int, int]] = [{} for _ in range(sets)]
    missed = looked_up = cold = 0
    for step in range(3 * BATCHES):
        batch = batches[step % BATCHES]
        missing = [row for row in batch if row not in used[set_of_row[row]]]
        for row in batch:
            if row in used[set_of_row[row]]:
                used[set_of_row[row]][row] = step
        for row in missing:
            own = used[set_of_row[row]]
            if len(own) == 32:
                del own[min(own, key=own.__getitem__)]
            own[row] = step
        cold += len(missing) if step < BATCHES else 0
        if step >= 2 * BATCHES:
            missed, looked_up = missed + len(missing), looked_up + len(batch)
    assert expected_miss(run) == pytest.approx(missed / looked_up, abs=0.015)
    assert expected_cold_miss(run) == pytest.approx(cold / looked_up, abs=0.015)


def test_without_a_cache_nothing_is_missed() -> None:
    assert expected_miss(Configuration(1, 300_000, 16, 3000, 1.05, "sgd", 0.0)) == 0


def test_a_missing_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fit_offload", "--truth", str(tmp_path)])
    with pytest.raises(SystemExit) as refused:
        fit_offload.main()
    assert refused.value.code == 2 and "no such file" in capsys.readouterr().err


def test_what_was_timed_here_is_as_the_page_says(tmp_path: Path) -> None:
    files = []
    for name in ("h100", "h100_second", "h200"):
        (tmp_path / f"{name}.jsonl.gz").symlink_to(stored(f"kernels/{name}.jsonl.gz"))
        files.append(tmp_path / f"{name}.jsonl.gz")
    lines = timed_cases(files).splitlines()[1:]
    page = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines()]
    found = [re.split("  +", line.strip()) for line in lines]
    assert len(found) == 7 and all(one in page for one in found)
