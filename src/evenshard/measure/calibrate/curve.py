"""The curve of a collective, fitted to times of many sizes."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from evenshard.measure.link_model import Curve
from evenshard.tables.reuse import FloatArray
from evenshard.utils.errors import MeasurementFailed

# A curve has as few points as bring the mean error of each size below this, or into its noise.
OFF, MOST_POINTS = 0.08, 4
MOST_SIZES = 18


def fit_curve(collective: str, num_devices: int, moved_P: FloatArray, us_P: FloatArray) -> Curve:
    """Fit points among [P] moved bytes, and times there, with the least squared relative error; no time falls.

    Raises:
        MeasurementFailed: if the times do not grow with the sizes.
    """
    sizes_S = np.unique(moved_P)
    sizes_S = sizes_S[np.unique(np.linspace(0, len(sizes_S) - 1, MOST_SIZES).round().astype(int))]
    size_P = np.abs(np.log(moved_P[:, None] / sizes_S)).argmin(axis=1)
    best = _Fit.of(np.zeros(1), moved_P, us_P)
    for more in range(1, min(MOST_POINTS, len(sizes_S) - 2) + 1):
        if best.grows and best.is_close(size_P):
            break
        inner = combinations(sizes_S[1:-1].tolist(), more)
        fits = (_Fit.of(np.array([0.0, *points]), moved_P, us_P) for points in inner)
        best = min(fits, key=lambda one: (not one.grows, one.residual))
    ns_per_byte = float(best.steps_K[-1]) * 1e3
    if not best.grows:
        raise MeasurementFailed(
            f"{collective} of {num_devices} does not take longer when it is larger: noise, or too small a range. Raise "
            "--max-mb, or measure on a quieter machine."
        )
    us = np.cumsum(best.steps_K[:-1])
    kb = tuple(float(f"{one / 1e3:.6g}") for one in best.points_K)
    return Curve(collective, num_devices, kb, tuple(float(f"{one:.4g}") for one in us), float(f"{1 / ns_per_byte:.4g}"))


class _Fit:
    """Steps of time from point to point; the last is that of each further byte, us."""

    def __init__(self, points_K: FloatArray, steps_K: FloatArray, residual: float, ratio_P: FloatArray) -> None:
        self.points_K, self.steps_K, self.residual, self.ratio_P = points_K, steps_K, residual, ratio_P

    @staticmethod
    def of(points_K: FloatArray, moved_P: FloatArray, us_P: FloatArray) -> _Fit:
        from scipy.optimize import nnls

        lengths_K = np.diff(points_K)
        passed_PK = np.clip((moved_P[:, None] - points_K[:-1]) / lengths_K, 0, 1)
        beyond_P1 = np.maximum(moved_P - points_K[-1], 0)[:, None]
        columns_PK = np.concatenate([np.ones_like(beyond_P1), passed_PK, beyond_P1], axis=1) / us_P[:, None]
        scale_K = columns_PK.max(axis=0)
        scale_K[scale_K == 0] = 1.0
        steps_K, residual = nnls(columns_PK / scale_K, np.ones(len(us_P)))
        return _Fit(points_K, steps_K / scale_K, float(residual), columns_PK @ (steps_K / scale_K))

    @property
    def grows(self) -> bool:
        return bool(self.steps_K[-1] > 0)

    def is_close(self, size_P: np.ndarray) -> bool:
        """Return whether the mean error of each size is small, or within the noise of its times."""
        counts_S, logs_P = np.maximum(np.bincount(size_P), 1), np.log(self.ratio_P)
        mean_S = np.bincount(size_P, logs_P) / counts_S
        variance_S = np.bincount(size_P, (logs_P - mean_S[size_P]) ** 2) / counts_S
        return bool((np.abs(mean_S) <= np.maximum(OFF, 2 * np.sqrt(variance_S / counts_S))).all())
