"""The formula in TorchRec's planner: a ``HardwarePerfConfig``, and an estimator for ``EmbeddingEnumerator``.

Exported files hold this module too, below the formula.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from torchrec.distributed.planner.constants import CROSS_NODE_BANDWIDTH, HBM_TO_DDR_MEM_BW, INTRA_NODE_BANDWIDTH
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.estimator.annotations import (
    backward_compute,
    bwd_comms,
    forward_compute,
    fwd_comms,
    input_dist_comms,
    prefetch_compute,
)
from torchrec.distributed.planner.estimator.estimator import EmbeddingPerfEstimator
from torchrec.distributed.planner.estimator.types import HardwarePerfConfig, ShardPerfContext
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.types import ParameterConstraints, Perf, PerfModel, ShardingOption, Topology

from evenshard.torchrec.estimator.formula import (
    FIT_OF_TYPE,
    FittedShard,
    Rates,
    ShardTimes,
    WorldSize,
    link_rate,
    shard_times,
)

# Part of its kernel call that a shard bears where nothing is known of the tables.
USUAL_SHARES = MappingProxyType({"table_wise": 0.25, "row_wise": 0.5, "table_row_wise": 0.5, "data_parallel": 0.1})
# Rounds in which the shares of kernel calls settle.
ROUNDS = 4


class FittedPerfConfig(HardwarePerfConfig):  # type: ignore[misc]  # TorchRec has no types
    """Fitted times, in TorchRec's terms. Ranks, batch, features and constraints are those of the planner.

    Links are those of the fit; where the ``Topology`` names a bandwidth other than TorchRec's default, it is that.

    Attributes:
        fit: the coefficients.
        call_shares: part of what a kernel call costs by itself that each of its shards bears, by sharding type;
            ``FittedEstimator`` finds it out.
        has_qcomms: whether the sharders name data types of exchanges (qcomms); None where that is unknown.
    """

    fit: Mapping[str, Any] = MappingProxyType({})
    call_shares: Mapping[str, float] = USUAL_SHARES
    has_qcomms: bool | None = None

    def times(self, ctx: ShardPerfContext, call_share: float | None = None, free_between: bool = False) -> ShardTimes:
        """What a shard takes of a step, ms.

        Args:
            ctx: the shard.
            call_share: part that it bears of what its kernel call costs; None for the usual part.
            free_between: as if the links between domains took no time.
        """
        size = WorldSize(ctx.world_size, ctx.local_world_size, max(ctx.intra_group_size, ctx.local_world_size))
        lookups, bags = (each * ctx.world_size for each in (ctx.batch_inputs, self._bags(ctx)))
        shard = FittedShard(
            ctx.sharding_type,
            ctx.compute_kernel,
            ctx.hash_size,
            ctx.emb_dim,
            ctx.hash_size_for_clamping,
            lookups,
            bags,
            ctx.table_data_type_size,
            ctx.is_pooled,
            ctx.is_weighted,
            *self._comm_bytes(ctx),
            load_factor=0.2 if ctx.caching_ratio is None else ctx.caching_ratio,
            miss_rate=ctx.expected_miss_rate,
            call_share=self.call_shares[FIT_OF_TYPE[ctx.sharding_type]] if call_share is None else call_share,
        )
        rates = self._rates(ctx, size)
        return shard_times(shard, size, replace(rates, inter=math.inf) if free_between else rates, self.fit)

    @staticmethod
    def _bags(ctx: ShardPerfContext) -> float:
        return float(sum(one * of_batch for one, of_batch in zip(ctx.num_poolings, ctx.batch_sizes, strict=True)))

    def _comm_bytes(self, ctx: ShardPerfContext) -> tuple[float, float]:
        """TorchRec takes the weights' data type where there are no qcomms; pooled embeddings are FP32."""
        if ctx.sharding_type in ("row_wise", "table_row_wise", "grid_shard") and ctx.is_pooled:
            both = ctx.fwd_sr_comm_data_type_size, ctx.bwd_sr_comm_data_type_size
        else:
            both = ctx.fwd_a2a_comm_data_type_size, ctx.bwd_a2a_comm_data_type_size
        if self.has_qcomms is None:
            return tuple(4.0 if one == ctx.table_data_type_size else one for one in both)  # type: ignore[return-value]
        return both if self.has_qcomms else (4.0, 4.0)

    def _rates(self, ctx: ShardPerfContext, size: WorldSize) -> Rates:
        intra, inter = link_rate(self.fit["intra"], size.domain), link_rate(self.fit["inter"], size.world)
        given = ctx.comms_bandwidths
        if given is not None and given.intra_host_bw != INTRA_NODE_BANDWIDTH:
            intra = given.intra_host_bw
        if given is not None and given.inter_host_bw != CROSS_NODE_BANDWIDTH:
            inter = given.inter_host_bw
        own_host = ctx.hbm_to_ddr_mem_bw == HBM_TO_DDR_MEM_BW
        return Rates(intra, inter, self.fit["host_gb_s"] * 1e6 if own_host else ctx.hbm_to_ddr_mem_bw)

    @forward_compute  # type: ignore[untyped-decorator]
    def fitted_forward(self, ctx: ShardPerfContext) -> float:
        """Lookups, pooling, and finding out which rows a cache holds."""
        return self.times(ctx).forward

    @backward_compute  # type: ignore[untyped-decorator]
    def fitted_backward(self, ctx: ShardPerfContext) -> float:
        """Gradients and the update of the weights."""
        return 0.0 if ctx.is_inference else self.times(ctx).backward

    @prefetch_compute  # type: ignore[untyped-decorator]
    def fitted_prefetch(self, ctx: ShardPerfContext) -> float:
        """Rows that come into a cache."""
        return self.times(ctx).cache_fetch

    @fwd_comms  # type: ignore[untyped-decorator]
    def fitted_fwd_comms(self, ctx: ShardPerfContext) -> float:
        """The exchange of outputs, and that of inputs, which TorchRec leaves out of what it adds up."""
        times = self.times(ctx)
        return times.forward_exchange + times.input_exchange

    @bwd_comms  # type: ignore[untyped-decorator]
    def fitted_bwd_comms(self, ctx: ShardPerfContext) -> float:
        """The exchange of gradients."""
        return 0.0 if ctx.is_inference else self.times(ctx).backward_exchange

    @input_dist_comms  # type: ignore[untyped-decorator]
    def fitted_input_dist(self, ctx: ShardPerfContext) -> float:
        """The exchange of inputs, for TorchRec's statistics."""
        return self.times(ctx).input_exchange


