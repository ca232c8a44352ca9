"""Descriptions of experiment, runs and models on MLflow's pages: what each is, with links to what belongs to it.

The links begin with # and hold wherever the server is. They open the pages for models: a browser that has not been
there shows those for chats ("GenAI"), which know no runs. A description that somebody else has written stays.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from evenshard.tracking.client import experiment_name, make_once, write_together
from evenshard.tracking.parents import PARENT_TAG
from evenshard.tracking.tags import COSTS_SHA256, OUTCOME, STAGE, TASKS
from evenshard.version import __version__

NOTE = "mlflow.note.content"
# Pages of MLflow before 3.17 then show runs, charts and models, and not what is for chats.
EXPERIMENT_KIND = {"mlflow.experimentKind": "custom_model_development"}
# Query in an address of MLflow's pages that shows the menu for models, in 3.17 whatever the kind is.
FOR_MODELS = "workflowType=machine_learning"
# Tag of a run: the model versions that hold its model, as models:/ addresses.
REGISTERED_AS = "evenshard.registered"
# Address of the documentation as `make docs` builds it, for links to it.
DOCS = "EVENSHARD_DOCS"
_OURS = "**evenshard**"
# Lines of a loop's description about the tasks of its pipeline, by what has become of them.
TASK_LINES = {
    "failed": "tasks that have failed",
    "stopped": "tasks that were stopped",
    "cached": "tasks whose earlier results Kubeflow Pipelines took",
    "ran": "tasks that ran",
}

MODELS = {
    "evenshard-cost": "cost model, and the policy where one was trained: what `evenshard place --model "
    "models:/evenshard-cost@champion` places tables with",
    "evenshard-policy": "policy with the cost network that it reads: it places tables by itself, without a search",
}


def experiment_id(client: Any) -> str:
    """Id of the experiment that runs go to, which is made and described if it is missing."""
    name = experiment_name()
    found = client.get_experiment_by_name(name)
    if found is None:
        make_once(client.create_experiment, name, tags=experiment_tags())
        found = client.get_experiment_by_name(name)
    describe_experiment(client, found)
    return str(found.experiment_id)


def experiment_tags(experiment_id: str = "") -> dict[str, str]:
    """Kind and description of the experiment; its own links need its id."""
    if not experiment_id:
        return dict(EXPERIMENT_KIND)
    runs = f"#/experiments/{experiment_id}/runs"
    links = [_link("runs", runs), _link("charts", f"{runs}?compareRunsMode=CHART")]
    lines = [
        "where the embedding tables of recommender models live. A run is a loop, its children are the loop's stages; "
        "contests and studies stand by themselves.",
        f"- {' · '.join(links)}",
        f"- models: {' · '.join(_link(name, f'#/models/{name}') for name in MODELS)}",
        "- commands: `evenshard promote`, `evenshard describe placement.json`",
    ]
    return {**EXPERIMENT_KIND, NOTE: _note(lines)}


def describe_experiment(client: Any, experiment: Any) -> None:
    """Writes what of ``experiment_tags`` an experiment lacks."""
    experiment_id = experiment.experiment_id
    for key, value in experiment_tags(str(experiment_id)).items():
        if key not in experiment.tags:
            write_together(client.set_experiment_tag, experiment_id, key, value)


def describe_run(client: Any, run_id: str, about: str = "") -> None:
    """Writes the descriptions of a run that has ended, and of the loop that it is a stage of.

    Args:
        about: what a stage does, in a sentence.
    """
    run = client.get_run(run_id)
    parent_id = run.data.tags.get(PARENT_TAG, "")
    if STAGE not in run.data.tags:
        _describe_loop(client, run)
        return
    parent = client.get_run(parent_id) if parent_id else None
    what = f"`{run.info.run_name}`"
    if parent is not None:
        what = f"stage {what} of the loop {_run_link(parent)}"
    lines = [f"{what}. {about}".strip(), *_model_lines([run]), *_data_lines([run])]
    _set_note(client, run, lines)
    if parent is not None:
        _describe_loop(client, parent)


def model_description(name: str) -> str:
    """The description of a registered model."""
    lines = [
        f"{MODELS[name]}.",
        "- the alias `champion` names the version to use; `evenshard promote` moves it",
        *(f"- see also: {_link(other, f'#/models/{other}')}" for other in MODELS if other != name),
    ]
    return _note(lines)


def version_description(client: Any, name: str, run_id: str, model_id: str, tags: Mapping[str, str]) -> str:
    """The description of a new version: its run and loop, its costs, and its files."""
    lines = [f"a version of {_link(name, f'#/models/{name}')}."]
    experiment = ""
    if run_id:
        run = client.get_run(run_id)
        experiment = run.info.experiment_id
        lines.append(f"- made by {_run_link(run)}")
        if parent_id := run.data.tags.get(PARENT_TAG):
            lines[-1] += f" of the loop {_run_link(client.get_run(parent_id))}"
    costs = [one for one in tags.get(COSTS_SHA256, "").split(",") if one]
    if costs:
        lines.append(f"- learned from costs: {', '.join(_costs_link(experiment, one, one[:12]) for one in costs)}")
    if experiment:
        lines.append(f"- files: {_link(model_id, f'#/experiments/{experiment}/models/{model_id}')}")
    return _note(lines)


def _describe_loop(client: Any, run: Any) -> None:
    search = f"tags.`{PARENT_TAG}` = '{run.info.run_id}'"
    stages = sorted(client.search_runs([run.info.experiment_id], search), key=lambda one: one.info.start_time)
    tags, what = run.data.tags, "a loop; its parameters are all of params.yaml."
    if OUTCOME in tags and not stages:
        what = "a run of a pipeline; none of its stages had anything to log."
    lines = [what, *_model_lines(stages), *_data_lines(stages)]
    if stages:
        lines.append(f"- stages: {', '.join(_run_link(one) for one in stages)}")
    lines += [f"- {text}: {tags[TASKS + key]}" for key, text in TASK_LINES.items() if TASKS + key in tags]
    _set_note(client, run, lines)


def _data_lines(runs: Iterable[Any]) -> list[str]:
    """The cost datasets of runs, each with a link to all runs that have written or read it."""
    found = {}
    for run in runs:
        for one in run.inputs.dataset_inputs if run.inputs else ():
            sha256 = {tag.key: tag.value for tag in one.tags}.get(COSTS_SHA256, "")
            found[sha256] = _costs_link(run.info.experiment_id, sha256, one.dataset.name)
    return [f"- datasets, with the runs that wrote or read them: {', '.join(found.values())}"] if found else []


def _model_lines(runs: Iterable[Any]) -> list[str]:
    uris = [uri for run in runs for uri in run.data.tags.get(REGISTERED_AS, "").split(", ") if uri]
    links = [_version_link(uri) for uri in dict.fromkeys(uris)]
    return [f"- models: {', '.join(links)}"] if links else []


def _set_note(client: Any, run: Any, lines: Iterable[str]) -> None:
    if run.data.tags.get(NOTE, _OURS).startswith(_OURS):
        write_together(client.set_tag, run.info.run_id, NOTE, _note(lines))


def _note(lines: Iterable[str]) -> str:
    first, *rest = lines
    return "\n".join([f"{_OURS}: {first}", "", *rest, f"- docs: {_docs_link()}"])


def _docs_link() -> str:
    site = os.environ.get(DOCS, "").rstrip("/")
    if not site:
        return f"`docs/mlflow.md` of evenshard {__version__}"
    return _link("which data, which code, which model", f"{site}/mlflow.html")


def _run_link(run: Any) -> str:
    return _link(run.info.run_name, f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}")


def _version_link(uri: str) -> str:
    name, _, version = uri.removeprefix("models:/").partition("/")
    return _link(f"{name} {version}", f"#/models/{name}/versions/{version}")


def _costs_link(experiment: str, sha256: str, text: str) -> str:
    if not experiment or not sha256:
        return f"`{text}`"
    search = quote(f"tags.`{COSTS_SHA256}` LIKE '%{sha256}%'", safe="")
    return _link(text, f"#/experiments/{experiment}/runs?searchFilter={search}")


def _link(text: str, address: str) -> str:
    if address.startswith("#"):
        address += f"{'&' if '?' in address else '?'}{FOR_MODELS}"
    return f"[{text}]({address})"
