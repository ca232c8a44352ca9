"""Cut and replicated tables, measured on ranks that train them under TorchRec, gloo between them."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evenshard.base.errors import BadInput, EvenshardError
from evenshard.measure.config import MeasureConfig
from evenshard.measure.distributed import collective
from evenshard.measure.distributed.jobs import decode_job, encode_job
from evenshard.measure.local_hardware import open_hardware
from evenshard.measure.torchrec_step import (
    RANK_JOBS,
    MeasureParts,
    ShardedJob,
)
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import TablePart
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
WAYS = (TABLE_WISE, COLUMN_WISE, ROW_WISE, TABLE_ROW_WISE, TABLE_COLUMN_WISE, GRID_SHARD, DATA_PARALLEL)


def place(one: Table, way: str, first: int) -> tuple[TablePart, ...]:
    """A table sharded in a way, beginning on a device or its node."""
    from support.torchrec_training import in_parts

    return in_parts(one, way, MACHINE, first)


def jobs() -> dict[str, MeasureParts]:
    """By type and kind of table; and all types at once."""
    found = {}
    for way, settings in (
        (ROW_WISE, {"pooling": "mean"}),
        (DATA_PARALLEL, {"is_weighted": True}),
        (COLUMN_WISE, {"pooling": "none"}),
        (TABLE_ROW_WISE, {"weight_bits": 16}),
        (GRID_SHARD, {"pooling_factor": 4.0, "feature_pooling_factors": (1.0, 3.0)}),
    ):
        tables = tuple(replace(table(f"t{at}", ROWS, DIM, 2.5), **settings) for at in range(2))  # type: ignore[arg-type]
        parts = tuple(part for at, one in enumerate(tables) for part in place(one, way, at))
        found[way] = MeasureParts(tables, MACHINE, BATCH_SIZE, parts)
    mixed = {way: replace(table(f"in {way}", ROWS, DIM, 2.5), module=f"m{at // 4}") for at, way in enumerate(WAYS)}
    parts = tuple(part for at, (way, one) in enumerate(mixed.items()) for part in place(one, way, at % WORLD_SIZE))
    return found | {"everything": MeasureParts(tuple(mixed.values()), MACHINE, BATCH_SIZE, parts)}


def session(rank: int, out: Path) -> None:
    """One rank, with what torchrun tells it."""
    os.environ["RANK"] = str(rank)
    if collective.is_follower():
        collective.serve(CONFIG, RANK_JOBS)
        return
    hardware = collective.CollectiveHardware(CONFIG, torch.device("cpu"))
    notes: dict[str, Any] = {"costs": {name: as_job(job).measure_on(hardware) for name, job in jobs().items()}}
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
def test_every_phase_is_timed_on_every_device(notes: dict[str, Any]) -> None:
    for name, cost in notes["costs"].items():
        assert cost.all_to_all == "measured" and cost.fits and len(cost.devices) == WORLD_SIZE
        for device in cost.devices:
            assert device.fwd_compute_ms > 0 and device.bwd_all_to_all_ms > 0, name
            assert min(device.input_dist_ms, device.fwd_all_to_all_ms, device.bwd_compute_ms) > 0, name


@pytest.mark.slow
def test_where_one_device_is_out_of_memory_none_runs_and_bad_input_is_one_line(notes: dict[str, Any]) -> None:
    assert {device.status for device in notes["giant"].devices} == {OUT_OF_MEMORY}
    for name, message in {
        "bits": "one of 16 and 32",
        "odd": "batch_size is 25, which ",
        "devices": "Start it with --nproc-per-node",
        "bf16": "Quantized communication",
        "holes": "has shards with the rows",
    }.items():
        assert isinstance(notes[name], BadInput) and message in str(notes[name]) and "\n" not in str(notes[name])


def test_a_job_travels_as_plain_data() -> None:
    job = jobs()[GRID_SHARD]
    assert decode_job(encode_job(job), RANK_JOBS, 4) == job
    with pytest.raises(ValueError, match="cannot run on 2 ranks"):
        decode_job(encode_job(job), RANK_JOBS, 2)
    with pytest.raises(ValueError, match="has shards with the rows"):
        decode_job(encode_job(replace(job, parts=job.parts[:-1])), RANK_JOBS, 4)


def test_devices_in_turn_or_on_another_node_measure_no_cut_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="torchrun --nproc-per-node 4"):
        as_job(jobs()[ROW_WISE]).check(open_hardware(CONFIG))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(BadInput, match="a node has 2 devices, but torchrun started 4"):
        jobs()[ROW_WISE].plan("cuda")


def test_deduplicated_tables_are_refused_where_they_cannot_be_measured() -> None:
    first, second = (replace(table(name, ROWS, DIM), pooling="none", is_deduplicated=True) for name in "ab")
    parts = (*place(first, TABLE_WISE, 0), *place(second, TABLE_WISE, 1))
    job = MeasureParts((first, second), MACHINE, BATCH_SIZE, parts)
    with pytest.raises(BadInput, match="only on GPUs"):
        job.plan("cpu")
    with pytest.raises(BadInput, match="either all EmbeddingCollections or none"):
        replace(job, tables=(first, replace(second, is_deduplicated=False))).plan("cpu")
