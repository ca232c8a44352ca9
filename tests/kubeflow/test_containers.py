"""The image, and the pipelines in containers of it: real kernels, real files, and a stage that fails.

``make test-containers`` runs these; ``make test`` does not, as the image takes minutes to build.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from evenshard.measure.cost_rows import read_rows
from evenshard.planner.file import load_answer
from evenshard.sharders.models import load_model
from evenshard.version import __version__
from support import podman
from support.kubeflow_builders import SMALL_PARAMS

pytestmark = pytest.mark.containers
ON_KERNELS = {**SMALL_PARAMS, "measure": {**SMALL_PARAMS["measure"], "hardware": "cpu", "repeats": 1}}


@pytest.fixture(scope="module")
def image() -> str:
    if reason := podman.missing_podman():
        pytest.skip(reason)
    return podman.build_image()


def in_image(image: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a container with a root file system that cannot be written."""
    start = ["podman", "run", "--rm", "--read-only", "--tmpfs", "/tmp", image]
    return subprocess.run([*start, *words], capture_output=True, text=True)


def pipeline_run(*words: str) -> subprocess.CompletedProcess[str]:
    """evenshard on this machine, which starts containers."""
    start = [sys.executable, "-m", "evenshard", "pipeline", "run", "--runner", "container"]
    return subprocess.run([*start, *words], capture_output=True, text=True)


@pytest.fixture
def workdir(image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVENSHARD_IMAGE", image)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    rows = [{"name": f"t{n}", "num_rows": 200 * (n + 1), "embedding_dim": 16, "pooling_factor": 2.0} for n in range(12)]
    pd.DataFrame(rows).to_csv(tmp_path / "own.csv", index=False)
    with podman.docker_api(tmp_path) as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        yield tmp_path


def test_the_image_holds_what_stages_need_and_no_build_tools(image: str) -> None:
    assert in_image(image, "evenshard", "--version").stdout.startswith("evenshard ")
    assert in_image(image, "id", "-u").stdout.strip() == "10001"
    for tool in ("pip", "gcc", "git"):
        assert in_image(image, "sh", "-c", f"command -v {tool}").returncode != 0, tool
    assert (
        in_image(image, "env", "_KFP_RUNTIME=true", "python3", "-m", "kfp.dsl.executor_main", "--help").returncode == 0
    )
    placed = in_image(image, "evenshard", "place", "criteo_kaggle", "--devices", "2", "-o", "/tmp/placement.json")
    assert placed.returncode == 0, placed.stderr


def test_the_image_says_what_it_is_and_what_is_in_it(image: str) -> None:
    words = ["podman", "image", "inspect", "--format", "{{json .Labels}}", image]
    labels = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    assert labels["org.opencontainers.image.version"] == __version__
    bill = in_image(image, "cat", "/opt/evenshard/sbom.cdx.json").stdout
    parsed = json.loads(bill)
    assert JsonStrictValidator(SchemaVersion.from_version(parsed["specVersion"])).validate_str(bill) is None
    installed = "from importlib.metadata import distributions as all; print(*(f'{d.name}=={d.version}' for d in all()))"
    listed = {f"{one['name']}=={one['version']}" for one in parsed["components"]}
    assert listed == set(in_image(image, "python3", "-c", installed).stdout.split())


def test_every_stage_runs_in_containers_on_real_kernels(workdir: Path) -> None:
    Path("params.yaml").write_text(yaml.safe_dump(ON_KERNELS))
    done = pipeline_run("--num-parts", "2")
    assert done.returncode == 0, done.stderr
    assert "single_cost_greedy *" in done.stdout
    (folder,) = Path("work/kubeflow").glob("evenshard-train-*")
    rounds = [read_rows(path) for path in sorted((folder / "merge-costs-2/costs").iterdir())]
    assert [{row["round"] for row in one} for one in rounds] == [{1}, {2}]
    assert all(row["hardware"].startswith("cpu: ") for one in rounds for row in one)
    assert {"evenshard", "dreamshard"} <= {row["proposed_by"] for row in rounds[1]}
    metrics = json.loads((folder / "evaluate/report/metrics.json").read_text())
    assert metrics["num_test_tasks"] == 2 and metrics["sharders"]["evenshard"]["mean_measured_ms"] > 0
    assert load_model(folder / "evaluate/model", "cpu").trained_on.num_measured == 8
    assert json.loads((folder / "record-outcome/outcome").read_text())["state"] == "SUCCEEDED"

    request = "request={num_devices: 2, memory_cap_gb: 0.01, batch_size: 32, hardware: cpu}"
    words = ["--pipeline", "place", "--set", "tables=own.csv", "--set", request]
    done = pipeline_run(*words, "--set", f"model={folder / 'evaluate/model'}")
    assert done.returncode == 0, done.stderr
    (placement,) = Path("work/kubeflow").glob("evenshard-place-*/place*/placement/placement.json")
    answer = load_answer(placement)
    assert len(answer.request.tables) == 12 and max(answer.device_of_table) == 1
