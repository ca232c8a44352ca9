"""Every way to shard on machines of nodes: evenshard, TorchRec's planner with free hands, and the best that is known.

    python -m benchmarks.scripts.full_space [--tables mlperf_dlrm_v2,mixed_200] [--devices 8,16,32,64,128]
        [--sides torchrec,evenshard,best_known] [--journal work/full_space.jsonl]
    python -m benchmarks.scripts.full_space --print
    python -m benchmarks.scripts.full_space --ratings

All placements are priced by the true cost of a simulated cluster: H200s with 120 GB for tables each, 8 on a node,
NVLink inside and InfiniBand NDR between; a global batch of 65,536, SGD. What is known already is read from the journal,
a line for each placement, so that an interrupted run goes on; --print prices them again and makes a markdown table.
--ratings asks for TorchRec's own rating instead, on devices of 64 GB with 450 GB/s inside a node and 50 between.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean

from benchmarks.references.cluster_annealing import Effort, best_known
from evenshard.measure.collectives import Links
from evenshard.measure.link import link
from evenshard.measure.simulated.cluster import SimulatedCluster
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.placement.machine import Machine
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.plan import check_sharding
from evenshard.placement.task import ShardingTask
from evenshard.planner.place import place_request
from evenshard.planner.pricing import part_costs
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.model import DeviceModel
from evenshard.sharders.torchrec.planner import Bandwidths, machine_bandwidths
from evenshard.sharders.torchrec.rival import TorchRecPlanner
from evenshard.sharders.torchrec.settings import AS_IT_COMES, PlannerSetting, free_hands
from evenshard.tables.catalog import load_catalog
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.table import Table
from evenshard.utils.errors import InfeasibleTask

HARDWARE, INTRA, INTER = "simulated:h200", "nvlink_h200", "infiniband_ndr"
PROFILE = gpu_profile("h200")
BATCH_SIZE, DEVICES_PER_NODE = 65_536, 8
ROOM_BYTES = 120 * 10**9
TABLES = ("mlperf_dlrm_v2", "criteo_1tb", "nvidia_tiny", "nvidia_small", "nvidia_medium", "mixed_200", "mixed_1000")
DEVICES = (8, 16, 32, 64, 128)
TORCHREC, EVENSHARD, BEST_KNOWN = SIDES = ("torchrec", "evenshard", "best_known")
# Above so many, TorchRec's planner has ``--torchrec-s`` for each setting and is asked as for a report.
MANY_TABLES = 100
# The machine of the ratings: 64 GB with 15 % reserved, bandwidths of memory, within a node and between nodes.
RATED_ROOM, RATED_GB_S = 64 * 2**30 * 85 // 100, Bandwidths(4800, 450, 50)


@dataclass(frozen=True)
class Line:
    """A placement in the journal.

    Attributes:
        tables, devices: what was placed where.
        side: one of ``SIDES``.
        setting: of TorchRec's planner; empty for the others.
        true_ms: true cost; None where none was found.
        predicted_ms: by the device model.
        rating_ms: TorchRec's own rating.
        seconds: processor time that it took.
        parts: [table, first row, end, first column, end, devices] of each part.
    """

    tables: str
    devices: int
    side: str
    setting: str
    true_ms: float | None
    predicted_ms: float | None
    rating_ms: float | None
    seconds: float
    parts: list[list[object]]


@dataclass(frozen=True)
class Case:
    """Tables on a machine, and all that prices their placements."""

    name: str
    request: PlacementRequest
    task: ShardingTask
    cluster: SimulatedCluster

    @staticmethod
    def of(name: str, devices: int) -> Case:
        """One of ``TABLES``, or mixed_<tables>, on H200s."""
        inter = INTER if devices > DEVICES_PER_NODE else ""
        machine = Machine(devices, min(devices, DEVICES_PER_NODE), intra=INTRA, inter=inter)
        request = PlacementRequest(
            tables=tables_called(name),
            caps_bytes=(ROOM_BYTES,) * devices,
            batch_size=BATCH_SIZE,
            hardware=HARDWARE,
            machine=machine,
        )
        links = Links(link(INTRA), link(inter) if inter else None)
        return Case(name, request, request.task(), SimulatedCluster(machine, [PROFILE] * devices, links))

    def line(self, side: str, setting: str, parts: Sequence[TablePart], seconds: float) -> Line:
        """A placement, priced by all."""
        check_sharding(self.task, parts)
        predicted = part_costs(self.request, model()).predict(parts).predicted_ms
        return Line(
            self.name,
            self.task.num_devices,
            side,
            setting,
            self._true_ms(parts),
            predicted,
            self.torchrec().rating_ms(parts),
            seconds,
            [[part.table, *part.rows, *part.columns, list(part.devices)] for part in parts],
        )

    def priced(self, line: Line) -> Line:
        """A line with its true cost as it is now."""
        return replace(line, true_ms=self._true_ms(parts_of(line))) if line.parts else line

    def _true_ms(self, parts: Sequence[TablePart]) -> float:
        return self.cluster.cost(self.task, parts).step_ms(self.task.pipeline)

    def torchrec(self, timeout_s: int | None = None) -> TorchRecPlanner:
        """TorchRec's planner for it."""
        bandwidths = machine_bandwidths(HARDWARE, self.task.machine, self.cluster.links)
        return TorchRecPlanner(self.task, bandwidths, timeout_s)


