"""Tables that do not fit: evenshard against TorchRec's planner with free hands, by the simulated true cost.

    python -m benchmarks.scripts.offload [--models 1,2,5] [--sides evenshard,torchrec] [--journal work/offload.jsonl]
    python -m benchmarks.scripts.offload --print

Twenty models whose tables are 1.2 to 10 times as large as the memory of all devices, on simulated H100s with 15 % of
their memory reserved, and a host with as much memory as is needed. TorchRec's ``EmbeddingShardingPlanner`` has
``EmbeddingOffloadScaleupProposer`` and all its other proposers, several load factors to begin with, widths and types
(``sharders/torchrec_rival.py``), and the same miss ratios as evenshard. Each setting is asked with TorchRec's own
count of memory and with ours: plans that take more than there is by our count are compared apart.

What is known is read from the journal, a line for each placement, so that an interrupted run goes on; --print prices
all again and makes a markdown table.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean

import numpy as np

from evenshard.measure.collectives import Links
from evenshard.measure.link import link
from evenshard.measure.simulated.cluster import SimulatedCluster
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.placement.machine import Machine
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.plan import check_parts_memory, check_sharding
from evenshard.placement.storage import Storage
from evenshard.placement.task import ShardingTask
from evenshard.planner.place import place_request
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.model import DeviceModel
from evenshard.sharders.torchrec_planner import machine_bandwidths
from evenshard.sharders.torchrec_rival import PlannerSetting, TorchRecPlanner, offload_settings
from evenshard.tables.cache import LOAD_FACTORS
from evenshard.tables.catalog import load_catalog
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.reuse import power_law_reuse_bins
from evenshard.tables.table import Table
from evenshard.utils.errors import InfeasibleTask
from evenshard.utils.units import BYTES_PER_GB, gb_to_bytes

HARDWARE, INTRA, INTER = "simulated:h100", "nvlink_h100", "infiniband_ndr"
PROFILE = gpu_profile("h100")
RESERVED_SHARE = 0.15
EVENSHARD, TORCHREC = SIDES = ("evenshard", "torchrec")
MANY_TABLES = 100
"""Above so many, TorchRec's planner is asked for fewer load factors."""


@dataclass(frozen=True)
class Model:
    """Tables, traffic and a machine that is too small for them.

    Attributes:
        tables: public set, or mixed_<tables>, with the factor of its rows behind a space.
        traffic: reuse, as the set has it where empty; else ``power <alpha>`` or ``uniform``, lookups that are drawn so;
            ``counted <alpha>`` has the miss ratios of such lookups too, in place of a bound.
        devices: how many; 8 on a node, where there are more.
        cap_gb: memory of each.
        optimizer, pipeline: of the training.
        batch_size: global.
    """

    tables: str
    traffic: str
    devices: int
    cap_gb: float
    optimizer: str
    pipeline: str = "sparse_dist"
    batch_size: int = 65_536

    def __str__(self) -> str:
        traffic = f", {self.traffic}" if self.traffic else ""
        return f"{self.tables}{traffic}, {self.devices} x {self.cap_gb:g} GB, {self.optimizer}, {self.pipeline}"

    @cached_property
    def request(self) -> PlacementRequest:
        """The question."""
        tables = tables_of(self.tables, self.traffic, self.batch_size)
        per_node = min(self.devices, 8)
        nodes = self.devices // per_node
        host_bytes = int(1.2 * 3 * sum(table.size_bytes for table in tables) / nodes)  # Adam keeps two states, too
        machine = Machine(
            self.devices, per_node, intra=INTRA, inter=INTER if nodes > 1 else "", host_bytes=(host_bytes,) * nodes
        )
        return PlacementRequest(
            tables,
            (gb_to_bytes(self.cap_gb),) * self.devices,
            self.batch_size,
            optimizer=self.optimizer,
            reserved_share=RESERVED_SHARE,
            training_pipeline=self.pipeline,
            hardware=HARDWARE,
            machine=machine,
        )

    @cached_property
    def task(self) -> ShardingTask:
        """The same, settled."""
        return self.request.task()

    @cached_property
    def links(self) -> Links:
        """Of the machine."""
        return Links(link(INTRA), link(INTER) if self.task.machine.num_nodes > 1 else None)

    @cached_property
    def cluster(self) -> SimulatedCluster:
        """What prices every placement."""
        machine = self.task.machine
        return SimulatedCluster(machine, [PROFILE] * self.devices, self.links)

    @property
    def times_larger(self) -> float:
        """Weights of all tables over the memory of all devices."""
        return sum(table.size_bytes for table in self.request.tables) / sum(self.request.caps_bytes)


