"""Placements of parts on several ranks, for real: processes on the CPU, as of torchrun, gloo between them.

For a rank that dies, this file starts torchrun on itself; run by torchrun, it is one of the processes.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from evenshard.measure.config import MeasureConfig
from evenshard.measure.costs import OUT_OF_MEMORY, DeviceCost, PlacementCost
from evenshard.measure.distributed import collective
from evenshard.measure.distributed.collective import CollectiveHardware
from evenshard.measure.distributed.exchange import Worker
from evenshard.measure.distributed.jobs import JOBS, MeasurePlacement, decode_job, encode_job
from evenshard.measure.distributed.part_inputs import lookup_weights
from evenshard.measure.distributed.part_layout import ColumnBlock, exchange_groups, is_replicated
from evenshard.measure.distributed.part_step import LoadedGroup, LoadedParts
from evenshard.measure.fbgemm import LEARNING_RATE, ShardKernels
from evenshard.measure.kernel_calls import feature_tables
from evenshard.placement.machine import Machine
from evenshard.placement.parts import Span, TablePart
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
from evenshard.tables.table import Table
from evenshard.utils.errors import BadInput, EvenshardError
from support.builders import table
from support.patience import PATIENCE_S
from support.ranks import run_ranks
from support.servers import free_ports

CONFIG = MeasureConfig(hardware="cpu", num_batches=2, warmup=1, repeats=2, timeout_s=PATIENCE_S, seed=5)
IMPATIENT = replace(CONFIG, timeout_s=10.0)
BATCH_SIZE = 24
ROWS, DIM = 50, 8

# Placements -----------------------------------------------------------------------------------------------------------


def machine_of(size: int) -> Machine:
    """Two nodes."""
    return Machine(size, size // 2, intra="gloo", inter="gloo")


def place(one: Table, way: str, machine: Machine, first: int = 0) -> tuple[TablePart, ...]:
    """A table sharded in a way, beginning on a device or its node."""
    size, per_node = machine.num_devices, machine.devices_per_node
    node = machine.devices_of_node(machine.node_of(first))
    rows, columns = Span(0, one.num_rows), Span(0, one.embedding_dim)

    def by_rows(devices: Sequence[int], columns: Span) -> tuple[TablePart, ...]:
        """Uneven: the first device has twice as many as the others."""
        step = one.num_rows // (len(devices) + 1)
        edges = [0, *(step * (at + 2) for at in range(len(devices) - 1)), one.num_rows]
        return tuple(
            TablePart(one.name, Span(edges[at], edges[at + 1]), columns, (device,)) for at, device in enumerate(devices)
        )

    def by_columns(devices: Sequence[int]) -> tuple[TablePart, ...]:
        half = one.embedding_dim // 2
        return (
            TablePart(one.name, rows, Span(0, half), (devices[0],)),
            TablePart(one.name, rows, Span(half, one.embedding_dim), (devices[1],)),
        )

    if way == TABLE_WISE:
        return (TablePart(one.name, rows, columns, (first,)),)
    if way == COLUMN_WISE:
        return by_columns(((first + 1) % size, first))
    if way == TABLE_COLUMN_WISE:
        return by_columns(node[:2])
    if way == ROW_WISE:
        return by_rows([*range(1, size), 0], columns)
    if way == TABLE_ROW_WISE:
        return by_rows(node, columns)
    if way == GRID_SHARD:
        half = one.embedding_dim // 2
        return (
            *by_rows(range(per_node, 2 * per_node), Span(0, half)),
            *by_rows(range(per_node), Span(half, one.embedding_dim)),
        )
    return (TablePart(one.name, rows, columns, tuple(range(size))),)


KINDS_OF_TABLES: dict[str, dict[str, Any]] = {
    "sum": {},
    "mean": {"pooling": "mean"},
    "weighted": {"is_weighted": True},
    "shared": {"pooling_factor": 4.0, "feature_pooling_factors": (1.0, 3.0)},
    "half": {"weight_bits": 16},
}
SEQUENCES: dict[str, dict[str, Any]] = {
    "sequence": {"pooling": "none"},
    "distinct": {"pooling": "none", "is_deduplicated": True, "pooling_factor": 9.0},
}
WAYS = (TABLE_WISE, COLUMN_WISE, ROW_WISE, TABLE_ROW_WISE, TABLE_COLUMN_WISE, GRID_SHARD, DATA_PARALLEL)
OF_SEQUENCES = (TABLE_WISE, COLUMN_WISE, ROW_WISE, DATA_PARALLEL)


def ways_on(size: int) -> tuple[str, ...]:
    """Nodes of one device cut nothing among their devices."""
    return tuple(way for way in WAYS if size > 2 or way not in (TABLE_ROW_WISE, TABLE_COLUMN_WISE, GRID_SHARD))


def of_kind(kind: str, name: str, dim: int = DIM) -> Table:
    return replace(table(name, ROWS, dim, 2.5), **{**KINDS_OF_TABLES, **SEQUENCES}[kind])


def placements(size: int) -> dict[str, tuple[tuple[Table, ...], tuple[TablePart, ...]]]:
    """By name: every kind of table in every way, and one with all of them."""
    machine, found = machine_of(size), {}
    everything: list[tuple[Table, tuple[TablePart, ...]]] = []
    for way in ways_on(size):
        of_way = []
        kinds = [*KINDS_OF_TABLES, *(SEQUENCES if way in OF_SEQUENCES else ())]
        if way == DATA_PARALLEL:
            kinds.remove("distinct")  # nothing is sent
        for number, kind in enumerate(kinds):
            for copy, dim in enumerate((DIM, 2 * DIM)):
                one = of_kind(kind, f"{way}-{kind}-{copy}", dim)
                of_way.append((one, place(one, way, machine, (number + copy) % size)))
        found[way] = of_way
        everything += of_way[::3]
    found["everything"] = everything
    if size > 2:
        few = replace(of_kind("sum", "few"), num_rows=size - 1)
        rows = tuple(TablePart("few", Span(at, at + 1), Span(0, DIM), (at + 1,)) for at in range(size - 1))
        found["fewer rows than devices"] = [(few, rows), everything[0]]
    return {
        name: (tuple(one for one, _ in of_name), tuple(part for _, parts in of_name for part in parts))
        for name, of_name in found.items()
    }


# The unsharded tables -------------------------------------------------------------------------------------------------


def random_of(*what: object, shape: Sequence[int]) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(zlib.crc32(repr(what).encode())))


def initial(one: Table) -> torch.Tensor:
    weights = random_of("weights", one.name, shape=(one.num_rows, one.embedding_dim))
    return weights.half().float() if one.weight_bits == 16 else weights


@dataclass(frozen=True)
class Lookups:
    """Of one feature of a whole table, for the samples from ``first`` on."""

    table: Table
    feature: int
    indices: torch.Tensor
    offsets: torch.Tensor
    weights: torch.Tensor | None

    def pooled(self, weights: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding_bag(
            self.indices, weights, self.offsets, mode=self.table.pooling, per_sample_weights=self.weights
        )


def lookups_of_samples(kernels: ShardKernels, one: Table, feature: int, first: int, count: int) -> Lookups:
    plain = feature_tables(one)[feature]
    indices, lengths = kernels.table_batches(plain, BATCH_SIZE)[0]
    start, stop = int(lengths[:first].sum()), int(lengths[: first + count].sum())
    weights = lookup_weights(plain.name, 0, len(indices))[start:stop] if one.is_weighted else None
    offsets = torch.cumsum(lengths[first : first + count], 0) - lengths[first : first + count]
    found = indices[start:stop]
    return Lookups(one, feature, found.unique() if one.is_deduplicated else found, offsets, weights)


def upstream(one: Table, feature: int, rank: int, rows: int) -> torch.Tensor:
    """What the dense part of a rank sends back; large, as the learning rate is small."""
    return random_of("gradient", one.name, feature, rank, shape=(rows, one.embedding_dim)) * 0.1 / LEARNING_RATE


def updated(kernels: ShardKernels, one: Table, size: int) -> torch.Tensor:
    """The weights of the unsharded table after a step of SGD."""
    weights = initial(one).requires_grad_()
    own = BATCH_SIZE // size
    for feature in range(one.num_features):
        for rank in range(size):
            found = lookups_of_samples(kernels, one, feature, rank * own, own)
            outputs = weights[found.indices] if one.is_sequence else found.pooled(weights)
            outputs.backward(upstream(one, feature, rank, len(outputs)))
    assert weights.grad is not None
    return (weights - LEARNING_RATE * weights.grad).detach()


# On a rank ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckParts:
    """One step with known weights; the largest deviations of outputs and of updated weights from the unsharded tables,
    by name of the table."""

    job: MeasurePlacement
    ANSWER: ClassVar[Any] = Any

    def check(self, num_ranks: int) -> None:
        self.job.check(num_ranks)

    def run(self, worker: Worker) -> dict[str, list[float]]:
        with worker.kernels.watch_failures(self.job.tables):
            return self.errors(worker)

    def errors(self, worker: Worker) -> dict[str, list[float]]:
        ranks = worker.ranks
        loaded = LoadedParts(worker, self.job.task, self.job.parts)
        errors = {one.name: [0.0, 0.0] for one in self.job.tables}
        for group in loaded.groups:
            for call in group.calls:
                for weights, block in zip(call.weights(), call.blocks, strict=True):
                    rows = block.rows_on(ranks.rank)
                    weights.data[: rows.size] = own_part(initial(block.table), block, ranks.rank)
        loaded.distribute(0)
        loaded.forward()
        loaded.exchange()
        for group in loaded.groups:
            for block, feature, output, gradient in outputs_of(group, ranks.rank, self.job.machine):
                own = BATCH_SIZE // ranks.size
                expected = lookups_of_samples(worker.kernels, block.table, feature, ranks.rank * own, own)
                weights = initial(block.table)
                whole = weights[expected.indices] if block.table.is_sequence else expected.pooled(weights)
                down = upstream(block.table, feature, ranks.rank, len(whole))
                chosen = slice(None) if output[1] is None else [
                    at for at, row in enumerate(expected.indices.tolist()) if output[1].start <= row < output[1].stop
                ]  # fmt: skip
                columns = slice(*block.columns)
                of_table = errors[block.table.name]
                deviation = (output[0] - whole[chosen][:, columns]).abs()
                of_table[0] = max(of_table[0], float(deviation.max()) if deviation.numel() else 0.0)
                gradient.copy_(down[chosen][:, columns])
        saved = [group.gradients for group in loaded.groups]
        loaded.exchange_back()
        for group, own_gradients in zip(loaded.groups, saved, strict=True):
            if is_replicated(group.group):
                group.gradients = own_gradients
        loaded.backward()
        loaded.reduce_replicas()
        loaded.update_replicas()
        for group in loaded.groups:
            for call in group.calls:
                for weights, block in zip(call.weights(), call.blocks, strict=True):
                    rows = block.rows_on(ranks.rank)
                    expected_weights = own_part(updated(worker.kernels, block.table, ranks.size), block, ranks.rank)
                    deviation = (weights.detach()[: rows.size].float() - expected_weights).abs()
                    of_table = errors[block.table.name]
                    of_table[1] = max(of_table[1], float(deviation.max()) if deviation.numel() else 0.0)
        return errors


def own_part(weights: torch.Tensor, block: ColumnBlock, device: int) -> torch.Tensor:
    return weights[slice(*block.rows_on(device)), slice(*block.columns)]


def outputs_of(
    loaded: LoadedGroup, rank: int, machine: Machine
) -> Iterator[tuple[ColumnBlock, int, tuple[torch.Tensor, Span | None], torch.Tensor]]:
    """Every output of a rank's own samples: (block, feature, (values, rows that they are of), where its gradient goes).

    Rows are None where the samples' bags come whole, and those of a device where sequences come from several.
    """
    group, size = loaded.group, machine.num_devices
    if is_replicated(group):
        loaded.gradients = [torch.zeros_like(output) for output in loaded.found]
        for call, output, gradient in zip(loaded.calls, loaded.found, loaded.gradients, strict=True):
            features = [(block, number) for block in call.blocks for number in range(block.table.num_features)]
            if group.is_sequence:
                counts = loaded.distribution.own.lengths.sum(dim=1).tolist()[call.first : call.stop]  # type: ignore
                pieces = zip(torch.split(output, counts), torch.split(gradient, counts), strict=True)
            else:
                widths = [block.columns.size for block, _ in features]
                pieces = zip(torch.split(output, widths, dim=1), torch.split(gradient, widths, dim=1), strict=True)
            for (block, number), (values, back) in zip(features, pieces, strict=True):
                yield block, number, (values.detach(), None), back
        return
    exchange, at = loaded.outputs, 0
    assert exchange is not None
    own = BATCH_SIZE // size
    if group.is_sequence:
        sent = iter(loaded.distribution.sent.tolist())  # type: ignore[union-attr]
        for device in range(size):
            for one in group.features_on(device):
                width, count = one.block.columns.size, next(sent)
                here = slice(at, at + width * count)
                at = here.stop
                rows = one.block.rows_on(device) if group.is_in_rows else None
                values, back = exchange.received[here].view(-1, width), exchange.gradient[here].view(-1, width)
                yield one.block, one.feature, (values, rows), back
        return
    if not group.is_in_rows:
        sources = [group.features_on(device) for device in range(size)]
    elif group.is_on_all:
        sources = [group.features()]
    else:
        sources = [group.features_on(node * machine.devices_per_node) for node in range(machine.num_nodes)]
    for features in sources:
        widths = [one.block.columns.size for one in features]
        here = slice(at, at + own * sum(widths))
        at = here.stop
        if not widths:
            continue
        values = torch.split(exchange.received[here].view(own, -1), widths, dim=1)
        back = torch.split(exchange.gradient[here].view(own, -1), widths, dim=1)
        for one, of_one, gradient in zip(features, values, back, strict=True):
            yield one.block, one.feature, (of_one, None), gradient


@dataclass(frozen=True)
class CountCollectives:
    """The collectives of a rank in each phase of a step, by their names."""

    job: MeasurePlacement
    ANSWER: ClassVar[Any] = Any

    def check(self, num_ranks: int) -> None:
        self.job.check(num_ranks)

    def run(self, worker: Worker) -> dict[str, list[str]]:
        loaded = LoadedParts(worker, self.job.task, self.job.parts)
        called: dict[str, list[str]] = {}
        phases = (
            "distribute",
            "forward",
            "exchange",
            "exchange_back",
            "backward",
            "reduce_replicas",
            "update_replicas",
        )
        with pytest.MonkeyPatch.context() as patch:
            for phase in phases:
                names = called.setdefault(phase, [])
                for name in ("all_to_all", "reduce_scatter", "all_gather", "all_reduce"):
                    patch.setattr(worker.ranks, name, noted(names, getattr(type(worker.ranks), name), worker.ranks))
                getattr(loaded, phase)(*([0] if phase == "distribute" else []))
        return called


def noted(names: list[str], collective: Callable[..., None], ranks: Any) -> Callable[..., None]:
    """The collective, which leaves its name."""

    def call(*args: Any) -> None:
        names.append(collective.__name__)
        collective(ranks, *args)

    return call


KINDS = {**JOBS, "CheckParts": CheckParts, "CountCollectives": CountCollectives}


def everything(hardware: CollectiveHardware, out: Path) -> None:
    """What came of each placement, pickled by name."""
    size = collective.world_size()
    machine = machine_of(size)
    notes: dict[str, Any] = {"errors": {}, "costs": {}, "collectives": {}}
    for name, (tables, parts) in placements(size).items():
        job = MeasurePlacement(tables, machine, BATCH_SIZE, parts)
        notes["errors"][name] = hardware.run_on_all(CheckParts(job), name)
        notes["costs"][name] = hardware.measure_parts(job.task, parts)
        if name in (DATA_PARALLEL, ROW_WISE):
            notes["collectives"][name] = hardware.run_on_all(CountCollectives(job), name)
    giant = replace(of_kind("sum", "giant", 256), num_rows=2_000_000_000)
    fits = of_kind("sum", "fits")
    tables, parts = (giant, fits), (*place(giant, TABLE_WISE, machine, 1), *place(fits, ROW_WISE, machine))
    task = ShardingTask(tables, machine, (2**50,) * size, BATCH_SIZE)
    notes["giant"] = hardware.measure_parts(task, parts)
    bits = replace(of_kind("sum", "bits"), weight_bits=8)
    odd = replace(task, tables=(fits,), batch_size=BATCH_SIZE + 1)
    for name, asked, placed in (
        ("bits", replace(task, tables=(bits,)), place(bits, ROW_WISE, machine)),
        ("odd", odd, place(fits, ROW_WISE, machine)),
        ("devices", replace(odd, machine=Machine(size + 1, 1, inter="gloo")), place(fits, TABLE_WISE, machine)),
        ("bf16", replace(task, communication=Communication("bf16")), parts),
        ("holes", replace(task, tables=(fits,)), place(fits, ROW_WISE, machine)[1:]),
    ):
        try:
            notes[name] = hardware.measure_parts(asked, placed)
        except EvenshardError as error:
            notes[name] = error
    (out / "notes.pickle").write_bytes(pickle.dumps(notes))
    hardware.close()


def die(hardware: CollectiveHardware, victim: int) -> None:
    """A rank dies in the middle of an exchange of a node's ranks."""
    size = collective.world_size()
    machine, one = machine_of(size), of_kind("sum", "t")
    job = DieIn(MeasurePlacement((one,), machine, BATCH_SIZE, place(one, GRID_SHARD, machine)), victim)
    hardware.run_on_all(job, "measuring train-003")


