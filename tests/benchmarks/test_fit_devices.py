"""The profiles of simulated devices against what real GPUs took, and the fits that they come from."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.references import others_measurements
from benchmarks.scripts import fit_devices
from benchmarks.scripts.fit_devices import (
    FITS,
    JUDGED,
    Point,
    fit_points,
    fit_shards,
    published_points,
    shards_of_2080_ti,
)
from evenshard.measure.calibrate.device import SHARD_TIMES, Errors, MeasuredShards, predict_times
from evenshard.price.device_model import BACKWARD_KERNELS, FORWARD_KERNELS
from evenshard.price.gpu_profile import FREE_CONSTANTS, GpuProfile, gpu_profile, is_data_sheet
from evenshard.price.hardware import profile_names, profile_path
from evenshard.price.shard_work import WorkCounter
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table
from support.truth import truth_file

BOTH = SHARD_TIMES.index("both")
DIMS = (4, 8, 16, 32, 64, 128)
SMALL_BATCH = 512
FITTED = tuple(name for name, fit in FITS.items() if fit.free)


@cache
def folder() -> Path:
    for name in (others_measurements.TABLES, others_measurements.SHARDS, others_measurements.EXCHANGES):
        truth_file(name)
    return truth_file(fit_devices.POINTS).parent


@cache
def points_of(name: str) -> tuple[Point, ...]:
    return tuple(point for point in published_points(folder()) if point.gpu in (JUDGED.get(name) or FITS[name].gpus))


# The RTX 2080 Ti -----------------------------------------------------------------------------------------------------

RTX = gpu_profile("rtx_2080_ti")


@cache
def real_tables() -> tuple[Table, ...]:
    return others_measurements.read(folder()).tables


def both_ms(shards: list[list[Table]], profile: GpuProfile = RTX) -> FloatArray:
    """[N] forward and backward together."""
    counter = WorkCounter(profile)
    columns_TC = np.concatenate([counter.columns(tables, others_measurements.BATCH_SIZE) for tables in shards])
    owners_T = np.repeat(np.arange(len(shards)), [len(tables) for tables in shards])
    return predict_times(profile, counter.shard_work(columns_TC, owners_T, len(shards)))[:, BOTH]


def random_shards(num_tables: int, count: int = 300) -> list[list[Table]]:
    rng, tables = np.random.default_rng(0), real_tables()
    return [[tables[i] for i in rng.choice(len(tables), num_tables, replace=False)] for _ in range(count)]


def of_dim(shards: list[list[Table]], dim: int, copies: int = 1) -> list[list[Table]]:
    return [[replace(table, embedding_dim=dim) for table in shard for _ in range(copies)] for shard in shards]


@pytest.mark.slow
def test_shards_of_the_rtx_2080_ti_take_as_long_as_they_really_did() -> None:
    measured: MeasuredShards = shards_of_2080_ti(folder(), RTX)
    predicted_ms_N, real_ms_N = predict_times(RTX, measured.work)[:, BOTH], measured.times_ms_NM[:, BOTH]
    errors = Errors.of(predicted_ms_N, real_ms_N)
    assert len(measured) == 8000
    assert errors.median_percent <= 5 and errors.p90_percent <= 14
    assert np.median(predicted_ms_N / real_ms_N) == pytest.approx(1, abs=0.03)
    ranks = [np.argsort(np.argsort(ms_N)) for ms_N in (predicted_ms_N, real_ms_N)]
    assert np.corrcoef(*ranks)[0, 1] >= 0.994


def test_tables_alone_and_hardly_looked_up_take_as_long_as_they_really_did() -> None:
    """The fit left out half of these; another one, all shards with a fifth of the tables, and had smaller errors."""
    measured = shards_of_2080_ti(folder(), RTX)
    predicted_ms_N, real_ms_N = predict_times(RTX, measured.work)[:, BOTH], measured.times_ms_NM[:, BOTH]
    held_out_N = np.random.default_rng(0).permutation(len(measured)) % 2 == 1
    few_N = measured.work.lookups < fit_devices.FEW_LOOKUPS * others_measurements.BATCH_SIZE
    for some_N, median, p90 in ((measured.work.num_tables == 1, 8, 25), (few_N, 10, 25)):
        own_N = some_N & held_out_N
        assert own_N.sum() > 500
        errors = Errors.of(predicted_ms_N[own_N], real_ms_N[own_N])
        assert errors.median_percent <= median and errors.p90_percent <= p90
    nothing_N = measured.work.lookups == 0
    assert nothing_N.sum() > 50 and real_ms_N[nothing_N].max() < 0.8
    assert Errors.of(predicted_ms_N[nothing_N], real_ms_N[nothing_N]).median_percent < 20


def test_errors_do_not_grow_with_the_tables_of_a_shard() -> None:
    measured = shards_of_2080_ti(folder(), RTX)
    ratio_N = predict_times(RTX, measured.work)[:, BOTH] / measured.times_ms_NM[:, BOTH]
    for first, last in ((4, 7), (8, 11), (12, 15)):
        some_N = (measured.work.num_tables >= first) & (measured.work.num_tables <= last)
        assert np.median(ratio_N[some_N]) == pytest.approx(1, abs=0.02)


def test_wider_tables_take_longer_but_far_less_so_than_they_have_more_bytes() -> None:
    """5 tables of dim 4 to 128 really took 9.40, 9.48, 9.66, 10.03, 10.95 and 14.38 ms: x 1.53."""
    means_ms = [float(both_ms(of_dim(random_shards(5), dim)).mean()) for dim in DIMS]
    assert means_ms == sorted(means_ms)
    assert 1.4 < means_ms[-1] / means_ms[0] < 1.7
    assert means_ms[-2] / means_ms[0] < 1.25


def test_two_halves_of_the_columns_cost_more_than_the_whole() -> None:
    """Each looks up all rows. Of a small table alone, what a call costs anyway hides it."""
    shards = random_shards(5)
    halves = both_ms(of_dim(shards, 64, copies=2)) / both_ms(of_dim(shards, 128))
    assert 1.25 < np.median(halves) < 1.45 and halves.min() > 1.15
    single = [[table] for table in real_tables() if table.pooling_factor >= 20]
    of_one = both_ms(of_dim(single, 64, copies=2)) / both_ms(of_dim(single, 128))
    assert len(single) > 100 and 1.25 < np.median(of_one) < 1.45


# Published kernels and calls -----------------------------------------------------------------------------------------


def ratios(name: str, points: list[Point]) -> FloatArray:
    """Predicted times of a profile, in parts of the published ones."""
    return np.array([fit_devices._predicted_ms(gpu_profile(name), point) / point.ms for point in points])


def off(name: str, points: list[Point]) -> float:
    """Median error."""
    return float(np.median(np.abs(ratios(name, points) - 1)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"),
    [pytest.param("v100", 38, marks=pytest.mark.slow), ("a100_80gb", 25), ("a100_40gb", 25), ("h100", 12)],
)
def test_kernels_and_calls_take_as_long_as_published_forward_and_backward_apart(name: str, count: int) -> None:
    points = points_of(name)
    assert len(points) == count
    for kernels in ((*FORWARD_KERNELS, "forward"), (*BACKWARD_KERNELS, "backward")):
        own = [point for point in points if point.time in kernels]
        assert len(own) >= 6 and off(name, own) <= 0.15
        assert np.median(ratios(name, own)) == pytest.approx(1, abs=0.15)


def test_small_batches_take_as_long_as_published() -> None:
    """128 to 512 samples on V100: floors, the host, and the longest bag."""
    small = [point for point in points_of("v100") if point.batch_size <= SMALL_BATCH]
    for kernels in (FORWARD_KERNELS, ("forward", "backward")):
        own = [point for point in small if point.time in kernels]
        assert len(own) >= 7 and off("v100", own) <= 0.15


def test_adam_takes_longer_than_sgd_as_published() -> None:
    by_optimizer = {
        optimizer: [point for point in points_of("h100") if point.time == "backward" and point.optimizer == optimizer]
        for optimizer in ("sgd", "adam")
    }
    pairs = [
        (sgd, adam)
        for sgd in by_optimizer["sgd"]
        for adam in by_optimizer["adam"]
        if (sgd.tables, sgd.batch_size) == (adam.tables, adam.batch_size)
    ]
    assert len(pairs) == 2
    for sgd, adam in pairs:
        really, predicted = (
            adam.ms / sgd.ms,
            float(np.divide(*(ratios("h100", [one])[0] * one.ms for one in (adam, sgd)))),
        )
        assert really > 1.5 and predicted == pytest.approx(really, rel=0.15)


def test_sequences_take_as_long_as_published_whatever_rows_they_look_up() -> None:
    """26.3 million rows on one of 8 B200, by its data sheet."""
    truth_file(fit_devices.LATER_POINTS)
    times = fit_devices.sequence_times(folder(), gpu_profile("b200"))
    for ms in times.by_alpha_ms.values():
        assert ms == pytest.approx(times.measured_ms, rel=0.25)
    assert times.pooled_ms > 1.3 * times.measured_ms, "were each lookup a bag"


# Fits ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "rtx_2080_ti" else [pytest.mark.slow]) for name in FITTED]
)
def test_a_fit_finds_the_constants_of_the_profile_and_its_errors(name: str) -> None:
    """Within 8 %: what its measurements hardly tell depends on what else was fitted with it."""
    fit, start, shipped = FITS[name], fit_devices._start(name), gpu_profile(name)
    found = fit_points(start, points_of(name), fit) if fit.gpus else fit_shards(start, folder(), fit)
    for constant in FREE_CONSTANTS:
        expected = pytest.approx(getattr(shipped, constant), rel=0.08, abs=1e-3)
        assert getattr(found.profile, constant) == expected, constant
    (stated,) = shipped.evidence
    assert found.evidence is not None
    assert (found.evidence.fitted, found.evidence.held_out) == (stated.fitted, stated.held_out)
    assert found.evidence.median_error_percent is not None and found.evidence.p90_error_percent is not None
    assert stated.median_error_percent is not None and stated.p90_error_percent is not None
    # The errors that a profile states are not smaller than those of its fit.
    assert found.evidence.median_error_percent - 1 < stated.median_error_percent <= 15
    assert found.evidence.p90_error_percent - 1 < stated.p90_error_percent


def test_every_profile_has_a_fit_and_the_others_constants_that_it_takes() -> None:
    assert {*FITS, *JUDGED} == {name for name in profile_names() if not is_data_sheet(profile_path(name))}
    for name, fit in FITS.items():
        if fit.takes_from:
            found, other = gpu_profile(name), gpu_profile(fit.takes_from)
            differ = {one for one in FREE_CONSTANTS if getattr(found, one) != getattr(other, one)}
            assert differ <= set(fit.free), name
        assert gpu_profile(name).extrapolated_from == fit.extrapolated_from


@pytest.mark.slow
def test_writing_a_profile_again_makes_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("v100", "a100_40gb")
    for name in {*names, *(FITS[name].takes_from for name in names if FITS[name].takes_from)}:
        shutil.copy(profile_path(name), tmp_path)
    monkeypatch.setattr(fit_devices, "profile_path", lambda name: tmp_path / f"{name}.yaml")
    monkeypatch.setattr("sys.argv", ["fit_devices", "--truth", str(folder()), "--write", *names])
    fit_devices.main()
    for name in names:
        shipped, again = (yaml.safe_load(path.read_text()) for path in (profile_path(name), tmp_path / f"{name}.yaml"))
        assert again == shipped


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--truth", "nowhere"], "nowhere/gpu_points.csv: no such file"),
        (["--truth", "here", "tpu"], "tpu is not a profile"),
    ],
)
def test_a_missing_folder_and_an_unknown_profile_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / fit_devices.POINTS).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fit_devices", *words])
    with pytest.raises(SystemExit) as refused:
        fit_devices.main()
    assert refused.value.code == 2 and reason in capsys.readouterr().err
