"""Model of a shard's compute time on a GPU: FBGEMM's fused embedding kernels, one after the other.

Forward: the bounds check of the indices (FBGEMM's default), then lookup and pooling. Backward: kernels that compute
linear indices, radix-sort (index, bag) pairs and find runs of equal indices, then the kernels that sum the gradients of
each distinct row and apply the optimizer. Without lookups there is no backward pass.

A kernel takes a minimum time, and time for each bag, lookup and distinct row. Kernels that read rows also wait for the
L2 and for device memory; these waits overlap in part with the instructions (``overlap``). In profiles whose kernels
were measured separately, instructions add to these waits, and every row of a call uses as many lanes of a warp as the
widest row: see ``GpuProfile.lookup_lane_power``. Only the gradient kernels of ``FULL_WARP_OPTIMIZERS`` do not divide a
warp between rows. Lookups whose indices the L2 cannot keep take longer. The host adds a fixed time to each call, and a
call is never shorter than the time that the host needs to launch its kernels.

The terms come from traces and measurements of FBGEMM's kernels. A profile's ``evidence`` lists the data for its
constants and its error.

Legend: N shards.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenshard.placement.memory import SGD, STATE_NUMBERS
from evenshard.price.gpu_profile import GpuProfile
from evenshard.price.shard_work import PLAIN_BYTES, REQUEST_VALUES, SECTOR_BYTES, ShardWork
from evenshard.tables.reuse import FloatArray

RADIX_BITS = 8  # bits of the index that one pass of CUB's radix sort orders
# See ``GpuProfile.short_call_us`` and ``medium_call_us``.
SHORT_LOOKUPS = 2.0**18
SHORT_POWERS, SHORT_SHARES = (13.0, 17.0), (0.0, 1.0)
MEDIUM_POWERS, MEDIUM_SHARES = (18.0, 21.0, 24.0), (0.0, 1.0, 0.0)
# Values of a row that a lane of a warp takes, and the least lanes of a row.
LANE_VALUES, LEAST_LANES = 4, 8
# Largest dims of calls whose rows take 8 lanes, 16, and a whole warp.
LANE_LIMITS = (LEAST_LANES * LANE_VALUES, 2 * LEAST_LANES * LANE_VALUES, REQUEST_VALUES)
# FBGEMM 1.6.0 has only one gradient kernel of these optimizers, <2, 32, true>: a full warp for a row of any dim. It has
# kernels with 8, 16 and 32 lanes for all others, including the partial row-wise ones.
FULL_WARP_OPTIMIZERS = ("adam", "lamb", "lars_sgd")
SPILL_BYTES = 4  # an index, INT32
HOT_LOOKUPS = 128.0  # lookups of a row that one warp sums
ONE_KERNEL_PAIRS = 4864.0  # most pairs that a single CUB kernel sorts: 256 threads with 19 pairs each
ANY_LOOKUPS = 0.5  # fewer expected lookups count as none
NS_PER_MS, US_PER_MS, NS_PER_US = 1e6, 1e3, 1e3


@dataclass(frozen=True)
class KernelTimes:
    """Times of the kernels of shards, [N] ns each, as a GPU trace shows them."""

    bounds_check: FloatArray
    lookup: FloatArray
    index: FloatArray
    sort: FloatArray
    gradient: FloatArray


KERNELS = tuple(field.name for field in fields(KernelTimes))
FORWARD_KERNELS, BACKWARD_KERNELS = KERNELS[:2], KERNELS[2:]


def kernel_times(profile: GpuProfile, work: ShardWork, optimizer: str = SGD) -> KernelTimes:
    """Compute the times of all kernels."""
    return KernelTimes(
        bounds_check_ns(profile, work),
        lookup_ns(profile, work),
        index_ns(profile, work),
        sort_ns(profile, work),
        gradient_ns(profile, work, optimizer),
    )


def forward_ms(profile: GpuProfile, work: ShardWork) -> FloatArray:
    """Return the forward compute time, [N]; 0 for an empty shard."""
    calls = (work.num_tables > 0).astype(np.float64)
    return pass_ms(forward_ns(profile, work), calls, profile.fwd_overhead_us, profile.fwd_host_us)


def backward_ms(profile: GpuProfile, work: ShardWork, optimizer: str = SGD) -> FloatArray:
    """Return the backward compute time with the update of the weights, [N]; 0 without lookups."""
    calls = has_lookups(work.lookups).astype(np.float64)
    kernels_ns = backward_ns(profile, work, optimizer)
    took_ms = pass_ms(kernels_ns, calls, profile.bwd_overhead_us, profile.bwd_host_us)
    return took_ms + outside_kernels_ms(profile, work.lookups)


def has_lookups(lookups_N: FloatArray) -> npt.NDArray[np.bool_]:
    """Return True for calls with lookups, [N]; FBGEMM skips the backward pass of other calls."""
    return np.asarray(lookups_N >= ANY_LOOKUPS)


def outside_kernels_ms(profile: GpuProfile, lookups_N: FloatArray) -> FloatArray:
    """Return the time of backward calls outside of kernels, [N]; see ``GpuProfile.short_call_us``."""
    if profile.short_call_us == profile.medium_call_us == 0:
        return np.zeros(len(lookups_N))
    powers_N = np.log2(np.maximum(lookups_N, 1.0))
    short_us_N = profile.short_call_us * np.interp(powers_N, SHORT_POWERS, SHORT_SHARES)
    medium_us_N = profile.medium_call_us * np.interp(powers_N, MEDIUM_POWERS, MEDIUM_SHARES)
    return np.where(lookups_N < SHORT_LOOKUPS, short_us_N, medium_us_N) / US_PER_MS


def pass_ms(kernels_ns: FloatArray, calls: FloatArray, overhead_us: float, host_us: float) -> FloatArray:
    """Return the time of a forward or backward pass of consecutive calls; 0 without calls.

    The host runs ahead of the device: it launches the kernels of a call while earlier kernels run, so a pass takes the
    longer of all kernels (``kernels_ns``) and all launches (``host_us`` each). No kernel runs during ``overhead_us``.
    """
    issued_ms = np.maximum(kernels_ns / NS_PER_MS, calls * (host_us / US_PER_MS))
    return np.where(calls > 0, overhead_us / US_PER_MS + issued_ms, 0.0)


def forward_ns(profile: GpuProfile, work: ShardWork) -> FloatArray:
    """Return the time of the kernels of forward calls, including those of a cache, [N]; 0 for an empty shard."""
    cache_ns = profile.cached_fwd_us * NS_PER_US * work.cached
    return np.where(work.num_tables > 0, bounds_check_ns(profile, work) + lookup_ns(profile, work) + cache_ns, 0.0)


def backward_ns(profile: GpuProfile, work: ShardWork, optimizer: str = SGD) -> FloatArray:
    """Return the time of the kernels of backward calls, with the update of the weights, [N]; 0 without lookups."""
    kernels_ns = index_ns(profile, work) + sort_ns(profile, work) + gradient_ns(profile, work, optimizer)
    kernels_ns += (profile.bwd_gap_us + profile.cached_bwd_us * work.cached) * NS_PER_US
    return np.where(has_lookups(work.lookups), kernels_ns, 0.0)


def bounds_check_ns(profile: GpuProfile, work: ShardWork) -> FloatArray:
    """Return the time of the kernel that checks every index of a fused call against the rows of its table, [N]."""
    checked_ns = profile.bounds_ns_per_bag * work.bags + profile.bounds_ns_per_lookup * work.lookups
    checked_ns += profile.bounds_ns_per_filled * work.filled_bags
    return np.asarray(profile.bounds_floor_us * NS_PER_US + (1 - work.dense) * checked_ns)


class Waits(NamedTuple):
    """Memory wait times of a kernel that reads rows, [N] ns; see ``overlap``."""

    instructions: FloatArray
    l2: FloatArray
    memory: FloatArray
    chain: FloatArray


def lookup_ns(profile: GpuProfile, work: ShardWork) -> FloatArray:
    """Return the time of the forward kernel, where a warp sums the rows of a bag one after the other, [N]."""
    issued_ns = (all_lanes_ns(profile, work)[:2] * lanes_by_widest(profile, work.widest)[:2]).sum(axis=0)
    issued_ns += profile.lookup_ns_per_spilled * spilled_lookups(profile, work.lookups)
    return np.asarray(profile.lookup_floor_us * NS_PER_US + issued_ns + overlap(np.stack(lookup_waits(profile, work))))


def spilled_lookups(profile: GpuProfile, lookups: FloatArray) -> FloatArray:
    """Return the lookups of calls beyond those whose indices fit in the L2, [N]."""
    return np.maximum(lookups - profile.l2_bytes / SPILL_BYTES, 0.0)


def lanes(widest: FloatArray, power: float) -> FloatArray:
    """Return the fraction of a warp's lanes that a row takes in a call with this largest dim, to the ``power``, [N]."""
    few, half, _ = LANE_LIMITS
    needed = np.where(widest <= few, 0.25, np.where(widest <= half, 0.5, 1.0))
    return np.asarray(needed**power)


