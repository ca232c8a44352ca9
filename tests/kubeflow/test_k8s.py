"""What k8s/ puts on a cluster: manifests that Kubernetes accepts, with as few rights and open doors as will do."""

from __future__ import annotations

import functools
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from evenshard.cli import _parser
from support.repository import ROOT

K8S = ROOT / "k8s"
RUNNER = "evenshard-runner"
OVERLAYS = ("cpu", "nvidia-gpu", "local")
IDENTITIES = ("aws", "gke", "azure")  # folders of identity/
FOLDERS = (*(f"overlays/{name}" for name in OVERLAYS), *(f"identity/{name}" for name in IDENTITIES), "trainjob")
# The base manifests are those of the first overlay; the others differ in little.
nightly = pytest.mark.nightly
EACH_OVERLAY = [OVERLAYS[0], *(pytest.param(name, marks=nightly) for name in OVERLAYS[1:])]
EACH_FOLDER = [FOLDERS[0], *(pytest.param(name, marks=nightly) for name in FOLDERS[1:])]
# Pods that others start in this namespace, by the labels they carry.
PIPELINE = {"workflows.argoproj.io/workflow": "train-x7k2p", "pipelines.kubeflow.org/v2_component": "true"}
FOREIGN = {"pipeline": PIPELINE, "artifact proxy": {"app": "ml-pipeline-ui-artifact"}}

Manifest = dict[str, Any]

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl, which builds the overlays")


