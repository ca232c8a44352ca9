"""Cut and replicated tables, measured on ranks that train them under TorchRec, gloo between them."""

from __future__ import annotations

import math
import os
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from evenshard.base.errors import BadInput, EvenshardError, MissingPackage
from evenshard.measure.config import MeasureConfig
from evenshard.measure.distributed import collective
from evenshard.measure.distributed.exchange import Worker
from evenshard.measure.distributed.jobs import decode_job, encode_job
from evenshard.measure.fbgemm import LEARNING_RATE
from evenshard.measure.local_hardware import open_hardware
from evenshard.measure.torchrec_step import (
    RANK_JOBS,
    MeasureParts,
    ShardedJob,
    TrainingStep,
    _set_node_size,
    local_batch,
)
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span, TablePart, whole_part
from evenshard.placement.sharding import (
    COLUMN_WISE,
    DATA_PARALLEL,
    GRID_SHARD,
    ROW_WISE,
    TABLE_COLUMN_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    Communication,
)
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import OUT_OF_MEMORY
from evenshard.tables.table import Table
from support.builders import table
from support.patience import PATIENCE_S
from support.ranks import run_ranks
from support.servers import free_ports

CONFIG = MeasureConfig(hardware="cpu", num_batches=2, warmup=1, repeats=2, timeout_s=PATIENCE_S, seed=5)
BATCH_SIZE, ROWS, DIM, WORLD_SIZE = 24, 50, 8, 4
MACHINE = Nodes(WORLD_SIZE, 2, intra="gloo", inter="gloo")
KINDS: dict[str, dict[str, Any]] = {
    "sum": {},
    "mean": {"pooling": "mean"},
    "weighted": {"is_weighted": True},
    "shared": {"pooling_factor": 4.0, "feature_pooling_factors": (1.0, 3.0)},
    "half": {"weight_bits": 16},
    "sequence": {"pooling": "none"},
}
OF_SEQUENCES = (TABLE_WISE, COLUMN_WISE, ROW_WISE)
WAYS = (TABLE_WISE, COLUMN_WISE, ROW_WISE, TABLE_ROW_WISE, TABLE_COLUMN_WISE, GRID_SHARD, DATA_PARALLEL)


def place(one: Table, way: str, first: int) -> tuple[TablePart, ...]:
    """A table sharded in a way, beginning on a device or its node."""
    node = MACHINE.devices_of_node(MACHINE.node_of(first))
    rows, columns, half = Span(0, one.num_rows), Span(0, one.embedding_dim), one.embedding_dim // 2

    def by_rows(devices: Sequence[int], columns: Span) -> tuple[TablePart, ...]:
        block = math.ceil(one.num_rows / len(devices))
        edges = [min(at * block, one.num_rows) for at in range(len(devices) + 1)]
        return tuple(
            TablePart(one.name, Span(*edges[at : at + 2]), columns, (device,)) for at, device in enumerate(devices)
        )

    def by_columns(devices: Sequence[int]) -> tuple[TablePart, ...]:
        halves = (Span(0, half), Span(half, one.embedding_dim))
        return tuple(TablePart(one.name, rows, own, (device,)) for own, device in zip(halves, devices, strict=True))

    if way == COLUMN_WISE:
        return by_columns(((first + 1) % WORLD_SIZE, (first + 3) % WORLD_SIZE))
    if way == TABLE_COLUMN_WISE:
        return by_columns(node)
    if way == ROW_WISE:
        return by_rows(range(WORLD_SIZE), columns)
    if way == TABLE_ROW_WISE:
        return by_rows(node, columns)
    if way == GRID_SHARD:
        return (*by_rows(range(2, 4), Span(0, half)), *by_rows(range(2), Span(half, one.embedding_dim)))
    devices = tuple(range(WORLD_SIZE)) if way == DATA_PARALLEL else (first,)
    return (TablePart(one.name, rows, columns, devices),)


def jobs() -> dict[str, MeasureParts]:
    """By type and kind of table."""
    found = {}
    for way in WAYS:
        for kind, settings in KINDS.items():
            if kind == "sequence" and way not in OF_SEQUENCES:
                continue
            if (kind, way) in (("mean", GRID_SHARD), ("half", DATA_PARALLEL)):
                continue  # TorchRec does not train the first; the second's dense gradients here exceed FP16
            tables = tuple(
                replace(table(f"{kind}{at}", ROWS, dim, 2.5), **settings)
                for at, dim in enumerate((DIM, DIM) if kind == "sequence" else (DIM, 2 * DIM))
            )
            parts = tuple(part for at, one in enumerate(tables) for part in place(one, way, at))
            found[f"{way} {kind}"] = MeasureParts(tables, MACHINE, BATCH_SIZE, parts)
    mixed = {way: replace(table(f"in {way}", ROWS, DIM, 2.5), module=f"m{at // 4}") for at, way in enumerate(WAYS)}
    parts = tuple(part for at, (way, one) in enumerate(mixed.items()) for part in place(one, way, at % WORLD_SIZE))
    found["everything"] = MeasureParts(tuple(mixed.values()), MACHINE, BATCH_SIZE, parts)
    return found