def lanes_by_widest(profile: GpuProfile, widest: FloatArray) -> FloatArray:
    """Return the factors to apply to ``all_lanes_ns`` for the largest dim of a call, [4, N]."""
    bags = lanes(widest, profile.lookup_lane_power)
    gradients = lanes(widest, profile.gradient_lane_power)
    warps = np.ceil(np.maximum(widest, 1.0) / REQUEST_VALUES)
    wide = warps**profile.gradient_wide_power
    return np.stack([bags, bags * warps, gradients * wide, lanes(widest, profile.row_lane_power) * wide])


def all_lanes_ns(profile: GpuProfile, work: ShardWork, optimizer: str = SGD) -> FloatArray:
    """Return the instruction time of bags, rows, gradients and updates if a row takes a full warp, [4, N].

    It excludes waits, and all of ``full_warp_ns``.
    """
    found = np.zeros((4, len(work.bags)))
    if profile.lookup_lane_power:
        found[:2] = profile.lookup_ns_per_bag * work.bags, profile.lookup_ns_per_request * work.lookups
    if profile.gradient_lane_power and optimizer not in FULL_WARP_OPTIMIZERS:
        updated = work.uniques + profile.rounding_share * work.rounded_rows
        found[2:] = profile.gradient_ns_per_request * work.lookups, profile.gradient_ns_per_row * updated
        per_row, per_weight = STATE_NUMBERS[optimizer]
        found[2:] *= 1 + profile.row_state_share * per_row + profile.weight_state_share * per_weight
    return found