@dataclass(frozen=True)
class DieIn:
    """A measurement in which a rank ends without a word, before it exchanges its outputs."""

    job: MeasurePlacement
    victim: int
    ANSWER: ClassVar[Any] = Any

    def check(self, num_ranks: int) -> None:
        self.job.check(num_ranks)

    def run(self, worker: Worker) -> Any:
        loaded = LoadedParts(worker, self.job.task, self.job.parts)
        loaded.distribute(0)
        loaded.forward()
        if worker.ranks.rank == self.victim:
            os._exit(3)
        return worker.ranks.timed_ms(loaded.exchange)


def process(scenario: str, out: Path) -> int:
    """What the command line does, in small."""
    config, kinds = (CONFIG if scenario == "everything" else IMPATIENT), {**KINDS, "DieIn": DieIn}
    try:
        if collective.is_follower():
            collective.serve(config, kinds)
            return 0
        hardware = collective.lead(config, torch.device("cpu"), kinds)
        if scenario == "everything":
            everything(hardware, out)
        else:
            die(hardware, collective.world_size() - 1)
    except EvenshardError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    return 0


def rank_of_session(rank: int, out: Path) -> None:
    """One rank, with what else torchrun tells it."""
    os.environ["RANK"] = str(rank)
    assert process("everything", out) == 0


