"""Descriptions of the experiment, runs and models for MLflow's pages, written when each of these is created.

The links begin with # and work at any address of the server. They open MLflow's view for model training; a new browser
defaults to the view for GenAI, which lists no runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from evenshard.tracking.client import experiment_name, make_once, write_together
from evenshard.tracking.tags import COSTS_SHA256, PARENT_TAG
from evenshard.version import __version__

NOTE = "mlflow.note.content"
# With this kind, MLflow before 3.17 shows pages for runs, charts and models, not those for chats.
EXPERIMENT_KIND = {"mlflow.experimentKind": "custom_model_development"}
# Query in an address of MLflow's pages that shows the menu for models, in 3.17 for any kind.
FOR_MODELS = "workflowType=machine_learning"
# Address of the documentation from `make docs`, for links to it.
DOCS = "EVENSHARD_DOCS"
_OURS = "**evenshard**"
MODELS = {
    "evenshard-cost": "cost model, with a policy if one was trained, for `evenshard place --model "
    "models:/evenshard-cost@champion`",
    "evenshard-policy": "policy and its cost network, which place tables without a search",
}


def experiment_id(client: Any) -> str:
    """Return the id of the experiment for runs; create and describe it if it is missing."""
    name = experiment_name()
    found = client.get_experiment_by_name(name)
    if found is None:
        make_once(client.create_experiment, name, tags=dict(EXPERIMENT_KIND))
        found = client.get_experiment_by_name(name)
    for key, value in _experiment_tags(found.experiment_id).items():
        if key not in found.tags:
            write_together(client.set_experiment_tag, found.experiment_id, key, value)
    return str(found.experiment_id)


def _experiment_tags(experiment_id: str) -> dict[str, str]:
    """Return tags with the experiment's kind and description; the links in the description contain the id."""
    runs = f"#/experiments/{experiment_id}/runs"
    links = [_link("runs", runs), _link("charts", f"{runs}?compareRunsMode=CHART")]
    lines = [
        "placement of the embedding tables of recommender models. Each run is a loop, with its stages as child runs, "
        "or a comparison or study outside any loop.",
        f"- {' · '.join(links)}",
        f"- models: {' · '.join(_link(name, f'#/models/{name}') for name in MODELS)}",
        "- commands: `evenshard promote`, `evenshard describe placement.json`",
    ]
    return {**EXPERIMENT_KIND, NOTE: _note(lines)}


def stage_note(experiment_id: str, name: str, about: str, parent_id: str) -> dict[str, str]:
    """Return the tag that describes a new run.

    Args:
        about: purpose of a stage, in a sentence.
        parent_id: id of its loop's run; "" for a run outside any loop.
    """
    of = f"stage `{name}` of {_run_link('its loop', experiment_id, parent_id)}" if parent_id else f"`{name}`"
    return {NOTE: _note([f"{of}. {about}".strip()])}


def loop_note() -> dict[str, str]:
    """Return the tag that describes a new loop."""
    return {NOTE: _note(["a loop. Its parameters are those of params.yaml, and its child runs are its stages."])}


def model_description(name: str) -> str:
    """Return the description of a registered model."""
    lines = [
        f"{MODELS[name]}.",
        "- the alias `champion` names the version to use; `evenshard promote` moves it",
        *(f"- see also: {_link(other, f'#/models/{other}')}" for other in MODELS if other != name),
    ]
    return _note(lines)


def version_description(client: Any, name: str, run_id: str, model_id: str, tags: Mapping[str, str]) -> str:
    """Return the description of a new version: its run, loop, files and cost datasets."""
    lines = [f"a version of {_link(name, f'#/models/{name}')}."]
    costs = [sha256 for sha256 in tags.get(COSTS_SHA256, "").split(",") if sha256]
    texts = [f"`{sha256[:12]}`" for sha256 in costs]
    if run_id:
        run = client.get_run(run_id)
        experiment, parent_id = run.info.experiment_id, run.data.tags.get(PARENT_TAG)
        made = f"- made by {_run_link(run.info.run_name, experiment, run_id)}"
        lines.append(made + (f" of {_run_link('its loop', experiment, parent_id)}" if parent_id else ""))
        lines.append(f"- files: {_link(model_id, f'#/experiments/{experiment}/models/{model_id}')}")
        page = f"#/experiments/{experiment}/runs?searchFilter="
        terms = {sha256: quote(f"tags.`{COSTS_SHA256}` LIKE '%{sha256}%'", safe="") for sha256 in costs}
        texts = [_link(sha256[:12], f"{page}{term}") for sha256, term in terms.items()]
    return _note([*lines, *([f"- trained on cost datasets: {', '.join(texts)}"] if texts else [])])


def _note(lines: Iterable[str]) -> str:
    first, *rest = lines
    site = os.environ.get(DOCS, "").rstrip("/")
    text = "runs and models in MLflow"
    docs = _link(text, f"{site}/mlflow.html") if site else f"`docs/mlflow.md` of evenshard {__version__}"
    return "\n".join([f"{_OURS}: {first}", "", *rest, f"- docs: {docs}"])


def _run_link(text: str, experiment: str, run_id: str) -> str:
    return _link(text, f"#/experiments/{experiment}/runs/{run_id}")


def _link(text: str, address: str) -> str:
    if address.startswith("#"):
        address += f"{'&' if '?' in address else '?'}{FOR_MODELS}"
    return f"[{text}]({address})"
