"""Installation of evenshard: its source, the packages of its extras, and their install commands."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from evenshard.base.errors import MissingPackage
from evenshard.base.messages import reason_of

# For each optional package, by import name: the smallest extra with it, and the feature that needs it.
EXTRAS = {
    "scipy": ("near", "An exact solver"),
    "torch": ("learn", "A learned model, training or measuring"),
    "pandas": ("pandas", "A data frame"),
    "shtab": ("completion", "Shell completion"),
    "pyarrow": ("parquet", "A Parquet file"),
    "torchrec": ("torchrec", "Measuring sharded tables or running TorchRec's planner"),
    "matplotlib": ("loop", "A plot"),
    "fbgemm_gpu": ("benchmark", "Measuring kernels"),
    "boto3": ("mlops", "S3"),
    "docker": ("mlops", "--runner container"),
    "dvc": ("mlops", "A dataset repository"),
    "kfp": ("mlops", "A Kubeflow pipeline"),
    "mlflow": ("mlops", "MLflow"),
}
# Variable that the Dockerfile sets in its images, which have no installer.
IMAGE_MARK = "EVENSHARD_IN_IMAGE"
_NAME = "evenshard"


def require_package(module: str) -> None:
    """Import a module of an optional package (``EXTRAS``), such as ``kfp.kubernetes``, to fail early if it is missing.

    Raises:
        MissingPackage: if it is not installed, or its import fails, for example because it does not match torch.
    """
    package = module.partition(".")[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # packages import deprecated modules
            importlib.import_module(module)
    except (ImportError, OSError) as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == package
        problem = "" if absent else f", which cannot be imported ({reason_of(error)})"
        raise MissingPackage(f"{EXTRAS[package][1]} needs {package}{problem}: {remedy(package)}") from None


@contextmanager
def name_missing_package() -> Iterator[None]:
    """Convert ModuleNotFoundError in the block to MissingPackage if the package belongs to ``EXTRAS``."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingPackage(f"{EXTRAS[package][1]} needs {package}: {remedy(package)}") from None


def remedy(package: str) -> str:
    """Return the remedy for a missing package of ``EXTRAS``: the install command, or advice inside our image."""
    if not in_image():
        return install_command(package)
    extra = EXTRAS[package][0]
    return f"this image lacks it. Add the extra {extra} to the Dockerfile and rebuild it, or run outside the image."


def install_command(package: str) -> str:
    """Return the command that installs a package of ``EXTRAS``, and evenshard from the same source as before.

    It keeps the installed torch, unless this is too old for a supported FBGEMM or for TorchRec 1.7.
    """
    command = f"pip install {pip_words(EXTRAS[package][0])}"
    if package not in ("fbgemm_gpu", "torchrec") or importlib.util.find_spec("torch") is None:
        return command
    import torch

    number = torch.__version__.partition("+")[0]
    # The last number is the minor version of the oldest torch 2 with a supported FBGEMM build.
    extra, build, oldest = (
        ("benchmark", "fbgemm-gpu-cpu", 13) if torch.version.cuda is None else ("cuda,loop", "fbgemm-gpu", 11)
    )
    oldest = 12 if package == "torchrec" else oldest
    minor = int(number.split(".")[1])
    wanted = f"torch=={number}" if minor >= oldest else f"'torch==2.{oldest}.*'"
    release = f"1.{max(minor, oldest) - 5}.*"  # of FBGEMM and TorchRec: 1.7 was built for torch 2.12, 1.8 for 2.13
    if package == "torchrec":
        # TorchRec would install the CUDA build of FBGEMM on any machine, and a new tensordict would upgrade torch.
        return f"{command} {wanted} && pip install --no-deps 'torchrec=={release}' '{build}=={release}'"
    return f"pip install {pip_words(extra)} {wanted} '{build}=={release}'"


def in_image() -> bool:
    """Return True inside a container of our Dockerfile's images."""
    return bool(os.environ.get(IMAGE_MARK))


def checkout() -> Path | None:
    """Return the root of the repository or unpacked sdist that this code runs from; None for an installed copy."""
    root = Path(__file__).parents[3]
    files = [root / "pyproject.toml", root / "Makefile", root / "src" / _NAME / "version.py"]
    return root if all(file.is_file() for file in files) else None


def pip_words(extra: str) -> str:
    """Return the arguments of ``pip install`` for an extra, quoted for a shell, such as ``'evenshard[mlops]'``.

    They name the wheel, folder or URL that evenshard was installed from; if it no longer exists, the extra's packages.
    """
    root = checkout()
    if root is not None:
        folder = "." if root == Path.cwd() else str(root)
        return f"--editable {shlex.quote(f'{folder}[{extra}]')}"
    try:
        installed = distribution(_NAME)
    except PackageNotFoundError:
        return shlex.quote(f"{_NAME}[{extra}]")
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    url = str(origin.get("url", ""))
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        return shlex.quote(f"{_NAME}[{extra}] @ {vcs['vcs']}+{url}@{vcs['commit_id']}")
    if not url.startswith("file:"):
        return shlex.quote(f"{_NAME}[{extra}] @ {url}" if url else f"{_NAME}[{extra}]")
    path = Path(url2pathname(urlsplit(url).path))
    if path.exists():
        return shlex.quote(f"{path}[{extra}]")
    return " ".join(map(shlex.quote, sorted(set(_requirements(installed.requires or (), extra)))))


def how_to_train() -> str:
    """Return the command that trains a model, in backquotes."""
    return "`evenshard pipeline run`" if checkout() is None else "`make run`"


def _requirements(lines: Sequence[str], extras: str) -> Iterator[str]:
    for line in lines:
        requirement, _, marker = (part.strip() for part in line.partition(";"))
        wanted = re.fullmatch(r"""extra == ["']([\w-]+)["']""", marker)
        if wanted is None or wanted[1] not in extras.split(","):
            continue
        own = re.fullmatch(rf"{_NAME}\[(.*)\]", requirement)
        if own is None:
            yield requirement
        else:
            yield from _requirements(lines, own[1])
