"""Hardware kinds, hardware names and their spellings, and the profiles shipped with evenshard.

A kind of hardware is an entry of ``KINDS``; ``evenshard.measure.local_hardware.open_hardware`` opens it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief, did_you_mean

Times = Literal["measured", "simulated"]
# Profiles of GPUs whose driver name does not include the memory size.
SHORT_NAMES = {"a100": "a100_80gb"}
_NAMED_LIKE_GPU = ("gb300", "b300", "l40s", "rtx_pro_6000", "mi300x", "mi350x", "b200", "h200", "h100", "v100")
_PROFILE_OF_GPU = {
    **{rf"\b{profile.upper().replace('_', ' ')}\b": profile for profile in _NAMED_LIKE_GPU},
    r"\bA100\b.*\b40GB\b|\bA100-PG509\b": "a100_40gb",
    r"\bA100\b": "a100_80gb",
    r"\b2080 Ti\b": "rtx_2080_ti",
}
# Profiles of simulated devices, and of fitted links.
_PROFILES = resources.files("evenshard.price").joinpath("profiles")


@dataclass(frozen=True)
class Kind:
    """Kind of hardware, such as cpu, cuda or simulated; every name of such hardware begins with it."""

    name: str
    times: Times = "measured"
    runs_kernels: bool = True  # True if it runs kernels on devices of this machine, one process of torchrun for each
    device: str = ""  # placeholder for a device's name in flags and settings, such as "<profile>"; "" if there is none
    compute_device: Literal["cpu", "cuda"] = "cuda"  # torch's name of the device type
    needs_gpu: bool = False  # True if this machine must have a GPU to query or measure
    memory_bytes_per_ns: float = 1000.0  # assumed memory bandwidth without a profile, for a CPU core or a GPU

    @property
    def is_simulated(self) -> bool:
        """Return True if its times come from a device model."""
        return self.times == "simulated"

    @property
    def is_host(self) -> bool:
        """Return True if devices are shares of one host: they share its memory, and any number is allowed."""
        return self.compute_device == "cpu"

    @property
    def usage(self) -> str:
        """Return the spelling for help texts, such as simulated:<profile>."""
        return f"{self.name}:{self.device}" if self.device else self.name


# Default hardware if neither hardware nor a model is named; docs/decisions/0033-default-hardware.md.
DEFAULT_HARDWARE = "simulated:h100"
# CUDA if there is a GPU, else the CPU; as hardware that a model must match: any.
AUTO = "auto"
KINDS = (
    Kind("cpu", compute_device="cpu", memory_bytes_per_ns=5.0),
    Kind("cuda", needs_gpu=True),
    Kind("simulated", times="simulated", runs_kernels=False, device="<profile>"),
)
_KIND_OF = {kind.name: kind for kind in (Kind(AUTO, memory_bytes_per_ns=5.0), *KINDS)}
CHOICES = ", ".join(kind.usage for kind in _KIND_OF.values())


def profile_names() -> tuple[str, ...]:
    """Return the names of the device profiles that ship with evenshard."""
    files = (entry.name for entry in _PROFILES.iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml")))


def profile_of_gpu(name: str) -> str | None:
    """Return the profile of a GPU by its driver name ("NVIDIA H200"); None if there is none."""
    return next((profile for pattern, profile in _PROFILE_OF_GPU.items() if re.search(pattern, name)), None)


def profile_path(name: str) -> Path:
    """Return the file of a profile, given the name of a shipped profile or the path of a YAML file.

    Raises:
        BadConfig: if it is neither.
    """
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    if name not in profile_names():
        raise BadConfig(f"simulated device is {brief(name)}. Use one of {', '.join(profile_names())}, or a YAML file.")
    return Path(str(_PROFILES.joinpath(name + ".yaml")))


def link_profile_path(name: str) -> Path:
    """Return the file of a fitted link that ships with evenshard."""
    return Path(str(_PROFILES.joinpath("links", name + ".yaml")))


_SPELLING = re.compile(r"([a-z]+)(?:[:-] *(.*))?", re.DOTALL)


@dataclass(frozen=True)
class HardwareName:
    """Name of hardware: a kind and a device of that kind; ``device`` is "" for any device.

    ``parse`` reads three spellings: simulated:h200 in flags and settings (``str``), "simulated: h200" in measurements
    (``provenance``), and simulated-h200 in data/. Real hardware is named by its kind alone (cuda); its measurements
    also name the device ("cuda: NVIDIA H200").

    For profiles that ship with evenshard, "simulated:" is optional, and the name of the GPU is enough: h200 means
    simulated:h200, a100 means simulated:a100_80gb. In data/, h200 means the real GPU.
    """

    kind: Kind
    device: str = ""

    @staticmethod
    def of(kind: str, device: str = "") -> HardwareName:
        """Build a name from the name of a kind and a device."""
        return HardwareName(_KIND_OF[kind], device)

    @staticmethod
    def parse(text: str) -> HardwareName:
        """Parse a name in any spelling, or a short name.

        Raises:
            BadConfig: if the kind is unknown.
        """
        return _name_in(text) or _short_name(text)

    def __str__(self) -> str:
        return f"{self.kind.name}:{self.device}" if self.kind.device else self.kind.name

    @property
    def provenance(self) -> str:
        """Return the name as it is recorded in every row that is measured on this hardware."""
        device = Path(self.device).stem if self.device.endswith((".yaml", ".yml")) else self.device
        return f"{self.kind.name}: {device}"

    def has_measured(self, provenance: str) -> bool:
        """Return True if every hardware name in ``provenance`` matches this one.

        A name without a device matches any device of its kind.
        """
        names = names_in(provenance)
        if self.kind.name == AUTO:
            return True
        return bool(names) and all(
            name.kind == self.kind and (not self.device or name.provenance == self.provenance) for name in names
        )


def names_in(text: str) -> tuple[HardwareName, ...]:
    """Parse all hardware names in a list joined by commas or semicolons; unknown kinds are skipped."""
    return tuple(name for part in re.split("[,;]", text) if (name := _name_in(part.strip())) is not None)


def measured_or_simulated(hardware: str) -> Times:
    """Return "measured" or "simulated" for one or several joined names of hardware, in any spelling."""
    return "simulated" if is_simulated(hardware) else "measured"


def is_simulated(hardware: str) -> bool:
    """Return True if any hardware name in the text is simulated."""
    return any(name.kind.is_simulated for name in names_in(hardware))


def provenance_problem(hardware: str) -> str | None:
    """Return why a text is not a valid hardware provenance; None if it is valid."""
    name = _name_in(hardware)
    if name is not None and name.kind in KINDS:
        return None
    return f"hardware is {brief(hardware)}, not one of {', '.join(kind.name for kind in KINDS)}"


def _name_in(text: str) -> HardwareName | None:
    found = _SPELLING.fullmatch(text)
    return HardwareName.of(found[1], found[2] or "") if found is not None and found[1] in _KIND_OF else None


def _short_name(text: str) -> HardwareName:
    short = text.strip().lower()
    profile = SHORT_NAMES.get(short, short)
    if profile not in profile_names():
        known = sorted({*profile_names(), *SHORT_NAMES})
        meant = did_you_mean(short, [*known, *_KIND_OF])
        raise BadConfig(f"hardware is {brief(text)}. Use one of {CHOICES}, or {', '.join(known)}.{meant}")
    return HardwareName.of("simulated", profile)
