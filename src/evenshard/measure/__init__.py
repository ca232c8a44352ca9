"""The cost of a placement, measured or simulated: one module per way to find it out, opened by ``open_hardware``.

Imports nothing beyond the standard library, numpy and torch (FBGEMM inside functions; PyYAML where a profile is read),
so that a bare GPU box that has only torch can measure.
"""

from __future__ import annotations

from evenshard.measure.campaign import Job, from_journal, measure_jobs, with_controls
from evenshard.measure.costs import SIMULATED
from evenshard.measure.hardware import Hardware, MeasureConfig
from evenshard.measure.journal import Journal
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import shown

REAL = ("auto", "cpu", "cuda")


def open_hardware(hardware: str | MeasureConfig) -> Hardware:
    """The hardware with this name (see ``MeasureConfig.hardware``), or of this configuration.

    ``auto`` is CUDA where there is a GPU, else the CPU. Under torchrun all its processes measure together, each one
    as one device; this is then the first of them (the others run ``collective.serve``).

    Raises:
        BadConfig: if the name is unknown, a setting makes no sense, or CUDA is asked for where there is none.
    """
    config = MeasureConfig(hardware=hardware) if isinstance(hardware, str) else hardware
    _check(config)
    if config.hardware.startswith(SIMULATED):
        from evenshard.measure.simulated.hardware import SimulatedHardware

        return SimulatedHardware(config)
    from evenshard.measure.distributed import collective
    from evenshard.measure.fbgemm import real_device
    from evenshard.measure.in_turn import OneDeviceInTurn

    device = real_device(config.hardware)
    return collective.lead(config, device) if collective.world_size() > 1 else OneDeviceInTurn(config, device)


def _check(config: MeasureConfig) -> None:
    least_of = {"num_batches": 1, "warmup": 0, "repeats": 1, "visits": 1, "controls": 0, "control_repeats": 1}
    for name, least in {**least_of, "noise": 0, "timeout_s": 1}.items():
        if not getattr(config, name) >= least:
            raise BadConfig(f"measure.{name} is {getattr(config, name)}. Make it at least {least}.")
    if config.hardware not in REAL and not config.hardware.startswith(SIMULATED):
        raise BadConfig(f"hardware is {shown(config.hardware)}. Use one of {', '.join(REAL)}, or simulated:<profile>.")
    if config.noise and not config.hardware.startswith(SIMULATED):
        raise BadConfig(f"measure.noise is {config.noise}, but {config.hardware} has its own. Make it 0.")


__all__ = [
    "SIMULATED",
    "Hardware",
    "Job",
    "Journal",
    "MeasureConfig",
    "from_journal",
    "measure_jobs",
    "open_hardware",
    "with_controls",
]
