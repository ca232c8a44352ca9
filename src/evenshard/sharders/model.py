"""The interface of a model that predicts the times of placements, and the device model of simulated hardware.

A learned model (``models``) is the other implementation; only that needs torch.
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
from evenshard.base.outputs import MODEL_PARTS, TRAINED_ON
from evenshard.price.evidence import DeviceError
from evenshard.price.gpu_profile import GpuProfile, gpu_profile
from evenshard.price.hardware import HardwareName, profile_path
from evenshard.price.kernel_calls import DevicePrice
from evenshard.price.link import link
from evenshard.price.link_model import Link
from evenshard.price.simulated_price import DeviceModelPrice

if TYPE_CHECKING:  # a device model has learned from nothing
    from evenshard.sharders.learned import TrainedSharder
    from evenshard.sharders.training_domain import TrainingDomain


@runtime_checkable
class Model(Protocol):
    """A model that predicts the times of placements on its hardware."""

    @property
    def hardware(self) -> str:
        """Hardware that its times are of, as flags say it: cpu, cuda or simulated:<profile>."""

    @property
    def source(self) -> str:
        """Its origin, by which an answer names it."""

    @property
    def digest(self) -> str:
        """SHA-256 of its files."""

    @property
    def registered(self) -> Mapping[str, Any] | None:
        """Its identity in MLflow, if it came from there."""

    @property
    def trained_on(self) -> TrainingDomain | None:
        """Its training domain; None of a device model, which learned from nothing."""

    @property
    def policy(self) -> TrainedSharder | None:
        """Proposes placements; None where there is none."""

    @property
    def link(self) -> str:
        """The name of the link between its devices; empty where none is known."""

    @property
    def device_error(self) -> DeviceError | None:
        """The error of a simulated device against the real one; None for real hardware."""

    def require_hardware(self, hardware: str) -> None:
        """Raises BadConfig if it is of other hardware than this, in any spelling."""

    def price(self) -> DevicePrice:
        """Compute times on its hardware."""

    def exchange_link(self) -> Link | None:
        """The link between its devices; None where nothing is known of one."""


@dataclass(frozen=True)
class DeviceModel:
    """A simulated device as a model: nothing is learned, its own times are what is predicted."""

    hardware: str  # simulated:<profile>
    registered: None = None
    trained_on: None = None
    policy: None = None

    @cached_property
    def profile(self) -> GpuProfile:
        """Its constants.

        Raises:
            BadInput: if there is no such profile, or it cannot be read.
        """
        return gpu_profile(HardwareName.parse(self.hardware).device)

    @property
    def source(self) -> str:
        """The name by which an answer refers to it."""
        return self.hardware

    @cached_property
    def digest(self) -> str:
        """SHA-256 of its profile."""
        return sha256_of(profile_path(HardwareName.parse(self.hardware).device))

    @property
    def link(self) -> str:
        """The link between such devices."""
        return self.profile.link

    @property
    def device_error(self) -> DeviceError:
        """Its error against the real device."""
        return self.profile.error

    def require_hardware(self, hardware: str) -> None:
        """Raises BadConfig if it is not the model of this hardware, in any spelling."""
        if not HardwareName.parse(hardware).has_measured(HardwareName.parse(self.hardware).provenance):
            raise BadConfig(f"{self.hardware} is no model of {hardware}. Name one of the two.")

    def price(self) -> DevicePrice:
        """Its compute times."""
        return DeviceModelPrice(self.profile)

    def exchange_link(self) -> Link:
        """The link between such devices."""
        return link(self.link)


def digest_of(folder: Path, weights_only: bool = False) -> str:
    """Return the SHA-256 over names and contents of the files of a model's three parts, in the order of their names."""
    digest = hashlib.sha256()
    files = [path for part in MODEL_PARTS for path in (folder / part).rglob("*") if path.is_file()]
    files = [path for path in files if not (weights_only and path.name == TRAINED_ON)]
    for path in sorted(files, key=lambda one: one.relative_to(folder).as_posix()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