@functools.cache
def built(folder: str) -> list[Manifest]:
    done = subprocess.run(["kubectl", "kustomize", str(K8S / folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    return [one for one in manifests if one["kind"] in kinds]


def names(manifests: list[Manifest]) -> set[str]:
    return {one["metadata"]["name"] for one in manifests}


def job_of(runtime: Manifest) -> Manifest:
    """The Job that Kubeflow Trainer makes of a TrainingRuntime, by way of a JobSet."""
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, "spec": job["template"]["spec"]}


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Name and pod template of all that starts pods."""
    for one in manifests:
        if one["kind"] == "TrainingRuntime":
            yield one["metadata"]["name"], job_of(one)["spec"]["template"]
        elif "template" in one.get("spec", {}):
            yield one["metadata"]["name"], one["spec"]["template"]


def mentions(tree: Any, key: str) -> Iterator[Any]:
    """Every value of ``key`` at any depth."""
    for name, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        if name == key:
            yield value
        yield from mentions(value, key)


def selects(selector: Manifest, labels: dict[str, str]) -> bool:
    for rule in selector.get("matchExpressions", []):
        assert rule["operator"] in ("Exists", "In")
        found = labels.get(rule["key"])
        if found is None or (rule["operator"] == "In" and found not in rule["values"]):
            return False
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def may_talk(manifests: list[Manifest], source: str, target: str, port: int) -> bool:
    """Whether the network policies let a pod reach another one of this namespace: both sides must agree."""
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(manifests)} | FOREIGN

    def side(pod: str, peer: str, direction: str, where: str) -> bool:
        policies = [one["spec"] for one in of_kind(manifests, "NetworkPolicy")]
        mine = [one for one in policies if selects(one["podSelector"], labels[pod]) and direction in one["policyTypes"]]
        assert mine, f"no policy covers the {direction} of {pod}"
        for rule in (rule for one in mine for rule in one.get(direction.lower(), [])):
            peers = [one["podSelector"] for one in rule.get(where, []) if "namespaceSelector" not in one]
            to_peer = where not in rule or any(selects(one, labels[peer]) for one in peers)
            if to_peer and ("ports" not in rule or port in [one["port"] for one in rule["ports"]]):
                return True
        return False

    return side(source, target, "Egress", "to") and side(target, source, "Ingress", "from")


@nightly
def test_kubernetes_accepts_every_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = pytest.importorskip("kubernetes_validate.utils", reason="needs kubernetes-validate, one of the dev extras")
    # It reads a megabyte of schemas again for every manifest.
    monkeypatch.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))
    versions = sorted({tuple(map(int, one.split(".")[:2])) for one in utils.all_versions()})[-3:]
    assert len(versions) == 3
    manifests = [one for folder in FOLDERS for one in built(folder)]
    manifests = [job_of(one) if one["kind"] == "TrainingRuntime" else one for one in manifests]
    manifests += yaml.safe_load_all((K8S / "secrets.example.yaml").read_text())
    for major, minor in versions:
        for one in manifests:
            if one["kind"] != "TrainJob":  # a custom resource, which it does not know
                assert utils.validate(one, f"{major}.{minor}", strict=True) == f"{major}.{minor}"


@pytest.mark.parametrize("folder", EACH_FOLDER)
def test_pods_are_unprivileged_bounded_and_pinned(folder: str) -> None:
    keys = [(one["kind"], one["metadata"]["name"]) for one in built(folder)]
    assert len(keys) == len(set(keys)) > 2  # no object comes twice
    found = list(pods(built(folder)))
    assert found
    for name, pod in found:
        spec = pod["spec"]
        whole = spec["securityContext"]
        assert whole["runAsNonRoot"] and whole["runAsUser"] > 0 and whole["runAsGroup"] > 0, name
        assert whole["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert spec["automountServiceAccountToken"] is False, name  # none of them talks to Kubernetes
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        assert not any("hostPath" in volume for volume in spec.get("volumes", [])), name
        for container in (*spec["containers"], *spec.get("initContainers", [])):
            drop = {"drop": ["ALL"]}
            closed = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": drop}
            assert container["securityContext"] == closed, name
        for container in spec["containers"]:
            resources = [container["resources"][kind] for kind in ("requests", "limits")]
            assert all({"cpu", "memory"} <= set(one) for one in resources), name
            assert len({one.get("nvidia.com/gpu") for one in resources}) == 1, name
            image = container["image"]
            assert re.fullmatch(r"[\w.-]+\.[a-z]+/[\w./-]+(:[\w.-]+|@sha256:[0-9a-f]{64})", image), (name, image)
            assert not image.endswith(":latest"), name


@pytest.mark.parametrize("name", EACH_OVERLAY)
def test_the_namespace_lets_in_no_other_pods_and_sets_their_defaults(name: str) -> None:
    manifests = built(f"overlays/{name}")
    (namespace,) = of_kind(manifests, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    denied = [one["spec"] for one in of_kind(manifests, "NetworkPolicy")]
    assert {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]} in denied
    # Without a request for disk, which pipelines cannot make, a pod is the first that a node short of it evicts.
    ((default,),) = (one["spec"]["limits"] for one in of_kind(manifests, "LimitRange"))
    assert default["defaultRequest"]["ephemeral-storage"] == "1Gi"
    assert "ephemeral-storage" not in default["default"]  # more than that is allowed


@pytest.mark.parametrize("folder", EACH_FOLDER)
def test_secrets_are_named_never_carried(folder: str) -> None:
    manifests = built(folder)
    assert not of_kind(manifests, "Secret")
    assert not (folder.startswith("identity/") and list(mentions(manifests, "secretKeyRef")))  # no key to storage
    examples = yaml.safe_load_all((K8S / "secrets.example.yaml").read_text())
    shown = {one["metadata"]["name"]: one["stringData"] for one in examples}
    for reference in mentions(manifests, "secretKeyRef"):
        assert reference["key"] in shown[reference["name"]]
    assert {one["name"] for one in mentions(manifests, "secretRef")} <= set(shown)
    assert "password" not in yaml.safe_dump(of_kind(manifests, "ConfigMap")).lower()
    for key, value in (item for one in shown.values() for item in one.items()):
        assert "REPLACE_WITH_" in value or (key, value) == ("MLFLOW_AUTH_ADMIN_USERNAME", "admin")


@pytest.mark.parametrize("name", EACH_OVERLAY)
def test_what_pods_name_is_there(name: str) -> None:
    manifests = built(f"overlays/{name}")
    maps = {one["metadata"]["name"]: one["data"] for one in of_kind(manifests, "ConfigMap")}
    for folder in (f"overlays/{name}", "trainjob"):
        for reference in mentions(built(folder), "configMapKeyRef"):
            assert maps[reference["name"]][reference["key"]]
        assert {one["name"] for one in mentions(built(folder), "configMapRef")} <= set(maps)
        accounts = set(mentions([pod for _, pod in pods(built(folder))], "serviceAccountName"))
        assert accounts <= names(of_kind(manifests, "ServiceAccount"))
        assert set(mentions(built(folder), "claimName")) <= names(of_kind(manifests, "PersistentVolumeClaim"))
    templates = [one["spec"]["template"] for one in of_kind(manifests, "Deployment", "StatefulSet")]
    for service in of_kind(manifests, "Service"):
        selector = {"matchLabels": service["spec"]["selector"]}
        (target,) = [one for one in templates if selects(selector, one["metadata"]["labels"])]
        (container,) = target["spec"]["containers"]
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)
        ports = [port["name"] for port in container["ports"]]
        assert [port["targetPort"] for port in service["spec"]["ports"]] == ports


@pytest.mark.parametrize("name", EACH_OVERLAY)
def test_rights_are_few(name: str) -> None:
    manifests = built(f"overlays/{name}")
    assert not of_kind(manifests, "ClusterRole", "ClusterRoleBinding")
    roles = {one["metadata"]["name"]: one["rules"] for one in of_kind(manifests, "Role")}
    for role, rule in ((role, rule) for role, rules in roles.items() for rule in rules):
        assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
        assert not {"pods/exec", "rolebindings", "roles"} & set(rule["resources"])
        if "serviceaccounts/token" in rule["resources"]:  # of its own account alone, whose rights it has anyway
            assert (rule["verbs"], rule["resourceNames"], role) == (["create"], [RUNNER], RUNNER)
        if "secrets" in rule["resources"]:  # a list would show every secret of the namespace
            assert (rule["verbs"], rule["resourceNames"]) == (["get"], ["mlpipeline-minio-artifact"])
    for binding in of_kind(manifests, "RoleBinding"):
        assert binding["roleRef"]["name"] in roles
        assert {one["name"] for one in binding["subjects"]} <= names(of_kind(manifests, "ServiceAccount"))
    # a run may read how it ends, and a submitter may touch no pod
    of_pipelines = [rule for rule in roles[RUNNER] if "pipelines.kubeflow.org" in rule["apiGroups"]]
    assert [(rule["resources"], rule["verbs"]) for rule in of_pipelines] == [(["runs"], ["get"])]
    submitter = roles["evenshard-submitter"]
    assert {group for rule in submitter for group in rule["apiGroups"]} == {"pipelines.kubeflow.org"}
    runs = [rule["verbs"] for rule in submitter if rule["resources"] == ["runs"]]
    assert runs == [["create", "get", "list", "retry", "terminate"]]


@nightly
def test_who_may_talk_to_whom() -> None:
    manifests = built("overlays/local")
    known = [*(name for name, _ in pods(manifests)), *FOREIGN]
    pairs = [(source, target, port) for source in known for target in known for port in (5000, 8333, 5432, 9333, 443)]
    assert {road for road in pairs if may_talk(manifests, *road)} == {
        ("pipeline", "evenshard-mlflow", 5000),
        ("pipeline", "evenshard-s3", 8333),
        ("evenshard-mlflow", "evenshard-postgres", 5432),
        ("evenshard-mlflow", "evenshard-s3", 8333),
        ("make-bucket", "evenshard-s3", 8333),
    }
    manifests = [*built("overlays/nvidia-gpu"), *built("trainjob")]
    assert may_talk(manifests, "evenshard-benchmark", "evenshard-benchmark", 29500)
    assert may_talk(manifests, "evenshard-benchmark", "evenshard-mlflow", 5000)
    assert not may_talk(manifests, "pipeline", "evenshard-benchmark", 29500)
    assert not may_talk(manifests, "gpu-check", "evenshard-mlflow", 5000)


@nightly
def test_commands_are_ones_that_evenshard_knows() -> None:
    (check,) = of_kind(built("overlays/nvidia-gpu"), "Job")
    script = check["spec"]["template"]["spec"]["containers"][0]["args"][0]
    lines = [shlex.split(line)[1:] for line in script.splitlines() if line.startswith("evenshard ")]
    trainers = [of_kind(built(folder), "TrainJob")[0]["spec"]["trainer"] for folder in ("trainjob", "trainjob-rdma")]
    for trainer in trainers:
        assert (trainer["command"], trainer["args"][:2]) == (["torchrun"], ["-m", "evenshard"])
        assert trainer["numProcPerNode"] == trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"]
    parsed = [_parser().parse_args(line) for line in (*lines, *(trainer["args"][2:] for trainer in trainers))]
    assert [one.command for one in parsed] == ["generate-tables", "benchmark", "describe", "benchmark", "benchmark"]
    assert parsed[-1].expect_transport == "ib"
