"""26 tables of 4 TB in all on 16 GPUs of 80 GB: ``DistributedModelParallel`` accepts the plan, rank for rank.

There is no GPU: weights are on the meta device, and the process group is torch's fake one, of which every rank can be
had in one process. What is TorchRec's and FBGEMM's own code: sharding by the plan, grouping of tables into calls, and
the constructor of each call, which lays out weights, caches and optimizer states. What stands in for a GPU:

- where weights live: on the meta device TorchRec takes host memory for all. Here it is asked by kernel, as for CUDA;
- the memory of the GPU, of which FBGEMM asks how much is left;
- TorchRec's exchange between the ranks about a setting, which the fake group cannot do.

Nothing is looked up: no kernel runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from evenshard.base.units import gb_to_bytes
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import TablePart
from evenshard.placement.placement import check_sharding
from evenshard.placement.task import memory_of_part, used_bytes
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.place import place_request
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.model import DeviceModel
from evenshard.tables.sources import load_catalog
from evenshard.torchrec import sharding_plan, shards_of, tables_of
from support.torchrec_builders import META, config
from support.torchrec_training import module_sharders

WORLD_SIZE, LOCAL_WORLD_SIZE, BATCH_SIZE = 16, 8, 65_536
RANK = 13
TOTAL_BYTES = 4 * 10**12
# FBGEMM lists the rows of tables with caches in Python: these are wide, so that they are few.
DIM = 1024
LOCATIONS = {"fused": "DEVICE", "fused_uvm": "MANAGED", "fused_uvm_caching": "MANAGED_CACHING"}
# Rows of a set of FBGEMM's caches, of which it has whole ones.
SETS = 32


CASES = {
    "as the search chooses": ((), "sgd"),
    "caches alone": (("fused", "fused_uvm_caching"), "rowwise_adagrad"),
}


@cache
def model() -> nn.Module:
    """MLPerf's features, each with as many rows as make 4 TB of all tables."""
    rows = TOTAL_BYTES // 26 // (DIM * 4)
    return EmbeddingBagCollection(
        [config(one.name, rows, DIM) for one in load_catalog("mlperf_dlrm_v2", BATCH_SIZE)], device=META
    )


@cache
def answer(name: str) -> PlacementAnswer:
    """Two nodes, each with 2 TB of host memory and 8 GPUs of 80 GB, of which 15 % are reserved."""
    kernels, optimizer = CASES[name]
    known = {one.name: one for one in load_catalog("mlperf_dlrm_v2", BATCH_SIZE)}
    tables = tuple(
        replace(one, pooling_factor=known[one.name].pooling_factor, reuse_bins=known[one.name].reuse_bins)
        for one in tables_of(model())
    )
    links = {"intra": "h100_nvlink", "inter": "infiniband_ndr"}
    request = PlacementRequest(
        tables,
        (gb_to_bytes(80),) * WORLD_SIZE,
        BATCH_SIZE,
        optimizer=optimizer,
        reserved_share=0.15,
        training_pipeline="sparse_dist",
        compute_kernels=kernels,
        hardware="simulated:h100",
        machine=Nodes(WORLD_SIZE, LOCAL_WORLD_SIZE, host_bytes=(gb_to_bytes(2048),) * 2, **links),
    )
    return place_request(request, DeviceModel(request.hardware))


# TorchRec without a GPU -----------------------------------------------------------------------------------------------


class _Gpu:
    total_memory = 80 * 2**30


class Call(NamedTuple):
    """One of FBGEMM's modules on the rank: tables that are looked up together."""

    config: Any  # TorchRec's grouped configuration
    module: Any


