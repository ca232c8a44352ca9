"""Opening hardware to measure on: kernels of this machine, together under torchrun or in turn, or a device model."""

from __future__ import annotations

from evenshard.measure.config import MeasureConfig
from evenshard.measure.hardware import Hardware
from evenshard.utils.errors import BadConfig
from evenshard.utils.extras import require_package


def open_hardware(config: MeasureConfig) -> Hardware:
    """The hardware that the settings name.

    Under torchrun all its processes measure together, each one as one device; this is then the first of them (the
    others run ``collective.serve``).

    Raises:
        BadConfig: if its profile is unknown, or CUDA is asked for where there is none.
        BadFile: if its profile cannot be read.
    """
    return _open_kernels(config) if config.hardware_name.kind.runs_kernels else _open_simulated(config)


def _open_kernels(config: MeasureConfig) -> Hardware:
    require_package("torch")
    from evenshard.measure.distributed import collective
    from evenshard.measure.fbgemm import real_device
    from evenshard.measure.one_device import OneDeviceInTurn

    device = real_device(config)
    if collective.world_size() > 1:
        return collective.lead(config, device)
    if config.expect_transport:
        raise BadConfig("one process exchanges nothing. Start it under torchrun, or leave --expect-transport out.")
    return OneDeviceInTurn(config, device)


def _open_simulated(config: MeasureConfig) -> Hardware:
    from evenshard.measure.simulated.hardware import SimulatedHardware

    return SimulatedHardware(config)
