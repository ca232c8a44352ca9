"""Containers from podman, with an image of this checkout that ``make image`` builds.

BASE_IMAGE names the base image, PIP_CONFIG_FILE pip's settings for the builder, CONTAINERS_CONF settings of podman.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evenshard.version import __version__
from support.patience import wait_until
from support.repository import ROOT

BASE = os.environ.get("BASE_IMAGE") or (ROOT / "Dockerfile").read_text().partition("ARG BASE_IMAGE=")[2].split()[0]
IMAGE = "localhost/evenshard-test"


def missing_podman() -> str:
    """Why podman runs no container of the base image here; "" if it does."""
    if shutil.which("podman") is None:
        return "podman is not installed"
    done = subprocess.run(["podman", "run", "--rm", BASE, "true"], capture_output=True, text=True)
    return f"podman runs no container of {BASE} ({done.stderr.strip()[-200:]})" if done.returncode else ""


def build_image() -> str:
    """Builds the target ``cpu`` of the Dockerfile; returns the image's name."""
    pip = os.environ.get("PIP_CONFIG_FILE")
    flags = f"--isolation=chroot --layers --build-arg BASE_IMAGE={BASE}" + f" --secret=id=pip,src={pip}" * bool(pip)
    words = ["make", "image", "TARGETS=cpu", f"IMAGE={IMAGE}", f"IMAGE_FLAGS={flags}"]
    subprocess.run(words, cwd=ROOT, stdout=sys.stderr, check=True)
    return f"{IMAGE}:{__version__}-cpu"


@contextmanager
def docker_api(folder: Path) -> Iterator[str]:
    """podman's Docker API; gives its address, for DOCKER_HOST."""
    socket = folder / "podman.sock"
    service = subprocess.Popen(["podman", "system", "service", "--time=0", f"unix://{socket}"])
    try:
        wait_until(socket.exists, "podman's service did not start")
        yield f"unix://{socket}"
    finally:
        service.terminate()
        service.wait(20)