def full_warp_ns(profile: GpuProfile, work: ShardWork, optimizer: str) -> FloatArray:
    """Return the instruction time of the gradient kernels of ``FULL_WARP_OPTIMIZERS``, which is additive, [N]."""
    if optimizer not in FULL_WARP_OPTIMIZERS:
        return np.zeros(len(work.bags))
    further = work.row_requests - work.lookups
    found = profile.full_warp_ns_per_lookup * work.lookups + profile.full_warp_ns_per_request * further
    return np.asarray(found + profile.full_warp_ns_per_row * work.uniques)


def lookup_waits(profile: GpuProfile, work: ShardWork) -> Waits:
    """Return the memory wait times of the forward kernel."""
    instructions = profile.lookup_ns_per_bag * work.bags + profile.lookup_ns_per_request * work.row_requests
    return Waits(
        np.zeros_like(instructions) if profile.lookup_lane_power else instructions,
        (work.row_bytes + work.output_bytes) / profile.l2_gb_s,
        (work.row_miss_bytes + work.output_bytes) / profile.hbm_bytes_per_ns,
        longest_bag_ns(profile, work.longest_bag, work.row_bytes, work.row_miss_bytes),
    )


def longest_bag_ns(
    profile: GpuProfile, longest_bag: FloatArray, row_bytes: FloatArray, row_miss_bytes: FloatArray
) -> FloatArray:
    """Return the time of the longest bag, a lower bound for the kernel even on an idle GPU, [N]."""
    miss_share = row_miss_bytes / np.where(row_bytes > 0, row_bytes, 1.0)
    return (profile.bag_hit_ns + (profile.bag_miss_ns - profile.bag_hit_ns) * miss_share) * longest_bag


def index_ns(profile: GpuProfile, work: ShardWork) -> FloatArray:
    """Return the time of the kernels that compute linear indices and find equal runs, without the sort, [N]."""
    more_ns = profile.index_bag_ns * work.longest_bag
    more_ns += profile.index_ns_per_spilled * spilled_lookups(profile, work.lookups)
    return np.asarray(profile.index_floor_us * NS_PER_US + additive_index_ns(profile, work) + more_ns)


