"""Kubeflow Pipelines as the exit handler of a recorded run met it, and the Kubernetes that gives its pod a token."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from support import http_server
from support.kfp_server import RUNS, more_runs, nodes_of

ACCOUNT = {"namespace": "team-a", "serviceaccount": {"name": "evenshard-runner", "uid": "1"}}
_CLAIMS = base64.urlsafe_b64encode(json.dumps({"kubernetes.io": ACCOUNT}).encode()).decode().rstrip("=")
# The token of a pod's account, as the kubelet projects it.
OWN_TOKEN = f"header.{_CLAIMS}.signature"
ANSWERS = {
    "kind": "TokenRequest",
    "apiVersion": "authentication.k8s.io/v1",
    "metadata": {"name": "evenshard-runner", "namespace": "team-a"},
    "spec": {"audiences": ["pipelines.kubeflow.org"], "expirationSeconds": 600, "boundObjectRef": None},
    "status": {"token": "for kubeflow", "expirationTimestamp": "2026-11-28T20:00:00Z"},
}


def as_asked(name: str) -> dict[str, Any]:
    """A recorded run as the API gave it while its exit handler ran: the last moment of the run, for one without."""
    run = (more_runs() | RUNS)[name]
    handler = next((one for one in run["tasks"] if one.get("display_name") == "record-outcome"), None)
    stamp = run["finished_at"] if handler is None else handler["start_time"]
    moment = datetime.fromisoformat(stamp) + timedelta(seconds=5)
    known = [one["state"] for one in run["state_history"] if "state" in one and _before(one["update_time"], moment)]
    RUNS.setdefault(name, run)
    nodes = nodes_of(name, f"{moment:%H:%M:%S}")
    return {"run_id": "id-7", "display_name": name, "state": known[-1], "run_details": {"task_details": nodes}}


def _before(stamp: str, moment: datetime) -> bool:
    return datetime.fromisoformat(stamp) <= moment


@dataclass
class Answers:
    """What the API answers, one for each look; the last stays.

    Attributes:
        runs: runs, or statuses of a refusal.
        token: that it asks for; None for none.
        asked: tokens that it was asked with.
    """

    runs: list[dict[str, Any] | int]
    token: str | None = None
    asked: list[str | None] = field(default_factory=list)


@contextmanager
def kubeflow(answers: Answers) -> Iterator[str]:
    """The API of Kubeflow Pipelines; yields its address."""

    class Handler(http_server.Silent):
        def do_GET(self) -> None:
            token = self.headers.get("Authorization")
            answers.asked.append(token)
            found = answers.runs.pop(0) if len(answers.runs) > 1 else answers.runs[0]
            if answers.token is not None and token != f"Bearer {answers.token}":
                found = 401
            elif self.path != "/apis/v2beta1/runs/id-7":
                found = 404
            if isinstance(found, int):
                _send(self, found, {"error": "no"})
            else:
                _send(self, 200, found)

    with http_server.serving(Handler) as url:
        yield url


@contextmanager
def kubernetes(folder: Path, allowed: bool = True) -> Iterator[tuple[str, list[Any]]]:
    """Kubernetes' API by TLS, with the account's files in ``folder``; yields its port and what it was asked."""
    asked: list[Any] = []

    class Handler(http_server.Silent):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, self.headers["Authorization"], body))
            _send(self, *((201, ANSWERS) if allowed else (403, {"message": "forbidden"})))

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "token").write_text(OWN_TOKEN)
    _make_certificate(folder)
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(folder / "ca.crt", folder / "key.pem")
    with http_server.serving(Handler, served) as url:
        yield url.rpartition(":")[2], asked


def _send(handler: Any, status: int, content: Any) -> None:
    body = json.dumps(content).encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def _make_certificate(folder: Path) -> None:
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kubernetes")])
    today = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *pem))