def tables_called(name: str) -> tuple[Table, ...]:
    """A public set, or as many mixed tables."""
    if name.startswith("mixed_"):
        return generate_tables(GeneratorConfig(int(name.removeprefix("mixed_"))), BATCH_SIZE, seed=0)
    return load_catalog(name, BATCH_SIZE)


@cache
def model() -> DeviceModel:
    """The device model."""
    return DeviceModel(HARDWARE)


# Runs -----------------------------------------------------------------------------------------------------------------


def torchrec_lines(case: Case, known: Sequence[Line], timeout_s: int, few: bool = False) -> Iterator[Line]:
    """TorchRec's plan of every setting that is not known; of few, those that a report asks for."""
    many = len(case.task.tables) > MANY_TABLES
    planner = case.torchrec(timeout_s if many else None)
    for setting in free_hands(case.task, thorough=not many and not few):
        if str(setting) in {line.setting for line in known}:
            continue
        began = time.process_time()
        try:
            parts = planner.plan(setting).parts
        except InfeasibleTask:
            yield Line(case.name, case.task.num_devices, TORCHREC, str(setting), None, None, None, 0.0, [])
            continue
        yield case.line(TORCHREC, str(setting), parts, time.process_time() - began)


def evenshard_line(case: Case) -> Line:
    """The answer of ``evenshard place``."""
    began = time.process_time()
    answer = place_request(case.request, model())
    return case.line(EVENSHARD, "", answer.parts, time.process_time() - began)


def best_known_line(case: Case, known: Sequence[Line], effort: Effort) -> Line:
    """The best of long annealings; the placements in the journal are starts."""
    began = time.process_time()
    starts = [parts_of(line) for line in sorted(known, key=true_ms)[:3] if line.parts]
    found = best_known(case.cluster, case.task, PROFILE, starts, effort)
    return case.line(BEST_KNOWN, "", found.parts, time.process_time() - began)


def parts_of(line: Line) -> tuple[TablePart, ...]:
    """The placement of a line."""
    return tuple(
        TablePart(str(table), Span(*span[:2]), Span(*span[2:]), tuple(devices))  # type: ignore[arg-type]
        for table, *span, devices in line.parts
    )


def true_ms(line: Line) -> float:
    """Infinite where there is none."""
    return float("inf") if line.true_ms is None else line.true_ms


# Tables ---------------------------------------------------------------------------------------------------------------


def report(lines: Sequence[Line]) -> Iterator[str]:
    """Markdown: a row for each case of which something is known."""
    cases: dict[tuple[str, int], list[Line]] = defaultdict(list)
    for line in lines:
        cases[line.tables, line.devices].append(line)
    yield (
        "| tables | devices | TorchRec as it comes | best by its rating | best by our model | best by true cost | "
        "evenshard | against the best of these | best known | evenshard above it |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    against, above = [], []
    for (tables, devices), of_case in sorted(cases.items(), key=lambda one: (_order(one[0][0]), one[0][1])):
        case = Case.of(tables, devices)
        of_case = [case.priced(line) for line in of_case]
        plans = [line for line in of_case if line.side == TORCHREC and line.parts]
        own = next((line for line in plans if line.setting == str(AS_IT_COMES)), None)
        by_rating = min(plans, key=lambda line: line.rating_ms or 0.0, default=None)
        by_model = min(plans, key=lambda line: line.predicted_ms or 0.0, default=None)
        by_truth = min(plans, key=true_ms, default=None)
        ours = min((line for line in of_case if line.side == EVENSHARD), key=true_ms, default=None)
        best = min((line for line in of_case), key=true_ms, default=None)
        if all(line.side != BEST_KNOWN for line in of_case):
            best = None
        if ours and by_truth:
            against.append(_percent(ours, by_truth))
        if ours and best:
            above.append(_percent(ours, best))
        cells = [_ms(line) for line in (own, by_rating, by_model, by_truth, ours)]
        cells += [f"{_percent(ours, by_truth):+.1f} %" if ours and by_truth else "", _ms(best)]
        cells += [f"{_percent(ours, best):.1f} %" if ours and best else ""]
        yield f"| {tables} | {devices} | {' | '.join(cells)} |"
    if against:
        yield f"| mean of {len(against)} | | | | | | | {fmean(against):+.1f} % | | {_mean(above)} |"


def _order(tables: str) -> int:
    return TABLES.index(tables) if tables in TABLES else len(TABLES)


def _ms(line: Line | None) -> str:
    return "" if line is None else f"{true_ms(line):.3f}"


def _percent(line: Line, other: Line) -> float:
    return 100 * (true_ms(line) / true_ms(other) - 1)


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f} %" if values else ""


