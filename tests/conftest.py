"""One small loop for all tests that need its files; real servers for those that ask for them."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import settings

from evenshard.base import console
from support import servers
from support.effort import FULL, LITTLE, search_with
from support.repository import ROOT

pytest_plugins = ["support.cpu_seconds"]

# For the programs that tests start.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
# Tests run side by side, one process per core: more threads would only wait for each other.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
# A server that is away is tried once, but by the tests that are about waiting.
os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
# On a busy machine any search takes seconds: stderr does not depend on that.
console.SAY_AFTER_S = 3600.0
# A busy machine is slow at random: no example of hypothesis is too slow.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
# All that test files import stays until the end: looking for garbage among it took a third of the collection's time.
gc.disable()

SMALL = {
    "loop": {"num_rounds": 2},
    "generate_tables": {
        "source": "dlrm_2021",
        "num_tables": 24,
        "embedding_dims": [4, 16],
        "max_rows": 2000,
        "num_train_tasks": 3,
        "num_test_tasks": 3,
        "tables_per_task": 6,
        "num_devices": 2,
        "memory_cap_gb": 0.01,
        "batch_size": 32,
    },
    "measure": {"hardware": "cpu", "num_batches": 2, "warmup": 1, "repeats": 2, "visits": 2},
    "benchmark": {"placements_per_round": 4, "searched_share": 0.5},
    "train_cost": {"num_updates": 5, "convex_updates": 5},
    "train_policy": {"num_updates": 2, "num_episodes": 3},
    "evaluate": {"scores_per_table": 100},
}


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with small settings and MLflow in its own sqlite file."""
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(SMALL))
    return tmp_path


@pytest.fixture(scope="session")
def s3() -> Iterator[servers.S3]:
    """One SeaweedFS for all tests. A test that kills its server starts one of its own."""
    if reason := servers.missing_seaweedfs():
        pytest.skip(reason)
    with servers.seaweedfs() as server:
        yield server


@pytest.fixture(scope="session")
def mlflow_server(s3: servers.S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.MLflow]:
    """One MLflow server for all tests: a SQLite file behind it, artifacts through it to the S3."""
    from support.tracking_builders import empty_file

    backend = f"sqlite:///{empty_file(tmp_path_factory.mktemp('mlflow'))}"
    with servers.mlflow_server(backend, s3) as server:
        yield server


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a file in one process, and those of the S3 server in one; files with slow tests come first."""
    for item in items:
        if item.path.is_relative_to(ROOT / "tests/with_torchrec") or item.path.is_relative_to(
            ROOT / "tests/benchmarks"
        ):
            item.add_marker(pytest.mark.slow)
        group = "s3" if "s3" in getattr(item, "fixturenames", ()) else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    search_with(FULL if item.get_closest_marker("full_search") else LITTLE)
    if runs := sys.modules.get("evenshard.tracking.runs"):
        runs._WARNED.clear()  # what a process says once, it says once in each test


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
