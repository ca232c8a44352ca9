"""The time that a shard adds to a training step on its device: a sum of fitted coefficients times what the shard does.

Exported files hold this module as it stands here, so that it imports nothing but the standard library.

TorchRec rates a plan by the largest sum of its shards' times over a rank, so that all must be said of one shard alone.
What shards share is spread: a kernel call has costs of its own (launches, latencies), however many tables it looks up,
and each of its shards bears a part of them (``FittedShard.call_share``).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_TABLE_WISE, _ROW_WISE, _TABLE_ROW_WISE = "table_wise", "row_wise", "table_row_wise"
_DATA_PARALLEL = "data_parallel"
# Sharding types, and the one that each shares its kernel call, its exchanges and its coefficients with.
FIT_OF_TYPE = {
    "table_wise": _TABLE_WISE,
    "column_wise": _TABLE_WISE,
    "table_column_wise": _TABLE_WISE,
    "row_wise": _ROW_WISE,
    "table_row_wise": _TABLE_ROW_WISE,
    "grid_shard": _TABLE_ROW_WISE,
    "data_parallel": _DATA_PARALLEL,
}
_SECTOR_BYTES, HOST_LINE_BYTES = 32, 64
# Values of a row that one instruction of a warp fetches.
_REQUEST_VALUES = 128
# Outputs, their gradients, and dense gradients are FP32.
FP32_BYTES = 4


@dataclass(frozen=True)
class WorldSize:
    """The ranks of a job.

    Attributes:
        world: all of them.
        node: those of a node.
        domain: those that the fast link connects: of a node, or of several.
    """

    world: int
    node: int
    domain: int


@dataclass(frozen=True)
class FittedShard:
    """What the formula asks of a shard.

    Attributes:
        sharding_type, compute_kernel: TorchRec's words.
        rows, columns: of the shard.
        table_rows: of its whole table.
        lookups: of the whole table, in the batch of all ranks.
        bags: of the whole table, in the batch of all ranks: samples times features.
        weight_bytes: of one weight.
        is_pooled: False for sequences.
        is_weighted: whether lookups have weights.
        forward_bytes, backward_bytes: of a value on its way to another rank.
        load_factor: share of the rows that a cache holds.
        miss_rate: share of the batch's distinct rows that the cache misses; None where nothing is known of it.
        call_share: part of what its kernel call costs by itself: 1 over the shards of the call.
    """

    sharding_type: str
    compute_kernel: str
    rows: int
    columns: int
    table_rows: int
    lookups: float
    bags: float
    weight_bytes: float
    is_pooled: bool = True
    is_weighted: bool = False
    forward_bytes: float = 4.0
    backward_bytes: float = 4.0
    load_factor: float = 0.2
    miss_rate: float | None = None
    call_share: float = 1.0

    @property
    def share(self) -> float:
        """Share of the table's rows, and of its lookups, that the shard has."""
        return self.rows / self.table_rows if self.table_rows else 0.0


@dataclass(frozen=True)
class Rates:
    """Bytes per ms: of the link within a domain, of that between domains, and of a device's link to its host."""

    intra: float
    inter: float
    host: float


@dataclass(frozen=True)
class ShardTimes:
    """What a shard takes of a step on its device, ms."""

    forward: float = 0.0
    backward: float = 0.0
    forward_exchange: float = 0.0
    backward_exchange: float = 0.0
    input_exchange: float = 0.0
    cache_fetch: float = 0.0

    @property
    def exchanges(self) -> float:
        """Time of the exchanges of inputs, outputs and gradients."""
        return self.forward_exchange + self.backward_exchange + self.input_exchange

    @property
    def total(self) -> float:
        """All of it."""
        return self.forward + self.backward + self.exchanges + self.cache_fetch


