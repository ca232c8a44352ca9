"""Inventory of known hardware: simulated devices and links, with the source of each constant.

A device can be added with its data sheet (``add_hardware``).
"""

from __future__ import annotations

import math
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.messages import brief, printable, text_table
from evenshard.base.units import pct_text
from evenshard.price import gpu_profile as profiles
from evenshard.price.evidence import DeviceError, Evidence, errors_by_evidence
from evenshard.price.hardware import DEFAULT_HARDWARE, KINDS, SHORT_NAMES, profile_names, profile_path
from evenshard.price.link import ALIASES, GPUS_OF_A_NODE, LINKS, link, link_name
from evenshard.price.link_model import Curve, Link

# Units by the ending of a constant's name, and "x per y" for names like bounds_ns_per_lookup.
_SUFFIXES = {"_gb_s": "GB/s", "_gb": "GB", "_mb": "MB", "_us": "us", "_ns": "ns"}
_PER = re.compile(r"(?:.*_)?([a-z]+)_per_([a-z]+)")
_NARROWEST = 80  # least columns of output, also in a pipe
_SMALL = 0.01  # smaller constants are printed with one digit less to keep their column narrow


@dataclass(frozen=True)
class Constant:
    """One constant of a profile, with its source."""

    value: float | None  # None if infinite
    unit: str
    source: str
    origin: str  # kind of the source, by ``origin_of``

    @property
    def provenance(self) -> str:
        """Return the source as text that starts with the kind of source."""
        return self.source if self.source.startswith(self.origin) else f"{self.origin}: {self.source}"


@dataclass(frozen=True)
class HardwareEntry:
    """A simulated device or a link of the inventory."""

    name: str  # in settings and flags
    link: str | None  # name of the link between devices of this kind; None for a link
    constants: dict[str, Constant]  # all numbers, by name
    evidence: tuple[Evidence, ...]
    error: DeviceError
    extrapolated_from: str = ""  # profile that supplies the missing evidence; empty if there is none
    curves: tuple[Curve, ...] = ()

    @property
    def confirmation(self) -> str:
        """Describe in a clause how accurate the model is and how this is known."""
        of_other = f"extrapolated from {self.extrapolated_from}: " if self.extrapolated_from else ""
        return f"{of_other}{self.error}"


def list_devices() -> tuple[HardwareEntry, ...]:
    """Return all simulated devices that evenshard has profiles of."""
    return tuple(map(_device, profile_names()))


def list_links() -> tuple[HardwareEntry, ...]:
    """Return all links that evenshard has profiles of."""
    return tuple(map(_link, LINKS))


def find_hardware(name: str) -> HardwareEntry:
    """Return the simulated device or link with this name or YAML file.

    Raises:
        BadConfig: if it is neither.
        BadFile: if the file is not a profile.
    """
    bare = name.removeprefix("simulated:")
    bare = SHORT_NAMES.get(bare, bare)
    if bare in LINKS or bare in ALIASES:
        return _link(link_name(bare))
    if bare in profile_names():
        return _device(bare)
    if bare.endswith((".yaml", ".yml")):
        return _link(bare) if profiles.is_link_profile(profile_path(bare)) else _device(bare)
    raise BadConfig(
        f"{brief(name)} is neither a simulated device ({', '.join(profile_names())}) nor a link ({', '.join(LINKS)}), "
        f"nor a YAML profile. Use one of these, or omit the name."
    )


def _device(name: str) -> HardwareEntry:
    profile, sources = profiles.gpu_profile(name), profiles.sources_of(profile_path(name))
    constants = _constants(profile, sources)
    return HardwareEntry(name, profile.link, constants, profile.evidence, profile.error_of(), profile.extrapolated_from)


def _link(name: str) -> HardwareEntry:
    found = link(name)
    sources = dict.fromkeys((field.name for field in fields(Link)), found.source)
    if latency := found.source.partition("; latency ")[2]:  # the text before it is the source of the bandwidths
        sources["latency_us"] = f"{profiles.GUESS}: latency {latency}"
    if name not in LINKS:
        sources |= profiles.sources_of(profile_path(name))
    constants = _constants(found, sources)
    return HardwareEntry(name, None, constants, found.evidence, found.error, found.extrapolated_from, found.curves)