@dataclass(frozen=True)
class CheckStep:
    """One step with known weights; the largest deviations of outputs and updated weights from the unsharded tables."""

    job: MeasureParts
    ANSWER: ClassVar[Any] = Any

    def check(self, num_ranks: int) -> None:
        self.job.check(num_ranks)

    def run(self, worker: Worker) -> list[float]:
        ranks = worker.ranks
        with worker.kernels.watch_failures(self.job.tables), _set_node_size(2, ranks.rank):
            model, plan = self.job.plan("cpu")
            training = TrainingStep(worker, self.job, model, plan)
            whole = unsharded(self.job)
            for weights, rows, columns, full in shards(training, whole):
                weights.copy_(full[rows, columns])
            training.distribute_inputs(0)
            training.look_up()
            training.distribute_outputs()
            outputs = torch.cat([one.detach().float().sum().reshape(1) for one in training.values()])
            expected, updated = expected_step(self.job, worker, whole)
            error = float((outputs.sum() - expected).abs() / (1 + expected.abs()))
            training.return_gradients([torch.full_like(one, 0.1 / LEARNING_RATE) for one in training.values()])
            training.compute_gradients()
            training.reduce_replicas()
            training.update_replicas()
            pairs = [
                (weights.float(), full[rows, columns]) for weights, rows, columns, full in shards(training, updated)
            ]
            return [error, max([float((one - other).abs().max()) for one, other in pairs if one.numel()] or [0.0])]


def unsharded(job: MeasureParts) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    return [torch.randn(one.num_rows, one.embedding_dim, generator=rng).half().float() for one in job.tables]


def shards(training: TrainingStep, whole: list[torch.Tensor]) -> list[Any]:
    """This rank's weights, their rows and columns, and the whole table."""
    found = []
    for name, value in training._model.state_dict().items():
        full = whole[int(name.split(".")[-2].removeprefix("t"))]
        if not hasattr(value, "local_shards"):
            found.append((value.detach(), slice(None), slice(None), full))
            continue
        for shard in value.local_shards():
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            found.append((shard.tensor.detach(), slice(row, row + rows), slice(column, column + columns), full))
    return found


