"""Loads: the kernel calls of each device of a plan in a step, which can be run without the plan.

Calls follow ``evenshard.price.kernel_calls``: one fused call for each kind of part, and dense calls for replicas.
A load names no table, so equal loads of different planners are measured once. This module needs only torch and NumPy.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from evenshard.placement.parts import TablePart
from evenshard.placement.placement import parts_by_table
from evenshard.placement.task import ShardingTask
from evenshard.price.kernel_calls import EVERY_DEVICE, KernelCall, Lookup, list_held_parts
from evenshard.tables.table import Table


@dataclass(frozen=True)
class LoadCall:
    """A kernel call of a device.

    Attributes:
        is_dense: True if its tables are replicas.
        pooling: of its tables.
        batch_size: samples of each feature.
        tables: rows, columns and bits of a weight of each table.
        lookups: table, features, lookups of a feature's sample, and histogram of reuse of each table or feature.
    """

    is_dense: bool
    pooling: str
    batch_size: int
    tables: tuple[tuple[int, int, int], ...]
    lookups: tuple[tuple[int, int, float, tuple[float, ...] | None], ...]

    @staticmethod
    def of_record(record: Mapping[str, Any]) -> LoadCall:
        """Restore the call from its record."""
        tables = tuple((rows, columns, bits) for rows, columns, bits in record["tables"])
        lookups = tuple((at, features, each, bins and tuple(bins)) for at, features, each, bins in record["lookups"])
        return LoadCall(record["is_dense"], record["pooling"], record["batch_size"], tables, lookups)

    @cached_property
    def held_tables(self) -> tuple[Table, ...]:
        """Return the device's tables."""
        return tuple(
            Table(f"t{at}", rows, columns, 1.0, weight_bits=bits, pooling=self.pooling)
            for at, (rows, columns, bits) in enumerate(self.tables)
        )

    def drawn_tables(self) -> Iterator[tuple[Table, int]]:
        """Yield the tables to draw lookups for, with their numbers of bags; columns do not change lookups."""
        for at, features, each, bins in self.lookups:
            rows = self.tables[at][0]
            yield Table(_digest((rows, each, bins), 12), rows, 1, each, bins), features * self.batch_size

    def lookups_priced(self) -> list[Lookup]:
        """Return the lookups as a price takes them."""
        found = []
        for at, features, each, bins in self.lookups:
            rows, columns, bits = self.tables[at]
            table = Table(f"t{at}", rows, columns, each, bins, bits, pooling=self.pooling)
            found.append(Lookup(table, features * self.batch_size, is_dense=self.is_dense))
        return found

    def feature_tables(self) -> list[int]:
        """Return the table number of each feature."""
        return [at for at, features, *_ in self.lookups for _ in range(features)]

    @property
    def num_columns(self) -> int:
        """Return the number of values per sample in the outputs, or per lookup for sequences."""
        widths = [self.tables[at][1] for at in self.feature_tables()]
        return widths[0] if self.held_tables[0].is_sequence else sum(widths)


Load = tuple[LoadCall, ...]


def key_of(load: Load) -> str:
    """Return the key of a load; equal loads have the same key on every CPU."""
    return _digest(tuple(map(astuple, load)), 16)


def is_fitted(load: Load) -> bool:
    """Return True for the half of the loads of one fused call, chosen by key, that profiles are fitted to."""
    return len(load) == 1 and not load[0].is_dense and int(key_of(load), 16) % 2 == 0


def round_floats(value: Any) -> Any:
    """Round the floats in nested tuples to 6 significant digits, because their last digits differ between CPUs.

    They are rounded to 12 digits first: a short decimal that ends in 5 lies between two values of 6 digits, and its
    last binary digit must not decide between them.
    """
    if isinstance(value, float):
        return float(f"{float(f'{value:.12g}'):.6g}")
    return tuple(map(round_floats, value)) if isinstance(value, tuple) else value


def _digest(value: Any, length: int) -> str:
    return hashlib.sha256(_order(value).encode()).hexdigest()[:length]


def _order(value: Any) -> str:
    return repr(round_floats(value))


def loads_of(task: ShardingTask, parts: Sequence[TablePart]) -> list[Load]:
    """Return the kernel calls of each device in a step, in the order of the devices."""
    calls: dict[tuple[int, KernelCall, int], list[Sequence[Lookup]]] = defaultdict(list)
    for held in list_held_parts(task, parts_by_table(task, parts)):
        table = held.lookups[0].table
        width = table.embedding_dim if table.is_sequence else 0  # outputs of a call for sequences have one width
        for device in range(task.num_devices) if held.device == EVERY_DEVICE else (held.device,):
            calls[device, held.call, width].append(held.lookups)
    found: list[list[LoadCall]] = [[] for _ in range(task.num_devices)]
    for (device, call, _), parts_of_call in calls.items():
        batch_size = max(round(task.local_batch), 1) if call.is_dense else task.batch_size
        found[device].append(_load_call(call, batch_size, parts_of_call))
    return [tuple(sorted(of_device, key=lambda call: _order(astuple(call)))) for of_device in found]


def _load_call(call: KernelCall, batch_size: int, parts: Sequence[Sequence[Lookup]]) -> LoadCall:
    """Return a call with its parts sorted by size, so that equal loads do not depend on the order in a plan."""
    described = sorted(
        (
            (
                (lookups[0].table.num_rows, lookups[0].table.embedding_dim, lookups[0].table.weight_bits),
                tuple(_lookups_of(one, batch_size) for one in lookups),
            )
            for lookups in parts
        ),
        key=_order,
    )
    lookups = tuple((at, *one) for at, (_, of_part) in enumerate(described) for one in of_part)
    return LoadCall(call.is_dense, call.pooling, batch_size, tuple(table for table, _ in described), lookups)


def _lookups_of(one: Lookup, batch_size: int) -> tuple[int, float, tuple[float, ...] | None]:
    bins = one.table.reuse_bins
    return one.bags // batch_size, float(one.table.pooling_factor), bins and tuple(map(float, bins))


def write_loads(path: Path, loads: Iterable[Load]) -> int:
    """Write each distinct load as one line and return their number."""
    known = {key_of(load): load for load in loads}
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for load in known.values():
            file.write(json.dumps([asdict(call) for call in load]) + "\n")
    return len(known)


def read_loads(path: Path) -> list[Load]:
    """Read the loads of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [tuple(map(LoadCall.of_record, json.loads(line))) for line in file]
