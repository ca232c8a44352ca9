"""Memory of the devices where none is given, and what is kept of it for everything that is not counted."""

from __future__ import annotations

from collections.abc import Sequence

from evenshard.measure.hardware import HardwareName
from evenshard.measure.simulated.gpu_profile import profile_of
from evenshard.utils.errors import BadConfig
from evenshard.utils.extras import require_package
from evenshard.utils.machine_memory import machine_bytes
from evenshard.utils.params import check_ranges
from evenshard.utils.units import bytes_to_gb, gb_text, gb_to_bytes

# Share of each device's memory that is kept for everything that is not counted, as TorchRec's planner does by default.
RESERVED_SHARE = 0.15


def reserves_of(caps_bytes: Sequence[int], reserved_bytes: int, reserved_share: float) -> tuple[int, ...]:
    """What is kept of each device."""
    return tuple(reserved_bytes + round(reserved_share * cap) for cap in caps_bytes)


def gpu_bytes() -> int | None:
    """Memory of a GPU here, of the smallest of several, as its driver says; None where there is none."""
    require_package("torch")
    import torch

    if not torch.cuda.is_available():
        return None
    return min(torch.cuda.get_device_properties(device).total_memory for device in range(torch.cuda.device_count()))


def own_memory_gb(hardware: str, devices_per_node: int = 1) -> float:
    """Memory of a device: a profile's; of a GPU here what its driver says; of a CPU its share of this machine's.

    Args:
        hardware: such as simulated:h200, cuda or cpu.
        devices_per_node: CPU devices that share a machine like this one.

    Raises:
        BadConfig: if the hardware is a GPU, and there is none here.
    """
    name = HardwareName.parse(hardware)
    if (profile := profile_of(name)) is not None:
        return profile.memory_gb
    found = None if name.kind.is_host else gpu_bytes()
    if found is not None:
        return bytes_to_gb(found)
    if name.kind.needs_gpu:
        raise BadConfig("there is no GPU here to ask for its memory. Give memory_cap_gb.")
    return bytes_to_gb(machine_bytes() // devices_per_node)


def own_memory_note(hardware: str, devices_per_node: int = 1) -> str | None:
    """What to know of ``own_memory_gb`` where the devices may be elsewhere; None where it is sure."""
    if HardwareName.parse(hardware).kind.is_host:
        return (
            f"Memory is that of this machine: {gb_text(machine_bytes())}, of which each of {devices_per_node} devices "
            f"of a node has {own_memory_gb(hardware, devices_per_node):.2f}. Give memory_cap_gb for other machines."
        )
    return None


def reserve_of(reserved_gb: float | None) -> tuple[int, float]:
    """Bytes of each device that are kept, and share of each that is: one of the two, by what the user says.

    Raises:
        BadConfig: if the number makes no sense.
    """
    check_ranges(reserved_gb=reserved_gb)
    return (0, RESERVED_SHARE) if reserved_gb is None else (gb_to_bytes(reserved_gb), 0.0)
