"""Where the weights of a table are kept: TorchRec's compute kernels, and the share of rows that a cache holds.

::

    fused                device memory
    fused_uvm_caching    host memory, with a cache in device memory
    fused_uvm            host memory, read and written by the device over its link to the host
    key_value            SSD, with a cache in device memory
    host                 host memory, looked up and updated by the host's processor

All parts of a table are kept alike, as TorchRec's plans say it per table. Replicas live in device memory alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenshard.utils.errors import BadConfig
from evenshard.utils.limits import Range
from evenshard.utils.messages import brief

FUSED, FUSED_UVM_CACHING, FUSED_UVM = "fused", "fused_uvm_caching", "fused_uvm"
KEY_VALUE, HOST = "key_value", "host"
# TorchRec's words, but for ``host``, which it has only where no device is a GPU.
COMPUTE_KERNELS = (FUSED, FUSED_UVM_CACHING, FUSED_UVM, KEY_VALUE, HOST)
CACHED_KERNELS = (FUSED_UVM_CACHING, KEY_VALUE)
# Kernels that keep all weights in host memory.
HOST_KERNELS = (FUSED_UVM_CACHING, FUSED_UVM, HOST)
# Kernels that a search may use where the machine has host memory; others where they are asked for.
USUAL_KERNELS = (FUSED, FUSED_UVM_CACHING, FUSED_UVM)
_LOAD_FACTORS = Range(0, 1, above=True)


@dataclass(frozen=True)
class Storage:
    """Where a table's weights are kept.

    Attributes:
        kernel: one of ``COMPUTE_KERNELS``.
        load_factor: rows that the cache holds, as a share of all; 1 where there is no cache.
    """

    kernel: str = FUSED
    load_factor: float = 1.0

    def __post_init__(self) -> None:
        """Raises BadConfig if it makes no sense."""
        if self.kernel not in COMPUTE_KERNELS:
            raise BadConfig(f"compute kernel is {brief(self.kernel)}. Choose from {', '.join(COMPUTE_KERNELS)}.")
        if problem := _LOAD_FACTORS.problem(self.load_factor):
            raise BadConfig(f"load_factor {problem}. Correct it.")
        if self.load_factor != 1 and not self.is_cached:
            raise BadConfig(f"{self.kernel} has no cache, but a load_factor of {self.load_factor:g}. Leave it out.")

    @property
    def is_cached(self) -> bool:
        """Whether device memory holds a cache of it."""
        return self.kernel in CACHED_KERNELS

    @property
    def is_on_device(self) -> bool:
        """Whether device memory holds it whole."""
        return self.kernel == FUSED

    @property
    def is_on_host(self) -> bool:
        """Whether host memory holds it whole."""
        return self.kernel in HOST_KERNELS

    def __str__(self) -> str:
        return f"{self.kernel} {self.load_factor:g}" if self.is_cached else self.kernel


ON_DEVICE = Storage()


def storages_of(kernel: str, load_factors: Sequence[float]) -> tuple[Storage, ...]:
    """The storages of a kernel: one for each load factor if it caches rows, otherwise one."""
    return tuple(Storage(kernel, one) for one in load_factors) if kernel in CACHED_KERNELS else (Storage(kernel),)