@contextmanager
def rank_of_a_fake_group() -> Iterator[None]:
    """torch's fake process group, which sends nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with patch.dict("os.environ", {"LOCAL_WORLD_SIZE": str(LOCAL_WORLD_SIZE)}):
        dist.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=WORLD_SIZE)
        try:
            yield
        finally:
            dist.destroy_process_group()


@contextmanager
def laid_out_as_on_a_gpu() -> Iterator[None]:
    """FBGEMM's modules on the meta device are laid out as they would be for CUDA."""
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import ComputeDevice
    from torchrec.distributed import batched_embedding_kernel as kernels
    from torchrec.distributed.embedding_types import compute_kernel_to_embedding_location

    of_call: list[Any] = []
    own_init, own_module = kernels.BatchedFusedEmbeddingBag.__init__, kernels.SplitTableBatchedEmbeddingBagsCodegen

    def init(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        of_call.append(config)
        own_init(self, config, *args, **kwargs)

    def module(embedding_specs: Any, **kwargs: Any) -> Any:
        places = [compute_kernel_to_embedding_location(one.compute_kernel) for one in of_call[-1].embedding_tables]
        specs = [(*spec[:2], place, ComputeDevice.CUDA) for spec, place in zip(embedding_specs, places, strict=True)]
        return own_module(embedding_specs=specs, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(patch.object(kernels.BatchedFusedEmbeddingBag, "__init__", init))
        stack.enter_context(patch.object(kernels, "SplitTableBatchedEmbeddingBagsCodegen", module))
        stack.enter_context(patch("torch.cuda.get_device_properties", lambda device: _Gpu))
        stack.enter_context(patch("torch.cuda.memory_reserved", lambda device: 0))
        stack.enter_context(patch("torchrec.distributed.model_parallel.init_collective_validation"))
        yield


@cache
def calls(name: str) -> list[Call]:
    """The calls of the rank, as ``DistributedModelParallel`` makes them of the plan of a case's answer."""
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.types import ShardingEnv

    one = answer(name)
    with rank_of_a_fake_group(), laid_out_as_on_a_gpu():
        sharded = DistributedModelParallel(
            model(),
            ShardingEnv.from_process_group(dist.GroupMember.WORLD),
            META,
            plan=sharding_plan(one, model()),
            sharders=module_sharders(one.request.optimizer),
            init_data_parallel=False,
            init_parameters=False,
        ).module
    return [Call(kernel._config, kernel.emb_module) for lookup in sharded._lookups for kernel in lookup._emb_modules]


# Facts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_legal_and_its_plan_comes_back(name: str) -> None:
    one = answer(name)
    assert sum(table.size_bytes for table in one.request.tables) == pytest.approx(TOTAL_BYTES, rel=1e-6)
    check_sharding(one.task, one.parts)
    assert shards_of(sharding_plan(one, model()), one.request.tables) == one.parts
    assert any(part.storage.is_on_host for part in one.parts)


@pytest.mark.parametrize("name", CASES)
def test_every_part_is_where_the_answer_says_on_its_rank(name: str) -> None:
    """With its rows, its columns and, of a cache, its load factor, which all parts of the call share."""
    one = answer(name)
    expected = sorted(_of_part(part) for part in one.parts if RANK in part.devices)
    found = []
    for call in calls(name):
        tables = zip(call.config.embedding_tables, call.module.embedding_specs, strict=True)
        for table, (rows, columns, location, device) in tables:
            assert device.name == "CUDA"
            load_factor = call.config.fused_params["cache_load_factor"] if location.name == "MANAGED_CACHING" else 1.0
            found.append((table.name, rows, columns, location.name, pytest.approx(load_factor)))
    assert sorted(found, key=lambda key: key[:4]) == expected


def _of_part(part: TablePart) -> tuple[str, int, int, str, float]:
    return part.table, part.rows.size, part.columns.size, LOCATIONS[part.storage.kernel], part.storage.load_factor


@pytest.mark.parametrize("name", CASES)
def test_fbgemm_lays_out_what_the_answer_counts(name: str) -> None:
    """Weights in device and host memory, states and caches, but for the last set of each cache."""
    one, rank = answer(name), RANK
    known = {table.name: table for table in one.request.tables}
    counted = [memory_of_part(one.task, known[part.table], part) for part in one.parts if rank in part.devices]
    found = calls(name)
    assert sum(_bytes(call.module.weights_uvm) for call in found) == sum(part.host_bytes for part in counted)
    in_caches = sum(_bytes(call.module.lxu_cache_weights) for call in found)
    in_device_memory = in_caches + sum(_bytes(call.module.weights_dev) for call in found)
    slack = sum(SETS * call.module.max_D * 4 for call in found)
    assert in_device_memory == pytest.approx(sum(part.weights for part in counted), abs=slack)
    assert in_caches > 0 or name == "as the search chooses"
    states = sum(_bytes(call.module.momentum1_dev) for call in found if one.request.optimizer != "sgd")
    assert states == sum(part.optimizer_state for part in counted)
    finders = sum(
        _bytes(call.module.cache_index_table_map) + _bytes(call.module.lxu_cache_state) + _bytes(call.module.lxu_state)
        for call in found
        if call.module.lxu_cache_weights.numel()
    )
    assert finders == pytest.approx(sum(part.cache_state for part in counted), abs=2 * 8 * SETS * len(found))
    assert used_bytes(one.task, one.parts)[rank] <= one.task.room_bytes[rank]


def _bytes(tensor: torch.Tensor) -> int:
    return math.prod(tensor.shape) * tensor.element_size()


def test_tables_of_other_widths_or_load_factors_have_caches_of_their_own() -> None:
    """TorchRec's one cache for all would have rows as wide as the widest, and the mean load factor."""
    cached = [call for call in calls("caches alone") if call.module.lxu_cache_weights.numel()]
    assert cached
    for call in cached:
        assert len({table.local_cols for table in call.config.embedding_tables}) == 1
        assert len({table.fused_params["cache_load_factor"] for table in call.config.embedding_tables}) == 1
