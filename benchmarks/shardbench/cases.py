"""Models, simulated machines, and cells of ShardBench's grid."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np

from benchmarks.references.others_measurements import default_folder, read
from evenshard.base.errors import BadFile
from evenshard.placement.nodes import Nodes
from evenshard.placement.task import ShardingTask
from evenshard.planner.request import PlacementRequest
from evenshard.planner.what_if.machines import build_machine
from evenshard.price.collectives import Links
from evenshard.price.gpu_profile import gpu_profile
from evenshard.price.link import link
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.sources import load_catalog
from evenshard.tables.table import Table
from evenshard.torchrec.baseline.topology import Bandwidths, machine_bandwidths

BATCH_SIZE = 65_536
HARDWARE = ("h100", "h200", "a100_80gb", "v100", "b200")
DEVICES = (8, 16, 64, 128)
# Share of a device's memory for tables; TorchRec reserves the same share for everything else.
TABLES_SHARE = 0.85
RECORDED, MIXED, RECORDED_DIMS = "recorded_", "mixed_", (4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class BenchMachine:
    """Machine of a planning request.

    Attributes:
        gpu: its devices, one of ``HARDWARE``.
        nodes: devices, devices of a node, and the names of the links within a node and between nodes.
        available_bytes: memory of each device for weights and optimizer state.
        batch_size: global batch, samples.
    """

    gpu: str
    nodes: Nodes
    available_bytes: int
    batch_size: int

    @staticmethod
    def of(gpu: str, num_devices: int, batch_size: int) -> BenchMachine:
        """Return full nodes of these devices with their usual links, as for ``what-if``."""
        nodes = build_machine(f"simulated:{gpu}", num_devices)
        return BenchMachine(gpu, nodes, int(TABLES_SHARE * gpu_profile(gpu).memory_bytes), batch_size)

    @property
    def hardware(self) -> str:
        """Return the name of the hardware, such as simulated:h100."""
        return f"simulated:{self.gpu}"

    @property
    def links(self) -> Links:
        """Return the simulated links."""
        return Links(link(self.nodes.intra), link(self.nodes.inter) if self.nodes.inter else None)

    @property
    def bandwidths(self) -> Bandwidths:
        """Return bandwidths of device memory and both links, 10**9 bytes per second, for TorchRec's planner."""
        return machine_bandwidths(self.hardware, self.nodes, self.links)

    def request(self, tables: Sequence[Table]) -> PlacementRequest:
        """Return the request of these tables: SGD, every sharding type; only weights and optimizer state use memory."""
        caps = (self.available_bytes,) * self.nodes.num_devices
        return PlacementRequest(tuple(tables), caps, self.batch_size, hardware=self.hardware, machine=self.nodes)

    def task(self, tables: Sequence[Table]) -> ShardingTask:
        """Return the task of the request."""
        return self.request(tables).task()


# Models ---------------------------------------------------------------------------------------------------------------


# Samples of a device for models of sequences, which is our choice for dlrm_v3.
SEQUENCE_MODELS = {"dlrm_v3": 64, "primus": 1024}
NVIDIA = ("nvidia_tiny", "nvidia_small", "nvidia_medium", "nvidia_large")
MODELS = (
    "mlperf_dlrm_v2",
    "criteo_1tb",
    "criteo_kaggle",
    *NVIDIA,
    *SEQUENCE_MODELS,
    f"{RECORDED}100",
    f"{RECORDED}800",
)


def batch_size_of(model: str, num_devices: int) -> int:
    """Return the global batch: fixed per device for models of sequences, 65,536 in total for all others."""
    return SEQUENCE_MODELS[model] * num_devices if model in SEQUENCE_MODELS else BATCH_SIZE


@cache
def tables_called(model: str, batch_size: int = BATCH_SIZE) -> tuple[Table, ...]:
    """Return a public set, ``mixed_<tables>`` of the generator, or ``recorded_<tables>`` of DLRM-2021."""
    if model.startswith(MIXED):
        return generate_tables(GeneratorConfig(int(model.removeprefix(MIXED))), batch_size, seed=0)
    if model.startswith(RECORDED):
        count, rng = int(model.removeprefix(RECORDED)), np.random.default_rng(0)
        known = read(default_folder()).tables
        chosen = rng.choice(len(known), count, replace=False).tolist()
        return tuple(replace(known[one], embedding_dim=int(rng.choice(RECORDED_DIMS))) for one in chosen)
    return load_catalog(model, batch_size)


# Cells ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A model on a machine.

    Attributes:
        model: a name that ``tables_called`` takes.
        gpu: one of ``HARDWARE``.
        devices: how many.
    """

    model: str
    gpu: str
    devices: int

    def __str__(self) -> str:
        return f"{self.model}, {self.devices} x {self.gpu}"

    @property
    def machine(self) -> BenchMachine:
        """Return the machine."""
        return BenchMachine.of(self.gpu, self.devices, batch_size_of(self.model, self.devices))

    @property
    def tables(self) -> tuple[Table, ...]:
        """Return the tables."""
        return tables_called(self.model, self.machine.batch_size)

    @property
    def fits(self) -> bool:
        """Return True if all devices together have memory for the weights; the grid has only such cells."""
        return sum(table.size_bytes for table in self.tables) <= self.devices * self.machine.available_bytes


def cells(models: Sequence[str], gpus: Sequence[str], devices: Sequence[int]) -> Iterator[Cell]:
    """Yield all combinations that fit; recorded tables only if their files are available."""
    for one in (Cell(*names) for names in product(models, gpus, devices)):
        try:
            if one.fits:
                yield one
        except BadFile as error:
            if default_folder().is_dir():
                raise
            print(f"{one} is omitted: {error}", file=sys.stderr)