@lru_cache(maxsize=1 << 18)
def work_of(shard: FittedShard, size: WorldSize, distinct_share: float, l2_bytes: float) -> dict[str, float]:
    """What the kernels of a shard's rank do for it in a step; the names are those of the coefficients.

    A call and a shard count as such, everything else in millions.

    Args:
        shard: the shard.
        size: of the job.
        distinct_share: distinct rows of many lookups, for each of them.
        l2_bytes: of rows that the device's L2 cache holds.
    """
    samples = 1 / size.world if shard.sharding_type == _DATA_PARALLEL else 1.0
    lookups = shard.lookups * shard.share * samples
    bags = shard.bags * samples if shard.is_pooled else max(lookups, 1.0)
    distinct = min(distinct_share * lookups, float(shard.rows))
    row_bytes = touched_bytes(shard.columns * shard.weight_bytes, _SECTOR_BYTES)
    gradient_bytes = touched_bytes(shard.columns * FP32_BYTES, _SECTOR_BYTES)
    read = min(lookups, bags)
    return {
        "call": shard.call_share,
        "shard": 1.0,
        "bags": bags / 1e6,
        "lookups": lookups / 1e6,
        "sorted": lookups * math.log2(max(shard.rows, 2)) / 1e6,
        "requests": lookups * math.ceil(shard.columns / _REQUEST_VALUES) / 1e6,
        "distinct": distinct / 1e6,
        "repeated": lookups / max(distinct, 1.0) / 1e6,
        "row_bytes": lookups * row_bytes / 1e6,
        "distinct_bytes": distinct * row_bytes / 1e6,
        "missed_bytes": cache_miss_bytes(lookups * row_bytes, distinct * row_bytes, l2_bytes) / 1e6,
        "output_bytes": bags * shard.columns * FP32_BYTES / 1e6,
        "gradient_bytes": lookups * gradient_bytes / 1e6,
        "missed_gradient_bytes": cache_miss_bytes(lookups * gradient_bytes, read * gradient_bytes, l2_bytes) / 1e6,
        "dense_bytes": shard.rows * shard.columns * FP32_BYTES / 1e6 if samples < 1 else 0.0,
    }


def host_work_of(shard: FittedShard, fit: Mapping[str, Any], host: float) -> dict[str, float]:
    """What a shard adds that is not in device memory; times of bytes are ms, lookups are in millions.

    Args:
        shard: the shard.
        fit: of the file.
        host: bytes per ms of the device's link to its host.
    """
    lookups = shard.lookups * shard.share
    distinct = min(fit["distinct_share"] * lookups, float(shard.rows))
    row_bytes = touched_bytes(shard.columns * shard.weight_bytes, HOST_LINE_BYTES)
    return {
        "lookups": lookups / 1e6,
        "read_ms": lookups * row_bytes / host,
        "distinct_ms": distinct * row_bytes / host,
        "missed_ms": miss_rate_of(shard, distinct, fit["new_share"]) * distinct * row_bytes / host,
        "state_ms": distinct * touched_bytes(shard.columns * FP32_BYTES, HOST_LINE_BYTES) / host,
    }


def miss_rate_of(shard: FittedShard, distinct: float, new_share: float) -> float:
    """The known miss rate; else a line from all, without a cache, over the rows new in each batch, to nothing."""
    if shard.miss_rate is not None:
        return shard.miss_rate
    full = distinct / shard.rows if shard.rows else 1.0
    new = new_share * (1 - full)
    if shard.load_factor <= full:
        return 1 - (1 - new) * shard.load_factor / full if full else 0.0
    return new * (1 - shard.load_factor) / (1 - full) if full < 1 else 0.0


def touched_bytes(row_bytes: float, line: int) -> float:
    """Bytes of the lines of a memory that a row touches: a mean over where rows begin."""
    aligned = math.gcd(int(row_bytes), line)
    return ((row_bytes - aligned) / line + 1) * line


def cache_miss_bytes(read_bytes: float, distinct_bytes: float, cache_bytes: float) -> float:
    """Bytes that a cache does not have: each distinct one once, and more the less of them it holds."""
    forgotten = max(1 - cache_bytes / max(distinct_bytes, 1.0), 0.0)
    return distinct_bytes + max(read_bytes - distinct_bytes, 0.0) * forgotten


# Exchanges ------------------------------------------------------------------------------------------------------------


