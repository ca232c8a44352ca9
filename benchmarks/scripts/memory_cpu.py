"""The peak memory of real training on the CPU, every rank's, against its prediction.

    OMP_NUM_THREADS=1 python -m benchmarks.scripts.memory_cpu --json out.json

Each setting is a model of TorchRec, trained by ``DistributedModelParallel`` on 2 or 4 ranks with gloo between them.
Predicted is what ``placement/memory.py`` counts for the rank's parts and its samples, and ``dense_bytes`` for the rest
of the model.

Measured is the peak of the resident memory above a baseline: a process whose libraries are imported and whose process
group is up, and which has trained the same plan with tables of a few rows, so that code is loaded and connections have
their buffers. Set for the ranks, so that what is freed is given back and resident memory is what lives:

- ``MALLOC_MMAP_THRESHOLD_`` and ``MALLOC_TRIM_THRESHOLD_`` of 64 KB: larger tensors are mapped one by one;
- ``MALLOC_ARENA_MAX`` of 1: gloo's threads keep no heaps of their own.

``--default-malloc`` leaves glibc as it is. What only CPUs take (``cpu_moments``) is added here and not counted there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scripts.memory_training import (
    Setting,
    TableSpec,
    measured_peaks,
    model_of,
    parts_of,
    setting_tables,
)
from evenshard.placement.memory import WORKSPACE_BYTES, PartMemory, SampleMemory, moments, part_memory, sample_memory
from evenshard.placement.parts import TablePart
from evenshard.placement.sharding import COLUMN_WISE, DATA_PARALLEL, ROW_WISE, TABLE_WISE
from evenshard.tables.table import Table
from evenshard.torchrec import dense_bytes

MB = 1024**2


@dataclass(frozen=True)
class Peak:
    """Bytes of a rank.

    Attributes:
        setting: its name.
        rank: of the setting's ranks.
        predicted: with what only CPUs take.
        counted: without that, as for a GPU.
        searched: what a search counts, the moment of the exchange.
        moment: of the predicted peak.
        tables, inputs, exchanged: of the prediction, weights with states and dense gradients, inputs, and the rest.
        measured: the peak above the baseline.
    """

    setting: str
    rank: int
    predicted: int
    counted: int
    searched: int
    moment: str
    tables: int
    inputs: int
    exchanged: int
    measured: int = 0

    @property
    def error(self) -> float:
        """Of the prediction, relative."""
        return self.predicted / self.measured - 1


def predicted_peaks(setting: Setting) -> list[Peak]:
    """Of each rank, measured left out."""
    model = model_of(setting)
    tables = setting_tables(setting, model)
    by_name, parts = {table.name: table for table in tables}, parts_of(setting, tables)
    given: dict[str, Any] = {
        "num_devices": setting.ranks,
        "batch_size": setting.batch_size,
        "pipeline": setting.pipeline,
    }
    own, rest = sample_memory(tables, **given, parts=parts), dense_bytes(model, setting.dense_optimizer)
    found = []
    for rank in range(setting.ranks):
        mine = [(by_name[part.table], part) for part in parts if rank in part.devices]
        sizes = [part_memory(part, table, **given, optimizer=table_optimizer(setting, part)) for table, part in mine]
        held = sum(sizes, PartMemory())
        at = moments(held, own)
        on_cpu = cpu_moments(held, own, [(table, part, size) for (table, part), size in zip(mine, sizes, strict=True)])
        moment = max(on_cpu, key=lambda name: on_cpu[name])
        lasting, inputs = held.lasting_bytes + own.inputs + rest, held.inputs + own.inputs
        found.append(
            Peak(
                setting.name,
                rank,
                predicted=lasting + on_cpu[moment],
                counted=lasting + max(at.values()),
                searched=held.device_bytes + own.total + rest,
                moment=moment,
                tables=lasting - inputs - rest,
                inputs=inputs,
                exchanged=on_cpu[moment],
            )
        )
    return found


def table_optimizer(setting: Setting, part: TablePart) -> str:
    """Replicas are dense parameters: the dense optimizer trains them."""
    return setting.dense_optimizer if len(part.devices) > 1 else setting.optimizer


def cpu_moments(
    held: PartMemory, own: SampleMemory, parts: Sequence[tuple[Table, TablePart, PartMemory]]
) -> dict[str, int]:
    """The moments of a step as CPUs go through them.

    gloo copies what it scatters and gathers of parts in rows. FBGEMM sorts the lookups of one table after the other; 6
    bytes of each one stay until the end, and 12 while its table is sorted (18 and 24 with weights of lookups); it sorts
    none of replicas. (Measured on the kernel alone: 17.5 bytes of a lookup with one table, 11.5 with two, 8.5 with
    four; 41.5 and 23.5 with weights, of one and four.)
    """
    gloo = sum(size.outputs for table, part, size in parts if part.rows.size < table.num_rows and not table.is_sequence)
    sorted_parts = [(table, size) for table, part, size in parts if len(part.devices) == 1]
    lookups = [(size.workspace / WORKSPACE_BYTES, table.is_weighted) for table, size in sorted_parts]
    stays = sum(count * (18 if is_weighted else 6) for count, is_weighted in lookups)
    one = max((count * (24 if is_weighted else 12) for count, is_weighted in lookups), default=0)
    more = {"outputs are exchanged": gloo, "gradients are exchanged": gloo}
    at = moments(replace(held, workspace=round(stays + one)), own)
    return {name: size + more.get(name, 0) for name, size in at.items()}


# Settings and tables --------------------------------------------------------------------------------------------------

_ROWS, _BATCH = 200_000, 65_536


def _tables(*ways: str, rows: int = _ROWS, dim: int = 64, lookups: int = 10, **kind: bool) -> tuple[TableSpec, ...]:
    return tuple(TableSpec(way, rows, dim, lookups, **kind) for way in ways)


_TW, _CW, _RW, _DP = TABLE_WISE, COLUMN_WISE, ROW_WISE, DATA_PARALLEL
_MIX = (*_tables(_TW, _TW, _RW, _CW), *_tables(_DP, rows=50_000))
SETTINGS = (
    Setting("table_wise", 2, _tables(*[_TW] * 4), _BATCH),
    Setting("table_wise, row-wise Adagrad", 2, _tables(*[_TW] * 4), _BATCH, "rowwise_adagrad"),
    Setting("table_wise, Adagrad", 2, _tables(*[_TW] * 4), _BATCH, "adagrad"),
    Setting("table_wise, wide on rank 0", 2, _tables(_TW, dim=128) + _tables(_TW, dim=32), _BATCH),
    Setting("table_wise, many lookups", 2, _tables(_TW, _TW, lookups=80), 32_768),
    Setting("column_wise", 2, _tables(*[_CW] * 4), _BATCH),
    Setting("column_wise, many lookups", 2, _tables(*[_CW] * 4, lookups=30), _BATCH),
    Setting("row_wise", 2, _tables(*[_RW] * 4), _BATCH),
    Setting("row_wise, row-wise Adagrad", 2, _tables(*[_RW] * 4), _BATCH, "rowwise_adagrad"),
    Setting("data_parallel, SGD", 2, _tables(*[_DP] * 4, rows=100_000), _BATCH),
    Setting("data_parallel, Adam", 2, _tables(*[_DP] * 4, rows=100_000), _BATCH, dense_optimizer="adam"),
    Setting("mixed", 2, _MIX, _BATCH, "rowwise_adagrad"),
    Setting("mixed, base", 2, _MIX, _BATCH, "rowwise_adagrad", "base"),
    Setting("table_wise, base", 2, _tables(*[_TW] * 4, lookups=30), _BATCH, pipeline="base"),
    Setting("table_wise, sparse_dist", 2, _tables(*[_TW] * 4, lookups=30), _BATCH, pipeline="sparse_dist"),
    Setting("column_wise, sparse_dist", 2, _tables(*[_CW] * 4, lookups=30), _BATCH, pipeline="sparse_dist"),
    Setting("row_wise, sparse_dist", 2, _tables(*[_RW] * 4, lookups=30), _BATCH, pipeline="sparse_dist"),
    Setting("weights of lookups", 2, _tables(*[_TW] * 4, lookups=30, weighted=True), _BATCH),
    Setting("sequences", 2, _tables(*[_TW] * 4, dim=32, lookups=20, sequence=True), 16_384),
    Setting("dense model, SGD", 2, _tables(*[_TW] * 4, dim=32), 8_192, dense=30),
    Setting("dense model, Adam", 2, _tables(*[_TW] * 4, dim=32), 8_192, dense=30, dense_optimizer="adam"),
    Setting("small batch", 2, _tables(*[_TW] * 4), 4_096, "rowwise_adagrad"),
    Setting("4 ranks, table_wise", 4, _tables(*[_TW] * 8), _BATCH, "rowwise_adagrad"),
    Setting("4 ranks, row_wise", 4, _tables(*[_RW] * 8), _BATCH),
    Setting("4 ranks, mixed, sparse_dist", 4, _MIX + _MIX, _BATCH, "rowwise_adagrad", "sparse_dist"),
)


def random_setting(seed: int) -> Setting:
    """Three to six tables, sharded in any of the ways, trained in any of the ways: nothing was fitted to these."""
    rng = np.random.default_rng(seed)
    kinds = ((_TW, _TW, _CW, _RW, _DP), (_TW, _CW, _RW))
    tables = tuple(
        TableSpec(
            str(rng.choice(kinds[seed % 2])),
            int(rng.integers(50_000, 250_000)),
            int(rng.choice([16, 32, 64, 128])),
            int(rng.choice([2, 5, 10, 20, 40])),
        )
        for _ in range(int(rng.integers(3, 7)))
    )
    return Setting(
        f"random {seed}",
        int(rng.choice([2, 2, 4])),
        tables,
        int(rng.choice([16_384, 32_768, 65_536])),
        str(rng.choice(["sgd", "rowwise_adagrad", "adagrad"])),
        str(rng.choice(["none", "base", "sparse_dist"])),
        int(rng.choice([0, 10, 20])),
        str(rng.choice(["sgd", "adam"])),
    )


def peaks_of(setting: Setting, default_malloc: bool = False) -> list[Peak]:
    """Trains it: predicted and measured of each rank."""
    return beside(setting, measured_peaks(setting, default_malloc))


def beside(setting: Setting, measured: Sequence[int]) -> list[Peak]:
    """What is predicted of each rank, beside what was measured."""
    return [replace(one, measured=size) for one, size in zip(predicted_peaks(setting), measured, strict=True)]


def table_row(setting: Setting, peaks: Sequence[Peak]) -> str:
    """A setting's row, of ranks in their order."""

    def of_ranks(values: Sequence[str]) -> str:
        return values[0] if len(set(values)) == 1 else ", ".join(values)

    sizes = [of_ranks([f"{getattr(one, name) / MB:.0f}" for one in peaks]) for name in COLUMNS]
    errors = of_ranks([f"{100 * one.error:+.1f} %" for one in peaks])
    searched = of_ranks([f"{100 * (one.searched / one.measured - 1):+.0f} %" for one in peaks])
    return (
        " | ".join(
            [f"| {setting.name}", str(setting.ranks), *sizes, errors, searched, of_ranks([one.moment for one in peaks])]
        )
        + " |"
    )