def _constants(profile: profiles.GpuProfile | Link, sources: dict[str, str]) -> dict[str, Constant]:
    values = {field.name: getattr(profile, field.name) for field in fields(profile) if field.type == "float"}
    said = {name: sources.get(name, f"{profiles.GUESS}: default for profiles that do not set it") for name in values}
    return {
        name: Constant(
            value if math.isfinite(value) else None, unit_of(name), said[name], profiles.origin_of(said[name])
        )
        for name, value in values.items()
    }


def add_hardware(sheet: Path, out: Path) -> HardwareEntry:
    """Write a profile from a GPU's data sheet, whose format docs/measure.md describes.

    Raises:
        BadFile: if the sheet is missing, incomplete or impossible, in which case no file is written.
    """
    for path in (sheet, out):
        if path.suffix not in (".yaml", ".yml"):
            raise BadFile(path, "its name does not end with .yaml", "Rename it.")
    if not profiles.is_data_sheet(sheet):
        raise BadFile(sheet, "states no vendor, so it is not a data sheet", "docs/measure.md shows one.")
    profile = profiles.gpu_profile(str(sheet))
    try:
        link(profile.link)
    except BadConfig:
        raise BadFile(
            sheet, f"its link {brief(profile.link)} is unknown", "`evenshard hardware` lists the known links."
        ) from None
    profiles.write_profile(sheet, {}, "", profile.evidence, out, profile.extrapolated_from)
    return _device(str(out))


def unit_of(constant: str) -> str:
    """Return a constant's unit, taken from the end of its name; empty for counts and shares."""
    if found := _PER.fullmatch(constant):
        return f"{found[1]} per {found[2]}"
    return next((unit for suffix, unit in _SUFFIXES.items() if constant.endswith(suffix)), "")


def inventory() -> dict[str, Any]:
    """Return all kinds of hardware, devices and links as a dict that JSON can store."""
    return {
        "default": DEFAULT_HARDWARE,
        "kinds": [{"name": kind.name, "usage": kind.usage, "times": kind.times} for kind in KINDS],
        "devices": [asdict(device) for device in list_devices()],
        "links": [
            {
                **asdict(one),
                "tier": LINKS[one.name].tier,
                "aliases": [key for key in ALIASES if ALIASES[key] == one.name],
            }
            for one in list_links()
        ],
    }


def format_inventory() -> str:
    """Format the tables of devices and links for a terminal."""
    kinds = "; ".join(f"{kind.usage}: {kind.times}" for kind in KINDS)
    devices: list[tuple[str, ...]] = [("simulated device", "memory, GB", "link", *_LIST_HEADS)]
    for gpu in list_devices():
        devices += _list_rows((gpu.name, _number(gpu.constants["memory_gb"].value), gpu.link or ""), gpu)
    links: list[tuple[str, ...]] = [("link", "tier", "GB/s", "GPUs", *_LIST_HEADS)]
    for name, of in LINKS.items():
        gb_s = of.even_gb_s(int(min(of.spans, GPUS_OF_A_NODE)))
        span = "any" if math.isinf(of.spans) else f"{of.spans:.0f}"
        links += _list_rows((name, of.tier, f"{gb_s:.3g}", span), _link(name))
    return "\n".join(
        [
            f"--hardware: {kinds}",
            *textwrap.wrap(_DEFAULT, _width()),
            "",
            text_table(devices, "<><>>><", width=_width()),
            "",
            text_table(links, "<<>>>>><", width=_width()),
            "",
            *textwrap.wrap(
                "factor: 90 % of measured times are within this factor of the predicted time; without measurements, it "
                "is assumed. Intervals use the device's factor for kernels, from the first line with the request's "
                "optimizer and lookups, and the link's factor for communication. Held-out measurements were not used "
                "in the fit. GB/s: NCCL's bus bandwidth of an even all-to-all on "
                f"{GPUS_OF_A_NODE} GPUs, or as many as the link connects; for links between nodes (inter), the "
                "bandwidth per GPU between nodes. Links also have aliases, such as h100_nvlink and ib_400g.",
                _width(),
            ),
        ]
    )


