"""A simulated GPU: the constants of the device model, one YAML file each in ``profiles/``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evenshard.measure.evidence import DeviceError, Evidence
from evenshard.measure.profiles import profile_path, read_profile
from evenshard.utils.errors import BadFile
from evenshard.utils.limits import Range
from evenshard.utils.units import BYTES_PER_GB

BYTES_PER_MB = 2**20


@dataclass(frozen=True)
class GpuProfile:
    """A GPU under FBGEMM's fused table-batched embedding.

    Attributes:
        link: name of the link between such devices, in ``measure/link.py``.
        num_sms: streaming multiprocessors.
        clock_ghz: clock of the SMs under load.
        warps_per_sm: most warps that one SM keeps resident.
        memory_gb: GB (1024**3 bytes) of device memory.
        hbm_gb_s: peak of the device memory, 10**9 bytes per second, which is bytes per nanosecond.
        l2_mb: size of the L2 cache, 1024**2 bytes.
        l2_usable_share: part of it that holds randomly read rows before misses set in.
        hbm_latency_ns: a load that misses the L2.
        l2_latency_ns: a load that hits it.
        launch_us: time from one small kernel of a queue to the next.
        fwd_overhead_us: host time of one forward call before its first kernel runs.
        bwd_overhead_us: likewise, backward.
        hbm_efficiency: part of the peak that embedding kernels reach.
        l2_gb_s: bandwidth of L2 hits, 10**9 bytes per second.
        fwd_loads_per_warp: row requests that a resident warp of the forward kernel keeps in flight.
        bwd_loads_per_warp: gradient requests that a warp slot of the backward kernel keeps in flight; its many
            registers leave slots empty, so it may be below 1.
        sort_pairs_per_sm_clock: (64-bit key, 32-bit value) pairs that an SM moves per clock in one pass of the radix
            sort.
        hot_row_ns: serial time of each further thread block that adds to the gradient of the same row.
        evidence: measurements that it was fitted to or compared with, the most relevant for whole shards first.
        extrapolated_from: whose measurements its fitted constants come from, where it has none of its own.
    """

    link: str
    num_sms: float
    clock_ghz: float
    warps_per_sm: float
    memory_gb: float
    hbm_gb_s: float
    l2_mb: float
    l2_usable_share: float
    hbm_latency_ns: float
    l2_latency_ns: float
    launch_us: float
    fwd_overhead_us: float
    bwd_overhead_us: float
    hbm_efficiency: float
    l2_gb_s: float
    fwd_loads_per_warp: float
    bwd_loads_per_warp: float
    sort_pairs_per_sm_clock: float
    hot_row_ns: float
    evidence: tuple[Evidence, ...] = ()
    extrapolated_from: str = ""

    @property
    def error(self) -> DeviceError:
        """How far its times are from those of the real device."""
        return DeviceError.of(self.evidence)

    @property
    def memory_bytes(self) -> float:
        """Bytes of device memory."""
        return self.memory_gb * BYTES_PER_GB

    @property
    def l2_bytes(self) -> float:
        """Bytes of L2 that hold rows."""
        return self.l2_mb * BYTES_PER_MB * self.l2_usable_share

    @property
    def resident_warps(self) -> float:
        """Warps that the whole GPU keeps resident."""
        return self.num_sms * self.warps_per_sm

    @property
    def hbm_bytes_per_ns(self) -> float:
        """What the embedding kernels get out of the device memory."""
        return self.hbm_gb_s * self.hbm_efficiency


FREE_CONSTANTS = (
    "fwd_overhead_us",
    "bwd_overhead_us",
    "hbm_efficiency",
    "l2_gb_s",
    "fwd_loads_per_warp",
    "bwd_loads_per_warp",
    "sort_pairs_per_sm_clock",
    "hot_row_ns",
)
"""What no data sheet says: ``evenshard calibrate-device`` fits these to measured costs."""


RATES = (
    "num_sms",
    "clock_ghz",
    "warps_per_sm",
    "memory_gb",
    "hbm_gb_s",
    "hbm_efficiency",
    "l2_gb_s",
    "fwd_loads_per_warp",
    "bwd_loads_per_warp",
    "sort_pairs_per_sm_clock",
)
"""What times are divided by."""
ABOVE_0 = Range(1e-9, 1e18)


def gpu_profile(name: str) -> GpuProfile:
    """The profile with this name, or of this YAML file.

    Raises:
        BadConfig: if there is none.
        BadFile: if the file is not a device profile.
    """
    path = Path(profile_path(name))
    profile = read_profile(path, GpuProfile)
    for constant in RATES:
        if problem := ABOVE_0.problem(getattr(profile, constant)):
            raise BadFile(path, f"constant {constant} {problem}", "Correct it.")
    return profile
