"""Plans with their costs by every oracle: lines of the journal and rows of the CSV."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.references.rows import read_rows
from benchmarks.shardbench.cases import Cell
from benchmarks.shardbench.linear import LinearModel
from benchmarks.shardbench.planners import Planner
from benchmarks.shardbench.timed import KERNEL_TIMES, KernelTimes, kernel_times_of
from evenshard.base.errors import BadConfig, BadInput, EvenshardError, InfeasibleTask
from evenshard.base.outputs import atomic_path
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.placement import check_parts_memory, list_broken_rules, parts_by_table
from evenshard.placement.task import used_bytes
from evenshard.planner.pricing import part_costs
from evenshard.price.step import PartCosts
from evenshard.sharders.model import DeviceModel
from evenshard.torchrec.baseline.sharder import TorchRecPlanner

ORACLES = {
    "kernels": "kernels, timed",
    "device": "the device model",
    "linear": "the linear model of counts",
    "torchrec": "TorchRec's own rating",
}
# Table of the page, which lists the plans that were timed.
PUBLISHED = Path(__file__).resolve().parents[1] / "shardbench_202611.csv"
FITS, OVER_MEMORY, ILLEGAL, NO_PLAN = "fits", "over memory", "illegal", "no plan"


def column(unit: str, meaning: str, **given: Any) -> Any:
    """Return a field that is a column of the CSV, with unit and meaning for the schema."""
    return field(metadata={"unit": unit, "meaning": meaning}, **given)


@dataclass(frozen=True)
class Result:
    """A plan of a cell by a planner.

    Attributes: the metadata of each field, which are the schema of the CSV; ``parts`` are in the journal alone:
        [table, first row, end, first column, end, devices] of each.
    """

    model: str = column("", "the tables")
    gpu: str = column("", "simulated device")
    devices: int = column("devices", "8 on a node")
    planner: str = column("", "file of benchmarks/shardbench/planners")
    variant: str = column("", "which of the planner's plans")
    own_oracle: str = column("", "the oracle that the planner itself plans by, or learned from; empty for none")
    status: str = column("", f"{FITS}, {OVER_MEMORY}, {ILLEGAL} or {NO_PLAN}")
    note: str = column("", "why it does not fit")
    kernels_ms: float | None = column(
        "ms", "a step by kernels that were timed on such a GPU and the simulated links", default=None
    )
    device_ms: float | None = column("ms", "a step by the device model and the simulated links", default=None)
    linear_ms: float | None = column("ms", "a step by the linear model of counts", default=None)
    torchrec_ms: float | None = column("ms", "TorchRec's own rating", default=None)
    memory_share: float | None = column("1", "of what tables may take, on the fullest device", default=None)
    parts_count: int = column("parts", "parts of tables; a replicated table is one", default=0)
    seconds: float = column("s", "processor time of the planner, for all of its plans of the cell", default=0.0)
    parts: tuple[tuple[Any, ...], ...] = ()

    @property
    def cell(self) -> Cell:
        """Return the cell that it was planned for."""
        return Cell(self.model, self.gpu, self.devices)

    def ms(self, oracle: str) -> float:
        """Return its cost by an oracle; infinite if the plan is illegal or does not fit."""
        found = getattr(self, f"{oracle}_ms")
        return float(found) if self.status == FITS and found is not None else float("inf")


COLUMNS: tuple[Field[Any], ...] = tuple(one for one in fields(Result) if one.metadata)


# Costs ----------------------------------------------------------------------------------------------------------------


@cache
def _raters(cell: Cell) -> tuple[PartCosts, KernelTimes, LinearModel, TorchRecPlanner]:
    machine, tables = cell.machine, cell.tables
    costs = part_costs(machine.request(tables), DeviceModel(machine.hardware))
    return costs, kernel_times_of(cell.gpu), LinearModel(machine.gpu), TorchRecPlanner(costs.task, machine.bandwidths)


def with_costs(result: Result) -> Result:
    """Return a plan with its costs by all oracles, its legality and its fit."""
    costs, kernels, linear, torchrec = _raters(result.cell)
    parts, task = parts_of(result), costs.task
    try:
        broken = next(list_broken_rules(task, parts_by_table(task, parts)), None)
    except BadConfig as error:
        broken = str(error)
    if broken is not None:
        return replace(result, status=ILLEGAL, note=broken)
    try:
        check_parts_memory(task, parts)
        status, note = FITS, ""
    except InfeasibleTask as error:
        status, note = OVER_MEMORY, str(error)
    return replace(
        result,
        status=status,
        note=note,
        kernels_ms=kernels.step_ms(task, parts, result.cell.machine.links),
        device_ms=round(costs.predict(parts).predicted_ms, 4),
        linear_ms=round(linear.step_ms(task, parts), 4),
        torchrec_ms=round(torchrec.rating_ms(parts), 4),
        memory_share=round(max(used_bytes(task, parts)) / result.cell.machine.available_bytes, 3),
        parts_count=len(parts),
    )


def parts_of(result: Result) -> tuple[TablePart, ...]:
    """Return the parts of a plan."""
    return tuple(
        TablePart(table, Span(*span[:2]), Span(*span[2:]), tuple(devices)) for table, *span, devices in result.parts
    )


def results_of(cell: Cell, planner: Planner) -> list[Result]:
    """Return all plans of a planner for a cell; if there is none, one result with the reason."""
    began, found = time.process_time(), []
    blank = Result(cell.model, cell.gpu, cell.devices, planner.name, "", planner.own_oracle, NO_PLAN, "")
    try:
        for variant, parts in planner.plans(cell.tables, cell.machine):
            written = tuple((one.table, *one.rows, *one.columns, list(one.devices)) for one in parts)
            found.append(replace(blank, variant=variant, parts=written))
    except EvenshardError as error:
        blank = replace(blank, note=str(error))
    seconds = round(time.process_time() - began, 2)
    return [replace(with_costs(one), seconds=seconds) for one in found] or [replace(blank, seconds=seconds)]


def check_times(results: Sequence[Result]) -> None:
    """Check that all plans that were timed have their times.

    Plans are the same as those of the published table if they cost as much by the linear model. Planners that use the
    device model are left out, because a new device model changes their plans.
    """

    def describe(one: Result) -> tuple[object, ...]:
        return one.cell, one.planner, one.variant, one.parts_count, one.linear_ms

    published = (one for one in read_csv(PUBLISHED) if one.own_oracle != "device")
    timed = {describe(one) for one in published if one.kernels_ms is not None}
    missing = sum(one.kernels_ms is None and describe(one) in timed for one in results)
    if missing:
        raise BadInput(
            f"{missing} plans with timed kernels in {PUBLISHED.name} have no times in {KERNEL_TIMES}. Fetch them with "
            "`dvc pull data.dvc`, then reprice the plans with --again."
        )


# Files ----------------------------------------------------------------------------------------------------------------


def read_journal(path: Path) -> list[Result]:
    """Read the known results; none if the file is missing. Unpack a gzipped file."""
    return [Result(**row) for row in read_rows(path, least=0)]


def write_journal(path: Path, results: Sequence[Result]) -> None:
    """Replace the journal atomically by these plans."""
    with atomic_path(path) as draft:
        append(draft, results)


def append(path: Path, results: Sequence[Result]) -> None:
    """Append the plans of a planner for a cell in one write, all or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("".join(json.dumps(asdict(one)) + "\n" for one in results))


def write_csv(path: Path, results: Sequence[Result]) -> None:
    """Write the rows, without the parts of plans, and the schema beside them."""
    with atomic_path(path) as draft, draft.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow([one.name for one in COLUMNS])
        rows.writerows([getattr(result, one.name) for one in COLUMNS] for result in results)
    schema = path.with_name(f"{path.stem}_schema.csv")
    with atomic_path(schema) as draft, draft.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["column", "type", "unit", "meaning"])
        rows.writerows([one.name, str(one.type), one.metadata["unit"], one.metadata["meaning"]] for one in COLUMNS)


def read_csv(path: Path) -> Iterator[Result]:
    """Read the rows of a CSV."""
    kinds = {"float | None": lambda text: float(text) if text else None, "float": float, "int": int, "str": str}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            yield Result(**{one.name: kinds[str(one.type)](row[one.name]) for one in COLUMNS})
