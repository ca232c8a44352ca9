"""Table features for networks: 21 numbers per table (DreamShard, section 3.1), normalised over the training tables.

Legend: T tables, P distinct tables, F = 21 features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from evenshard.placement.task import ShardingTask, distinct_tables
from evenshard.tables.reuse import DLRM_2021_REUSE, NUM_REUSE_BINS, tilt_to_feasible
from evenshard.tables.table import Table

NUM_FEATURES = 4 + NUM_REUSE_BINS  # dim, rows, pooling factor, size, and the reuse histogram


def raw_features_TF(tables: Sequence[Table], batch_size: int) -> np.ndarray:
    """Compute unnormalized table features, [T, F] float64.

    The features are the square roots of embedding dim and pooling factor, the logarithms of row count and size in
    bytes, and the 17 reuse bins. Without roots and logarithms, z-scores of all but the largest tables would be nearly
    equal. A table without counted lookups gets the default histogram (``tilt_to_feasible``).
    """
    scalars = np.array(
        [
            [np.sqrt(t.embedding_dim), np.log10(t.num_rows), np.sqrt(t.pooling_factor), np.log10(max(t.size_bytes, 1))]
            for t in tables
        ]
    ).reshape(-1, 4)
    # Parts of one table share a histogram: converting the tuple to numbers dominates the time.
    histograms = {id(t.reuse_bins): t.reuse_bins or DLRM_2021_REUSE for t in tables}
    number = {key: position for position, key in enumerate(histograms)}
    distinct = np.array(list(histograms.values())).reshape(-1, NUM_REUSE_BINS)
    bins = distinct[[number[id(t.reuse_bins)] for t in tables]].reshape(-1, NUM_REUSE_BINS)
    uncounted = [number for number, t in enumerate(tables) if not t.reuse_bins]
    if uncounted:  # in one batch, because single calls dominate the time
        rows = np.array([float(tables[number].num_rows) for number in uncounted])
        lookups = np.array([float(round(tables[number].pooling_factor * batch_size)) for number in uncounted])
        bins[uncounted] = tilt_to_feasible(bins[uncounted], rows, lookups)
    return np.concatenate([scalars, bins], axis=1)


@dataclass(frozen=True)
class FeatureNormalizer:
    """Feature normalizer: z-scores with the mean and deviation of the training tables, saved with the model.

    Raises:
        ValueError: if the number of means or scales is not F, or a value is not finite.
    """

    mean: tuple[float, ...]  # F numbers
    scale: tuple[float, ...]  # F numbers: the deviation, or 1 if all training tables are equal

    def __post_init__(self) -> None:
        if not len(self.mean) == len(self.scale) == NUM_FEATURES:
            raise ValueError(f"its normalizer does not have {NUM_FEATURES} features")
        if not all(map(math.isfinite, (*self.mean, *self.scale))) or min(self.scale) <= 0:
            raise ValueError("its normalizer has a mean that is not finite, or a scale of 0 or below")

    @staticmethod
    def fit(tables: Sequence[Table], batch_size: int) -> FeatureNormalizer:
        """Fit mean and deviation to ``tables``. A feature that is equal for all tables has the scale 1.

        The reuse bins, which are shares, stay unchanged: the upper bins are almost always 0, so a table with lookups in
        them would have an extreme z-score.
        """
        features_TF = raw_features_TF(tables, batch_size)
        mean, deviation = features_TF.mean(axis=0), features_TF.std(axis=0)
        scale = np.where(deviation > 1e-6, deviation, 1.0)
        mean[-NUM_REUSE_BINS:], scale[-NUM_REUSE_BINS:] = 0.0, 1.0
        return FeatureNormalizer(tuple(mean.tolist()), tuple(scale.tolist()))

    def __call__(self, tables: Sequence[Table], batch_size: int) -> torch.Tensor:
        """Return normalised features, [T, F] float32."""
        features_TF = (raw_features_TF(tables, batch_size) - np.array(self.mean)) / np.array(self.scale)
        return torch.from_numpy(features_TF.astype(np.float32))

    def of_tasks(self, tasks: Sequence[ShardingTask]) -> tuple[dict[Table, int], torch.Tensor]:
        """Return each distinct table's row, and the features [P, F] float32; tasks must share one batch size."""
        batch_sizes = {task.batch_size for task in tasks}
        assert len(batch_sizes) == 1, "tasks of one batch must share the batch size"
        distinct = {table: at for at, table in enumerate(distinct_tables(tasks))}
        return distinct, self(list(distinct), batch_sizes.pop())