MODELS = (
    Model("mlperf_dlrm_v2 1", "", 4, 16, "sgd"),
    Model("mlperf_dlrm_v2 1", "", 4, 10, "rowwise_adagrad"),
    Model("mlperf_dlrm_v2 1", "power 1.05", 8, 5, "sgd"),
    Model("mlperf_dlrm_v2 1", "counted 1.2", 2, 5, "rowwise_adagrad"),
    Model("mlperf_dlrm_v2 1", "uniform", 4, 16, "rowwise_adagrad"),
    Model("mlperf_dlrm_v2 4", "counted 1.05", 8, 16, "adam", "prefetch"),
    Model("mlperf_dlrm_v2 8", "", 16, 16, "rowwise_adagrad"),
    Model("mlperf_dlrm_v2 4", "power 0.8", 16, 12, "adam"),
    Model("criteo_1tb 1", "", 4, 8, "sgd"),
    Model("criteo_1tb 1", "counted 0.9", 8, 8, "adam"),
    Model("criteo_1tb 8", "power 1.2", 16, 8, "rowwise_adagrad"),
    Model("criteo_1tb 2", "", 2, 10, "rowwise_adagrad", "prefetch"),
    Model("nvidia_small 1", "", 2, 8, "sgd"),
    Model("nvidia_small 4", "counted 1.05", 8, 6, "rowwise_adagrad"),
    Model("nvidia_medium 1", "", 8, 20, "rowwise_adagrad"),
    Model("nvidia_large 1", "", 16, 40, "sgd"),
    Model("mixed_50 1", "", 4, 6, "sgd"),
    Model("mixed_50 4", "counted 1.1", 4, 8, "adam", "prefetch"),
    Model("mixed_100 2", "", 8, 8, "rowwise_adagrad"),
    Model("mixed_50 8", "power 1.2", 16, 4, "rowwise_adagrad"),
)


def tables_of(name: str, traffic: str, batch_size: int) -> tuple[Table, ...]:
    """A set with so many times the rows, looked up so."""
    of_set, times = name.split()
    if of_set.startswith("mixed_"):
        found = generate_tables(GeneratorConfig(int(of_set.removeprefix("mixed_"))), batch_size, seed=0)
    else:
        found = tuple(load_catalog(of_set, batch_size))
    tables = (replace(table, num_rows=table.num_rows * int(times), row_shares=None) for table in found)
    return tuple(looked_up(table, traffic, batch_size) for table in tables)


def looked_up(table: Table, traffic: str, batch_size: int) -> Table:
    """The table with other lookups."""
    if not traffic:
        return table
    kind, _, alpha_text = traffic.partition(" ")
    alpha, lookups = float(alpha_text or 0), table.pooling_factor * batch_size
    bins = power_law_reuse_bins(table.num_rows, lookups, alpha)
    curve = counted_miss_ratios(table.num_rows, lookups, alpha) if kind == "counted" else None
    return replace(table, reuse_bins=bins, miss_ratios=curve)


@cache
def counted_miss_ratios(num_rows: int, lookups: float, alpha: float) -> tuple[float, ...]:
    """What counting would find of independent lookups that draw rank r with probability proportional to ``r**-alpha``.

    A row with ``l`` lookups in a batch is in a batch with probability 1 - exp(-l), and in the cache unless none of the
    last T batches had it: exp(-l T). T is such that the cache is full (Che's approximation of LRU).
    """
    edges = np.unique(np.concatenate([np.arange(1, 1001), np.geomspace(1000, num_rows + 1, 1500)]).round())
    edges = edges[edges <= num_rows + 1]
    edges = np.append(edges, num_rows + 1) if edges[-1] < num_rows + 1 else edges
    rows_R, ranks_R = np.diff(edges), (edges[1:] + edges[:-1] - 1) / 2
    rates_R = ranks_R**-alpha
    rates_R *= lookups / (rows_R * rates_R).sum()
    in_batch_R = -np.expm1(-rates_R)
    found = []
    for load_factor in LOAD_FACTORS:
        low, high = 1e-9, 1e15
        for _ in range(100):
            middle = float(np.sqrt(low * high))
            full = (rows_R * -np.expm1(-rates_R * middle)).sum() >= load_factor * num_rows
            low, high = (low, middle) if full else (middle, high)
        missed = (rows_R * in_batch_R * np.exp(-rates_R * low)).sum() / (rows_R * in_batch_R).sum()
        found.append(0.0 if load_factor == 1 else float(np.clip(missed, 0, 1)))
    return tuple(np.minimum.accumulate(found).tolist())


