"""Memory of the devices where none is given, and what is kept of it for everything that is not counted."""

from __future__ import annotations

from collections.abc import Sequence

from evenshard.measure.hardware import HardwareName
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.utils.errors import BadConfig
from evenshard.utils.params import check_ranges
from evenshard.utils.units import BYTES_PER_GB, gb_to_bytes

CPU_MEMORY_GB = 64.0
"""Of a device that is a CPU. What a process may take of its machine's memory is for its user to say."""
RESERVED_SHARE = 0.15
"""Of each device's memory, kept for everything that is not counted: what TorchRec's planner keeps by default."""


def reserves_of(caps_bytes: Sequence[int], reserved_bytes: int, reserved_share: float) -> tuple[int, ...]:
    """What is kept of each device."""
    return tuple(reserved_bytes + round(reserved_share * cap) for cap in caps_bytes)


def own_memory_gb(hardware: str) -> float:
    """Memory of a device: a profile's, of a GPU here what its driver says, of a CPU a round number.

    Raises:
        BadConfig: if the hardware is a GPU, and there is none here.
    """
    import torch

    name = HardwareName.parse(hardware)
    if name.kind.times == "simulated":
        return gpu_profile(name.device).memory_gb
    if torch.cuda.is_available() and not name.is_cpu:
        devices = range(torch.cuda.device_count())
        return min(torch.cuda.get_device_properties(device).total_memory for device in devices) / BYTES_PER_GB
    if name.kind.name == "cuda":
        raise BadConfig("there is no GPU here to ask for its memory. Give memory_cap_gb.")
    return CPU_MEMORY_GB


def own_memory_note(hardware: str) -> str | None:
    """What to know of ``own_memory_gb`` where nothing says it; None where something does."""
    if HardwareName.parse(hardware).is_cpu:
        return f"Memory is assumed: {CPU_MEMORY_GB:g} GB for each device, as nothing says what a CPU may take."
    return None


def reserve_of(reserved_gb: float | None) -> tuple[int, float]:
    """Bytes of each device that are kept, and share of each that is: one of the two, by what the user says.

    Raises:
        BadConfig: if the number makes no sense.
    """
    if reserved_gb is None:
        return 0, RESERVED_SHARE
    check_ranges(reserved_gb=reserved_gb)
    return gb_to_bytes(reserved_gb), 0.0
