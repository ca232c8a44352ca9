"""What a pod has measured outlives it: on the volume, or on a real S3; pods are processes, killed by SIGKILL."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kfp import dsl

from evenshard.base.errors import MeasurementFailed, StorageFailed
from evenshard.base.retry import PAUSES
from evenshard.base.s3 import remove, s3_client
from evenshard.kubeflow import pod_journal
from evenshard.kubeflow.pod_journal import keep_journal
from evenshard.measure.journal import Journal, Origin, Visit
from evenshard_components.generate_tables.component import generate_tables
from support import killable_pod
from support.builders import PROVENANCE, cost
from support.kubeflow_builders import SMALL_PARAMS
from support.patience import PATIENCE_S, wait_until
from support.servers import S3

ORIGIN = Origin(PROVENANCE, {"num_batches": 2})
VISITS = [Visit(job, number, cost(4.0), 1.5e9, ORIGIN) for job in "ab" for number in (0, 1)]


@pytest.fixture(autouse=True)
def _pod(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", pod_journal.FOLDER, pod_journal.ADDRESS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EVENSHARD_LOOP_ID", "wf-1")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in")
    outputs = {name: dsl.Metrics(name=name, uri=str(folder / name)) for name in ("tables", "tasks", "metrics")}
    generate_tables.python_func(config=SMALL_PARAMS["generate_tables"], **outputs)
    return folder


class Volume:
    """A folder for journals, which the environment of a pod names."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        patch.setenv(pod_journal.FOLDER, str(folder))

    def files(self) -> dict[str, bytes]:
        """Content by path."""
        found = [path for path in self.folder.rglob("*") if path.is_file()]
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in found}

    def num_visits(self) -> int:
        """Visits in the journal of the last try of the one task."""
        tries: dict[str, bytes] = {}
        for path, content in sorted(self.files().items()):
            name = path.removeprefix("wf-1/benchmark_1_part_1/").partition("/")[0]
            tries[name] = tries.get(name, b"") + content
        return tries[max(tries)].count(b'"job"') if tries else 0


class Bucket(Volume):
    """Likewise, on S3."""

    def __init__(self, prefix: str, s3: S3, patch: pytest.MonkeyPatch) -> None:
        self.s3, self.prefix = s3, prefix
        for name, value in {**s3.settings(), pod_journal.ADDRESS: f"s3://{s3.bucket}/{prefix}"}.items():
            patch.setenv(name, value)
        s3_client.cache_clear()

    def files(self) -> dict[str, bytes]:
        client, bucket = self.s3.client(), self.s3.bucket
        found = {key: client.get_object(Bucket=bucket, Key=key)["Body"] for key in self.s3.keys(self.prefix)}
        return {key.removeprefix(self.prefix): content.read() for key, content in found.items()}


