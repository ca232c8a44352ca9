"""Description of a cost dataset: counts, origins, times and their spread, control placements and their drift."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from evenshard.base.messages import text_table
from evenshard.base.units import utc_text
from evenshard.measure.cost_rows import read_lineage, read_rows
from evenshard.measure.noise import estimate_noise, fit_drift, group_controls
from evenshard.price.costs import OK, Provenance
from evenshard.price.evidence import device_text
from evenshard.price.hardware import measured_or_simulated

_COMPONENTS = ("fwd_compute_ms", "fwd_all_to_all_ms", "bwd_all_to_all_ms", "bwd_compute_ms", "fwd_wait_ms")
# Columns with the interquartile range of repeats, by the time that they belong to.
SPREADS = {"fwd_compute_ms": "fwd_compute_spread_ms", "bwd_compute_ms": "bwd_compute_spread_ms"}
PERCENTILES = (10, 50, 90)
_COUNTED = ("proposed_by", "num_devices", "batch_size", "optimizer", "link")


def describe(paths: Sequence[Path]) -> dict[str, Any]:
    """Describe cost datasets as a dict for JSON; each dataset counts as one run.

    Raises:
        BadFile: if a dataset cannot be read or holds an impossible value.
    """
    datasets = [read_rows(path) for path in paths]
    controls = [group_controls(dataset) for dataset in datasets]
    return {
        "datasets": [_describe_dataset(path, dataset) for path, dataset in zip(paths, datasets, strict=True)],
        "noise": asdict(estimate_noise(controls)),
    }


def _describe_dataset(path: Path, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    controls = group_controls(rows)
    ran = [row for row in rows if row["tables"] and row["status"] == OK]
    times = [row["measured_at"] for row in rows]
    totals = [row["max_device_ms"] for row in ran if row["fwd_compute_ms"] is None]
    split = [row for row in ran if row["fwd_compute_ms"] is not None]
    found = {name: _compute_percentiles([row[name] for row in split]) for name in _COMPONENTS}
    found |= {"fwd_bwd_compute_ms": _compute_percentiles(totals)} if totals else {}
    origins = {tuple(row[field.name] for field in fields(Provenance)) for row in rows}
    provenances = [Provenance(*origin) for origin in origins]
    errors = {text for origin in provenances if (text := device_text(origin.hardware, origin.device_error))}
    return {
        "file": str(path),
        **read_lineage(path),
        "rows": len(rows),
        "measurements": len({row["measurement_id"] for row in rows}),
        **{name: _count_measurements(rows, name) for name in _COUNTED},
        "device_error": sorted(errors),
        "all_to_all": _count_measurements(rows, "all_to_all"),
        "status": dict(Counter(row["status"] for row in rows)),
        "tables_per_shard": _compute_percentiles([len(row["tables"]) for row in ran]),
        "repeats": _compute_percentiles([row["repeats"] for row in ran]),
        "measured_from": utc_text(min(times)) if times and max(times) > 0 else None,
        "measured_to": utc_text(max(times)) if times and max(times) > 0 else None,
        "ms": found,
        "spread_of_repeats_pct": {
            name: _compute_percentiles([100 * row[spread] / row[name] for row in ran if row[name]])
            for name, spread in SPREADS.items()
        },
        "controls": {
            "measurements": len(controls),
            "within_run_pct": estimate_noise([controls]).within_run_pct,
            "drift_pct": fit_drift(controls),
        },
    }


def _count_measurements(rows: Sequence[Mapping[str, Any]], column: str) -> dict[str, int]:
    value_of = {row["measurement_id"]: str(row[column]) for row in rows}
    return dict(sorted(Counter(value_of.values()).items()))


def _compute_percentiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    found = np.percentile(values, PERCENTILES)
    return {f"p{percent}": float(value) for percent, value in zip(PERCENTILES, found, strict=True)}


def format_description(description: Mapping[str, Any]) -> str:
    """Format the description for a terminal."""
    lines: list[str] = []
    for dataset in description["datasets"]:
        lines += [*_dataset_lines(dataset), ""]
    noise = description["noise"]
    if len(description["datasets"]) > 1:
        lines.append(
            f"between the {noise['num_runs']} runs with controls, a placement's mean varies by "
            f"{_pct(noise['between_run_pct'])} in addition to the variation within a run, and by "
            f"{_pct(noise['relative_between_run_pct'])} relative to the other controls of its run"
        )
    return "\n".join(lines).rstrip()


def _dataset_lines(dataset: Mapping[str, Any]) -> list[str]:
    def counts(name: str) -> str:
        return ", ".join(f"{count} x {value}" for value, count in dataset[name].items()) or "none"

    def list_values(name: str) -> str:
        return ", ".join(dataset.get(name, [])) or "unknown"

    controls = dataset["controls"]
    start, end = dataset["measured_from"], dataset["measured_to"]
    when = f"{start} to {end}" if start else "at an unknown time"
    return [
        dataset["file"],
        f"  hardware       {list_values('hardware')}",
        *(f"                 {text}" for text in dataset["device_error"]),
        f"  driver         {list_values('driver')}",
        f"  versions       {list_values('versions')}",
        f"  git commit     {dataset.get('git_commit', 'unknown')}",
        f"  params hash    {dataset.get('params_hash', 'unknown')}",
        f"  {measured_or_simulated(list_values('hardware')):<15}{when}",
        f"  timings        {dataset['measurements']} ({dataset['rows']} rows, one per device): {counts('proposed_by')}",
        f"  devices        {counts('num_devices')}",
        f"  batch size     {counts('batch_size')}",
        f"  optimizer      {counts('optimizer')}",
        f"  all-to-all     {counts('all_to_all')}; link {counts('link')}",
        f"  status         {counts('status')}",
        "",
        text_table(
            [
                ("shards that ran", "p10", "median", "p90"),
                _percentile_cells("tables", dataset["tables_per_shard"], 0),
                _percentile_cells("timed repeats", dataset["repeats"], 0),
                *(_percentile_cells(name, dataset["ms"][name], 3) for name in dataset["ms"]),
                *(
                    _percentile_cells(f"spread of {name.removesuffix('_ms')}, %", spread, 1)
                    for name, spread in dataset["spread_of_repeats_pct"].items()
                ),
            ],
            "<>",
            indent="  ",
        ),
        "",
        f"  controls       {controls['measurements']} timings; standard deviation of a placement "
        f"{_pct(controls['within_run_pct'])}; drift over the run {_pct(controls['drift_pct'], '+')}",
    ]


def _percentile_cells(name: str, found: Mapping[str, float] | None, digits: int) -> tuple[str, ...]:
    if found is None:
        return name, "-", "-", "-"
    return (name, *(f"{value:.{digits}f}" for value in found.values()))


def _pct(value: float | None, sign: str = "") -> str:
    return "unknown" if value is None else f"{value:{sign}.1f} %"
