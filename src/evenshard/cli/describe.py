"""Descriptions of files: tables, and kind and origin of a placement, a model or a journal.

Cost datasets are described in ``measure/describe.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evenshard.base.documents import sha256_of
from evenshard.base.errors import BadFile
from evenshard.base.messages import UNKNOWN, count_text
from evenshard.base.outputs import DOMAIN_FILE, MODEL_PARTS
from evenshard.base.units import bytes_to_gb, ms_text, utc_text
from evenshard.measure.journal import Journal, is_journal
from evenshard.planner.answer import model_lineage
from evenshard.planner.file import load_answer
from evenshard.planner.knobs import place_knob
from evenshard.report.table_facts import assumed_groups
from evenshard.sharders.model import digest_of
from evenshard.sharders.training_domain import TrainingDomain
from evenshard.tables.sources import tables_from
from evenshard.tables.tools import ToolFile
from evenshard.tables.tools.reader import read_tool_file

DATASETS = (Path("data"), Path("work"))  # folders to search for cost datasets by their SHA-256


def describe_file(path: Path, embedding_dim: int | None = None) -> dict[str, str]:
    """Describe tables, a placement, a model's folder or a journal as a mapping from label to text.

    Raises:
        BadFile: if it is of another kind, or cannot be read.
    """
    if path.is_dir():
        return {"file": str(path), **_model(path)}
    if path.is_file() and is_journal(path):
        return {"file": str(path), **_journal(path)}
    of_tool = ToolFile()
    if read_tool_file(str(path), of_tool) or not _may_be_placement(path):
        kind = of_tool.kind if of_tool.records else "a table file"
        return {"file": str(path), "kind": kind, **_tables(path, embedding_dim)}
    return {"file": str(path), **_placement(path)}


def file_text(facts: Mapping[str, str]) -> str:
    """Format the description for a terminal."""
    shown = ((label, text.replace("\n", "\n" + " " * 17)) for label, text in facts.items() if label != "file")
    lines = [f"  {label:<15}{text}" for label, text in shown]  # the longest label has 13
    return "\n".join([facts["file"], *lines])


def _may_be_placement(path: Path) -> bool:
    if not path.is_file():
        return True
    with path.open("rb") as file:
        return file.read(64).lstrip().startswith(b"{")


def _tables(path: Path, embedding_dim: int | None) -> dict[str, str]:
    known = tables_from(path, place_knob("batch_size").default, embedding_dim=embedding_dim)
    assumed = [
        f"{group.column} of {count_text(len(group.tables), 'table')}: {group.text}" for group in assumed_groups(known)
    ]
    facts = {
        "tables": f"{len(known.tables):,} for {sum(table.num_features for table in known.tables):,} features",
        "rows": f"{sum(table.num_rows for table in known.tables):,}",
        "dims": ", ".join(map(str, sorted({table.embedding_dim for table in known.tables}))),
        "weights": f"{bytes_to_gb(sum(table.size_bytes for table in known.tables)):,.3g} GB",
        "lookups": f"{sum(table.pooling_factor for table in known.tables):,g} per sample",
        "assumed": "\n".join(assumed),
        "notes": "\n".join(known.notes),
    }
    return {label: text for label, text in facts.items() if text}


def _placement(path: Path) -> dict[str, str]:
    answer = load_answer(path)
    model, origin = model_lineage(answer), answer.lineage
    facts = {
        "kind": "placement",
        "tables": f"{len(answer.request.tables)} from {origin.get('tables') or 'Python'}",
        "devices": f"{answer.num_devices} x {answer.request.hardware}",
        "predicted": f"{ms_text(answer.predicted_ms)} ms per step",
        "evenshard": str(origin.get("evenshard_version", UNKNOWN)),
    }
    if "source" in model:
        facts["model"] = f"{model['source']} (sha256 {str(model.get('sha256'))[:12]}){_describe_state(model)}"
    for label, named in (("MLflow", model.get("mlflow")), ("MLflow policy", (model.get("mlflow") or {}).get("policy"))):
        if named:
            run = f", run {named['run_id']}" if named.get("run_id") else ""
            facts[label] = f"models:/{named['name']}/{named['version']}{run}"
    return {**facts, **_trained_on(model.get("trained_on") or {})}


def _describe_state(model: Mapping[str, Any]) -> str:
    source = str(model["source"])
    if ":" in source:  # built in, registered, or on S3
        return ""
    if not Path(source).is_dir():
        return ", folder not found"
    found = digest_of(Path(source))
    return ", unchanged" if found == model.get("sha256") else f", CHANGED since (sha256 {found[:12]})"


def _model(folder: Path) -> dict[str, str]:
    parts = [part for part in MODEL_PARTS if (folder / part).is_dir()]
    if MODEL_PARTS[0] not in parts:
        raise BadFile(folder, f"has no {MODEL_PARTS[0]}", "Name a model folder, such as work/round_3.")
    trained_on = TrainingDomain.load(folder / MODEL_PARTS[0] / DOMAIN_FILE)
    return {
        "kind": f"model ({', '.join(parts)})",
        "sha256": digest_of(folder),
        "evenshard": trained_on.evenshard_version,
        **_trained_on(asdict(trained_on)),
    }


def _trained_on(trained_on: Mapping[str, Any]) -> dict[str, str]:
    if not trained_on:
        return {}
    hashes = tuple(trained_on.get("costs_sha256") or ())
    files = [path for folder in DATASETS for path in folder.rglob("*.parquet") if path.is_file()] if hashes else []
    found = {sha256_of(path): str(path) for path in sorted(files, reverse=True)}  # of equal files, the first is named
    costs = [f"{found.get(sha256, 'not in data/ or work/ (try dvc pull)')} (sha256 {sha256[:12]})" for sha256 in hashes]
    return {
        "learned from": f"{trained_on.get('num_measured', UNKNOWN)} measured placements",
        "hardware": str(trained_on.get("hardware", UNKNOWN)),
        "versions": str(trained_on.get("versions", UNKNOWN)),
        "git commit": str(trained_on.get("git_commit", UNKNOWN)),
        "costs": "; ".join(costs) or "measured during training",
    }


def _journal(path: Path) -> dict[str, str]:
    with Journal(path, read_only=True) as journal:
        visits = journal.visits()
    origins = {visit.origin.provenance for visit in visits}
    times = sorted(visit.measured_at for visit in visits)
    return {
        "kind": "journal",
        "visits": f"{len(visits)} of {len({visit.job for visit in visits})} jobs",
        "hardware": "; ".join(sorted({origin.hardware for origin in origins})) or UNKNOWN,
        "versions": "; ".join(sorted({origin.versions for origin in origins})) or UNKNOWN,
        "measured": f"{utc_text(times[0])} to {utc_text(times[-1])}" if times else "nothing",
    }