@pytest.fixture
def of_s3(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    return Bucket(f"{tmp_path.name}/journals/", s3, monkeypatch)


@pytest.fixture(params=["volume", pytest.param("s3", marks=[pytest.mark.slow, pytest.mark.xdist_group("s3")])])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Volume:
    if request.param == "volume":
        return Volume(tmp_path / "journals", monkeypatch)
    found: Bucket = request.getfixturevalue("of_s3")  # the server is started for these alone
    return found


def pod(inputs: Path, out: Path, after: int | None = None) -> subprocess.Popen[str]:
    """The pod, child of a shell in a process group of its own, as it is the child of Kubeflow's launcher."""
    words = [sys.executable, killable_pod.__file__, str(inputs), str(out), *([] if after is None else [str(after)])]
    shell = ["sh", "-c", '"$@"; exit $?', "launcher", *words]
    return subprocess.Popen(shell, stdout=subprocess.PIPE, text=True, start_new_session=True)


def measured_until_killed(
    inputs: Path, out: Path, after: int, arrived: Callable[[], bool], grace_s: float | None = None
) -> list[str]:
    """Keys of the ``after`` placements that a pod has measured and stored (``arrived``) before it is killed.

    With ``grace_s``, its whole group gets SIGTERM so many seconds before SIGKILL.
    """
    with pod(inputs, out, after) as process:
        try:
            assert process.stdout is not None
            keys = [process.stdout.readline().strip() for _ in range(after)]
            assert process.stdout.readline() == "killed\n"
            wait_until(arrived, "the journal did not arrive")
            if grace_s is not None:
                os.killpg(process.pid, signal.SIGTERM)
                assert process.wait(PATIENCE_S) == -signal.SIGTERM
                time.sleep(grace_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return keys


def measured(inputs: Path, out: Path) -> list[str]:
    with pod(inputs, out) as process:
        said, _ = process.communicate()
    assert process.returncode == 0
    return said.split()


def costs_in(out: Path) -> pa.Table:
    return pq.read_table(out / "costs/round_001.parquet").drop_columns(["measured_at"])


@pytest.fixture(scope="module")
def at_once(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], pa.Table]:
    """What a pod measures that nobody kills, and the costs that it leaves."""
    out = tmp_path_factory.mktemp("out")
    return measured(inputs, out), costs_in(out)


@pytest.mark.slow
def test_a_pod_that_is_killed_measures_nothing_again(
    at_once: tuple[list[str], pa.Table], store: Volume, inputs: Path, tmp_path: Path
) -> None:
    """In a new folder, as a new pod does."""
    done = measured_until_killed(inputs, tmp_path / "killed", 7, lambda: store.num_visits() == 7)
    assert not (tmp_path / "killed/costs/round_001.parquet").exists()
    shutil.rmtree(tmp_path / "killed")
    rest = measured(inputs, tmp_path / "last")
    whole, costs = at_once
    assert Counter(done + rest) == Counter(whole) and len(rest) == len(whole) - 7
    assert costs_in(tmp_path / "last").equals(costs)
    assert store.files() == {}


@pytest.mark.slow
def test_a_pod_that_is_asked_to_end_uploads_the_rest_within_a_second(
    of_s3: Bucket, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Argo signals the whole group, the launcher dies, and the pod is killed a second later, in a kernel or not."""
    monkeypatch.setenv("UPLOAD_EVERY_S", "3600")
    measured_until_killed(inputs, tmp_path / "out", 5, lambda: of_s3.files() == {}, grace_s=1.0)
    assert of_s3.num_visits() == 5


@pytest.mark.slow
def test_a_finished_journal_is_removed_with_retries(of_s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PAUSES, "0 0")
    removals = iter([StorageFailed("S3 is away"), StorageFailed("S3 is away")])

    def remove_at_last(address: str) -> None:
        if failure := next(removals, None):
            raise failure
        remove(address)

    monkeypatch.setattr(pod_journal, "remove", remove_at_last)
    with journal_of() as journal:
        journal.append(VISITS[0])
    assert of_s3.files() == {}


@contextmanager
def journal_of(task: str = "evaluate", output: str = "") -> Iterator[Journal]:
    with keep_journal(task, output) as path:
        assert path is not None
        with Journal(path) as journal:
            yield journal


def fail_after(*visits: Visit, output: str = "") -> None:
    with pytest.raises(MeasurementFailed), journal_of(output=output) as journal:
        for one in visits:
            journal.append(one)
        raise MeasurementFailed("the device is away")


def test_a_failure_leaves_what_was_measured(store: Volume) -> None:
    fail_after(VISITS[0])
    fail_after(*VISITS[1:])
    assert store.files()
    with journal_of() as journal:
        assert [journal.find(one.job, one.number, one.origin) for one in VISITS] == VISITS and len(journal) == 4
    assert store.files() == {}


@pytest.mark.parametrize(("run", "task"), [("wf-2", "evaluate"), ("wf-1", "benchmark_1_part_1")])
def test_two_tasks_share_no_journal(store: Volume, monkeypatch: pytest.MonkeyPatch, run: str, task: str) -> None:
    fail_after(VISITS[0])
    monkeypatch.setenv("EVENSHARD_LOOP_ID", run)
    with journal_of(task) as journal:
        assert len(journal) == 0
    monkeypatch.setenv("EVENSHARD_LOOP_ID", "wf-1")
    with journal_of() as journal:
        assert len(journal) == 1


def test_a_journal_that_cannot_be_read_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was torn is dropped; what is no journal is named; the task goes on."""
    Volume(tmp_path, monkeypatch)
    fail_after(*VISITS)
    (path,) = tmp_path.glob("wf-1/evaluate/*")
    path.write_bytes(path.read_bytes()[:-5])
    path.with_name(f"0{path.name}").write_text("no journal\n")
    with journal_of() as journal:
        assert len(journal) == 3
    assert "is not a journal" in caplog.text and "placements in this journal are measured again" in caplog.text


@pytest.mark.slow
def test_parts_are_read_up_to_the_first_that_is_missing(
    of_s3: Bucket, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_journal, "UPLOAD_EVERY_S", 0.01)
    with pytest.raises(MeasurementFailed), journal_of() as journal:
        for number, one in enumerate(VISITS, start=1):
            journal.append(one)
            wait_until(lambda number=number: len(of_s3.files()) == number, "no part arrived")
        raise MeasurementFailed("the device is away")
    second = sorted(of_s3.files())[2]
    s3.client().delete_object(Bucket=s3.bucket, Key=f"{tmp_path.name}/journals/{second}")
    with journal_of() as journal:
        assert len(journal) == 2


def test_an_s3_that_is_away_stops_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "some")
    monkeypatch.setenv(pod_journal.ADDRESS, "s3://bucket/journals")
    monkeypatch.setattr("evenshard.base.s3.TRIES", 1)
    s3_client.cache_clear()
    with journal_of() as journal:
        journal.append(VISITS[0])
    assert "does not answer" in caplog.text and "the measurements since the last upload are lost" in caplog.text


def test_a_volume_that_cannot_be_written_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(pod_journal.FOLDER, str(tmp_path / "file/journals"))
    with keep_journal("evaluate", "") as path:
        assert path is None
    assert "cannot keep a journal" in caplog.text


@pytest.mark.slow
def test_beside_an_output_on_s3_there_is_always_a_place(of_s3: Bucket, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(pod_journal.ADDRESS)
    output = f"s3://{s3.bucket}/v2/artifacts/run-1/benchmark/costs"
    fail_after(VISITS[0], output=f"{output}?region=us-east-1")
    (key,) = s3.keys("v2/artifacts/run-1")
    assert key.startswith("v2/artifacts/run-1/benchmark/costs.journals/wf-1/evaluate/")
    with journal_of(output=output) as journal:
        assert len(journal) == 1
    assert s3.keys("v2/artifacts/run-1") == []


@pytest.mark.parametrize("output", ["minio://mlpipeline/v2/artifacts/run-1/costs", "/tmp/costs", "s3://b/costs"])
def test_without_a_place_or_a_run_there_is_no_journal(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if output.startswith("s3://"):
        monkeypatch.delenv("EVENSHARD_LOOP_ID")  # nothing would tell one run's from another's
    with keep_journal("evaluate", output) as path:
        assert path is None
