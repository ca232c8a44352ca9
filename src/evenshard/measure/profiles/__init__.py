"""The profiles that come with evenshard, as YAML files: simulated devices by name and by GPU, and fitted links."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief

# Profiles whose GPU is called otherwise where its memory goes without saying.
SHORT_NAMES = {"a100": "a100_80gb"}
_PROFILE_OF_GPU = {
    r"\bGB300\b": "gb300",
    r"\bB300\b": "b300",
    r"\bL40S\b": "l40s",
    r"\bRTX PRO 6000\b": "rtx_pro_6000",
    r"\bMI300X\b": "mi300x",
    r"\bMI350X\b": "mi350x",
    r"\bB200\b": "b200",
    r"\bH200\b": "h200",
    r"\bH100\b": "h100",
    r"\bA100\b.*\b40GB\b|\bA100-PG509\b": "a100_40gb",
    r"\bA100\b": "a100_80gb",
    r"\bV100\b": "v100",
    r"\b2080 Ti\b": "rtx_2080_ti",
}


def profile_names() -> tuple[str, ...]:
    """Names of the device profiles that come with evenshard."""
    files = (entry.name for entry in resources.files(__package__).iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml")))


def profile_of_gpu(name: str) -> str | None:
    """The profile of a GPU, by what its driver calls it ("NVIDIA H200"); None where it has none."""
    return next((profile for pattern, profile in _PROFILE_OF_GPU.items() if re.search(pattern, name)), None)


def profile_path(name: str) -> Path:
    """The file of a profile: a name that comes with evenshard, or the path of a YAML file.

    Raises:
        BadConfig: if it is neither.
    """
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    if name not in profile_names():
        raise BadConfig(f"simulated device is {brief(name)}. Use one of {', '.join(profile_names())}, or a YAML file.")
    return Path(str(resources.files(__package__).joinpath(name + ".yaml")))


def link_profile_path(name: str) -> Path:
    """The file of a fitted link that comes with evenshard."""
    return Path(str(resources.files(__package__).joinpath("links", name + ".yaml")))