# In pytest ------------------------------------------------------------------------------------------------------------


def torchrun(num_processes: int, out: Path, scenario: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
               str(num_processes), __file__, scenario, str(out)]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.fixture(scope="module", params=[2, 4])
def notes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came out of a session, on 2 and on 4 ranks of two nodes."""
    out = tmp_path_factory.mktemp(f"parts{request.param}")
    size, port = str(request.param), str(free_ports(1)[0])
    env = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    run_ranks(rank_of_session, request.param, out, join=False, **env)
    return {**pickle.loads((out / "notes.pickle").read_bytes()), "size": request.param}


@pytest.mark.slow
def test_outputs_and_updated_weights_are_those_of_the_unsharded_tables(notes: dict[str, Any]) -> None:
    assert set(notes["errors"]) >= set(ways_on(notes["size"]))
    for name, of_ranks in notes["errors"].items():
        for rank, errors in enumerate(of_ranks):
            for of_table, (output, weight) in errors.items():
                where = f"{name}, rank {rank}, table {of_table}"
                coarse = "-half-" in of_table
                assert output < 1e-4, where
                assert weight < (1e-2 if coarse else 1e-4), where


def times(cost: DeviceCost) -> tuple[float, ...]:
    assert cost.fwd_compute_ms is not None and cost.bwd_compute_ms is not None
    return (
        cost.input_dist_ms,
        cost.fwd_compute_ms,
        cost.fwd_all_to_all_ms,
        cost.bwd_all_to_all_ms,
        cost.bwd_compute_ms,
    )


@pytest.mark.slow
def test_every_type_is_timed_on_every_device(notes: dict[str, Any]) -> None:
    for name, cost in notes["costs"].items():
        assert isinstance(cost, PlacementCost) and cost.all_to_all == "measured" and cost.fits
        assert len(cost.devices) == notes["size"]
        for device in cost.devices:
            assert min(times(device)) >= 0, name
            assert max(times(device)[:3]) > 0
    of_rows = notes["costs"][ROW_WISE].devices[0]
    assert min(times(of_rows)) > 0


@pytest.mark.slow
def test_replicas_exchange_gradients_alone(notes: dict[str, Any]) -> None:
    for rank, collectives in enumerate(notes["collectives"][DATA_PARALLEL]):
        assert {phase for phase, names in collectives.items() if names} == {"reduce_replicas"}, rank
        assert {*collectives["reduce_replicas"]} == {"all_reduce"}, rank
    for collectives in notes["collectives"][ROW_WISE]:
        assert {phase for phase, names in collectives.items() if names} == {"distribute", "exchange", "exchange_back"}
    for device in notes["costs"][DATA_PARALLEL].devices:
        assert device.bwd_all_to_all_ms > 0


@pytest.mark.slow
def test_where_one_device_is_out_of_memory_none_runs(notes: dict[str, Any]) -> None:
    assert {device.status for device in notes["giant"].devices} == {OUT_OF_MEMORY}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("bits", BadInput, "precision, 16 or 32"),
        ("odd", BadInput, "batch_size is 25, which "),
        ("devices", BadInput, "processes. Start --nproc-per-node"),
        ("bf16", BadInput, "fewer bits than fp32"),
        ("holes", BadInput, "has parts with the rows"),
    ],
)
def test_bad_input_is_one_line(notes: dict[str, Any], name: str, kind: type, message: str) -> None:
    assert type(notes[name]) is kind and message in str(notes[name]) and "\n" not in str(notes[name])


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_run(tmp_path: Path) -> None:
    done = torchrun(4, tmp_path, "die")
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.startswith("failed: ")]
    assert said == ["failed: rank 3 died while measuring train-003. Its own output above may say why."]


def test_a_job_travels_as_plain_data() -> None:
    machine = machine_of(4)
    one = of_kind("shared", "t")
    job = MeasurePlacement((one,), machine, BATCH_SIZE, place(one, GRID_SHARD, machine))
    assert decode_job(encode_job(job, JOBS), JOBS, 4) == job
    with pytest.raises(ValueError, match="is not for 2 ranks"):
        decode_job(encode_job(job, JOBS), JOBS, 2)
    broken = replace(job, parts=job.parts[:-1])
    with pytest.raises(ValueError, match="has parts with the rows"):
        decode_job(encode_job(broken, JOBS), JOBS, 4)


# Who gets what --------------------------------------------------------------------------------------------------------


def test_groups_by_hand() -> None:
    """Four devices in two nodes: a whole table on 3, one in rows on the second node, whose blocks both devices have."""
    machine = machine_of(4)
    whole, in_rows = of_kind("sum", "a"), of_kind("mean", "b")
    by_table = {"a": place(whole, TABLE_WISE, machine, 3), "b": place(in_rows, TABLE_ROW_WISE, machine, 2)}
    first, second = exchange_groups((whole, in_rows), by_table, machine)
    assert [len(first.features_on(device)) for device in range(4)] == [0, 0, 0, 1]
    assert [second.width_on(device) for device in range(4)] == [0, 0, DIM, DIM]
    (block,) = second.blocks
    assert block.devices == (2, 3) and block.rows == (Span(0, 32), Span(32, 50))


def test_a_device_without_rows_takes_part() -> None:
    machine = Machine.one_node(3)
    few = replace(of_kind("sum", "few"), num_rows=2)
    parts = tuple(TablePart("few", Span(at, at + 1), Span(0, DIM), (device,)) for at, device in enumerate((2, 0)))
    (group,) = exchange_groups((few,), {"few": parts}, machine)
    assert group.blocks[0].devices == (2, 0, 1) and group.blocks[0].rows_on(1) == Span(2, 2)


if __name__ == "__main__":
    sys.exit(process(sys.argv[1], Path(sys.argv[2])))
