"""Open hardware to measure on, and describe this machine's so that another GPU or library shows.

Under torchrun all processes measure together, otherwise one device measures shards in turn.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from evenshard.base.errors import BadConfig
from evenshard.base.installation import require_package
from evenshard.measure.config import MeasureConfig

if TYPE_CHECKING:  # it brings NumPy, and commands that open no hardware need none
    from evenshard.measure.hardware import Hardware

# The environment variable that names the machine; machines of one name count as one.
MACHINE = "EVENSHARD_MACHINE"
MACHINE_ID = Path("/etc/machine-id")


def open_hardware(config: MeasureConfig) -> Hardware:
    """Open the hardware that the settings name.

    Under torchrun each process is one device; this is then the first of them (the others run ``collective.serve``).

    Raises:
        BadConfig: if its profile is unknown, CUDA is asked for where there is none, or a package is missing.
        BadFile: if its profile cannot be read.
    """
    if config.hardware_name.kind.is_simulated:
        from evenshard.measure.simulated_hardware import SimulatedHardware

        return SimulatedHardware(config)
    require_package("torch")
    from evenshard.measure.distributed import collective
    from evenshard.measure.fbgemm import real_device
    from evenshard.measure.one_device import OneDeviceInTurn

    device = real_device(config)
    if collective.world_size() > 1:
        return collective.CollectiveHardware(config, device)
    if config.expect_transport:
        raise BadConfig("one process exchanges nothing. Start it under torchrun, or leave --expect-transport out.")
    return OneDeviceInTurn(config, device)


def hardware_here(config: MeasureConfig) -> Mapping[str, str]:
    """Return what times that are measured here depend on.

    The device and the versions of its libraries, a GPU's driver, and which machine it is. Of a simulated device, whose
    times are the same everywhere, no more than its name.
    """
    if config.hardware_name.kind.is_simulated:
        return {"hardware": config.hardware_name.provenance}
    require_package("torch")
    from evenshard.measure.fbgemm import device_name, driver_version, library_versions, real_device

    device = real_device(config)
    driver = {"driver": driver_version(device)} if device.type == "cuda" else {}  # a new kernel is no new machine
    return {
        "hardware": device_name(device),
        **driver,
        "versions": library_versions(device),
        "machine": machine_id(),
    }


def machine_id() -> str:
    """16 hex digits that tell this machine from others and do not say which one it is.

    A hash of what ``EVENSHARD_MACHINE`` says, else of the machine ID of the operating system, else, as in a container,
    of a network address.
    """
    own = os.environ.get(MACHINE, "").strip() or _of_operating_system() or f"{uuid.getnode():012x}"
    return hmac.new(own.encode(), b"evenshard", hashlib.sha256).hexdigest()[:16]


def _of_operating_system() -> str:
    try:
        return MACHINE_ID.read_text().strip()
    except OSError:
        return ""
