"""The list of hardware: what is known, with units and sources, and what confirms it."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenshard.base.errors import BadConfig
from evenshard.cli import main
from evenshard.measure.inventory import find_hardware, format_inventory, inventory, list_devices, list_links, unit_of
from evenshard.price.gpu_profile import GpuProfile
from evenshard.price.hardware import profile_names, profile_path
from evenshard.price.link import LINKS

SHARDS = {"points": "shards of a test", "source": "a laboratory"}
CONFIRMED = {**SHARDS, "fitted": 50, "held_out": 40, "median_error_percent": 5.25, "p90_error_percent": 12.0}
FEW = {**CONFIRMED, "held_out": 4}


def profile(tmp_path: Path, evidence: list[dict[str, Any]], **more: str) -> str:
    content = yaml.safe_load(profile_path("v100").read_text())
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**content, "evidence": evidence, **more}))
    return str(tmp_path / "mine.yaml")


def test_all_devices_and_links_are_listed_with_every_constant() -> None:
    assert [one.name for one in list_devices()] == list(profile_names())
    assert [one.name for one in list_links()] == list(LINKS)
    numbers = {field.name for field in fields(GpuProfile) if field.type == "float"}
    for one in list_devices():
        assert set(one.constants) == numbers and one.link in LINKS


def test_each_number_says_whether_it_is_measured_fitted_of_a_data_sheet_or_a_guess() -> None:
    """And its source begins so, which is what the command prints."""
    of = {
        f"{one.name} {name}": value for one in (*list_devices(), *list_links()) for name, value in one.constants.items()
    }
    bandwidth = yaml.safe_load(profile_path("h200").read_text())["hbm_gb_s"]
    found = find_hardware("simulated:h200").constants["hbm_gb_s"]
    assert (found.value, found.unit, found.source) == (bandwidth["value"], "GB/s", bandwidth["source"])
    assert all(value.source.startswith(value.origin) and len(value.source) > 2 for value in of.values())
    for origin, names in {
        "data sheet": ("h100 num_sms", "l40s gradient_ns_per_row", "ethernet_25g bandwidth_gb_s"),
        "measured": ("v100 hbm_efficiency", "h200 hbm_efficiency"),
        "fitted": ("v100 l2_gb_s", "h200 lookup_ns_per_bag", "nvlink_h100 latency_us"),
        "guess": ("h100 hot_lookup_ns", "h200 l2_gb_s", "ethernet_25g latency_us", "l40s sort_floor_us"),
    }.items():
        assert {of[name].origin for name in names} == {origin}


def test_a_source_that_does_not_say_it_is_a_guess_unless_evenshard_calibrated(tmp_path: Path) -> None:
    content = yaml.safe_load(profile_path("v100").read_text())
    content["l2_mb"]["source"], content["l2_gb_s"]["source"] = "a friend", "calibrated on 12 shards of cuda"
    del content["host_gb_s"]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    found = find_hardware(str(tmp_path / "mine.yaml")).constants
    assert (found["l2_mb"].origin, found["l2_mb"].provenance) == ("guess", "guess: a friend")
    assert found["l2_gb_s"].provenance == "fitted: calibrated on 12 shards of cuda"
    assert (found["host_gb_s"].value, found["host_gb_s"].origin) == (50.0, "guess")


def test_a_name_ends_with_its_unit() -> None:
    units = {"hbm_gb_s": "GB/s", "memory_gb": "GB", "l2_mb": "MB", "latency_us": "us", "hot_lookup_ns": "ns"}
    shares = {"bounds_ns_per_bag": "ns per bag", "sort_pairs_per_ns": "pairs per ns", "num_sms": ""}
    assert {name: unit_of(name) for name in units | shares} == units | shares


ASSUMED = "assumed accurate to a factor of 3.49 (unverified"


def test_what_confirms_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for evidence, more, said in (
        ([CONFIRMED], {}, "90 % of times within a factor of 1.13 (40 held-out measurements)"),
        ([FEW], {}, f"{ASSUMED}: only 4 held-out measurements)"),
        ([], {}, f"{ASSUMED})"),
        ([], {"extrapolated_from": "a100_80gb"}, f"extrapolated from a100_80gb: {ASSUMED})"),
    ):
        assert find_hardware(profile(tmp_path, evidence, **more)).confirmation == said
    assert main(["hardware", profile(tmp_path, [CONFIRMED])]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.endswith("mine.yaml: 90 % of times within a factor of 1.13 (40 held-out measurements).")
    assert "hbm_gb_s" in text and "50 40 5.2 % 12 % shards of a test a laboratory" in text


def test_the_command_lists_everything(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["hardware"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    for one in (*list_devices(), *list_links()):
        at = next(at for at, line in enumerate(lines) if line[0] == one.name)
        line, factors = lines[at], [word for line in lines[at : at + len(one.evidence) + 1] for word in line]
        assert f"{one.error.factor:.3g}" in factors
        if confirmed := [seen for seen in one.evidence if seen.held_out]:
            assert f"{confirmed[0].held_out:,}" in line
    assert main(["hardware", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(inventory(), allow_nan=False))


def test_the_file_of_a_link_is_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "link.yaml"
    numbers = {name: {"value": 20.0, "source": "calibrated here"} for name in ("latency_us", "bandwidth_gb_s")}
    path.write_text(yaml.safe_dump({**numbers, "source": "mine"}))
    found = find_hardware(str(path))
    assert found.link is None and found.constants["latency_us"].source == "calibrated here"
    assert found.constants["spans"].value is None and found.constants["spans"].source == "mine"
    assert main(["hardware", str(path), "--json"]) == 0 and "Infinity" not in capsys.readouterr().out


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    for name in ("h900", ""):
        with pytest.raises(BadConfig, match=r"is neither a simulated device \(.*h200.*\) nor a link \(.*nvlink_h200"):
            find_hardware(name)


def test_links_have_a_tier_and_other_names() -> None:
    links = {one["name"]: one for one in inventory()["links"]}
    assert (links["nvlink_h100"]["tier"], links["nvlink_h100"]["aliases"]) == ("intra", ["h100_nvlink"])
    assert (links["infiniband_ndr"]["tier"], links["infiniband_ndr"]["aliases"]) == ("inter", ["ib_400g"])
    assert "infiniband_ndr  " in format_inventory() and find_hardware("ib_400g").name == "infiniband_ndr"
