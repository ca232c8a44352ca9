"""A model of TorchRec trained on the CPU by ranks of its own, and the peak of each one's memory.

Started as a command, this module is one of the ranks; ``memory_peaks`` says what is measured.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.sharding import COLUMN_WISE, DATA_PARALLEL, ROW_WISE
from evenshard.tables.table import Table
from evenshard.torchrec import tables_of
from evenshard.torchrec.plan.plans import plan_of_parts
from support.builders import column_parts

# So that what is freed is given back; see ``memory_peaks``.
GLIBC = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
PATIENCE = timedelta(seconds=300)
STEPS = 5


@dataclass(frozen=True)
class TableSpec:
    """A table of a setting.

    Attributes:
        way: how it is sharded: ``TABLE_WISE``, ``COLUMN_WISE`` (halves), ``ROW_WISE`` or ``DATA_PARALLEL``.
        rows, dim, lookups: of the table; lookups a sample are random, these on average.
        sequence: whether each lookup's embedding is an output.
        weighted: whether lookups have weights.
    """

    way: str
    rows: int
    dim: int
    lookups: int
    sequence: bool = False
    weighted: bool = False


@dataclass(frozen=True)
class Setting:
    """What is trained.

    Attributes:
        name: of the setting.
        ranks: how many.
        tables: the first parts of tables go around the ranks.
        batch_size: global.
        optimizer: of the tables, one of ``STATE_NUMBERS``; the replicas' is the dense one.
        pipeline: one of ``PIPELINES``.
        dense: dense layers of 1,024 x 1,024.
        dense_optimizer: sgd or adam.
    """

    name: str
    ranks: int
    tables: tuple[TableSpec, ...]
    batch_size: int
    optimizer: str = "sgd"
    pipeline: str = "none"
    dense: int = 0
    dense_optimizer: str = "sgd"

    @staticmethod
    def of(text: str) -> Setting:
        """From JSON."""
        values = json.loads(text)
        return Setting(**{**values, "tables": tuple(TableSpec(**one) for one in values["tables"])})

    def shrunk(self) -> Setting:
        """The same with a few rows and samples."""
        tables = tuple(replace(one, rows=64) for one in self.tables)
        return replace(self, tables=tables, batch_size=8 * self.ranks, dense=min(self.dense, 1))


def setting_tables(setting: Setting, model: Any) -> tuple[Table, ...]:
    """The model's tables, as evenshard reads them off it, in the setting's order."""
    names = [f"t{number}" for number in range(len(setting.tables))]
    lookups = {name: float(spec.lookups) for name, spec in zip(names, setting.tables, strict=True)}
    by_name = {table.name: table for table in tables_of(model, lookups)}
    return tuple(by_name[name] for name in names)


def parts_of(setting: Setting, tables: Sequence[Table]) -> tuple[TablePart, ...]:
    """The placement: each table's first part on the rank after the last one's."""
    found: list[TablePart] = []
    every, ranks = tuple(range(setting.ranks)), setting.ranks
    for number, (table, spec) in enumerate(zip(tables, setting.tables, strict=True)):
        (whole,) = column_parts(table)
        if spec.way == DATA_PARALLEL:
            found.append(replace(whole, devices=every))
        elif spec.way == ROW_WISE:
            block = -(-table.num_rows // ranks)
            spans = [Span(first, min(first + block, table.num_rows)) for first in range(0, table.num_rows, block)]
            found += [replace(whole, rows=span, devices=(rank,)) for rank, span in enumerate(spans)]
        elif spec.way == COLUMN_WISE:
            halves = enumerate(column_parts(table, [table.embedding_dim // 2]))
            found += [replace(half, devices=((number + which) % ranks,)) for which, half in halves]
        else:
            found.append(replace(whole, devices=(number % ranks,)))
    return tuple(found)


# In the ranks ---------------------------------------------------------------------------------------------------------


def resident_bytes(what: str) -> int:
    """Of this process: VmRSS now, VmHWM at its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {what}")


