"""The model of a shard's time on a GPU: the kernels of FBGEMM's fused embedding with SGD, one after the other.

It is a model that no GPU has confirmed.

A kernel takes as long as the slowest of what it needs: device memory, L2, or the latency of its requests divided by the
requests in flight. The host adds a fixed time to each call and each kernel its launch.

Forward: the bounds check of the indices (FBGEMM's default), then lookup and pooling. Backward: linear indices, radix
sort of them with their bags, run lengths, then one kernel that sums the gradients of each distinct row and
updates the row.

Left out: instruction throughput, TLB misses, DRAM pages, the tail of the last wave of warps.

Legend: N shards.
"""

from __future__ import annotations

import numpy as np

from evenshard.measure.simulated.gpu_profile import GpuProfile
from evenshard.measure.simulated.shard_work import PLAIN_BYTES, ShardWork
from evenshard.tables.reuse import FloatArray

FWD_KERNELS = 2
BWD_KERNELS = (
    12  # without the passes of the sort: fills, linearise, histogram, run lengths, cumsum, segments, 2 updates
)
KEY_BYTES, VALUE_BYTES = 8, 4
RADIX_BITS = 8
ROW_LIMITS = tuple(2.0 ** (RADIX_BITS * passes) - 1 for passes in range(1, 6))  # for ``sort_passes`` of 1, 2, ...
LOOKUPS_PER_BLOCK = 1024  # of one row; further ones go to another thread block
WARPS_PER_BLOCK = 8
NS_PER_MS, US_PER_MS = 1e6, 1e3


def forward_ms(profile: GpuProfile, work: ShardWork) -> FloatArray:
    """[N] forward compute time; 0 where a shard is empty."""
    index_bytes = PLAIN_BYTES * (work.lookups + work.bags)
    kernels_ns = index_bytes / profile.hbm_bytes_per_ns + lookup_ns(profile, work)
    fixed_ms = (profile.fwd_overhead_us + FWD_KERNELS * profile.launch_us) / US_PER_MS
    return np.where(work.num_tables > 0, fixed_ms + kernels_ns / NS_PER_MS, 0.0)


def backward_ms(profile: GpuProfile, work: ShardWork) -> FloatArray:
    """[N] backward compute time, with the update of the weights; 0 where a shard is empty."""
    kernels_ns = index_ns(profile, work) + sort_ns(profile, work) + gradient_ns(profile, work)
    launches = BWD_KERNELS + sort_passes(work)
    fixed_ms = (profile.bwd_overhead_us + launches * profile.launch_us) / US_PER_MS
    return np.where(work.num_tables > 0, fixed_ms + kernels_ns / NS_PER_MS, 0.0)


def lookup_ns(profile: GpuProfile, work: ShardWork) -> FloatArray:
    """[N] the forward kernel: a warp takes a bag, reads its offsets, its indices, then its rows."""
    streamed = PLAIN_BYTES * (work.lookups + work.bags) + work.output_bytes
    memory_ns = (work.row_miss_bytes + streamed) / profile.hbm_bytes_per_ns
    l2_ns = (work.row_bytes + streamed) / profile.l2_gb_s
    chain_ns = work.bags * (profile.l2_latency_ns + profile.hbm_latency_ns)
    rows_ns = work.row_requests * _latency_ns(profile, work.row_miss_bytes, work.row_bytes) / profile.fwd_loads_per_warp
    busy_warps = np.minimum(profile.resident_warps, np.maximum(work.bags, 1.0))
    return np.asarray(np.maximum.reduce([memory_ns, l2_ns, (chain_ns + rows_ns) / busy_warps]))


def index_ns(profile: GpuProfile, work: ShardWork) -> FloatArray:
    """[N] the kernels that stream indices: linearise them, and find the runs of equal ones after the sort."""
    per_lookup = PLAIN_BYTES + (KEY_BYTES + VALUE_BYTES) + KEY_BYTES  # read; write key and bag; read the key again
    per_unique = KEY_BYTES + 3 * PLAIN_BYTES + 3 * PLAIN_BYTES  # write a run; sum up lengths; look for long ones
    num_bytes = per_lookup * work.lookups + per_unique * work.uniques + PLAIN_BYTES * work.bags
    return np.asarray(num_bytes / profile.hbm_bytes_per_ns)


def sort_passes(work: ShardWork) -> FloatArray:
    """[N] passes of the radix sort: as many as the linear indices of the whole shard have bytes."""
    bits = np.floor(np.log2(np.maximum(work.num_rows, 1.0))) + 1
    return np.asarray(np.ceil(bits / RADIX_BITS))


def sort_ns(profile: GpuProfile, work: ShardWork) -> FloatArray:
    """[N] the radix sort: a histogram of the keys, then each pass reads and writes all pairs."""
    memory_ns = 2 * (KEY_BYTES + VALUE_BYTES) / profile.hbm_bytes_per_ns
    moving_ns = 1 / (profile.sort_pairs_per_sm_clock * profile.num_sms * profile.clock_ghz)
    histogram_ns = KEY_BYTES / profile.hbm_bytes_per_ns
    return np.asarray(work.lookups * (histogram_ns + sort_passes(work) * max(memory_ns, moving_ns)))


def gradient_ns(profile: GpuProfile, work: ShardWork) -> FloatArray:
    """[N] the backward kernel: a warp takes a distinct row, sums up its gradients, updates it.

    Rows with many lookups are taken by thread blocks, which share a row beyond 1024 lookups and then add to it in
    turn. However idle the rest of the GPU is, the hottest row of the shard takes its time.
    """
    streamed = PLAIN_BYTES * work.lookups + (KEY_BYTES + PLAIN_BYTES) * work.uniques + 2 * work.unique_bytes
    memory_ns = (work.grad_miss_bytes + streamed) / profile.hbm_bytes_per_ns
    l2_ns = (work.grad_bytes + streamed) / profile.l2_gb_s
    chain_ns = work.grad_warps * (2 * profile.l2_latency_ns + profile.hbm_latency_ns)
    grads_ns = work.grad_requests * _latency_ns(profile, work.grad_miss_bytes, work.grad_bytes)
    busy_warps = np.minimum(profile.resident_warps, np.maximum(work.grad_warps, 1.0))
    latency_ns = (chain_ns + grads_ns / profile.bwd_loads_per_warp) / busy_warps
    return np.asarray(np.maximum.reduce([memory_ns, l2_ns, latency_ns, hottest_row_ns(profile, work)]))


def hottest_row_ns(profile: GpuProfile, work: ShardWork) -> FloatArray:
    """[N] the time that the row with the most lookups takes, whatever else there is to do."""
    in_flight = WARPS_PER_BLOCK * profile.bwd_loads_per_warp
    block_ns = np.minimum(work.hottest, LOOKUPS_PER_BLOCK) * profile.l2_latency_ns / in_flight
    return np.asarray(block_ns + np.maximum(work.hottest / LOOKUPS_PER_BLOCK - 1, 0.0) * profile.hot_row_ns)


def _latency_ns(profile: GpuProfile, miss_bytes: FloatArray, all_bytes: FloatArray) -> FloatArray:
    """[N] mean latency of requests of which that share misses the L2."""
    miss_share = miss_bytes / np.where(all_bytes > 0, all_bytes, 1.0)
    return np.asarray(profile.l2_latency_ns + (profile.hbm_latency_ns - profile.l2_latency_ns) * miss_share)
