"""Profiles: the constants of simulated devices and calibrated links as YAML files, each number with its source.

A profile maps each constant to ``{value: ..., source: "..."}``, and ``evidence`` to a list of what it was fitted to and
compared with (``evidence.Evidence``), the most relevant for the time of a whole shard first. A file that names a
``vendor`` is the data sheet of a GPU: what it does not say follows by ``gpu_rules``. The only place in ``measure`` that
needs PyYAML: it is imported when a profile is read, so that a bare GPU box can measure without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from evenshard.base.atomic import atomic_path
from evenshard.base.errors import BadFile, bad_records, blame_file
from evenshard.base.limits import Range
from evenshard.base.messages import brief
from evenshard.base.typed import read_record
from evenshard.base.yaml_files import read_yaml
from evenshard.price import gpu_rules
from evenshard.price.evidence import Evidence
from evenshard.price.hardware import profile_path

Profile = TypeVar("Profile")
# Range of a constant in the units of the profiles, whose largest numbers are some thousands of GB per second.
CONSTANTS = Range(0, 1e18)
_REMEDY = "Start from one of the profiles that come with evenshard, or calibrate again."
DATA_SHEET, GUESS = "data sheet", "guess"
_ORIGINS = {one: one for one in ("measured", "fitted", DATA_SHEET, GUESS)} | {"calibrated": "fitted"}
_SHEET_REMEDY = f"A data sheet says vendor, link, {', '.join(gpu_rules.SHEET)}: docs/measure.md."
_HEADER = "# A simulated device or a link; what its constants mean stands in evenshard/measure/, where they are read\n"


@blame_file
def read_profile(path: Path, kind: type[Profile]) -> Profile:
    """Read a profile as its dataclass: numbers, strings, evidence and curves; fields with a default may be left out.

    Raises:
        BadFile: if the file is missing or no YAML, or a constant is missing, unknown, impossible or without a source.
    """
    content = _load(path)
    constants = [field.name for field in fields(kind) if field.type == "float" and field.name in content]  # type: ignore[arg-type]
    for name in constants:
        entry = content[name]
        if not isinstance(entry, dict) or not entry.get("source"):
            raise BadFile(path, f"constant {name} needs value and source", _REMEDY)
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
        BadFile: if the file is missing or no YAML.
    """
    return {name: str(entry["source"]) for name, entry in _load(path).items() if isinstance(entry, dict)}


def origin_of(source: str) -> str:
    """Return the origin of a number by its source: measured, fitted, of a data sheet or a guess."""
    return next((origin for word, origin in _ORIGINS.items() if source.startswith(word)), GUESS)


def is_link_profile(path: Path) -> bool:
    """Return True if a file is the profile of a link; else it should be that of a device.

    Raises:
        BadFile: if the file is missing or no YAML.
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
    """Write the profile of ``template`` with some constants replaced; the others keep their sources.

    The evidence for the template says nothing about the new constants. The file appears whole or not at all.

    Args:
        source: of the new constants.
        extrapolated_from: the profile that says what the evidence does not.

    Raises:
        BadFile: if the template cannot be read.
    """
    import yaml

    content = _load(template)
    # Six digits are more than any measurement gives, and a file of them can be read.
    content.update({name: {"value": float(f"{value:.6g}"), "source": source} for name, value in values.items()})
    content["evidence"] = [
        {name: value for name, value in asdict(one).items() if value is not None} for one in evidence
    ]
    content.pop("extrapolated_from", None)
    if extrapolated_from:
        content["extrapolated_from"] = extrapolated_from
    with atomic_path(path) as draft:
        draft.write_text(_HEADER + yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True))


def _load(path: Path) -> dict[str, Any]:
    content = read_yaml(path, _REMEDY, _REMEDY)
    if not isinstance(content, dict):
        raise BadFile(path, "is not a mapping of constants", _REMEDY)
    for name, entry in content.items():
        source = entry.get("source") if isinstance(entry, dict) else None
        if source and not isinstance(source, str):
            raise BadFile(path, f"the source of {brief(name)} is {brief(source)}, not a text", "Write it in words.")
    return _by_rules(content, path) if "vendor" in content else content


def is_data_sheet(path: Path) -> bool:
    """Return True if a file is the data sheet of a GPU, and no whole profile.

    Raises:
        BadFile: if the file is missing or no YAML.
    """
    content = read_yaml(path, _REMEDY, _REMEDY)
    return isinstance(content, dict) and "vendor" in content


def _by_rules(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Complete a data sheet to the content of a profile."""
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
        source = f"{DATA_SHEET}, by rules" if name in scaled else f"{GUESS}, as of fitted GPUs"
        found.setdefault(name, {"value": float(f"{value:.6g}"), "source": source})
    seen = [asdict(gpu_rules.EVIDENCE)] if vendor.upper() == gpu_rules.VENDOR else []
    return {**found, "evidence": seen, "extrapolated_from": ", ".join(gpu_rules.FITTED)}


@cache
def _rule_constants() -> dict[str, dict[str, float]]:
    return {
        name: {one: entry["value"] for one, entry in _load(profile_path(name)).items() if isinstance(entry, dict)}
        for name in gpu_rules.FITTED
    }
