"""GPUs by their data sheets: the rules by hand, against GPUs that they did not see, and through the command."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import yaml

from benchmarks.scripts.fit_devices import LATER_POINTS, POINTS
from benchmarks.scripts.gpu_rules import Held, held_out, of_all, read_measured
from evenshard.cli import main
from evenshard.measure.inventory import find_hardware
from evenshard.price.gpu_profile import FREE_CONSTANTS, gpu_profile
from evenshard.price.gpu_rules import EVIDENCE, FITTED, SHEET, constants_by_rules, exponent
from support.truth import truth_file

SLOW = {
    **dict.fromkeys(SHEET, 1.0),
    "lookup_ns_per_request": 8.0,
    "l2_gb_s": 100.0,
    "sort_floor_us": 30.0,
    "fwd_host_us": 60.0,
    "host_gb_s": 1.0,
}
FAST = {**SLOW, "num_sms": 4.0, "lookup_ns_per_request": 4.0, "l2_gb_s": 800.0, "sort_floor_us": 10.0}


def by_hand(
    num_sms: float = 1.0, clock_ghz: float = 1.0, l1_kb: float = 1.0, **fitted: dict[str, float]
) -> dict[str, float]:
    sheet = {**dict.fromkeys(SHEET, 1.0), "num_sms": num_sms, "clock_ghz": clock_ghz, "l1_kb": l1_kb}
    return constants_by_rules(sheet, fitted or {"slow": SLOW})[0]


def test_twice_the_speed_halves_times_of_work_and_doubles_rates() -> None:
    for found in (by_hand(num_sms=2.0), by_hand(clock_ghz=2.0), by_hand(l1_kb=2.0)):
        assert found["lookup_ns_per_request"] == pytest.approx(4.0) and found["l2_gb_s"] == pytest.approx(200.0)
        assert found["sort_floor_us"] == 30.0 and found["fwd_host_us"] == 60.0


def test_fitted_gpus_count_by_the_ratio_of_speeds() -> None:
    """Twice as fast as one and half as fast as the other: both count alike. As fast as one: that counts four times."""
    between = by_hand(num_sms=2.0, slow=SLOW, fast=FAST)
    assert between["lookup_ns_per_request"] == pytest.approx((8.0 / 2 + 4.0 * 2) / 2)
    assert between["l2_gb_s"] == pytest.approx((100.0 * 2 + 800.0 / 2) / 2)
    assert between["sort_floor_us"] == pytest.approx(20.0)
    assert by_hand()["host_gb_s"] == pytest.approx(50 / 63)  # what PCIe says
    alike = by_hand(slow=SLOW, fast=FAST)
    assert alike["sort_floor_us"] == pytest.approx((4 * 30.0 + 10.0) / 5)


def test_times_go_against_the_speed_and_rates_with_it() -> None:
    powers = {constant: exponent(constant) for constant in FREE_CONSTANTS}
    assert {one for one, power in powers.items() if power == 1} == {"l2_gb_s", "sort_pairs_per_ns"}
    against = {one for one, power in powers.items() if power == -1}
    assert against == {"hot_lookup_ns", *(one for one in FREE_CONSTANTS if "_ns_per_" in one)} and len(against) == 10


@cache
def held() -> dict[str, Held]:
    truth_file(LATER_POINTS)
    truth = truth_file(POINTS).parent
    return held_out(read_measured(truth), truth)


def test_the_stated_error_is_that_of_gpus_left_out() -> None:
    assert sum(len(one.errors) for one in held().values()) == EVIDENCE.held_out
    stated = (EVIDENCE.median_error_percent, EVIDENCE.p90_error_percent)
    assert of_all(held()) == pytest.approx(stated, abs=0.5)
    assert EVIDENCE.fitted == sum(one.fitted for name in FITTED for one in gpu_profile(name).evidence)


GPU = {
    "vendor": "NVIDIA", "link": "pcie4", "num_sms": 84, "clock_ghz": 1.74, "l1_kb": 128, "memory_gb": 44.5,
    "hbm_gb_s": 696, "l2_mb": 6, "tflops": 149.7, "pcie_gb_s": 31.5,
}  # fmt: skip


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str = "gpu.yaml", **more: object) -> None:
    content = {**GPU, **more}
    Path(name).write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not None}))


def test_a_data_sheet_becomes_a_profile_that_places(capsys: pytest.CaptureFixture[str]) -> None:
    write(l2_gb_s={"value": 1600, "source": "measured: a microbenchmark"}, num_sms={"value": 84, "source": "its box"})
    assert main(["hardware", "add", "--spec", "gpu.yaml"]) == 0
    out = capsys.readouterr().out
    said = " ".join(out.split())
    assert "extrapolated from h100, h200: 90 % of times with sgd or rowwise_adagrad or adagrad or adam within" in said
    assert "saved: gpu_profile.yaml (use it as hardware: simulated:gpu_profile.yaml)" in out
    found = find_hardware("gpu_profile.yaml")
    assert found.constants["l2_gb_s"].source == "measured: a microbenchmark"
    assert found.constants["num_sms"].source == "data sheet: its box"
    assert found.constants["hbm_gb_s"].source == "data sheet: gpu.yaml"
    assert gpu_profile("gpu_profile.yaml") == gpu_profile("gpu.yaml"), "a sheet is a profile too"


def test_a_bad_data_sheet_is_refused_in_one_line_and_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    wrong: dict[str, dict[str, object]] = {
        "gpu.yaml: l1_kb is missing. A data sheet needs vendor, link, num_sms, clock_ghz": {"l1_kb": None},
        "clock_ghz is 1740, not a number from 0.1 to 20": {"clock_ghz": 1740},
        "num_sms is 'many', not a number": {"num_sms": "many"},
        "l2_mb is nan, not a number": {"l2_mb": float("nan")},
        "link 'pcie9' is unknown. `evenshard hardware` lists": {"link": "pcie9"},
        "states no vendor": {"vendor": None},
        "'colour' is unknown": {"colour": 3},
        "constant l2_gb_s is 0.0, not a number from 1e-09": {"l2_gb_s": 0},
    }
    for words, more in wrong.items():
        write(**more)
        assert main(["hardware", "add", "--spec", "gpu.yaml"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("evenshard hardware: gpu.yaml: ") and words in line
        assert [path.name for path in Path().iterdir()] == ["gpu.yaml"]
