"""Small settings, compiled pipelines and what is in them, for the tests of pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from evenshard.kubeflow.cluster import Cluster
from evenshard.kubeflow.package import compile_to, pipeline_documents
from evenshard_components.conftest import CONFIG
from evenshard_pipelines.build import build, default_cluster

SMALL_PARAMS: dict[str, Any] = {"loop": {"num_rounds": 2}, **CONFIG}


@dataclass(frozen=True)
class Task:
    """One task of a compiled pipeline."""

    name: str  # path of names, "loop/parts_1/benchmark_1" for a task within groups
    spec: dict[str, Any]
    executor: dict[str, Any]  # the container, or the importer
    platform: dict[str, Any]  # what the Kubernetes platform spec says

    @property
    def imports(self) -> bool:
        return "importer" in self.executor


def compiled(name: str, params: Path, out: Path, cluster: Cluster | None = None, **values: Any) -> Path:
    pipeline, given = build(name, params, cluster or default_cluster(), values)
    compile_to(pipeline, out, given)
    return out


@cache
def _documents(package: Path, written: int) -> tuple[dict[str, Any], dict[str, Any]]:
    return pipeline_documents(package)


def tasks_of(package: Path) -> list[Task]:
    spec, platform = _documents(package, package.stat().st_mtime_ns)
    executors = spec["deploymentSpec"]["executors"]
    settings = platform.get("platforms", {}).get("kubernetes", {}).get("deploymentSpec", {}).get("executors", {})

    def opened(dag: dict[str, Any], prefix: str) -> Iterator[Task]:
        for name, task in dag["tasks"].items():
            component = spec["components"][task["componentRef"]["name"]]
            shown = prefix + task.get("taskInfo", {}).get("name", name)
            if "dag" in component:
                yield from opened(component["dag"], f"{shown}/")
            else:
                label = component["executorLabel"]
                yield Task(shown, task, executors[label], settings.get(label, {}))

    return list(opened(spec["root"]["dag"], ""))


def edges_of(package: Path) -> set[tuple[str, str]]:
    """(from, to) among the tasks by their shown names, groups opened: who reads what whom has written."""
    spec, _ = _documents(package, package.stat().st_mtime_ns)
    edges: set[tuple[str, str]] = set()

    def opened(task: dict[str, Any]) -> dict[str, Any]:
        component: dict[str, Any] = spec["components"][task["componentRef"]["name"]]
        return component.get("dag", {})

    def shown(name: str, task: dict[str, Any]) -> str:
        return str(task.get("taskInfo", {}).get("name", name))

    def producers(dag: dict[str, Any], name: str, output: str) -> list[str]:
        group = opened(dag["tasks"][name])
        if not group:
            return [shown(name, dag["tasks"][name])]
        handed_on = group["outputs"]["artifacts"][output]["artifactSelectors"]
        behind = [producers(group, one["producerSubtask"], one["outputArtifactKey"]) for one in handed_on]
        return [one for ones in behind for one in ones]

    def walk(dag: dict[str, Any], given: dict[str, list[str]]) -> None:
        for name, task in dag["tasks"].items():
            read: dict[str, list[str]] = {}
            for key, source in task.get("inputs", {}).get("artifacts", {}).items():
                if "componentInputArtifact" in source:
                    read[key] = given[source["componentInputArtifact"]]
                else:
                    one = source["taskOutputArtifact"]
                    read[key] = producers(dag, one["producerTask"], one["outputArtifactKey"])
            if group := opened(task):
                walk(group, read)
            else:
                edges.update((one, shown(name, task)) for ones in read.values() for one in ones)

    walk(spec["root"]["dag"], {})
    return edges
