"""Our count of memory beside TorchRec's ``EmbeddingStorageEstimator``: what both count is equal.

TorchRec says one number for each kind of memory. Its components are told apart by asking it for inference, without an
optimizer, and for pipelines that hold inputs two and ten times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchrec", reason="TorchRec is not installed", exc_type=ImportError)
from evenshard.placement.memory import INDEX_BYTES, PREFETCH_INPUTS, part_memory
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import FUSED_UVM, FUSED_UVM_CACHING, ON_DEVICE, Storage, TablePart, part_table
from evenshard.placement.sharding import (
    COLUMN_WISE,
    DATA_PARALLEL,
    GRID_SHARD,
    ROW_WISE,
    TABLE_COLUMN_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
)
from evenshard.sharders.simple import _parts
from evenshard.tables.table import Table
from evenshard.torchrec.baseline.topology import Bandwidths, machine_topology

MACHINE = Nodes(4, 2, inter="infiniband_ndr")
TABLE = Table("t", 100_000, 64, 5.0, is_weighted=True, feature_pooling_factors=(1.5, 3.5))
BATCH = 4096


def asked(
    way: str, parts: Sequence[TablePart], pipeline: str, optimizer: str = "", inference: bool = False
) -> tuple[int, int]:
    """TorchRec's bytes of the first part in device and in host memory; embeddings run at the peak."""
    import torch
    import torchrec.optim as fused
    from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
    from torchrec.distributed.planner.types import Shard, SharderData, ShardingOption
    from torchrec.distributed.types import CacheParams, PipelineType, StorageUsageType

    module, storage = torch.nn.Module(), parts[0].storage
    tensor: Any = torch.empty(TABLE.num_rows, TABLE.embedding_dim, device="meta")
    if optimizer:
        tensor._optimizer_classes = [getattr(fused, optimizer)]
    option = ShardingOption(
        name="t",
        tensor=tensor,
        module=("model", module),
        input_lengths=list(TABLE.feature_lookups),
        batch_size=BATCH // 4,
        sharding_type=way,
        partition_by="host",
        compute_kernel="dense" if way == DATA_PARALLEL else storage.kernel,
        shards=[
            Shard([one.rows.size, one.columns.size], [one.rows.start, one.columns.start], rank=device)
            for one in parts
            for device in one.devices
        ],
        cache_params=CacheParams(load_factor=storage.load_factor) if storage.is_cached else None,
        is_pooled=True,
    )
    EmbeddingStorageEstimator(
        machine_topology(MACHINE, (2**40,) * 4, Bandwidths(1000.0, 100.0, 10.0)),
        pipeline_type=PipelineType[pipeline],
        run_embedding_at_peak_memory=True,
        is_inference=inference,
    ).estimate([option], {option.module_type_key: SharderData({}, {}, StorageUsageType.BASE)})
    return option.shards[0].storage.hbm, option.shards[0].storage.ddr


@pytest.mark.parametrize(
    ("way", "storage", "optimizer"),
    [
        (TABLE_WISE, ON_DEVICE, "rowwise_adagrad"),
        (TABLE_WISE, Storage(FUSED_UVM), "adam"),
        (COLUMN_WISE, Storage(FUSED_UVM_CACHING, 0.2), ""),
        (TABLE_COLUMN_WISE, ON_DEVICE, "adagrad"),
        (ROW_WISE, Storage(FUSED_UVM_CACHING, 0.05), ""),
        (TABLE_ROW_WISE, ON_DEVICE, "adam"),
        (GRID_SHARD, ON_DEVICE, "adagrad"),
        (DATA_PARALLEL, ON_DEVICE, "adam"),
    ],
)
def test_what_both_count_is_equal(way: str, storage: Storage, optimizer: str) -> None:
    parts = _parts(TABLE, way, MACHINE, np.random.default_rng(1))
    parts = [TablePart(one.table, one.rows, one.columns, one.devices, storage) for one in parts]
    ours = part_memory(
        parts[0], TABLE, num_devices=4, batch_size=BATCH, optimizer=optimizer or "sgd", pipeline="prefetch"
    )
    weights, sparse, prefetch, once = (
        asked(way, parts, "TRAIN_SPARSE_DIST", inference=True),
        asked(way, parts, "TRAIN_SPARSE_DIST"),
        asked(way, parts, "TRAIN_PREFETCH_SPARSE_DIST"),
        asked(way, parts, "TRAIN_BASE"),
    )
    assert (ours.weights, ours.host_weights) == pytest.approx(weights, rel=0.01)
    bags = BATCH // len(parts[0].devices)
    indices = bags * part_table(parts[0], TABLE).pooling_factor * INDEX_BYTES
    inputs, outputs = sparse[0] - once[0], ours.outputs
    assert inputs == pytest.approx(indices, rel=0.01)
    assert prefetch[0] - sparse[0] == pytest.approx(indices * (1 + PREFETCH_INPUTS * storage.is_cached), rel=0.01)
    assert once[0] - weights[0] - inputs == pytest.approx(ours.cache_state + outputs, rel=0.01)
    if optimizer:
        states = {"rowwise_adagrad": "RowWiseAdagrad", "adagrad": "Adagrad", "adam": "Adam"}[optimizer]
        whole = asked(way, parts, "TRAIN_BASE", states)
        assert (ours.optimizer_state, ours.host_state) == pytest.approx(
            (whole[0] - once[0], whole[1] - once[1]), rel=0.01
        )
