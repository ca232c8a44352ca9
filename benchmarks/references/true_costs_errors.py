"""The errors of the networks that stand for the true costs, on measurements that they were not fitted to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.references.others_measurements import Measurements, read
from benchmarks.references.true_costs import (
    FitConfig,
    ShardTensors,
    cache_file,
    fit_exchange_net,
    fit_shard_net,
)
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table
from evenshard.utils.atomic import atomic_path

FOLDS = 5
HELD_OUT_TABLES = 40
FEW, MANY = 9, 12  # tables of shards to learn from, and of those to judge extrapolation by
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class NetworkError:
    """Relative error of predictions, per cent: median and 90th percentile of its size, and its median."""

    median_pct: float
    p90_pct: float
    bias_pct: float

    @staticmethod
    def of(predicted: FloatArray, true: FloatArray) -> NetworkError:
        """From values."""
        error = 100 * (predicted / true - 1)
        return NetworkError(float(np.median(abs(error))), float(np.quantile(abs(error), 0.9)), float(np.median(error)))


def load_errors(truth: Path, cache: Path, config: FitConfig) -> dict[str, NetworkError]:
    """The errors by kind of measurement; those of an earlier call where nothing has changed.

    Args:
        truth: folder of the measurements.
        cache: folder that keeps the errors.
    """
    known = cache_file(truth, cache, config, "errors", ".json")
    if not known.exists():
        found = {name: asdict(error) for name, error in _errors(read(truth), config)}
        with atomic_path(known) as draft:
            draft.write_text(json.dumps(found, indent=1) + "\n")
    return {name: NetworkError(**error) for name, error in json.loads(known.read_text()).items()}


def _errors(measured: Measurements, config: FitConfig) -> Iterator[tuple[str, NetworkError]]:
    rng = np.random.default_rng(config.seed)
    true_S, count_S = measured.shard_ms, np.array([len(shard) for shard in measured.shards])
    folds = np.array_split(rng.permutation(len(true_S)), FOLDS)
    predicted_S = np.zeros(len(true_S))
    for fold in folds:
        predicted_S[fold] = _shards_ms(measured, np.setdiff1d(np.arange(len(true_S)), fold), fold, config)
    yield f"shards, {FOLDS} folds", NetworkError.of(predicted_S, true_S)
    for low, high in ((1, 1), (2, 4), (5, 9), (10, 15)):
        some = (count_S >= low) & (count_S <= high)
        yield f"of {low} to {high} tables", NetworkError.of(predicted_S[some], true_S[some])

    names = sorted({table.name for shard in measured.shards for table in shard})
    unseen = set(rng.choice(names, HELD_OUT_TABLES, replace=False).tolist())
    holds_S = np.array([any(table.name in unseen for table in shard) for shard in measured.shards])
    for what, learned, judged in (
        (f"shards with some of {HELD_OUT_TABLES} tables never seen", ~holds_S, holds_S),
        (f"shards of {MANY} tables or more, from those of {FEW} or fewer", count_S <= FEW, count_S >= MANY),
    ):
        chosen = np.flatnonzero(judged)
        yield what, NetworkError.of(_shards_ms(measured, np.flatnonzero(learned), chosen, config), true_S[chosen])

    fold, rest = folds[0][folds[0] < len(measured.dims_ND)], np.arange(len(measured.dims_ND))
    rest = np.setdiff1d(rest, fold)
    for what, start_ms_ND, ms_ND in (
        ("forward exchanges", measured.start_ms_ND, measured.fwd_ms_ND),
        ("backward exchanges", np.zeros_like(measured.start_ms_ND), measured.bwd_ms_ND),
    ):
        net = fit_exchange_net(measured.dims_ND[rest], start_ms_ND[rest], ms_ND[rest], config)
        with torch.no_grad():
            inputs = (torch.tensor(one[fold], dtype=torch.float32) for one in (measured.dims_ND, start_ms_ND))
            yield what, NetworkError.of(net(*inputs).double().numpy(), ms_ND[fold])


def _shards_ms(measured: Measurements, learned: Indices, judged: Indices, config: FitConfig) -> FloatArray:
    """What one network, fitted to some shards, says of others."""
    net = fit_shard_net(_some(measured, learned), measured.shard_ms[learned], config, config.seed)
    with torch.no_grad():
        found = ShardTensors.of(_some(measured, judged)).ms(net, torch.arange(len(judged)))
    return np.asarray(found.double().numpy())


def _some(measured: Measurements, chosen: Indices) -> Sequence[Sequence[Table]]:
    return [measured.shards[number] for number in chosen.tolist()]
