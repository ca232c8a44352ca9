"""Steepest descent: the move or swap that makes the slowest device fastest, until there is none.

Legend: T tables, D devices, P proposals.
"""

from __future__ import annotations

import numpy as np

from benchmarks.references.shard_times import IntArray, ShardTimes


def descend(times: ShardTimes, num_devices: int, device_of_T: IntArray) -> IntArray:
    """[T] a placement that no move or swap of a table of the slowest device improves; at most as slow as the given."""
    device_of_T = device_of_T.copy()
    none = len(device_of_T)
    while True:
        sums_DC = times.sums(device_of_T)
        ms_D = times.alone_with_wait_ms(sums_DC)
        slowest = int(ms_D.argmax())
        own = np.flatnonzero(device_of_T == slowest)
        others = np.flatnonzero(device_of_T != slowest)
        # Each table of the slowest device goes to each other device, or changes places with a table there.
        partners = np.concatenate([np.full(num_devices, none), others])
        targets = np.concatenate([np.arange(num_devices), device_of_T[others]])
        partners, targets = partners[targets != slowest], targets[targets != slowest]
        leaves_P, comes_P, target_P = (
            np.repeat(own, len(partners)),
            np.tile(partners, len(own)),
            np.tile(targets, len(own)),
        )
        if not len(leaves_P):
            return device_of_T
        members_DS = _members(device_of_T, num_devices)
        source_P = np.full(len(leaves_P), slowest)
        lighter_PC = times.after_exchange(sums_DC[source_P], leaves_P, comes_P, members_DS[source_P])
        heavier_PC = times.after_exchange(sums_DC[target_P], comes_P, leaves_P, members_DS[target_P])
        ms_P = np.maximum(times.alone_with_wait_ms(lighter_PC), times.alone_with_wait_ms(heavier_PC))
        ms_P = np.where(times.fits(lighter_PC) & times.fits(heavier_PC), ms_P, np.inf)
        best = int(ms_P.argmin())
        if not ms_P[best] < ms_D[slowest]:
            return device_of_T
        device_of_T[leaves_P[best]] = target_P[best]
        if comes_P[best] != none:
            device_of_T[comes_P[best]] = slowest


def _members(device_of_T: IntArray, num_devices: int) -> IntArray:
    """[D, S] tables of each device, filled up with T."""
    count_D = np.bincount(device_of_T, minlength=num_devices)
    members_DS = np.full((num_devices, int(count_D.max())), len(device_of_T))
    for device in range(num_devices):
        members_DS[device, : count_D[device]] = np.flatnonzero(device_of_T == device)
    return members_DS
