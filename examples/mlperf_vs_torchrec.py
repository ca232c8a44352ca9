"""MLPerf's DLRM v2 on 8 GPUs: evenshard beside TorchRec's own planner, with whole tables and with split ones.

    python examples/mlperf_vs_torchrec.py            # needs TorchRec, no GPU

All times come from evenshard's device model of an H200, which times both planners' plans in the same way; nothing
runs on a GPU. evenshard's cost model has learned from that device model, on other tables. TorchRec plans with its own
constants and gets the pooling factors.
"""

import logging
import warnings

from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

import evenshard
from evenshard.measure.placements import open_measurer
from evenshard.placement.parts import TablePart
from evenshard.planner.pricing import model_of
from evenshard.planner.request import PlacementRequest
from evenshard.torchrec import shards_of

DEVICES, CAP_GB = 8, 64
logging.getLogger("torchrec").setLevel(logging.ERROR)  # it remarks on storage and topology
warnings.filterwarnings("ignore", "HeuristicalStorageReservation", FutureWarning)


def torchrec(request: PlacementRequest, types: list[str], least: int | None = None) -> tuple[TablePart, ...]:
    """Where TorchRec's planner puts the tables of a request."""
    constraints, configs = {}, []
    for one in request.tables:
        constraints[one.name] = ParameterConstraints(types, ["fused"], least, pooling_factors=[one.pooling_factor])
        configs.append(EmbeddingBagConfig(one.num_rows, one.embedding_dim, one.name, feature_names=[one.name]))
    topology = Topology(DEVICES, "cuda", hbm_cap=CAP_GB * 1024**3, local_world_size=DEVICES)
    planner = EmbeddingShardingPlanner(topology, request.batch_size // DEVICES, constraints=constraints, debug=False)
    model = EmbeddingBagCollection(configs, device="meta")
    return shards_of(planner.plan(model, [EmbeddingBagCollectionSharder()]), request.tables)


def step_ms(request: PlacementRequest, parts: tuple[TablePart, ...]) -> float:
    """What a training step waits for on simulated H200s."""
    with open_measurer(request, model_of(None, request.hardware), visits=1) as measure:
        return measure(request.task(), [parts])[0].max_device_ms


if __name__ == "__main__":
    whole = evenshard.place("mlperf_dlrm_v2", DEVICES, CAP_GB, sharding_types=["table_wise"])
    split = evenshard.place("mlperf_dlrm_v2", DEVICES, CAP_GB, allow_column_split=True)
    rows = {"TorchRec, whole tables": torchrec(whole.request, ["table_wise"])}
    rows["evenshard, whole tables"] = whole.parts
    for least in (64, 32, 16):  # TorchRec has to be given how narrow a part may be
        found = torchrec(whole.request, ["table_wise", "column_wise"], least)
        rows[f"TorchRec, parts of {least} columns or more"] = found
    rows["evenshard, split where that helps"] = split.parts
    print(f"{DEVICES} simulated H200s (a device model; no GPU was used), ms of a step:")
    for name, parts in rows.items():
        print(f"{name:38} {step_ms(whole.request, parts):5.2f} with {len(parts)} parts")
