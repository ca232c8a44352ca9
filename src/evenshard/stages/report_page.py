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


def save_report(folder: Path, page: Path, summary: Path) -> None:
    """Writes what the stage ``evaluate`` has left in ``folder`` as a page (HTML) and as a summary (Markdown).

    The summary is the table alone: a Markdown viewer that cleans what it shows drops inlined pictures.
    """
    table = (folder / "table.txt").read_text().rstrip()
    metrics = json.loads((folder / "metrics.json").read_text())
    facts = _facts(metrics)
    timed = measured_or_simulated(metrics["hardware"])
    titles = {name: html.escape(title.format(timed=timed)) for name, title in PICTURES.items()}
    write_text(f"# Evaluation\n\n{facts}\n\n```\n{table}\n```", summary)
    pictures = "".join(
        f'<h2>{title}</h2><img alt="{title}" src="{_inlined(folder / name)}">'
        for name, title in titles.items()
        if (folder / name).exists()
    )
    body = f"<h1>Evaluation</h1><p>{html.escape(facts)}</p><pre>{html.escape(table)}</pre>{pictures}"
    head = f'<meta charset="utf-8"><title>Evaluation</title><style>{_STYLE}</style>'
    write_text(f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>', page)


def _facts(metrics: dict[str, Any]) -> str:
    infeasible = metrics["num_infeasible"]
    return (
        f"{metrics['num_test_tasks']} held-out tasks on {metrics['hardware']}; all-to-all: "
        f"{', '.join(metrics['all_to_all'])}."
        + (f" {infeasible} were infeasible for some sharder." if infeasible else "")
    )


def _inlined(picture: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
