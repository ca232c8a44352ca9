"""An evaluation as one HTML page: its table and pictures, without any other file."""

from __future__ import annotations

import base64
import html
import json
from pathlib import Path
from typing import Any

from evenshard.measure.hardware import measured_or_simulated
from evenshard.stages.report import write_text

PICTURES = {
    "device_costs.png": "Time of each device on one held-out task",
    "predicted_vs_measured.png": "Predicted against {timed} cost",
    "cost_per_round.png": "Cost of proposed placements, {timed}, round by round",
}
_STYLE = (
    "body{font:15px sans-serif;max-width:72em;margin:2em auto;padding:0 1em}img{max-width:100%}"
    "pre{overflow-x:auto;font-size:13px}"
)


def save_summary(folder: Path, summary: Path) -> None:
    """Writes the table of an evaluation's report as Markdown.

    The table alone: a Markdown viewer that cleans what it shows drops inlined pictures.
    """
    table, metrics = _read(folder)
    write_text(f"# Evaluation\n\n{_facts(metrics)}\n\n```\n{table}\n```", summary)


def save_report_page(folder: Path, page: Path) -> None:
    """Writes table and pictures of an evaluation's report as one HTML page."""
    table, metrics = _read(folder)
    timed = measured_or_simulated(metrics["hardware"])
    titles = {name: html.escape(title.format(timed=timed)) for name, title in PICTURES.items()}
    pictures = "".join(
        f'<h2>{title}</h2><img alt="{title}" src="{_inlined(folder / name)}">'
        for name, title in titles.items()
        if (folder / name).exists()
    )
    body = f"<h1>Evaluation</h1><p>{html.escape(_facts(metrics))}</p><pre>{html.escape(table)}</pre>{pictures}"
    head = f'<meta charset="utf-8"><title>Evaluation</title><style>{_STYLE}</style>'
    write_text(f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>', page)


def _read(folder: Path) -> tuple[str, dict[str, Any]]:
    return (folder / "table.txt").read_text().rstrip(), json.loads((folder / "metrics.json").read_text())


def _facts(metrics: dict[str, Any]) -> str:
    infeasible = metrics["num_infeasible"]
    return (
        f"{metrics['num_test_tasks']} held-out tasks on {metrics['hardware']}; all-to-all: "
        f"{', '.join(metrics['all_to_all'])}."
        + (f" {infeasible} were infeasible for some sharder." if infeasible else "")
    )


def _inlined(picture: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
