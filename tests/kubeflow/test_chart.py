"""The Helm chart renders what kustomize builds of the same manifests, and its values change what they say."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenshard.version import __version__
from support.documented import command, snippet
from support.repository import ROOT

CHART = ROOT / "k8s/chart"
OVERLAYS = ("cpu", "nvidia-gpu", "local")
Objects = dict[tuple[str, str | None, str], dict[str, Any]]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        None in (shutil.which("helm"), shutil.which("kubectl")),
        reason="needs helm and kubectl (make setup installs helm)",
    ),
    pytest.mark.skipif(not (CHART / "manifests/base").exists(), reason="an sdist has no links, which the chart needs"),
]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return run_in(None, *words)


def run_in(folder: Path | None, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, capture_output=True, text=True)


@functools.cache
def rendered(*flags: str, namespace: str = "evenshard", chart: Path = CHART) -> Objects:
    """The objects that Helm would install, by kind, namespace and name."""
    return _objects(run("helm", "template", "evenshard", str(chart), "--namespace", namespace, *flags))


@functools.cache
def built(folder: str) -> Objects:
    """The objects that ``kubectl apply -k`` would apply."""
    return _objects(run("kubectl", "kustomize", str(ROOT / "k8s" / folder)))


def _objects(done: subprocess.CompletedProcess[str]) -> Objects:
    assert done.returncode == 0, done.stderr
    listed = [one for one in yaml.safe_load_all(done.stdout) if one is not None]
    objects = {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]): one for one in listed}
    assert len(objects) == len(listed)
    return objects


def image_of(objects: Objects, kind: str, name: str) -> str:
    pod = objects[kind, "evenshard", name]["spec"]["template"]["spec"]
    return str(pod["containers"][0]["image"])


def test_helm_finds_nothing_wrong() -> None:
    done = run("helm", "lint", "--strict", str(CHART))
    assert done.returncode == 0 and "0 chart(s) failed" in done.stdout, done.stdout


def test_its_version_is_that_of_evenshard() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
    for folder in ("overlays/local", "overlays/nvidia-gpu", "trainjob"):
        tags = re.findall(r'"image": "\S+/evenshard:([^"]+)"', json.dumps(list(built(folder).values())))
        assert tags and all(tag.startswith(f"{__version__}-") for tag in tags), tags


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_it_renders_what_kustomize_builds(overlay: str) -> None:
    assert rendered("--set", f"overlay={overlay}") == built(f"overlays/{overlay}")


def test_the_documented_commands_give_the_same_objects(tmp_path: Path) -> None:
    page = "k8s/README.md"
    shown = _objects(run_in(ROOT, *command(page, "helm template")))
    assert shown == built("overlays/local") == _objects(run_in(ROOT, "kubectl", "kustomize", "k8s/overlays/local"))
    done = run_in(ROOT, *command(page, "helm install"), "--dry-run=client")
    assert done.returncode == 0 and "rollout status deployment/evenshard-mlflow" in done.stdout, done.stderr
    (tmp_path / "values.yaml").write_text(snippet(page, "storageClass"))
    values = yaml.safe_load((tmp_path / "values.yaml").read_text())
    mine = rendered("--values", str(tmp_path / "values.yaml"))
    for kind, name in (("Deployment", "evenshard-mlflow"), ("Job", "gpu-check")):
        assert image_of(mine, kind, name).startswith("registry.internal/")
    assert mine["ConfigMap", "evenshard", "evenshard-endpoints"]["data"].items() >= values["endpoints"].items()
    assert mine["ResourceQuota", "evenshard", "evenshard"]["spec"]["hard"]["requests.nvidia.com/gpu"] == "16"


def test_with_the_benchmark_of_several_nodes_too() -> None:
    both = rendered("--set", "overlay=nvidia-gpu", "--set", "trainjob=true")
    assert both == {**built("overlays/nvidia-gpu"), **built("trainjob")}


def test_in_another_namespace_nothing_stays_behind() -> None:
    for overlay in OVERLAYS:
        objects = rendered("--set", f"overlay={overlay}", namespace="ads")
        assert len(objects) == len(built(f"overlays/{overlay}"))
        assert {namespace for _, namespace, _ in objects} == {"ads", None}
        assert {kind for kind, namespace, _ in objects if namespace is None} <= {"Namespace", "PriorityClass"}
        assert ("Namespace", None, "ads") in objects
        bindings = [one for (kind, _, _), one in objects.items() if kind == "RoleBinding"]
        assert {subject["namespace"] for one in bindings for subject in one["subjects"]} == {"ads"}


def test_values_reach_the_objects(tmp_path: Path) -> None:
    values = {
        "overlay": "local",
        "namespace": False,
        "images": {"evenshard-mlflow": "registry.internal/evenshard@sha256:" + "0" * 64},
        "endpoints": {"AWS_DEFAULT_REGION": "eu-central-1"},
        "storageClass": "fast",
        "storage": {"evenshard-shared": "99Gi", "evenshard-s3": "1Ti"},
        "quota": {"pods": "7"},
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    mine, plain = rendered("--values", str(tmp_path / "values.yaml")), built("overlays/local")
    assert set(plain) - set(mine) == {("Namespace", None, "evenshard")}
    changed = {name for kind, _, name in mine if mine[kind, _, name] != plain[kind, _, name]}
    assert changed == {
        *("evenshard-mlflow", "make-bucket", "evenshard-endpoints"),
        *("evenshard-shared", "evenshard-s3", "evenshard-postgres", "evenshard"),
    }
    assert image_of(mine, "Deployment", "evenshard-mlflow") == values["images"]["evenshard-mlflow"]  # type: ignore[index]
    assert image_of(mine, "StatefulSet", "evenshard-s3") == image_of(plain, "StatefulSet", "evenshard-s3")
    endpoints = mine["ConfigMap", "evenshard", "evenshard-endpoints"]["data"]
    assert endpoints["AWS_DEFAULT_REGION"] == "eu-central-1" and endpoints["AWS_ENDPOINT_URL"]
    shared = mine["PersistentVolumeClaim", "evenshard", "evenshard-shared"]["spec"]
    assert (shared["storageClassName"], shared["resources"]["requests"]["storage"]) == ("fast", "99Gi")
    (claim,) = mine["StatefulSet", "evenshard", "evenshard-postgres"]["spec"]["volumeClaimTemplates"]
    before = plain["StatefulSet", "evenshard", "evenshard-postgres"]["spec"]["volumeClaimTemplates"][0]["spec"]
    assert claim["spec"] == {**before, "storageClassName": "fast"}
    assert mine["ResourceQuota", "evenshard", "evenshard"]["spec"]["hard"]["pods"] == "7"


@pytest.mark.parametrize(
    "flag", ["overlay=gpu", "images.mlflow=a:b", "storage.shared=1Gi", "replicas=3", "namespace=other"]
)
def test_values_that_it_does_not_know_are_refused(flag: str) -> None:
    done = run("helm", "template", "evenshard", str(CHART), "--set", flag)
    assert done.returncode != 0 and "don't meet the specifications of the schema" in done.stderr


def test_a_part_of_kustomize_that_it_does_not_know_is_refused(tmp_path: Path) -> None:
    shutil.copytree(CHART, tmp_path / "chart")
    more = tmp_path / "chart/manifests/overlays/cpu/kustomization.yaml"
    more.write_text(more.read_text() + "namePrefix: my-\n")
    done = run("helm", "template", "evenshard", str(tmp_path / "chart"))
    assert done.returncode != 0 and "kustomization.yaml: the chart does not know namePrefix" in done.stderr


def test_a_package_of_the_chart_renders_the_same(tmp_path: Path) -> None:
    done = run("helm", "package", str(CHART), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    packed = rendered("--set", "overlay=local", chart=tmp_path / f"evenshard-{__version__}.tgz")
    assert packed == built("overlays/local")