def format_hardware(entry: HardwareEntry) -> str:
    """Format a device or link with all its constants for a terminal."""
    sources = list(dict.fromkeys(constant.provenance for constant in entry.constants.values()))
    of_all = printable(sources[0]) if len(sources) == 1 else ""
    rows = [("constant", "value", "unit", "" if of_all else "source")]
    rows += [
        (name, _number(constant.value), constant.unit, "" if of_all else printable(constant.provenance))
        for name, constant in entry.constants.items()
    ]
    lines = [f"{entry.name}: a link" if entry.link is None else f"{entry.name}: a simulated device, link {entry.link}"]
    lines += [*textwrap.wrap(of_all, _width()), "", text_table(rows, "<><<", width=_width()), ""]
    if entry.curves:
        lines += [text_table([_CURVE_HEADS, *map(_curve_cells, entry.curves)], "<>>>>>>"), ""]
    if entry.evidence:
        evidence: list[tuple[str, ...]] = [_EVIDENCE_HEADS]
        for seen in entry.evidence:
            evidence += [_evidence_cells(seen), ("", "", "", "", printable(seen.source))]
        lines += [text_table(evidence, ">>>><", width=_width()), ""]
    return "\n".join([*lines, format_confirmation(entry)])


def format_confirmation(entry: HardwareEntry) -> str:
    """Format the accuracy of a device's or link's model for a terminal."""
    return "\n".join(textwrap.wrap(f"{entry.name}: {entry.confirmation}.", _width()))


_DEFAULT = (
    f"Default: the hardware of the model (--model); without a model, {DEFAULT_HARDWARE}. The prefix simulated: is "
    "optional: h100 is simulated:h100, "
    f"{', '.join(f'{short} simulated:{own}' for short, own in SHORT_NAMES.items())}."
)
_CURVE_HEADS = ("collective", "GPUs", "latency, us", "GB/s at 256 KB", "at 4 MB", "at 64 MB", "at most")
_EVIDENCE_HEADS = ("fitted", "held out", "median", "90 %", "measurements")
_LIST_HEADS = ("factor", "fitted", "held out", "measurements")


def _list_rows(head: Sequence[str], entry: HardwareEntry) -> Iterator[tuple[str, ...]]:
    errors = errors_by_evidence(entry.evidence, bool(entry.extrapolated_from))
    cells = (*head, f"{entry.error.factor:.3g}")
    for evidence in entry.evidence:
        if evidence in errors:
            cells = (*cells[:-1], f"{errors[evidence].factor:.3g}")
        yield (*cells, *_evidence_cells(evidence)[:2], _points(evidence))
        cells = ("",) * len(cells)
    if not entry.error.is_measured:
        of_other = f"extrapolated from {entry.extrapolated_from}: " if entry.extrapolated_from else ""
        yield (*cells, "", "", f"{of_other}{entry.error.basis}")


def _evidence_cells(evidence: Evidence) -> tuple[str, ...]:
    errors = (evidence.median_error_percent, evidence.p90_error_percent)
    counts = (f"{evidence.fitted:,}", f"{evidence.held_out:,}")
    return (*counts, *("-" if error is None else pct_text(error) for error in errors), _points(evidence))


def _points(evidence: Evidence) -> str:
    return printable(f"{evidence.points} ({evidence.calls})" if evidence.calls else evidence.points)


def _curve_cells(curve: Curve) -> tuple[str, ...]:
    sizes = 1e6 * np.array([0.25, 4, 64])  # bytes, as in ``_CURVE_HEADS``
    gb_s = sizes / (curve.latency_ms + curve.bytes_ms(sizes)) / 1e6  # from bytes per ms
    numbers = (curve.us[0], *gb_s.tolist(), curve.gb_s)
    return curve.collective, str(curve.num_devices), *map("{:.3g}".format, numbers)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.{3 if abs(value) < _SMALL else 4}g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _width() -> int:
    return max(shutil.get_terminal_size().columns, _NARROWEST)
