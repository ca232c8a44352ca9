"""A table kept in every other place: in device memory, behind caches of several sizes, in host memory.

Its parts and all other tables stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from evenshard.compare.explain.changed_parts import WhatIf, more_missing
from evenshard.placement.parts import TablePart, part_table
from evenshard.placement.storage import Storage, storages_of
from evenshard.placement.task import memory_of_part, used_bytes, used_host_bytes, used_ssd_bytes
from evenshard.tables.cache import miss_source, set_miss_ratio

LOAD_FACTORS_TRIED = (0.05, 0.1, 0.2, 0.4, 0.8)


@dataclass(frozen=True)
class KeptOption:
    """The table in one of the places.

    Attributes:
        kernel: compute kernel.
        load_factor: rows in its cache, as a share of all; 1 without a cache.
        is_now: the table is kept so now.
        device_bytes: memory that it takes of all devices together.
        host_bytes: memory of hosts and SSDs together.
        miss_ratio: share of a batch's distinct rows that its caches miss, of the part that misses most; None without.
        miss_source: what that is: counted, a bound, or a bound of something assumed; empty without a cache.
        step_ms: time of a step then.
        change_ms: difference to the step now.
        illegal: why it may not be, a clause each; empty where it may.
    """

    kernel: str
    load_factor: float
    is_now: bool
    device_bytes: int
    host_bytes: int
    miss_ratio: float | None
    miss_source: str
    step_ms: float
    change_ms: float
    illegal: tuple[str, ...]

    @property
    def storage(self) -> Storage:
        """Both words."""
        return Storage(self.kernel, self.load_factor)


def kept_options(what_if: WhatIf, position: int) -> tuple[KeptOption, ...]:
    """Every place of a table that its request's machine has memory for; nothing where that is device memory alone."""
    task, table = what_if.task, what_if.task.tables[position]
    own = what_if.answer.parts_of_table[table.name]
    now, kernels = own[0].storage, task.kernels_of(position)
    tried = [storage for kernel in kernels for storage in storages_of(kernel, LOAD_FACTORS_TRIED)]
    storages = list(dict.fromkeys((*tried, now)))
    if len(own[0].devices) > 1 or len(storages) == 1:
        return ()
    return tuple(
        _option(what_if, position, storage) for storage in sorted(storages, key=lambda one: (order_of(one), one != now))
    )


def order_of(storage: Storage) -> tuple[bool, str, float]:
    """Device memory first; of caches, the largest."""
    return not storage.is_on_device, storage.kernel.removesuffix("_caching"), -storage.load_factor * storage.is_cached


def _option(what_if: WhatIf, position: int, storage: Storage) -> KeptOption:
    task, table = what_if.task, what_if.task.tables[position]
    is_now = what_if.answer.storage_of_table[table.name] == storage
    parts = [replace(part, storage=storage) if part.table == table.name else part for part in what_if.answer.parts]
    own = [part for part in parts if part.table == table.name]
    sizes = [memory_of_part(task, table, part) for part in own]
    step_ms = what_if.now.step_ms if is_now else what_if.costs.predict(parts).predicted_ms
    misses = [
        set_miss_ratio(part_table(part, table), task.batch_size, storage.load_factor)
        for part in own
        if storage.is_cached
    ]
    return KeptOption(
        kernel=storage.kernel,
        load_factor=storage.load_factor,
        is_now=is_now,
        device_bytes=sum(size.device_bytes for size in sizes),
        host_bytes=sum(size.host_bytes + size.ssd_weights for size in sizes),
        miss_ratio=max(misses, default=None),
        miss_source=miss_source(table) if misses else "",
        step_ms=step_ms,
        change_ms=step_ms - what_if.now.step_ms,
        illegal=() if is_now else tuple(_memory_shortages(what_if, parts)),
    )


def _memory_shortages(what_if: WhatIf, parts: Sequence[TablePart]) -> Iterator[str]:
    """Memory that is missing, and was not missing as much before."""
    task, machine, before = what_if.task, what_if.task.machine, what_if.answer.parts
    for count, room, where in (
        (used_bytes, task.room_bytes, "on device"),
        (used_host_bytes, machine.host_bytes or (0,) * machine.num_nodes, "in the memory of host"),
        (used_ssd_bytes, machine.ssd_bytes or (0,) * machine.num_nodes, "on the SSDs of host"),
    ):
        yield from more_missing(count(task, parts), count(task, before), room, where)
