"""YAML profiles of simulated GPUs and calibrated links: their constants, each with its source.

A profile maps each constant to ``{value: ..., source: "..."}``. Its ``evidence`` lists the measurements that it was
fitted to or compared with (``evidence.Evidence``), the most relevant for the time of a whole shard first. A file with a
``vendor`` is a GPU's data sheet: ``gpu_rules`` derive the other constants. PyYAML is only imported to read a profile,
so that a minimal GPU machine can measure without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from evenshard.base.documents import read_yaml
from evenshard.base.errors import BadFile, bad_records, blame_file
from evenshard.base.knobs import Range
from evenshard.base.messages import brief
from evenshard.base.outputs import write_text
from evenshard.base.typed import read_record
from evenshard.base.units import BYTES_PER_GB
from evenshard.price import gpu_rules
from evenshard.price.evidence import DeviceError, Evidence
from evenshard.price.hardware import HardwareName, profile_path

Profile = TypeVar("Profile")
# Range of a constant in the units of the profiles; the largest are some thousands of GB per second.
CONSTANTS = Range(0, 1e18)
_REMEDY = "Start from a profile that ships with evenshard, or calibrate again."
DATA_SHEET, GUESS = "data sheet", "guess"
_ORIGINS = {one: one for one in ("measured", "fitted", DATA_SHEET, GUESS)} | {"calibrated": "fitted"}
_SHEET_REMEDY = f"A data sheet needs vendor, link, {', '.join(gpu_rules.SHEET)}; see docs/measure.md."
_HEADER = "# A simulated device or a link; evenshard/price/ says what the constants mean\n"
BYTES_PER_MB = 2**20
# Default for a device whose profile does not name it: PCIe 5 with 16 lanes, fitted, see ``price/offload.py``.
HOST_GB_S = 50.0
# Default for the kernels of a cache, if the profile does not name it.
CACHED_FWD_US, CACHED_BWD_US = 157.0, 30.0


@dataclass(frozen=True)
class GpuProfile:
    """Constants of a GPU that runs FBGEMM's fused table-batched embedding kernels."""

    link: str  # name of the link between these devices, in ``price/link.py``
    num_sms: float  # streaming multiprocessors
    warps_per_sm: float  # most resident warps of a multiprocessor
    memory_gb: float  # device memory, GB of 1024**3 bytes
    hbm_gb_s: float  # peak of the device memory, 10**9 bytes per second, which is bytes per nanosecond
    l2_mb: float  # size of the L2 cache, 1024**2 bytes
    l2_usable_share: float  # fraction of the L2 that randomly read rows fill before misses set in
    hbm_efficiency: float  # fraction of the memory's peak that embedding kernels reach
    l2_gb_s: float  # bandwidth of randomly read rows that hit the L2, 10**9 bytes per second
    # Time of a forward call without a running kernel: the host before the first kernel, and measuring overhead.
    fwd_overhead_us: float
    bwd_overhead_us: float  # the same time of a backward call
    fwd_host_us: float  # host time to launch the kernels of a forward call, a lower bound of the call
    bwd_host_us: float  # the same time of a backward call
    # Largest time beside the kernels of a backward call with less than 2**18 lookups: nothing up to 2**13 lookups, all
    # of it from 2**17 on.
    short_call_us: float
    # Like ``short_call_us`` for more lookups: all of it at 2**21, nothing at 2**18 and from 2**24 on.
    medium_call_us: float = field(default=0.0, kw_only=True)
    bounds_floor_us: float  # time of the bounds check of a tiny input
    bounds_ns_per_bag: float  # its additional time for each bag
    bounds_ns_per_lookup: float  # its additional time for each lookup
    lookup_floor_us: float  # time of the forward kernel on a tiny input
    lookup_ns_per_bag: float  # its instructions for each bag
    lookup_ns_per_request: float  # its instructions for each row, or each 128 values of a wider row
    bag_hit_ns: float  # time per row of the longest bag, if rows hit the L2
    bag_miss_ns: float  # time per row of the longest bag, if rows are read from device memory
    index_floor_us: float  # time of all kernels on indices of a tiny input, without the sort
    index_ns_per_bag: float  # their additional time for each bag
    index_ns_per_lookup: float  # their additional time for each lookup
    index_ns_per_row: float  # their additional time for each distinct row
    sort_floor_us: float  # time of the sort of a tiny input
    sort_pairs_per_ns: float  # (index, bag) pairs that one pass of the radix sort moves
    gradient_floor_us: float  # time of the gradient kernels on a tiny input
    gradient_ns_per_request: float  # their instructions for each gradient, or each 128 values of a wider gradient
    gradient_ns_per_row: float  # their instructions for each distinct row
    hot_lookup_ns: float  # time per gradient of the hottest row
    bounds_ns_per_filled: float = 0.0  # additional time of the bounds check for each bag with lookups
    # If not 0, instructions of bags, rows and gradients add to the kernel's waits, and grow with this power of
    # the lanes of a warp that a row takes: the 8, 16 or 32 that the widest row of the call needs.
    lookup_lane_power: float = 0.0
    gradient_lane_power: float = 0.0  # of each gradient
    row_lane_power: float = 0.0  # of each distinct row in the gradient kernels
    gradient_wide_power: float = 0.0  # the same power, of the number of warps that the widest row fills
    # Relative increase of the instructions of gradients by an optimizer state per row, and by a state per weight.
    row_state_share: float = 0.0
    weight_state_share: float = 0.0
    rounding_share: float = 0.0  # the same of a distinct row's instructions, if weights are rounded at random (FP16)
    # Time of the gradient kernels of ``FULL_WARP_OPTIMIZERS``, where every row takes a full warp.
    full_warp_ns_per_lookup: float = 0.0
    full_warp_ns_per_request: float = 0.0  # of each 128 values after the first of a gradient
    full_warp_ns_per_row: float = 0.0  # of each distinct row
    # Additional time of each lookup beyond those whose indices fit in the L2, see ``device_model.spilled_lookups``.
    lookup_ns_per_spilled: float = 0.0
    index_ns_per_spilled: float = 0.0
    gradient_ns_per_spilled: float = 0.0
    index_bag_ns: float = 0.0  # time of the kernels on indices per lookup of the longest bag
    sort_pass_us: float = 0.0  # time of each pass of the sort of a tiny input, if it takes several kernels
    # Time per gradient of the hottest row, up to ``HOT_LOOKUPS``: more are spread over the GPU. It adds to the waits.
    hot_row_ns: float = 0.0
    bwd_gap_us: float = 0.0  # time between the kernels of a backward call
    cached_fwd_us: float = CACHED_FWD_US  # additional kernels of a call that looks up a cache; see ``price/offload.py``
    cached_bwd_us: float = CACHED_BWD_US
    host_gb_s: float = HOST_GB_S  # bandwidth of reading rows in host memory, 10**9 bytes per second
    clock_ghz: float = 0.0  # highest clock of the multiprocessors
    l1_kb: float = 0.0  # first-level cache and shared memory of a multiprocessor, 1024 bytes
    tflops: float = 0.0  # dense BF16 operations on tensor cores, 10**12 per second; 0 without tensor cores
    evidence: tuple[Evidence, ...] = ()  # measurements fitted to or compared with, most relevant for whole shards first
    extrapolated_from: str = ""  # the profile that provides the constants that were not measured

    def error_of(self, optimizer: str | None = None, lookups: float | None = None) -> DeviceError:
        """Return the error of the profile against the real device, for an optimizer and lookups of a device's load."""
        return DeviceError.of(self.evidence, bool(self.extrapolated_from), optimizer, lookups)

    @property
    def memory_bytes(self) -> float:
        """Return the bytes of device memory."""
        return self.memory_gb * BYTES_PER_GB

    @property
    def l2_bytes(self) -> float:
        """Return the bytes of the L2 that are available for rows."""
        return self.l2_mb * BYTES_PER_MB * self.l2_usable_share

    @property
    def hbm_bytes_per_ns(self) -> float:
        """Return the bandwidth of device memory that embedding kernels reach."""
        return self.hbm_gb_s * self.hbm_efficiency


