"""Interface of models that predict the times of placements, and its implementation for simulated hardware.

Learned models, the other implementation, are in ``models``, because they need torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from evenshard.base.documents import sha256_of
from evenshard.base.errors import BadConfig
from evenshard.base.outputs import DOMAIN_FILE, MODEL_PARTS
from evenshard.price.evidence import DeviceError
from evenshard.price.gpu_profile import GpuProfile, gpu_profile
from evenshard.price.hardware import HardwareName, profile_path
from evenshard.price.kernel_calls import DevicePrice
from evenshard.price.link import link
from evenshard.price.link_model import Link
from evenshard.price.simulated_price import DeviceModelPrice

if TYPE_CHECKING:  # a device model has no training domain
    from evenshard.sharders.catalog import TrainedSharder
    from evenshard.sharders.training_domain import TrainingDomain


@runtime_checkable
class Model(Protocol):
    """A model that predicts the times of placements on its hardware."""

    @property
    def hardware(self) -> str:
        """Return the hardware whose times the model predicts, as in flags: cpu, cuda or simulated:<profile>."""

    @property
    def source(self) -> str:
        """Return the name of the model in answers."""

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the model's files."""

    @property
    def registered(self) -> Mapping[str, Any] | None:
        """Return the model's name, version and ids in MLflow; None if it was not loaded from there."""

    @property
    def trained_on(self) -> TrainingDomain | None:
        """Return the training domain; None for a device model, which is not trained."""

    @property
    def policy(self) -> TrainedSharder | None:
        """Return the policy that proposes placements; None without a policy."""

    @property
    def link(self) -> str:
        """Return the name of the link between devices; empty if unknown."""

    def device_error(self, optimizer: str, lookups: float) -> DeviceError | None:
        """Return the simulated device's error relative to the real device; None for real hardware.

        ``lookups`` is the number of lookups of a device in a step.
        """

    def require_hardware(self, hardware: str) -> None:
        """Raise BadConfig unless the model predicts times of this hardware."""

    def price(self) -> DevicePrice:
        """Return the predictor (price) of compute times on the model's hardware."""

    def exchange_link(self) -> Link | None:
        """Return the link that predicts communication times; None if unknown."""


@dataclass(frozen=True)
class DeviceModel:
    """Untrained model that predicts the times of a simulated device."""

    hardware: str  # simulated:<profile>
    registered: None = None
    trained_on: None = None
    policy: None = None

    @cached_property
    def profile(self) -> GpuProfile:
        """Return the GPU profile with the device model's constants.

        Raises:
            BadInput: if the profile is missing or cannot be read.
        """
        return gpu_profile(HardwareName.parse(self.hardware).device)

    @property
    def source(self) -> str:
        """Return the name of the model in answers."""
        return self.hardware

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of the GPU profile."""
        return sha256_of(profile_path(HardwareName.parse(self.hardware).device))

    @property
    def link(self) -> str:
        """Return the name of the link between devices."""
        return self.profile.link

    def device_error(self, optimizer: str, lookups: float) -> DeviceError:
        """Return the error of the simulated device relative to the real device."""
        return self.profile.error_of(optimizer, lookups)

    def require_hardware(self, hardware: str) -> None:
        """Raise BadConfig unless the model predicts times of this hardware."""
        if not HardwareName.parse(hardware).has_measured(HardwareName.parse(self.hardware).provenance):
            raise BadConfig(f"{self.hardware} is not a model of {hardware}. Name only one of them.")

    def price(self) -> DevicePrice:
        """Return the predictor (price) of compute times on the simulated device."""
        return DeviceModelPrice(self.profile)

    def exchange_link(self) -> Link:
        """Return the link between devices."""
        return link(self.link)


def digest_of(folder: Path, weights_only: bool = False) -> str:
    """Return the SHA-256 over names and contents of all files in the subfolders of a model (``MODEL_PARTS``)."""
    digest = hashlib.sha256()
    files = [path for part in MODEL_PARTS for path in (folder / part).rglob("*") if path.is_file()]
    files = [path for path in files if not (weights_only and path.name == DOMAIN_FILE)]
    for path in sorted(files, key=lambda one: one.relative_to(folder).as_posix()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
