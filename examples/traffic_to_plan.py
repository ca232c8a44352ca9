"""From a sample of real traffic to a plan for TorchRec: no pooling factor has to be known.

    python examples/traffic_to_plan.py

The sample is made up here: Parquet files with one row per training sample and one column per table, each cell a list of
row numbers. With your own, name its folder. The same from the command line:

    evenshard place sample/ --embedding-dim 64 --devices 2 --memory-cap-gb 16 --format torchrec -o plan.json
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import evenshard
from evenshard.torchrec import save_plan

# Mean lookups per sample, and rows.
TABLES = {"user": (1.0, 500_000), "clicks": (31.5, 90_000), "carts": (6.2, 90_000), "words": (12.0, 40_000)}


def write_sample(folder: Path, num_samples: int = 20_000) -> None:
    """Traffic as a logger would write it: some rows are popular, most are not."""
    rng = np.random.default_rng(0)
    columns = {}
    for name, (mean, num_rows) in TABLES.items():
        lengths = rng.poisson(mean, num_samples) if mean > 1 else np.ones(num_samples, dtype=np.int64)
        rows = (num_rows ** rng.random(lengths.sum())).astype(np.int64) - 1  # row r as often as 1 / r
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        columns[name] = pa.ListArray.from_arrays(offsets, pa.array(rows))
    pq.write_table(pa.table(columns), folder / "part-0.parquet")


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        sample = Path(scratch) / "sample"
        sample.mkdir()
        write_sample(sample)
        # The sample does not tell how wide the tables are. A table file beside it would: place(file, traffic=sample).
        answer = evenshard.place(sample, num_devices=2, memory_cap_gb=16, embedding_dim=64, allow_column_split=True)
        for table in answer.request.tables:
            print(f"{table.name}: {table.num_rows:,} rows, {table.pooling_factor:.1f} lookups per sample")
        for one in answer.request.assumptions[:3]:
            print(f"assumed {one.column} of {one.table}: {one.text}")
        print(f"a step waits for {answer.predicted_ms:.2f} ms (90 %: {answer.low_ms:.2f} to {answer.high_ms:.2f})")

        save_plan(answer, Path(scratch) / "plan.json")  # in training: load_plan("plan.json", model)
        plan = json.loads((Path(scratch) / "plan.json").read_text())
        for name, entry in plan["tables"].items():
            print(f"{name}: {entry['sharding_type']} on ranks {entry['ranks']}")


if __name__ == "__main__":
    main()