_NAMES = tuple(constant.name for constant in fields(GpuProfile))
# Constants that require separate measurements of each kernel; 0 in profiles without them.
BY_KERNEL = _NAMES[_NAMES.index("bounds_ns_per_filled") : _NAMES.index("bwd_gap_us") + 1]
# Physically possible values, by a part of the name; a constant at its bound shows that the model lacks a term.
_BOUNDS_OF_UNIT = {
    "hbm_efficiency": (0.05, 1.0),
    "l2_gb_s": (10.0, 100_000.0),
    "pairs_per_ns": (1e-3, 1000.0),
    "ns_per_": (1e-4, 100.0),
    "_ns": (1e-3, 1e5),
    "_us": (1e-3, 5000.0),
    "_lane_power": (0.1, 1.5),
    "_wide_power": (0.01, 1.5),
    "_share": (1e-3, 10.0),
}
BOUNDS: Mapping[str, tuple[float, float]] = {
    name: next(bounds for unit, bounds in _BOUNDS_OF_UNIT.items() if unit in name)
    for name in _NAMES[_NAMES.index("hbm_efficiency") : _NAMES.index("bwd_gap_us") + 1]
}
# Constants that no data sheet has: ``evenshard calibrate-device`` fits them to measured times.
FREE_CONSTANTS = tuple(name for name in BOUNDS if name not in BY_KERNEL)

