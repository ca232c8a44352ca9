"""The image, and what stages get of a cluster: what is refused, and how."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from evenshard.base.errors import BadConfig
from evenshard.kubeflow.cluster import COMPONENTS, load_cluster
from evenshard.kubeflow.component import DEFAULT_IMAGE, image
from evenshard_pipelines.build import default_cluster

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "name", ["r.example.com:5000/team/evenshard:0.1.0", f"evenshard@{DIGEST}", f"e:latest@{DIGEST}"]
)
def test_a_version_or_a_digest_is_an_image(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENSHARD_IMAGE", name)
    assert image() == name
    monkeypatch.delenv("EVENSHARD_IMAGE")
    assert image() == DEFAULT_IMAGE


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("r.example.com:5000/evenshard", "has no tag"),
        ("evenshard:Main", "can move to another image"),
        ("evenshard@sha256:12", "is not a valid image name"),
    ],
)
def test_a_name_that_may_move_is_none(name: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENSHARD_IMAGE", name)
    with pytest.raises(BadConfig, match=why):
        image()


def test_a_stage_takes_from_default_what_it_does_not_say(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    stages = {"default": {"cpu": 1, "memory": "2Gi", "retries": 5}, "benchmark": {"gpus": 1, "memory": "9Gi"}}
    path.write_text(yaml.safe_dump({"num_parts": 3, "stages": stages}))
    cluster = load_cluster(path)
    assert cluster.stages.keys() == set(COMPONENTS) and cluster.num_parts == 3
    found = cluster.stages["benchmark"]
    assert (found.cpu, found.memory, found.gpus, found.retries) == ("1", "9Gi", 1, 5)
    assert found.pauses_s == (60, 120, 240, 480, 600)
    assert cluster.stages["train_cost"].gpus == 0
    here = cluster.for_one_machine()
    assert here.num_parts == 1 and {(one.gpus, one.retries) for one in here.stages.values()} == {(0, 0)}


@pytest.mark.parametrize("small", [False, True])
def test_the_settings_that_come_along_do_not_measure_from_memory(small: bool) -> None:
    stages = default_cluster(small).stages
    measured = {"benchmark", "evaluate", "drift", "place", "watch", "record_outcome"}
    assert {name for name, one in stages.items() if not one.cache} == measured


ONE = {"stages": {"default": {"cpu": 1, "memory": "2Gi"}}}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"stages": {"benhcmark": {"cpu": 1}}}, "'benhcmark' is not a stage"),
        ({"stages": {"default": {"cpu": 1, "memory": "two"}}}, "memory is 'two'"),
        ({"stages": {"default": {"cpu": 1, "memory": "2Gi", "gpu": 1}}}, "'gpu' is unknown .did you mean gpus"),
        ({"stages": {"default": {"cpu": 1, "memory": "2Gi", "gpus": -1}}}, "gpus is -1"),
        ({"stages": {"default": {"cpu": 1, "memory": "2Gi", "backoff": "1 min"}}}, "backoff is '1 min'"),
        ({"stages": {}}, "cpu is missing"),
        ({**ONE, "num_parts": 0}, "num_parts is 0"),
        ({**ONE, "gpu": {"tolerations": [{}]}}, "gpu.tolerations.0"),
        ({"stages": {"default": {"cpu": 1, "memory": "2Gi", "gpu_product": "an H100"}}}, "gpu_product is 'an H100'"),
        ({"stages": {"default": {"cpu": 1, "memory": "2Gi", "queue": "Team A"}}}, "queue is 'Team A'"),
        ({**ONE, "volume": {"path": "/data"}}, "volume: claim is missing"),
        ({**ONE, "volume": {"claim": "a", "path": "data"}}, "path is"),
        ({**ONE, "volume": {"claim": "a", "caches": "../x"}}, "caches is"),
        ({**ONE, "volume": {"claim": "a", "journals": "/j"}}, "journals is"),
        ({"hosts": [{"devices": 8}], "intra": "nvlink_h100"}, "is a machine file"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, content: dict[str, object], why: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump({"num_parts": 1, **content}))
    with pytest.raises(BadConfig, match=why) as caught:
        load_cluster(path)
    assert str(path) in str(caught.value)