def settle() -> int:
    """Gives back what is free and forgets the peak so far; what is resident then."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return resident_bytes("VmRSS")


def model_of(setting: Setting) -> Any:
    """The model, on the meta device."""
    import torch
    from torch import nn
    from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

    meta = torch.device("meta")

    class Model(nn.Module):
        """Collections by kind, a little layer over what they look up, and a dense layer of the setting's width."""

        def __init__(self) -> None:
            super().__init__()
            self.collections = nn.ModuleDict()
            for (sequence, weighted), configs in by_kind(setting).items():
                kind: Any = EmbeddingConfig if sequence else EmbeddingBagConfig
                own = [
                    kind(name=name, feature_names=[name], num_embeddings=spec.rows, embedding_dim=spec.dim)
                    for name, spec in configs
                ]
                self.collections[kind_name(sequence, weighted)] = (
                    EmbeddingCollection(tables=own, device=meta)
                    if sequence
                    else EmbeddingBagCollection(tables=own, is_weighted=weighted, device=meta)
                )
            pooled = sum(spec.dim for spec in setting.tables if not spec.sequence)
            self.over = nn.Linear(pooled, 4, device=meta) if pooled else None
            self.dense = nn.Sequential(*[nn.Linear(1024, 1024, device=meta) for _ in range(setting.dense)])

        def forward(self, batch: Any) -> Any:
            """The loss."""
            loss = torch.zeros(())
            for name, collection in self.collections.items():
                features = batch.of_kind[name]
                if name == kind_name(True, False):
                    loss = loss + sum(one.values().sum() for one in collection(features).values())
                else:
                    own = collection(features)
                    width = own.values().shape[1]
                    loss = loss + (own.values() @ self.over.weight[:, :width].T).square().mean()
            if setting.dense:
                loss = loss + self.dense(torch.ones(1, 1024)).square().mean()
            return (loss, loss.detach()) if setting.pipeline != "none" else loss

    return Model()


def kind_name(sequence: bool, weighted: bool) -> str:
    """Of a collection."""
    return "sequences" if sequence else "weighted" if weighted else "pooled"


def by_kind(setting: Setting) -> dict[tuple[bool, bool], list[tuple[str, TableSpec]]]:
    """The tables of each collection, by name."""
    found: dict[tuple[bool, bool], list[tuple[str, TableSpec]]] = {}
    for number, spec in enumerate(setting.tables):
        found.setdefault((spec.sequence, spec.weighted), []).append((f"t{number}", spec))
    return found


def batch_type() -> Any:
    """The class of batches: the features, by kind of collection, as TorchRec's pipelines move them."""
    from torchrec.streamable import Pipelineable

    class Batch(Pipelineable):
        """On the CPU already."""

        def __init__(self, of_kind: dict[str, Any]) -> None:
            self.of_kind = of_kind

        def to(self, device: Any, non_blocking: bool = False) -> Batch:
            """Itself: it is where it is needed."""
            return self

        def record_stream(self, stream: Any) -> None:
            """Nothing: there are no streams."""

        def pin_memory(self) -> Batch:
            """Itself."""
            return self

    return Batch


def batches(setting: Setting, rank: int, steps: int) -> Iterator[Any]:
    """Fresh ones of a rank."""
    import torch
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    kind, rng = batch_type(), torch.Generator().manual_seed(rank)
    samples = setting.batch_size // setting.ranks
    for _ in range(steps):
        of_kind = {}
        for (sequence, weighted), tables in by_kind(setting).items():
            lengths = torch.cat(
                [
                    torch.randint(0, 2 * spec.lookups + 1, (samples,), generator=rng, dtype=torch.int32)
                    for _, spec in tables
                ]
            )
            counts = lengths.view(len(tables), samples).sum(dim=1).tolist()
            values = torch.empty(sum(counts), dtype=torch.int64)
            for (_, spec), own in zip(tables, values.split(counts), strict=True):
                own.random_(0, spec.rows, generator=rng)
            weights = torch.ones(sum(counts)) if weighted else None
            of_kind[kind_name(sequence, weighted)] = KeyedJaggedTensor.from_lengths_sync(
                [name for name, _ in tables], values, lengths, weights
            )
        yield kind(of_kind)
        del of_kind, values, weights, lengths, own