@dataclass(eq=False)
class FittedPerf(Perf):  # type: ignore[misc]
    """The times of a shard, and what a rating of whole plans asks for besides.

    Attributes:
        kind: its kernel calls.
        own_ms: its time without what its kernel call costs by itself.
        call_ms: that, which all shards of the call on a rank bear together.
        intra_ms, inter_ms: of own_ms, what its rank sends within its domain, and to other domains.
    """

    kind: str = ""
    own_ms: float = 0.0
    call_ms: float = 0.0
    intra_ms: float = 0.0
    inter_ms: float = 0.0


class FittedEstimator(EmbeddingPerfEstimator):  # type: ignore[misc]
    """TorchRec's estimator with a fitted configuration, which it tells of the tables and sharders that it sees.

    How many shards will share a kernel call is only known of a plan. It is guessed from a search space: by a plan in
    which each table is sharded as takes the least time of all ranks together, which is found in several rounds.
    """

    def enumerator(self, batch_size: int) -> EmbeddingEnumerator:
        """TorchRec's, with these times and TorchRec's storage.

        Args:
            batch_size: samples of a rank.
        """
        storage = EmbeddingStorageEstimator(topology=self._topology, constraints=self._constraints)
        return EmbeddingEnumerator(self._topology, batch_size, self._constraints, [self, storage])

    def performance_model(self) -> "FittedPerfModel":
        """What rates whole plans with these times, and with these only."""
        return FittedPerfModel(self._topology)

    def estimate(self, sharding_options: list[ShardingOption], sharder_data_map: Any) -> None:
        """Sets the times of every shard."""
        config = self.config
        config.has_qcomms = any(data.qcomm_dtype_sizes for data in sharder_data_map.values())
        contexts = [self._contexts(option, sharder_data_map) for option in sharding_options]
        is_search_space = len(sharding_options) > len({option.fqn for option in sharding_options})
        for _ in range(ROUNDS if is_search_space else 0):
            self._share_calls(sharding_options, contexts)
        for option, of_shards in zip(sharding_options, contexts, strict=True):
            config.validate_sharding_type(option.sharding_type)
            option.is_weighted = of_shards[0].is_weighted if of_shards else option.is_weighted
            known: dict[tuple[int, int], FittedPerf] = {}
            for shard, ctx in zip(option.shards, of_shards, strict=True):
                size = ctx.hash_size, ctx.emb_dim
                if size not in known:
                    known[size] = self._perf(ctx)
                shard.perf = replace(known[size])

    def _contexts(self, option: ShardingOption, sharder_data_map: Any) -> list[ShardPerfContext]:
        sizes = [shard.size for shard in option.shards]
        sharder_data = sharder_data_map[option.module_type_key]
        built: list[ShardPerfContext] = ShardPerfContext.build_shard_perf_contexts(
            self._config, sizes, option, self._topology, self._constraints, sharder_data, self._is_inference
        )
        return built

    def _perf(self, ctx: ShardPerfContext) -> FittedPerf:
        config, kind = self._config, FIT_OF_TYPE[ctx.sharding_type]
        own, within = config.times(ctx, 0.0), config.times(ctx, 0.0, free_between=True)
        return FittedPerf(
            config.fitted_forward(ctx),
            config.fitted_fwd_comms(ctx),
            config.fitted_backward(ctx),
            config.fitted_bwd_comms(ctx),
            config.fitted_input_dist(ctx),
            config.fitted_prefetch(ctx),
            kind,
            own.total,
            config.times(ctx, 1.0).total - own.total,
            within.exchanges,
            own.exchanges - within.exchanges,
        )

    def _share_calls(self, options: list[ShardingOption], contexts: list[list[ShardPerfContext]]) -> None:
        """One over the shards of each kernel call on a rank, if the calls were shared as they are shared now."""
        world = self._topology.world_size
        least: dict[str, tuple[float, str, int]] = {}
        for option, of_shards in zip(options, contexts, strict=True):
            ranks = world if option.sharding_type == "data_parallel" else len(of_shards)
            total = self._config.times(of_shards[0]).total * ranks
            if option.fqn not in least or total < least[option.fqn][0]:
                least[option.fqn] = total, FIT_OF_TYPE[option.sharding_type], ranks
        counts = dict.fromkeys(self._config.call_shares, 0.0)
        for _, kind, ranks in least.values():
            counts[kind] += ranks / world
        least_count = max(math.sqrt(len(least) / 4), 1.0)  # should others come than are expected
        self._config.call_shares = {kind: 1 / max(count, least_count) for kind, count in counts.items()}