def additive_index_ns(profile: GpuProfile, work: ShardWork) -> FloatArray:
    """Return the part of ``index_ns`` that is additive over tables, [N]."""
    return np.asarray(
        profile.index_ns_per_bag * work.bags
        + profile.index_ns_per_lookup * work.lookups
        + profile.index_ns_per_row * work.uniques
    )


def sort_passes(num_rows: FloatArray) -> FloatArray:
    """Return the number of radix-sort passes, [N]: one per byte of the largest linear index."""
    bits = np.floor(np.log2(np.maximum(num_rows, 1.0))) + 1
    return np.asarray(np.ceil(bits / RADIX_BITS))


def sort_ns(profile: GpuProfile, work: ShardWork) -> FloatArray:
    """Return the radix-sort time, [N]; each pass moves all (index, bag) pairs."""
    return np.asarray(profile.sort_floor_us * NS_PER_US + sort_passes_ns(profile, work.lookups, work.num_rows))


def sort_passes_ns(profile: GpuProfile, lookups: FloatArray, num_rows: FloatArray) -> FloatArray:
    """Return the time of all passes of the radix sort, [N]."""
    passes = sort_passes(num_rows)
    started_us = profile.sort_pass_us * passes * (lookups > ONE_KERNEL_PAIRS)
    return np.asarray(started_us * NS_PER_US + lookups * passes / profile.sort_pairs_per_ns)


def gradient_ns(profile: GpuProfile, work: ShardWork, optimizer: str = SGD) -> FloatArray:
    """Return the time of the backward kernels that sum each distinct row's gradients and update the row, [N]."""
    issued_ns = (all_lanes_ns(profile, work, optimizer)[2:] * lanes_by_widest(profile, work.widest)[2:]).sum(axis=0)
    issued_ns += full_warp_ns(profile, work, optimizer) + hot_row_ns(profile, work.hottest)
    issued_ns += profile.gradient_ns_per_spilled * spilled_lookups(profile, work.lookups)
    waits_ns = overlap(np.stack(gradient_waits(profile, work, optimizer)))
    return np.asarray(profile.gradient_floor_us * NS_PER_US + issued_ns + waits_ns)


def hot_row_ns(profile: GpuProfile, hottest: FloatArray) -> FloatArray:
    """Return the time that the row with the most lookups adds to all memory waits, [N]."""
    return np.asarray(profile.hot_row_ns * np.minimum(hottest, HOT_LOOKUPS))


def gradient_waits(profile: GpuProfile, work: ShardWork, optimizer: str = SGD) -> Waits:
    """Return the backward kernels' memory waits; ``chain`` is the time to sum the gradients of the hottest row."""
    # Row-wise states are part of the row cost.
    requests = work.row_requests + 2 * STATE_NUMBERS[optimizer][1] * work.unique_requests
    instructions = profile.gradient_ns_per_request * requests + profile.gradient_ns_per_row * work.uniques
    updated_bytes = work.unique_bytes + state_update_bytes(work, optimizer)
    return Waits(
        np.zeros_like(instructions) if profile.gradient_lane_power else instructions,
        (work.grad_bytes + 2 * updated_bytes) / profile.l2_gb_s,
        (work.grad_miss_bytes + 2 * updated_bytes) / profile.hbm_bytes_per_ns,
        profile.hot_lookup_ns * work.hottest,
    )


def state_update_bytes(work: ShardWork, optimizer: str) -> FloatArray:
    """Return the optimizer-state bytes of the distinct rows, [N]; a row-wise state occupies one sector."""
    per_row, per_weight = STATE_NUMBERS[optimizer]
    return np.asarray(per_row * SECTOR_BYTES * work.uniques + per_weight * work.unique_values * PLAIN_BYTES)


def overlap(parts_ns: FloatArray) -> FloatArray:
    """Combine the waits of a kernel, [parts, ...], to a time between the longest and the sum, [...].

    It is the cube root of the sum of cubes: in the public measurements a wait hides most of a much shorter wait, but
    two equal waits take about a quarter longer than one wait.
    """
    longest = np.maximum(parts_ns.max(axis=0), 1e-9)
    ratios = parts_ns / longest
    return np.asarray(longest * np.cbrt((ratios * ratios * ratios).sum(axis=0)))
