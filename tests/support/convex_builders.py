"""An untrained cost model, for the tests of what stands on it."""

from __future__ import annotations

import torch

from evenshard.sharders.cost_model.additive import additive_work_TA
from evenshard.sharders.cost_model.cost_model import CostModel, ExchangeTime
from evenshard.sharders.cost_model.network import EnsembleSizes
from evenshard.sharders.features import FeatureNormalizer
from support.builders import BATCH_SIZE, some_tables

TABLES = some_tables(12)
NORMALIZER = FeatureNormalizer.fit(TABLES, BATCH_SIZE)
EXCHANGE = ExchangeTime(latency_ms=0.3, ms_per_byte=2e-5, slowest_ms_per_byte=1e-5, total_ms_per_byte=5e-6)


def random_model(seed: int = 0, exchange: ExchangeTime = EXCHANGE) -> CostModel:
    """An untrained model whose hinges lie among the devices of a few tables, so that it is far from linear."""
    sizes = EnsembleSizes(num_members=3, table_hidden=8, factors_per_quantity=2, head_hidden=8, pieces=4)
    model = CostModel(sizes, NORMALIZER, torch.Generator().manual_seed(seed))
    model.net.work_scale_A.copy_(torch.from_numpy(additive_work_TA(TABLES, BATCH_SIZE)).mean(dim=0) * 3)
    model.net.time_scale_ms.copy_(torch.tensor([2.0, 5.0]))
    model.exchange = exchange
    return model