class FittedPerfModel(PerfModel):  # type: ignore[misc]
    """Rates plans as TorchRec does, but for what is only known of a plan.

    That is which shards share a kernel call, and what a rank receives: it takes as long as if the rank sent as much, so
    that ranks wait for others' outputs.
    """

    def __init__(self, topology: Topology) -> None:
        self._world = topology.world_size
        self._domain = max(topology.intra_group_size, topology.local_world_size)

    def rate(self, plan: list[ShardingOption]) -> float:
        """The largest time of a rank, ms."""
        return max(self.times(plan))

    def times(self, plan: list[ShardingOption]) -> list[float]:
        """Times of each rank, ms."""
        own, intra, inter = ([0.0] * self._world for _ in range(3))
        calls: list[dict[str, float]] = [{} for _ in own]
        for option in plan:
            for shard in option.shards:
                perf, rank = shard.perf, shard.rank
                own[rank] += perf.own_ms
                intra[rank] += perf.intra_ms
                inter[rank] += perf.inter_ms
                calls[rank][perf.kind] = max(calls[rank].get(perf.kind, 0.0), perf.call_ms)
        received = received_beyond_sent(intra, inter, self._domain)
        return [time + more + sum(of_rank.values()) for time, more, of_rank in zip(own, received, calls, strict=True)]


def received_beyond_sent(intra: Sequence[float], inter: Sequence[float], domain: int) -> list[float]:
    """What exchanges take a rank longer because it receives more than it sends, ms; links carry both ways at once.

    Args:
        intra, inter: what each rank sends within its domain, and to other domains, ms.
        domain: ranks of a domain.
    """
    everywhere, more = sum(inter), []
    for first in range(0, len(intra), domain):
        ranks = range(first, first + domain)
        within, out = (sum(sent[rank] for rank in ranks) for sent in (intra, inter))
        from_others = (everywhere - out) / max(len(inter) - domain, 1)
        for rank in ranks:
            from_domain = (within - intra[rank]) / max(domain - 1, 1)
            more.append(max(from_domain - intra[rank], 0.0) + max(from_others - inter[rank], 0.0))
    return more


def fitted_estimator(
    fit: Mapping[str, Any], topology: Topology, constraints: dict[str, ParameterConstraints] | None = None
) -> FittedEstimator:
    """An estimator for ``EmbeddingEnumerator(..., estimator=[fitted_estimator(...), EmbeddingStorageEstimator(...)])``.

    Args:
        fit: the coefficients.
        topology: of the planner.
        constraints: of the planner.
    """
    config = FittedPerfConfig()
    config.fit, config.name = fit, fit["hardware"]
    return FittedEstimator(topology=topology, constraints=constraints, config=config)