def exchanged_ms(
    shard: FittedShard, size: WorldSize, rates: Rates, fit: Mapping[str, Any]
) -> tuple[float, float, float]:
    """Input, forward and backward exchange of a shard, if all ranks had as much to exchange."""
    kind = FIT_OF_TYPE[shard.sharding_type]
    if size.world == 1 or not shard.rows:
        return 0.0, 0.0, 0.0
    part, link = shard.call_share, fit["exchange"]
    latency = part * link["latency_us"] / 1e3
    if kind == _DATA_PARALLEL:
        gradients = 2.0 * FP32_BYTES * shard.rows * shard.columns
        return 0.0, 0.0, latency + reduce_ms(gradients, size, rates)
    lookups = shard.lookups * shard.share
    values = (shard.bags if shard.is_pooled else lookups) * shard.columns
    if shard.is_pooled and kind == _ROW_WISE:
        one_byte = reduce_ms(values, size, rates)
    elif shard.is_pooled and kind == _TABLE_ROW_WISE:
        one_byte = node_reduce_ms(values, size, rates)
        latency += part * link["node_latency_us"] / 1e3 if size.world > size.node else 0.0
    else:
        one_byte = all_to_all_ms(values, size, rates)
    input_bytes = lookups * (link["index_bytes"] + link["lookup_weight_bytes"] * shard.is_weighted)
    inputs = all_to_all_ms(input_bytes + shard.bags * link["length_bytes"], size, rates)
    return (
        inputs + 2 * part * link["latency_us"] / 1e3,
        link["forward_share"] * (one_byte * shard.forward_bytes + latency),
        one_byte * shard.backward_bytes + latency,
    )


def link_rate(link: Mapping[str, float], ranks: int) -> float:
    """Bytes per ms of a rank, while as many others exchange as much."""
    return 1e6 / (link["own_ns"] + link["slowest_ns"] + ranks * link["shared_ns"])


def all_to_all_ms(all_bytes: float, size: WorldSize, rates: Rates) -> float:
    """A rank sends each other one that one's part of so many bytes."""
    to_one = all_bytes / size.world
    return to_one * (size.domain - 1) / rates.intra + to_one * (size.world - size.domain) / rates.inter


def reduce_ms(all_bytes: float, size: WorldSize, rates: Rates) -> float:
    """A reduce-scatter of a buffer on all ranks: in each domain first, then between them."""
    domains = size.world // size.domain
    within = all_bytes * (size.domain - 1) / size.domain / rates.intra
    return within + all_bytes * (domains - 1) / domains / size.domain / rates.inter


def node_reduce_ms(all_bytes: float, size: WorldSize, rates: Rates) -> float:
    """A reduce-scatter in each node, then an all-to-all of the sums between nodes."""
    to_one = all_bytes / size.world
    nodes, of_domain = size.world // size.node, size.domain // size.node
    within = all_bytes * (size.node - 1) / size.node + to_one * (of_domain - 1)
    return within / rates.intra + to_one * (nodes - of_domain) / rates.inter


# All of it ------------------------------------------------------------------------------------------------------------


def shard_times(shard: FittedShard, size: WorldSize, rates: Rates, fit: Mapping[str, Any]) -> ShardTimes:
    """What a shard takes of a step.

    Args:
        shard: the shard.
        size: of the job.
        rates: of its links.
        fit: the coefficients.
    """
    if not shard.rows:
        return ShardTimes()
    work = work_of(shard, size, fit["distinct_share"], fit["l2_bytes"])
    of_type = fit["compute"][FIT_OF_TYPE[shard.sharding_type]]
    forward, backward, fetch = weighted_sum(of_type["forward"], work), weighted_sum(of_type["backward"], work), 0.0
    if shard.compute_kernel in fit["kernels"]:
        outside, of_host = fit["kernels"][shard.compute_kernel], host_work_of(shard, fit, rates.host)
        fetch = outside["forward"].get("missed_ms", 0.0) * of_host["missed_ms"]
        forward += weighted_sum(outside["forward"], of_host) - fetch
        backward += weighted_sum(outside["backward"], of_host)
    inputs, out, back = exchanged_ms(shard, size, rates, fit)
    return ShardTimes(forward, backward, out, back, inputs, fetch)


def weighted_sum(coefficients: dict[str, float], work: dict[str, float]) -> float:
    """The sum of coefficients times what they are for."""
    return sum(value * work[name] for name, value in coefficients.items())