# Runs -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A placement in the journal.

    Attributes:
        model: its words.
        side: one of ``SIDES``.
        setting: of TorchRec's planner.
        true_ms: true cost; None where no plan was found.
        said_ms: the cost model's prediction, or TorchRec's own rating.
        fits: whether it fits by our count.
        seconds: processor time that it took.
        parts: [table, first row, end, first column, end, devices, kernel, load factor] of each part.
    """

    model: str
    side: str
    setting: str
    true_ms: float | None
    said_ms: float | None
    fits: bool
    seconds: float
    parts: list[list[object]]

    @property
    def ms(self) -> float:
        """True cost, infinite where there is none."""
        return float("inf") if self.true_ms is None else self.true_ms


@cache
def cost_model() -> DeviceModel:
    """The device model."""
    return DeviceModel(HARDWARE)


def exceeds(task: ShardingTask, parts: Sequence[TablePart]) -> bool:
    """Whether parts take more of a device or a host than it has, as we count."""
    try:
        check_parts_memory(task, parts)
    except InfeasibleTask:
        return True
    return False


def line_of(model: Model, side: str, setting: str, parts: Sequence[TablePart], said_ms: float, seconds: float) -> Line:
    """A placement, priced."""
    fits = not exceeds(model.task, parts)
    if side == EVENSHARD:
        check_sharding(model.task, parts)
    return Line(
        str(model),
        side,
        setting,
        model.cluster.cost(model.task, parts).max_device_ms,
        said_ms,
        fits,
        seconds,
        [
            [one.table, *one.rows, *one.columns, list(one.devices), one.storage.kernel, one.storage.load_factor]
            for one in parts
        ],
    )


def evenshard_line(model: Model) -> Line:
    """The answer of ``evenshard place``."""
    began = time.process_time()
    answer = place_request(model.request, cost_model())
    return line_of(model, EVENSHARD, "", answer.parts, answer.predicted_ms, time.process_time() - began)


def settings_of(model: Model) -> tuple[PlannerSetting, ...]:
    """What TorchRec's planner is asked with."""
    many = len(model.task.tables) > MANY_TABLES
    all_ways = offload_settings((0.05, 0.1) if many else (0.02, 0.05, 0.1, 0.2), (None, 32), ("",))
    return (*all_ways, *offload_settings((0.1,), (None,), ("row_wise",)))


def remember_annotations() -> None:
    """Lets TorchRec look through its own estimator's methods once, not for every shard: it plans twice as fast."""
    from torchrec.distributed.planner.estimator import annotations

    for name in ("_get_annotated_method", "_get_coefficient_method"):
        setattr(annotations, name, _remembered(getattr(annotations, name)))


def _remembered(look_up: Callable[..., object]) -> Callable[..., object]:
    known: dict[object, tuple[object, object]] = {}

    def found(config: object, *words: object) -> object:
        key = id(config), words
        if key not in known:
            known[key] = config, look_up(config, *words)  # a configuration that is kept keeps its id
        return known[key][1]

    return found


def torchrec_lines(model: Model, known: Sequence[Line], timeout_s: int) -> Iterator[Line]:
    """TorchRec's plan of every setting that is not known."""
    planner = TorchRecPlanner(model.task, machine_bandwidths(HARDWARE, model.task.machine, model.links), timeout_s)
    done = {line.setting for line in known}
    for setting in settings_of(model):
        if str(setting) in done:
            continue
        began = time.process_time()
        try:
            plan = planner.plan(setting)
        except InfeasibleTask:
            yield Line(str(model), TORCHREC, str(setting), None, None, False, time.process_time() - began, [])
            continue
        seconds = time.process_time() - began
        yield line_of(model, TORCHREC, str(setting), plan.parts, plan.rating_ms, seconds)


