"""The body, called as a function, on traces that are written event by event."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from evenshard.planner.file import load_answer
from evenshard_components.watch.component import watch
from support.watch_builders import traced_job

Artifacts = Callable[..., dict[str, Any]]
OUTPUTS = ("summary", "observation", "placement", "plan", "page", "metrics")


def inputs(folder: Path) -> dict[str, Any]:
    return {name: dsl.Artifact(name=name, uri=str(folder / name)) for name in ("traces", "in_use")}


def test_a_job_whose_tables_lie_badly_is_to_move(tmp_path: Path, made: Artifacts) -> None:
    in_use = traced_job(tmp_path)
    outputs = made(*OUTPUTS)
    assert watch.python_func(request={"steps": 10**7, "restart_minutes": 1.0}, **inputs(tmp_path), **outputs)
    new = load_answer(Path(outputs["placement"].path, "placement.json"))
    assert new.predicted_ms < in_use.predicted_ms and len({part.device for part in new.parts}) == 2
    text = Path(outputs["summary"].path).read_text()
    assert text.startswith("```text\nReplan: the move pays back within 10,000,000 steps.\n")
    found = json.loads(Path(outputs["observation"].path, "observation.json").read_text())
    assert found["pays"] and outputs["metrics"].metadata["pays"] == 1.0
    assert outputs["metrics"].metadata["observed_ms"] == pytest.approx(found["comparison"]["observed_ms"])
    assert json.loads(Path(outputs["plan"].path, "plan.json").read_text())["world_size"] == 2
    assert "wide" in Path(outputs["page"].path).read_text()


def test_a_job_that_ends_soon_stays(tmp_path: Path, made: Artifacts) -> None:
    in_use = traced_job(tmp_path)
    outputs = made(*OUTPUTS)
    assert not watch.python_func(request={"steps": 10, "restart_minutes": 1.0}, **inputs(tmp_path), **outputs)
    assert load_answer(Path(outputs["placement"].path, "placement.json")).parts == in_use.parts
    assert "Stay: a move is not certain to pay back within 10 steps." in Path(outputs["summary"].path).read_text()


def test_a_job_whose_placement_is_the_best_has_no_move_to_pay_back(tmp_path: Path, made: Artifacts) -> None:
    traced_job(tmp_path)
    first, request = made(*OUTPUTS), {"steps": 10**7, "restart_minutes": 1.0}
    assert watch.python_func(request=request, **inputs(tmp_path), **first)
    (tmp_path / "in_use/placement.json").write_bytes(Path(first["placement"].path, "placement.json").read_bytes())
    again = made(*OUTPUTS)
    assert not watch.python_func(request=request, **inputs(tmp_path), **again)
    assert "Stay: no better placement was found." in Path(again["summary"].path).read_text()
    assert json.loads(Path(again["observation"].path, "observation.json").read_text())["payback"] is None
    assert again["metrics"].metadata["gained_seconds"] == 0.0