COLUMNS = ("tables", "inputs", "exchanged", "predicted", "measured")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="every rank's figures")
    parser.add_argument("--measured", type=Path, help="such a file: predicts again what was measured for it")
    parser.add_argument("--default-malloc", action="store_true", help="leave glibc as it is")
    parser.add_argument("--random", type=int, help="this many random settings in place of those of the page")
    parser.add_argument("--only", nargs="*", help="names of settings")
    args = parser.parse_args()
    print("| setting | ranks | tables | inputs | outputs | predicted | measured, MB | error | search | peak when |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    found: list[Peak] = []
    earlier: dict[str, list[int]] = {}
    for one in json.loads(args.measured.read_text()) if args.measured else ():
        earlier.setdefault(one["setting"], []).append(one["measured"])
    chosen = SETTINGS if args.random is None else tuple(random_setting(seed) for seed in range(args.random))
    for setting in chosen:
        if not args.only or setting.name in args.only:
            known = earlier.get(setting.name)
            peaks = beside(setting, known) if known else peaks_of(setting, args.default_malloc)
            found += peaks
            print(table_row(setting, peaks), flush=True)
    errors = sorted(abs(one.error) for one in found)
    within = sum(error <= 0.1 for error in errors)
    median, largest = (100 * errors[at] for at in (len(errors) // 2, -1))
    print(f"\n{within} of {len(errors)} ranks within 10 %; median error {median:.1f} %, largest {largest:.1f} %")
    if args.json:
        args.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
