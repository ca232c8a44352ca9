"""The memory and time of counting a sample of traffic.

    python -m benchmarks.scripts.traffic_memory --gigabytes 1 --kind parquet

Writes a sample of about that size into a temporary folder, makes tables of it in a process of its own as
``evenshard place`` does, and prints that one's peak resident memory, which includes the mapped pages of files, and its
seconds. Kinds: ``parquet`` and ``keyed`` are folders of files with 4,096 samples per ``.pt`` and 524,288 per Parquet
file, ``dlrm`` is one file. The results stand in ``traffic_memory_202611.md``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

NUM_ROWS = 10_000_000


def write_sample(folder: Path, kind: str, gigabytes: float, num_tables: int, pooling_factor: int) -> Path:
    """The sample's path. Every sample looks up ``pooling_factor`` rows of each table, rank r as often as 1 / r."""
    rng = np.random.default_rng(0)
    num_samples = int(gigabytes * 1024**3 / (8 * num_tables * pooling_factor))
    if kind == "dlrm":
        _write_dlrm(folder / "batch.pt", rng, num_samples, num_tables, pooling_factor)
        return folder / "batch.pt"
    per_file = 4096 if kind == "keyed" else 524_288
    for number, first in enumerate(range(0, num_samples, per_file)):
        count = min(per_file, num_samples - first)
        name = f"{number:06d}"
        if kind == "keyed":
            _write_keyed(folder / f"{name}.pt", rng, count, num_tables, pooling_factor)
        else:
            _write_parquet(folder / f"{name}.parquet", rng, count, num_tables, pooling_factor)
    return folder


def _rows(rng: np.random.Generator, count: int) -> np.ndarray:
    return (NUM_ROWS ** rng.random(count, dtype=np.float32)).astype(np.int64) - 1


def _write_parquet(path: Path, rng: np.random.Generator, count: int, num_tables: int, pooling_factor: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [f"table_{number}" for number in range(num_tables)]
    schema = pa.schema([(name, pa.list_(pa.int64())) for name in names])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for first in range(0, count, 65536):  # one row group each
            size = min(65536, count - first)
            offsets = np.arange(0, size * pooling_factor + 1, pooling_factor, dtype=np.int32)
            columns = [pa.ListArray.from_arrays(offsets, pa.array(_rows(rng, size * pooling_factor))) for _ in names]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


def _write_keyed(path: Path, rng: np.random.Generator, count: int, num_tables: int, pooling_factor: int) -> None:
    import torch

    values = torch.from_numpy(_rows(rng, num_tables * count * pooling_factor))
    lengths = torch.full((num_tables * count,), pooling_factor, dtype=torch.int32)
    torch.save({"keys": [f"table_{n}" for n in range(num_tables)], "values": values, "lengths": lengths}, path)


def _write_dlrm(path: Path, rng: np.random.Generator, count: int, num_tables: int, pooling_factor: int) -> None:
    import torch

    # The values stand in a mapped file until they are saved: a sample may be larger than the memory.
    with tempfile.NamedTemporaryFile(dir=path.parent) as file:
        num_values = num_tables * count * pooling_factor
        values = torch.from_file(file.name, shared=True, size=num_values, dtype=torch.int64)
        for part in values.split(1 << 24):
            part.copy_(torch.from_numpy(_rows(rng, len(part))))
        lengths = torch.full((num_tables, count), pooling_factor, dtype=torch.int64)
        torch.save((values, torch.arange(0, num_values + 1, pooling_factor), lengths), path)


def count_sample(source: Path, batch_size: int) -> dict[str, Any]:
    from evenshard.tables.sources import tables_from

    start = time.perf_counter()
    tables = tables_from(source, batch_size, embedding_dim=16).tables
    return {
        "seconds": round(time.perf_counter() - start, 1),
        "peak_resident_mib": _peak_resident_mib(),
        "num_tables": len(tables),
        "first_pooling_factor": tables[0].pooling_factor,
        "first_num_rows": tables[0].num_rows,
    }


def _peak_resident_mib() -> int:
    """Of this process; what getrusage tells can be its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--kind", choices=("parquet", "keyed", "dlrm"), default="parquet")
    parser.add_argument("--num-tables", type=int, default=26)
    parser.add_argument("--pooling-factor", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=65536)
    parser.add_argument("--count", type=Path, help="only count this sample")
    args = parser.parse_args()
    if args.count is not None:
        print(json.dumps(count_sample(args.count, args.batch_size)))
        return
    with tempfile.TemporaryDirectory(prefix="evenshard-traffic-") as folder:
        source = write_sample(Path(folder), args.kind, args.gigabytes, args.num_tables, args.pooling_factor)
        sizes = [path.stat().st_size for path in Path(folder).iterdir()]
        print(f"{args.kind}: {sum(sizes) / 1024**3:.2f} GiB in {len(sizes)} files", file=sys.stderr)
        script = [sys.executable, "-m", "benchmarks.scripts.traffic_memory"]
        subprocess.run([*script, "--count", str(source), "--batch-size", str(args.batch_size)], check=True)


if __name__ == "__main__":
    main()