def expected_step(job: MeasureParts, worker: Worker, whole: list[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
    """The sum of this rank's outputs, and the weights after a step of SGD with the mean gradient of all ranks."""
    numbers = {one.name: at for at, one in enumerate(job.tables)}
    weights = [one.clone().requires_grad_() for one in whole]
    total: Any = 0.0
    for group in job.collections:
        for rank in range(WORLD_SIZE):
            batch = local_batch(worker.kernels, group, BATCH_SIZE, rank, WORLD_SIZE, 0)
            for key in batch.keys():  # noqa: SIM118
                one, bags = job.tables[numbers[key.split("#")[0]]], batch[key]
                indices, offsets = bags.values(), bags.offsets()
                table_weights = weights[numbers[one.name]]
                if one.is_sequence:
                    found = table_weights[indices]
                else:
                    found = torch.nn.functional.embedding_bag(
                        indices, table_weights, offsets, mode=one.pooling, include_last_offset=True
                    )
                found.sum().backward(torch.tensor(0.1 / LEARNING_RATE))
                total += float(found.sum()) * (rank == worker.ranks.rank)
    updated = [(one - LEARNING_RATE * one.grad / WORLD_SIZE).detach() for one in weights if one.grad is not None]
    return torch.tensor(total), updated


def session(rank: int, out: Path) -> None:
    """One rank, with what torchrun tells it."""
    os.environ["RANK"] = str(rank)
    kinds = {**RANK_JOBS, CheckStep.__name__: CheckStep}
    if collective.is_follower():
        collective.serve(CONFIG, kinds)
        return
    hardware = collective.CollectiveHardware(CONFIG, torch.device("cpu"))
    notes: dict[str, Any] = {"errors": {}, "costs": {}}
    for name, job in jobs().items():
        notes["errors"][name] = hardware.run_on_all(CheckStep(job), name)
    for name in (f"{ROW_WISE} mean", f"{DATA_PARALLEL} sum", f"{COLUMN_WISE} sequence", "everything"):
        notes["costs"][name] = as_job(jobs()[name]).measure_on(hardware)
    giant = replace(table("giant", ROWS, 256), num_rows=2_000_000_000)
    fits = table("fits", ROWS, DIM)
    parts = (*place(giant, TABLE_WISE, 1), *place(fits, ROW_WISE, 0))
    notes["giant"] = as_job(MeasureParts((giant, fits), MACHINE, BATCH_SIZE, parts)).measure_on(hardware)
    sound = MeasureParts((fits,), MACHINE, BATCH_SIZE, place(fits, ROW_WISE, 0))
    bits = replace(table("bits", ROWS, DIM), weight_bits=8)
    for name, job in {
        "bits": as_job(replace(sound, tables=(bits,), parts=place(bits, ROW_WISE, 0))),
        "odd": as_job(replace(sound, batch_size=BATCH_SIZE + 1)),
        "devices": as_job(MeasureParts((fits,), Nodes(5, 1, inter="gloo"), 25, place(fits, TABLE_WISE, 0))),
        "holes": as_job(replace(sound, parts=sound.parts[1:])),
        "bf16": as_job(sound, Communication("bf16")),
    }.items():
        try:
            notes[name] = job.measure_on(hardware)
        except EvenshardError as error:
            notes[name] = error
    (out / "notes.pickle").write_bytes(pickle.dumps(notes))
    hardware.close()


def as_job(job: MeasureParts, communication: Communication | None = None) -> ShardedJob:
    task = ShardingTask(job.tables, job.machine, (2**50,) * job.machine.num_devices, job.batch_size)
    if communication is not None:
        task = replace(task, communication=communication)
    return ShardedJob("m", task, job.parts, 0, "random", "m")


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came out of a session on 4 ranks of two nodes."""
    out, port = tmp_path_factory.mktemp("parts"), str(free_ports(1)[0])
    size = str(WORLD_SIZE)
    env = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    run_ranks(session, WORLD_SIZE, out, join=False, **env)
    found: dict[str, Any] = pickle.loads((out / "notes.pickle").read_bytes())
    return found


@pytest.mark.slow
def test_a_measured_step_trains_the_tables(notes: dict[str, Any]) -> None:
    for name, of_ranks in notes["errors"].items():
        for rank, (output, weights) in enumerate(of_ranks):
            assert output < 1e-4, f"{name}, rank {rank}"
            assert weights < (1e-2 if "half" in name else 1e-4), f"{name}, rank {rank}"


@pytest.mark.slow
def test_every_phase_is_timed_on_every_device(notes: dict[str, Any]) -> None:
    for name, cost in notes["costs"].items():
        assert cost.all_to_all == "measured" and cost.fits and len(cost.devices) == WORLD_SIZE
        for device in cost.devices:
            assert device.fwd_compute_ms > 0 and device.bwd_all_to_all_ms > 0, name
    for device in notes["costs"][f"{ROW_WISE} mean"].devices:
        assert min(device.input_dist_ms, device.fwd_all_to_all_ms, device.bwd_compute_ms) > 0


@pytest.mark.slow
def test_where_one_device_is_out_of_memory_none_runs(notes: dict[str, Any]) -> None:
    assert {device.status for device in notes["giant"].devices} == {OUT_OF_MEMORY}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bits", "one of 16 and 32"),
        ("odd", "batch_size is 25, which "),
        ("devices", "Start it with --nproc-per-node"),
        ("bf16", "Quantized communication"),
        ("holes", "has shards with the rows"),
    ],
)
def test_bad_input_is_one_line(notes: dict[str, Any], name: str, message: str) -> None:
    assert isinstance(notes[name], BadInput) and message in str(notes[name]) and "\n" not in str(notes[name])


def test_a_job_travels_as_plain_data() -> None:
    job = jobs()[f"{GRID_SHARD} shared"]
    assert decode_job(encode_job(job), RANK_JOBS, 4) == job
    with pytest.raises(ValueError, match="cannot run on 2 ranks"):
        decode_job(encode_job(job), RANK_JOBS, 2)
    with pytest.raises(ValueError, match="has shards with the rows"):
        decode_job(encode_job(replace(job, parts=job.parts[:-1])), RANK_JOBS, 4)


def test_devices_in_turn_measure_no_cut_tables() -> None:
    with pytest.raises(BadInput, match="torchrun --nproc-per-node 4"):
        as_job(jobs()[f"{ROW_WISE} sum"]).check(open_hardware(CONFIG))


def test_without_torchrec_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchrec.distributed.model_parallel", None)
    with pytest.raises(MissingPackage, match="planner needs torchrec"):
        jobs()[f"{ROW_WISE} sum"].plan("cpu")


def test_on_gpus_nodes_are_those_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(BadInput, match="a node has 2 devices, but torchrun started 4"):
        jobs()[f"{ROW_WISE} sum"].plan("cuda")


def test_deduplicated_tables_are_refused_where_they_cannot_be_measured() -> None:
    first, second = (replace(table(name, ROWS, DIM), pooling="none", is_deduplicated=True) for name in "ab")
    parts = (*place(first, TABLE_WISE, 0), *place(second, TABLE_WISE, 1))
    job = MeasureParts((first, second), MACHINE, BATCH_SIZE, parts)
    with pytest.raises(BadInput, match="only on GPUs"):
        job.plan("cpu")
    with pytest.raises(BadInput, match="either all EmbeddingCollections or none"):
        replace(job, tables=(first, replace(second, is_deduplicated=False))).plan("cpu")


def test_a_whole_table_is_placed_as_a_part() -> None:
    one = table("t", ROWS, DIM)
    parts = (whole_part(one, (1,)),)
    model, plan = MeasureParts((one,), MACHINE, BATCH_SIZE, parts).plan("cpu")
    assert list(model) == ["0"] and plan.plan["0"]["t0"].ranks == [1]
