"""An untrained cost model, for the tests of what stands on it, and what any model says of whole tables."""

from __future__ import annotations

import torch

from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.step import PredictedParts
from evenshard.search.lower_bound import lower_bound_ms
from evenshard.search.space import SearchSpace
from evenshard.sharders.cost_model.cost_model import CostModel, ExchangeTime
from evenshard.sharders.cost_model.network import EnsembleSizes, additive_work_TA
from evenshard.sharders.cost_model.price import whole_costs
from evenshard.sharders.features import FeatureNormalizer
from support.builders import BATCH_SIZE, every_placement, some_tables

TABLES = some_tables(12)
NORMALIZER = FeatureNormalizer.fit(TABLES, BATCH_SIZE)
EXCHANGE = ExchangeTime(latency_ms=0.3, ms_per_byte=2e-5, slowest_ms_per_byte=1e-5, total_ms_per_byte=5e-6)


def random_model(seed: int = 0, exchange: ExchangeTime = EXCHANGE, sees_hot_rows: bool = False) -> CostModel:
    """An untrained model whose hinges lie among the devices of a few tables, so that it is far from linear."""
    sizes = EnsembleSizes(3, 8, factors_per_quantity=2, head_hidden=8, pieces=4, sees_hot_rows=sees_hot_rows)
    model = CostModel(sizes, NORMALIZER, torch.Generator().manual_seed(seed))
    model.net.work_scale_A.copy_(torch.from_numpy(additive_work_TA(TABLES, BATCH_SIZE)).mean(dim=0) * 3)
    model.net.time_scale_ms.copy_(torch.tensor([2.0, 5.0]))
    model.exchange = exchange
    return model


def predicted(model: CostModel, of_task: ShardingTask, placement: Placement) -> PredictedParts:
    """What a model says of a placement."""
    return whole_costs(model, of_task).predict(placement.parts(of_task.tables))


def predicted_ms(model: CostModel, of_task: ShardingTask, placement: Placement) -> float:
    return predicted(model, of_task, placement).predicted_ms


def best_ms(model: CostModel, of_task: ShardingTask) -> float:
    """The least that any placement of a small task is predicted to take."""
    return min(one.predicted_ms for one in whole_costs(model, of_task).predict_whole(every_placement(of_task)))


def bound_ms(model: CostModel, of_task: ShardingTask) -> float:
    """What the model says that no placement takes less than."""
    return lower_bound_ms(SearchSpace(whole_costs(model, of_task)))