RATES = (
    "num_sms",
    "warps_per_sm",
    "memory_gb",
    "hbm_gb_s",
    "hbm_efficiency",
    "l2_gb_s",
    "sort_pairs_per_ns",
    "host_gb_s",
)
ABOVE_0 = Range(1e-9, 1e18)


def profile_of(hardware: HardwareName) -> GpuProfile | None:
    """Return the profile of simulated hardware; None for real hardware. Raises like ``gpu_profile``."""
    return gpu_profile(hardware.device) if hardware.kind.is_simulated else None


def gpu_profile(name: str) -> GpuProfile:
    """Load a profile by name or YAML file.

    Raises:
        BadConfig: if there is no such profile.
        BadFile: if the file is not a device profile.
    """
    path = Path(profile_path(name))
    profile = read_profile(path, GpuProfile)
    for constant in RATES:
        if problem := ABOVE_0.problem(getattr(profile, constant)):
            raise BadFile(path, f"constant {constant} {problem}", "Correct it.")
    return profile


# Files ----------------------------------------------------------------------------------------------------------------


@blame_file
def read_profile(path: Path, kind: type[Profile]) -> Profile:
    """Load a profile into the dataclass ``kind``; fields with a default are optional.

    Raises:
        BadFile: if the file is missing or not YAML, or a constant is missing, unknown, impossible or without a source.
    """
    content = _load(path)
    constants = [entry.name for entry in fields(kind) if entry.type == "float" and entry.name in content]  # type: ignore[arg-type]
    for name in constants:
        entry = content[name]
        if not isinstance(entry, dict) or not entry.get("source"):
            raise BadFile(path, f"constant {name} needs a value and a source", _REMEDY)
        content[name] = entry.get("value")
    profile = read_record(kind, content, path, _REMEDY)
    limits = ((name, CONSTANTS.problem(getattr(profile, name))) for name in constants)
    problems = [("", f"{name} {problem}", "Correct it.") for name, problem in limits if problem]
    for name in ("evidence", "curves"):
        checked = enumerate(one.problem() for one in getattr(profile, name, ()))
        problems += [(f"{name}[{at}]", problem, "Correct it.") for at, problem in checked if problem]
    if problems:
        raise bad_records(path, problems, _REMEDY)
    return profile


def sources_of(path: Path) -> dict[str, str]:
    """Return the source of each constant of a profile that ``read_profile`` accepts.

    Raises:
        BadFile: if the file is missing or not YAML.
    """
    return {name: str(entry["source"]) for name, entry in _load(path).items() if isinstance(entry, dict)}


def origin_of(source: str) -> str:
    """Classify the source of a number: measured, fitted, from a data sheet, or a guess."""
    return next((origin for word, origin in _ORIGINS.items() if source.startswith(word)), GUESS)


