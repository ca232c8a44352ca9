"""Packages beyond the core: what needs each, the extra that installs it, and one line that says it is missing."""

from __future__ import annotations

import importlib
import warnings

from evenshard.utils.errors import MissingPackage
from evenshard.utils.messages import reason_of

EXTRAS = {
    "pyarrow": ("parquet", "A Parquet file"),
    "ortools": ("exact", "An exact search"),
    "torchrec": ("torchrec", "TorchRec's planner"),
    "matplotlib": ("loop", "A plot"),
    "fbgemm_gpu": ("benchmark", "Measuring kernels"),
    "boto3": ("mlops", "S3"),
    "docker": ("mlops", "--runner container"),
    "dvc": ("mlops", "A repository of datasets"),
    "kfp": ("mlops", "A Kubeflow pipeline"),
    "mlflow": ("mlops", "MLflow"),
}
"""By imported name: the smallest extra of pyproject.toml that has the package, and what needs it."""


def require_package(module: str) -> None:
    """Imports a module of a package in ``EXTRAS``, so that an import statement after it cannot fail.

    Args:
        module: such as ``pyarrow`` or ``kfp.kubernetes``.

    Raises:
        MissingPackage: if it is not installed, or does not work with the installed torch.
    """
    package = module.partition(".")[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about deprecated modules that packages import from one another
            importlib.import_module(module)
    except (ImportError, OSError) as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == package
        problem = "" if absent else f", which cannot be imported ({reason_of(error)})"
        raise MissingPackage(f"{EXTRAS[package][1]} needs {package}{problem}: {install_command(package)}") from None


def install_command(package: str) -> str:
    """The command that installs a package of ``EXTRAS`` and leaves the installed torch alone."""
    command = f"pip install 'evenshard[{EXTRAS[package][0]}]'"
    if package not in ("fbgemm_gpu", "torchrec"):
        return command
    import torch

    number = torch.__version__.partition("+")[0]
    release = f"1.{int(number.split('.')[1]) - 5}.*"  # 1.1 was built for torch 2.6, 1.2 for 2.7, and so on
    extra, build = ("benchmark", "fbgemm-gpu-cpu") if torch.version.cuda is None else ("benchmark-cuda", "fbgemm-gpu")
    if package == "fbgemm_gpu":
        return f"pip install 'evenshard[{extra}]' '{build}=={release}'"
    # TorchRec would bring the CUDA build of FBGEMM everywhere, and a new tensordict a new torch.
    return f"{command} torch=={number} && pip install --no-deps 'torchrec=={release}' '{build}=={release}'"
