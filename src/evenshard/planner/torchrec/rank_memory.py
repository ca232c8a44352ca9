"""Memory that a rank has: the topology's, this machine's own, or, where nothing else is known, TorchRec's constants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evenshard.measure.hardware import HardwareName
from evenshard.planner.device_memory import RESERVED_SHARE, gpu_bytes, own_memory_gb
from evenshard.utils.machine_memory import machine_bytes
from evenshard.utils.units import gb_to_bytes, size_text

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import Topology

SAY_IT = "Give memory_cap_gb, or a Topology with its own hbm_cap."


@dataclass(frozen=True)
class RankMemory:
    """Memory of each rank, bytes, and what there is to say where its size was not given.

    Attributes:
        device: of the device where tables live; on CPU ranks, of the host.
        host, ssd: of a GPU's host and its SSDs, the rank's share of them; 0 on CPU ranks.
        device_note: what is to be known of the device's memory, whatever the plan is.
        host_note, ssd_note: likewise, where tables are kept there.
    """

    device: tuple[int, ...]
    host: tuple[int, ...]
    ssd: tuple[int, ...]
    device_note: str = ""
    host_note: str = ""
    ssd_note: str = ""


def memory_of_ranks(
    topology: Topology | None, world_size: int, local_world_size: int, compute_device: str, hardware: str | None
) -> RankMemory:
    """The memory of each rank.

    Without a topology: of a GPU what its driver says, if there is one here, or that of the hardware that is named. Of
    a host, where the ranks are CPUs or there is a GPU here, what this machine has, divided by the ranks of a node.

    Args:
        hardware: as ``EvenshardPlanner`` takes it.
    """
    on_cpu = compute_device == "cpu"
    gpu = None if on_cpu else gpu_bytes()
    of_rank = machine_bytes() // local_world_size
    if topology is not None:
        return _of_topology(topology, on_cpu, gpu, of_rank)
    if on_cpu:
        return RankMemory((of_rank,) * world_size, (0,) * world_size, (0,) * world_size)
    found = _constants(world_size)
    if gpu is not None:
        host = round((1 - RESERVED_SHARE) * of_rank)
        return replace(found, device=(gpu,) * world_size, host=(host,) * world_size, device_note="", host_note="")
    if hardware is not None and HardwareName.parse(hardware).kind.is_simulated:
        return replace(found, device=(gb_to_bytes(own_memory_gb(hardware)),) * world_size, device_note="")
    return found


def _constants(world_size: int) -> RankMemory:
    """What TorchRec assumes of a rank with a GPU."""
    from torchrec.distributed.planner import constants

    hbm, ddr, ssd = constants.HBM_CAP, constants.DDR_CAP, _ssd_constant()
    return RankMemory(
        (hbm,) * world_size,
        (ddr,) * world_size,
        (ssd,) * world_size,
        f"Memory is assumed: {size_text(hbm)} of each GPU is TorchRec's constant, as there is no GPU here to ask. "
        f"{SAY_IT}",
        _host_note(ddr),
        _ssd_note(ssd),
    )


def _of_topology(topology: Topology, on_cpu: bool, gpu: int | None, of_rank: int) -> RankMemory:
    """What the user says, with a note where that is TorchRec's constant, and the machine here has something else."""
    from torchrec.distributed.planner import constants

    storages = [one.storage for one in topology.devices]
    hbm, ddr = tuple(one.hbm for one in storages), tuple(one.ddr for one in storages)
    ssd = tuple(getattr(one, "ssd", 0) for one in storages)
    if on_cpu:
        note = ""
        if set(ddr) == {constants.DDR_CAP} and of_rank < constants.DDR_CAP:
            note = (
                f"The topology has TorchRec's constant of {size_text(constants.DDR_CAP)} for each CPU rank; this "
                f"machine has {size_text(of_rank)} for each. Give memory_cap_gb, or a Topology with its own ddr_cap."
            )
        return RankMemory(ddr, (0,) * len(ddr), (0,) * len(ddr), note)
    note = ""
    if set(hbm) == {constants.HBM_CAP} and gpu is not None and abs(gpu - constants.HBM_CAP) > 0.1 * constants.HBM_CAP:
        note = (
            f"The topology has TorchRec's constant of {size_text(constants.HBM_CAP)} for each GPU; the one here has "
            f"{size_text(gpu)}. {SAY_IT}"
        )
    return RankMemory(
        hbm,
        ddr,
        ssd,
        note,
        _host_note(constants.DDR_CAP) if set(ddr) == {constants.DDR_CAP} else "",
        _ssd_note(_ssd_constant()) if set(ssd) == {_ssd_constant()} else "",
    )


def _ssd_constant() -> int:
    from torchrec.distributed.planner import constants

    return int(getattr(constants, "SSD_CAP", 0))  # TorchRec before 1.8 knows none


def _host_note(ddr: int) -> str:
    return (
        f"Tables are kept in host memory, of which {size_text(ddr)} for each rank are TorchRec's constant, not this "
        f"machine's. Give host_memory_gb, or a Topology with its own ddr_cap."
    )


def _ssd_note(ssd: int) -> str:
    return (
        f"Tables are kept on SSDs, of which {size_text(ssd)} for each rank are TorchRec's constant, not this "
        f"machine's. Give ssd_gb, or a Topology with its own ssd_cap."
    )
