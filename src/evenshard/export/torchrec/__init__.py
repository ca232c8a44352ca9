"""How do placements get into TorchRec and plans out of it?

::

    tables = tables_of(model, pooling_factors={"user_id": 1.0, "clicks": 37.5})      # the model's tables
    plan = sharding_plan(placement, tables, model)                                  # for DistributedModelParallel
    placement = placement_of(plan, tables, num_devices=8)                           # a plan of TorchRec, to compare
    plan = EvenshardPlanner(sharder, topology=topology).collective_plan(model)      # instead of TorchRec's planner

TorchRec is imported when one of these is called. A split table is trained as TorchRec trains it: with row-wise Adagrad
every part has its own state, so that losses differ a little from those of the whole table.
"""

from __future__ import annotations

from evenshard.export.shards import TableShard
from evenshard.export.torchrec.planner import EvenshardPlanner
from evenshard.export.torchrec.plans import placement_of, sharding_plan, shards_of
from evenshard.export.torchrec.tables import tables_of

__all__ = ["EvenshardPlanner", "TableShard", "placement_of", "sharding_plan", "shards_of", "tables_of"]
