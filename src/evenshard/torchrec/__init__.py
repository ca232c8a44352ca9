"""TorchRec: a drop-in planner, plan import and export, resharding of running jobs, and its planner as a baseline.

::

    plan = EvenshardPlanner().collective_plan(model, sharders)                      # was: EmbeddingShardingPlanner()

    answer = evenshard.place(model, num_devices=8, memory_cap_gb=64)                # the same in two steps
    plan = sharding_plan(answer, model)                                             # for DistributedModelParallel
    plan = load_plan("plan.json", model)                                            # from the command line, with
                                                                                    # --format torchrec -o plan.json

    tables = tables_of(model, pooling_factors={"user_id": 1.0, "clicks": 37.5})     # the model's tables
    plan = sharding_plan(placement, tables, model)                                  # for any placement of these tables
    placement = placement_of(plan, tables, num_devices=8)                           # TorchRec's plan as a placement
    predicted(plan, answer).predicted_ms                                            # step time of TorchRec's plan
    delta = load_delta("delta.json", model)                                         # for a running job; the command
    reshard(model, delta)                                                           # diff --reshard-delta -o writes it
    EvenshardPerfModel(topology, "simulated:h100")                                   # rates plans in TorchRec's planner
    verify(plan, model).problems                                                    # all problems, before a job starts
    torchrec_constraints(answer)                                                    # for TorchRec's own planner
    dense_bytes(model, "adam")                                                      # memory of the dense model

These functions import TorchRec on the first call; ``save_plan`` does not need it. With row-wise Adagrad, TorchRec keeps
a separate state per column shard, so losses of column-wise tables differ slightly from those of whole tables.
"""

from __future__ import annotations

from evenshard.placement.parts import TablePart
from evenshard.torchrec.model.modules import dense_bytes
from evenshard.torchrec.model.tables import tables_of
from evenshard.torchrec.plan.file import load_plan, save_plan, torchrec_constraints
from evenshard.torchrec.plan.plans import placement_of, sharding_plan, shards_of
from evenshard.torchrec.plan.prices import EvenshardPerfModel, predicted
from evenshard.torchrec.plan.verify import verify
from evenshard.torchrec.planner.planner import EvenshardPlanner
from evenshard.torchrec.running.delta_file import load_delta, reshard_delta, save_delta
from evenshard.torchrec.running.reshard import reshard

__all__ = [
    "EvenshardPerfModel", "EvenshardPlanner", "TablePart", "dense_bytes", "load_delta", "load_plan", "placement_of",
    "predicted", "reshard", "reshard_delta", "save_delta", "save_plan", "sharding_plan", "shards_of", "tables_of",
    "torchrec_constraints", "verify",
]  # fmt: skip