def is_link_profile(path: Path) -> bool:
    """Return True if a file is the profile of a link, not of a device.

    Raises:
        BadFile: if the file is missing or not YAML.
    """
    return "latency_us" in _load(path)


def write_profile(
    template: Path,
    values: Mapping[str, float],
    source: str,
    evidence: Sequence[Evidence],
    path: Path,
    extrapolated_from: str = "",
) -> None:
    """Write a copy of the ``template`` profile with some constants replaced.

    The evidence for the template does not apply to the new constants. The file is written atomically.

    Args:
        source: source of the new constants.
        extrapolated_from: the profile that provides the constants that were not measured.

    Raises:
        BadFile: if the template cannot be read.
    """
    import yaml

    content = _load(template)
    # Six digits exceed the precision of any measurement and keep the file readable.
    content.update({name: {"value": float(f"{value:.6g}"), "source": source} for name, value in values.items()})
    content["evidence"] = [
        {name: value for name, value in asdict(one).items() if value not in (None, ())} for one in evidence
    ]
    content.pop("extrapolated_from", None)
    if extrapolated_from:
        content["extrapolated_from"] = extrapolated_from
    write_text(path, _HEADER + yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True))


def _load(path: Path) -> dict[str, Any]:
    content = read_yaml(path, _REMEDY, _REMEDY)
    if not isinstance(content, dict):
        raise BadFile(path, "is not a YAML mapping of constants", _REMEDY)
    for name, entry in content.items():
        source = entry.get("source") if isinstance(entry, dict) else None
        if source and not isinstance(source, str):
            raise BadFile(path, f"the source of {brief(name)} is {brief(source)}, not a string", "Write it in words.")
    return _by_rules(content, path) if "vendor" in content else content


def is_data_sheet(path: Path) -> bool:
    """Return True if a file is the data sheet of a GPU, and not a complete profile.

    Raises:
        BadFile: if the file is missing or not YAML.
    """
    content = read_yaml(path, _REMEDY, _REMEDY)
    return isinstance(content, dict) and "vendor" in content


def _by_rules(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Fill in the constants that a data sheet lacks, using ``gpu_rules``."""
    stated = {name: entry if isinstance(entry, dict) else {"value": entry} for name, entry in content.items()}
    for name, limits in gpu_rules.SHEET.items():
        if name not in stated:
            raise BadFile(path, f"{name} is missing", _SHEET_REMEDY)
        if problem := limits.problem(stated[name].get("value")):
            raise BadFile(path, f"{name} {problem}", _SHEET_REMEDY)
    vendor, link = content["vendor"], content.get("link")
    for name, words in (("vendor", vendor), ("link", link)):
        if not isinstance(words, str) or not words.strip():
            raise BadFile(path, f"{name} is {brief(words)}, not a name", _SHEET_REMEDY)
    sheet = {name: stated[name]["value"] for name in gpu_rules.SHEET}
    constants, scaled = gpu_rules.constants_by_rules(sheet, _rule_constants())
    found: dict[str, Any] = {"link": link}
    for name, entry in stated.items():
        if name not in ("vendor", "link", "pcie_gb_s"):
            source = str(entry.get("source") or path.name)
            known = source.startswith(tuple(_ORIGINS))
            found[name] = {"value": entry.get("value"), "source": source if known else f"{DATA_SHEET}: {source}"}
    for name, value in constants.items():
        source = f"{DATA_SHEET}, scaled by rules" if name in scaled else f"{GUESS}: mean of the fitted GPUs"
        found.setdefault(name, {"value": float(f"{value:.6g}"), "source": source})
    seen = [asdict(gpu_rules.EVIDENCE)] if vendor.upper() == gpu_rules.VENDOR else []
    return {**found, "evidence": seen, "extrapolated_from": ", ".join(gpu_rules.FITTED)}


@cache
def _rule_constants() -> dict[str, dict[str, float]]:
    return {
        name: {one: entry["value"] for one, entry in _load(profile_path(name)).items() if isinstance(entry, dict)}
        for name in gpu_rules.FITTED
    }