def train(setting: Setting, rank: int, steps: int) -> None:
    """Trains a model of a setting for some steps."""
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.train_pipeline import TrainPipelineBase, TrainPipelineSparseDist

    meta, cpu = model_of(setting), torch.device("cpu")
    tables = setting_tables(setting, meta)
    plan = plan_of_parts(parts_of(setting, tables), tables, meta, Nodes.one_node(setting.ranks), "cpu", {})
    kinds = {
        "sgd": EmbOptimType.EXACT_SGD,
        "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        "adagrad": EmbOptimType.EXACT_ADAGRAD,
    }
    fused = {"optimizer": kinds[setting.optimizer], "learning_rate": 0.1} if setting.optimizer in kinds else {}
    sharders: list[Any] = [EmbeddingBagCollectionSharder(fused), EmbeddingCollectionSharder(fused)]
    model = DistributedModelParallel(meta, plan=plan, device=cpu, sharders=sharders)
    in_backward = set(model.fused_optimizer.params)
    dense = [weight for name, weight in model.named_parameters() if name not in in_backward]
    kind = torch.optim.Adam if setting.dense_optimizer == "adam" else torch.optim.SGD
    optimizer = kind(dense, lr=0.01)
    own = batches(setting, rank, steps)
    if setting.pipeline == "none":
        for batch in own:
            optimizer.zero_grad()  # first, as TorchRec's pipelines do
            loss = model(batch)
            loss.backward()
            optimizer.step()
        return
    pipelines = {"base": TrainPipelineBase, "sparse_dist": TrainPipelineSparseDist}
    pipeline = pipelines[setting.pipeline](model, optimizer, cpu)
    for _ in range(steps):
        pipeline.progress(own)


def process(rank: int, setting: Setting, folder: Path) -> None:
    """One rank: its peak into a file."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["LOCAL_WORLD_SIZE"] = str(setting.ranks)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=setting.ranks, timeout=PATIENCE)
    train(setting.shrunk(), rank, STEPS)
    baseline = settle()
    train(setting, rank, STEPS)
    peak = resident_bytes("VmHWM")
    (folder / f"peak-{rank}").write_text(json.dumps(peak - baseline))
    dist.barrier()
    dist.destroy_process_group()


# Outside of the ranks -------------------------------------------------------------------------------------------------


def measured_peaks(setting: Setting) -> list[int]:
    """Of each rank, bytes."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **GLIBC}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "setting.json").write_text(json.dumps(asdict(setting)))
        command = [sys.executable, "-W", "ignore", "-m", "support.memory_training"]
        started = []
        for rank in range(setting.ranks):
            with (folder / f"said-{rank}").open("w") as said:
                ranked = [*command, str(rank), str(folder)]
                started.append(subprocess.Popen(ranked, env=env, stdout=said, stderr=said))
        try:
            codes = [one.wait(timeout=600) for one in started]
        finally:
            for one in started:
                one.kill()
                one.wait()
        if any(codes):
            raise RuntimeError(
                "\n".join((folder / f"said-{rank}").read_text()[-2000:] for rank in range(setting.ranks))
            )
        return [json.loads((folder / f"peak-{rank}").read_text()) for rank in range(setting.ranks)]


if __name__ == "__main__":
    of_rank = Path(sys.argv[2])
    process(int(sys.argv[1]), Setting.of((of_rank / "setting.json").read_text()), of_rank)
