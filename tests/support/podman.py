"""Containers from podman, with an image of this checkout that ``make image`` builds.

Packages come to the builder the way they come to this machine: its pip settings go along, and the folders they name.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.repository import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
BASE = DOCKERFILE.partition("ARG BASE_IMAGE=")[2].split()[0]
OWN_BASE = "localhost/python:3.11-slim"
IMAGE = "localhost/evenshard-test"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# Where a container may not raise limits nor have a network of its own, as inside of other containers.
MODEST = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
netns = "host"
[engine]
runtime = "runc"
"""


class NoPodman(Exception):
    """Why no container can run here."""


def containers_conf(folder: Path) -> dict[str, str]:
    """The environment in which podman runs containers of a base image on this machine, and which one: BASE_IMAGE.

    Raises:
        NoPodman: if it does not.
    """
    if shutil.which("podman") is None:
        raise NoPodman("podman is not installed")
    modest = folder / "containers.conf"
    modest.write_text(MODEST)
    base = _base_image(folder)
    said = ""
    for more in ({}, {"CONTAINERS_CONF": str(modest)}):
        done = _run(["podman", "run", "--rm", base, "python3", "-c", "print(6 * 7)"], more)
        if done.stdout.strip() == "42":
            return {**more, "BASE_IMAGE": base}
        said = said or done.stderr
    raise NoPodman(f"podman runs no container here ({_last_line(said)})")


def build_image(environment: dict[str, str], folder: Path) -> str:
    """Builds the target ``cpu`` of the Dockerfile; returns the image's name."""
    settings, mounts = _pip_settings()
    secret = folder / "pip.conf"
    secret.write_text(settings)
    flags = ["--isolation=chroot", "--layers", f"--secret=id=pip,src={secret}", *mounts]
    flags += ["--build-arg", f"BASE_IMAGE={environment['BASE_IMAGE']}"]
    words = ["make", "image", "TARGETS=cpu", f"IMAGE={IMAGE}", f"IMAGE_FLAGS={' '.join(flags)}"]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, **environment}, stdout=sys.stderr)
    if done.returncode:
        raise AssertionError(f"make image ended with exit code {done.returncode}")
    version = re.search(r'__version__ = "(.+)"', (ROOT / "src/evenshard/version.py").read_text())
    assert version is not None
    return f"{IMAGE}:{version[1]}-cpu"


@contextmanager
def docker_api(environment: dict[str, str], folder: Path) -> Iterator[str]:
    """podman's Docker API; gives its address, for DOCKER_HOST."""
    socket = folder / "podman.sock"
    words = ["podman", "system", "service", "--time=0", f"unix://{socket}"]
    with (folder / "podman.log").open("w") as log:
        service = subprocess.Popen(words, env={**os.environ, **environment}, stdout=log, stderr=log)
    try:
        for _ in range(100):
            if socket.exists():
                break
            time.sleep(0.1)
        yield f"unix://{socket}"
    finally:
        service.terminate()
        service.wait(20)


def _base_image(folder: Path) -> str:
    """A Debian with Python: of this machine, of a registry, or made of Debian's packages."""
    named = os.environ.get("BASE_IMAGE")
    for name in (named,) if named else (OWN_BASE, BASE):
        if _run(["podman", "image", "exists", name]).returncode == 0:
            return name
    if _run(["podman", "pull", "--quiet", named or BASE]).returncode == 0:
        return named or BASE
    if named or shutil.which("debootstrap") is None or os.geteuid() != 0:
        raise NoPodman(f"there is no image {named or BASE}, and no debootstrap to make one")
    done = _run(["make", "--directory", str(ROOT), "base-image", f"BASE_IMAGE={OWN_BASE}", f"SCRATCH={folder}/root"])
    if done.returncode:
        raise NoPodman(f"no base image could be made ({_last_line(done.stderr)})")
    return OWN_BASE


def _pip_settings() -> tuple[str, list[str]]:
    """This machine's pip settings as a pip.conf, and mounts of the local folders that they name."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    values: dict[str, str] = {}
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        origin, _, key = name.partition(".")
        if origin in ("global", ":env:") and key not in ("disable-pip-version-check", "no-cache-dir"):
            values[key] = value.strip("'").replace("\\n", " ")
    if CERTIFICATES.exists():
        values.setdefault("cert", str(CERTIFICATES))
    folders = {Path(word.removeprefix("file://")) for value in values.values() for word in value.split()}
    mounted = sorted({_top(one) for one in folders if one.is_absolute() and one.exists()})
    text = "[global]\n" + "".join(f"{key} = {' '.join(value.split())}\n" for key, value in values.items())
    return text, [f"--volume={path}:{path}:ro" for path in mounted]


def _top(path: Path) -> Path:
    """A file itself; of a folder, the package folder an index lies in, as its links lead beside it."""
    return path.parent if path.name == "simple" else path


def _run(words: list[str], more: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env={**os.environ, **(more or {})}, capture_output=True, text=True)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1][:200]
