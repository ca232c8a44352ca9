"""Hardware to measure on, and the identity of this machine, its GPU and its libraries.

Under torchrun, all processes measure together. Without it, one device measures the shards one after another.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from evenshard.base.errors import BadConfig
from evenshard.base.installation import require_package
from evenshard.measure.config import MeasureConfig

if TYPE_CHECKING:  # imports NumPy, which most commands do not need
    from evenshard.measure.hardware import Hardware

# Environment variable with a name for the machine; machines with the same name are treated as one.
MACHINE = "EVENSHARD_MACHINE"
MACHINE_ID = Path("/etc/machine-id")


def open_hardware(config: MeasureConfig) -> Hardware:
    """Open the hardware of ``config.hardware``.

    Under torchrun, call this on rank 0 only; the other ranks run ``collective.serve``.

    Raises:
        BadConfig: if a profile is unknown, CUDA is not available, or a package is missing.
        BadFile: if a profile cannot be read.
    """
    if config.hardware_name.kind.is_simulated:
        from evenshard.measure.simulated_hardware import SimulatedHardware

        return SimulatedHardware(config)
    require_package("torch")
    from evenshard.measure.distributed import collective
    from evenshard.measure.fbgemm import resolve_device
    from evenshard.measure.one_device import SequentialHardware

    device = resolve_device(config)
    if collective.world_size() > 1:
        return collective.CollectiveHardware(config, device)
    if config.expect_transport:
        raise BadConfig("a single process does not communicate. Start it under torchrun, or remove --expect-transport.")
    return SequentialHardware(config, device)


def identify_hardware(config: MeasureConfig) -> Mapping[str, str]:
    """Return the properties that measured times depend on: device, libraries, a GPU's driver, and machine id.

    A simulated device has only its name, because its times are the same on every machine.
    """
    if config.hardware_name.kind.is_simulated:
        return {"hardware": config.hardware_name.provenance}
    require_package("torch")
    from evenshard.measure.fbgemm import device_name, driver_version, library_versions, resolve_device

    device = resolve_device(config)
    driver = {"driver": driver_version(device)} if device.type == "cuda" else {}  # the CPU's OS kernel is ignored
    return {"hardware": device_name(device), **driver, "versions": library_versions(device), "machine": machine_id()}


def machine_id() -> str:
    """Return 16 hex digits that identify this machine without naming it.

    They are a hash of ``EVENSHARD_MACHINE``, else of the operating system's machine ID, else (as in a container) of a
    network address.
    """
    own = os.environ.get(MACHINE, "").strip()
    with suppress(OSError):
        own = own or MACHINE_ID.read_text().strip()
    own = own or f"{uuid.getnode():012x}"
    return hmac.new(own.encode(), b"evenshard", hashlib.sha256).hexdigest()[:16]