def ratings() -> Iterator[str]:
    """Markdown: TorchRec's own rating of its plans and of evenshard's for MLPerf DLRM v2, ms."""
    yield "| GPUs | TorchRec, its own setting | best setting | with evenshard's widths | evenshard's placement |"
    yield "|---:|---:|---:|---:|---:|"
    for devices in (8, 16, 64):
        case = Case.of("mlperf_dlrm_v2", devices)
        task = ShardingTask(case.task.tables, case.task.machine, (RATED_ROOM,) * devices, BATCH_SIZE)
        planner = TorchRecPlanner(task, RATED_GB_S)
        answer = place_request(
            PlacementRequest(task.tables, task.room_bytes, BATCH_SIZE, hardware=HARDWARE, machine=task.machine),
            model(),
        )
        widths: dict[str, int] = {}
        for part in answer.parts:
            widths[part.table] = min(part.columns.size, widths.get(part.table, part.columns.size))
        chosen = free_hands(task, thorough=True)
        swept = [planner.rating_ms(plan.parts) for plan in (planner.plan(PlannerSetting()), *planner.plans(chosen))]
        own = [setting for setting in chosen if setting.min_partition is None]
        ours = [planner.rating_ms(planner.plan(setting, widths).parts) for setting in own]
        yield (
            f"| {devices} | {swept[0]:.3f} | {min(swept):.3f} | {min(ours):.3f} | "
            f"{planner.rating_ms(answer.parts):.3f} |"
        )


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", default=",".join(TABLES), help="names of public sets, or mixed_<tables>")
    parser.add_argument("--devices", default=",".join(map(str, DEVICES)))
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--journal", type=Path, default=Path("work/full_space.jsonl"))
    parser.add_argument(
        "--torchrec-s", type=int, default=20, help=f"for each setting, of more than {MANY_TABLES} tables"
    )
    parser.add_argument("--few", action="store_true", help="of TorchRec's settings those that a report asks for")
    parser.add_argument("--moves", type=int, default=60_000, help="of the longest annealings")
    parser.add_argument("--again", action="store_true", help="what is in the journal too: the last line counts")
    parser.add_argument("--print", action="store_true", dest="printed")
    parser.add_argument("--ratings", action="store_true")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    if args.ratings:
        for row in ratings():
            print(row, flush=True)
        return
    if args.printed:
        print("\n".join(report(read(args.journal))))
        return
    for name in args.tables.split(","):
        for devices in map(int, args.devices.split(",")):
            if sum(table.size_bytes for table in tables_called(name)) > devices * ROOM_BYTES:
                continue
            case = Case.of(name, devices)
            for side in args.sides.split(","):
                run(case, side, args)


def run(case: Case, side: str, args: argparse.Namespace) -> None:
    """Adds a side's placements of a case to the journal."""
    lines = [line for line in read(args.journal) if (line.tables, line.devices) == (case.name, case.task.num_devices)]
    own = [] if args.again else [line for line in lines if line.side == side]
    if side == TORCHREC:
        for line in torchrec_lines(case, own, args.torchrec_s, args.few):
            append(args.journal, line)
    elif not own:
        append(
            args.journal,
            evenshard_line(case)
            if side == EVENSHARD
            else best_known_line(case, lines, Effort(last_moves=args.moves, first_moves=args.moves // 5)),
        )


def read(journal: Path) -> list[Line]:
    """Its lines; of the same placement asked for again, the last."""
    if not journal.exists():
        return []
    found = [Line(**json.loads(text)) for text in journal.read_text().splitlines()]
    return list({(line.tables, line.devices, line.side, line.setting): line for line in found}.values())


def append(journal: Path, line: Line) -> None:
    """Adds a line."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    with journal.open("a") as file:
        file.write(json.dumps(asdict(line)) + "\n")
    print(line.tables, line.devices, line.side, line.setting, line.true_ms, f"{line.seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