def parts_of(line: Line) -> tuple[TablePart, ...]:
    """The placement of a line."""
    return tuple(
        TablePart(str(table), Span(*span[:2]), Span(*span[2:]), tuple(devices), Storage(kernel, load_factor))  # type: ignore[arg-type]
        for table, *span, devices, kernel, load_factor in line.parts
    )


# Tables ---------------------------------------------------------------------------------------------------------------


def report(lines: Sequence[Line]) -> Iterator[str]:
    """Markdown: a row for each model of which something is known."""
    yield (
        "| | model | tables, GB | of the devices' memory | evenshard, ms | TorchRec, best that fits | against it | "
        "best by its own count | against it | its plans by its count that do not fit by ours | evenshard, s | "
        "TorchRec, s |"
    )
    yield "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    fitting, owned = [], []
    for number, model in enumerate(MODELS, start=1):
        of_model = [line for line in lines if line.model == str(model) and line.parts]
        priced = [
            replace(
                line,
                true_ms=model.cluster.cost(model.task, parts_of(line)).max_device_ms,
                fits=not exceeds(model.task, parts_of(line)),
            )
            for line in of_model
        ]
        ours = min((line for line in priced if line.side == EVENSHARD), key=lambda line: line.ms, default=None)
        theirs = [line for line in priced if line.side == TORCHREC]
        if ours is None and not theirs:
            continue
        fit = min((line for line in theirs if line.fits), key=lambda line: line.ms, default=None)
        by_own = [line for line in theirs if line.setting.endswith("by torchrec")]
        own = min(by_own, key=lambda line: line.ms, default=None)
        for other, into in ((fit, fitting), (own, owned)):
            if ours and other:
                into.append(_percent(ours, other))
        size = sum(table.size_bytes for table in model.request.tables) / BYTES_PER_GB
        cells = [
            _ms(ours),
            _ms(fit),
            f"{_percent(ours, fit):+.1f} %" if ours and fit else "",
            _ms(own),
            f"{_percent(ours, own):+.1f} %" if ours and own else "",
            f"{sum(not line.fits for line in by_own)} of {len(by_own)}",
            f"{ours.seconds:.0f}" if ours else "",
            f"{sum(line.seconds for line in theirs):.0f}",
        ]
        yield f"| {number} | {model} | {size:.0f} | {model.times_larger:.1f} x | {' | '.join(cells)} |"
    if fitting:
        worst = max(fitting)
        yield (
            f"| | mean of {len(fitting)} | | | | | {fmean(fitting):+.1f} % (worst {worst:+.1f} %) | | "
            f"{fmean(owned):+.1f} % | | | |"
        )


def _ms(line: Line | None) -> str:
    return "" if line is None else f"{line.ms:.3f}"


def _percent(line: Line, other: Line) -> float:
    return 100 * (line.ms / other.ms - 1)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(map(str, range(1, len(MODELS) + 1))), help="numbers, from 1")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--journal", type=Path, default=Path("work/offload.jsonl"))
    parser.add_argument("--torchrec-s", type=int, default=120, help="for each setting, on the clock")
    parser.add_argument("--again", action="store_true", help="what is in the journal too: the last line counts")
    parser.add_argument("--print", action="store_true", dest="printed")
    args = parser.parse_args()
    logging.disable(logging.ERROR)
    remember_annotations()
    if args.printed:
        print("\n".join(report(read(args.journal))))
        return
    for side in args.sides.split(","):
        for number in map(int, args.models.split(",")):
            model = MODELS[number - 1]
            known = (
                []
                if args.again
                else [line for line in read(args.journal) if (line.model, line.side) == (str(model), side)]
            )
            if side == TORCHREC:
                for line in torchrec_lines(model, known, args.torchrec_s):
                    append(args.journal, line)
            elif not known:
                append(args.journal, evenshard_line(model))


def read(journal: Path) -> list[Line]:
    """Its lines; of the same placement asked for again, the last."""
    if not journal.exists():
        return []
    found = [Line(**json.loads(text)) for text in journal.read_text().splitlines()]
    return list({(line.model, line.side, line.setting): line for line in found}.values())


def append(journal: Path, line: Line) -> None:
    """Adds a line."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    with journal.open("a") as file:
        file.write(json.dumps(asdict(line)) + "\n")
    print(line.model, line.side, line.setting, line.true_ms, line.fits, f"{line.seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
