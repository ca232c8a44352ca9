"""Prices by the hour: read, refused with a line, and added up."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenshard.base.errors import BadFile
from evenshard.planner.what_if.option import HardwarePrice, load_prices


def test_devices_and_hosts_are_paid() -> None:
    assert HardwarePrice(3.0, 2.0).per_hour(16, 2) == 16 * 3.0 + 2 * 2.0


def test_a_short_name_is_the_full_one(tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text("currency: EUR\nhardware: {a100: {per_device_hour: 2}}\n")
    prices = load_prices(tmp_path / "prices.yaml")
    assert prices.price_of("simulated:a100_80gb") == HardwarePrice(2) and prices.currency == "EUR"
    assert prices.price_of("simulated:h100") is None


def test_the_example_says_that_its_prices_are_examples() -> None:
    prices = load_prices(Path(__file__).parents[3] / "examples" / "prices.yaml")
    assert "Examples, not quotes" in prices.note and prices.currency == "USD"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hardware: {}", "hardware is empty"),
        ("currency: USD", "hardware is missing"),
        ("hardware: {h100: 3}", "h100 is 3, not a mapping"),
        ("hardware: {h100: {per_hour: 3}}", "'per_hour' is unknown"),
        ("hardware: {h100: {per_device_hour: -1}}", "per_device_hour is -1"),
        ("hardware: {h100: {per_device_hour: .nan}}", "per_device_hour is nan"),
        ("hardware: {h1000: {per_device_hour: 1}}", "Use one of auto, cpu, cuda"),
        ("hardware: {h100: {per_device_hour: 1}, 'simulated:h100': {per_device_hour: 2}}", "are the same"),
        ("[", "not readable as YAML"),
    ],
)
def test_what_makes_no_sense_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(text)
    with pytest.raises(BadFile, match=said) as raised:
        load_prices(tmp_path / "prices.yaml")
    assert "\n" not in str(raised.value) and "prices.yaml" in str(raised.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no such file"):
        load_prices(tmp_path / "prices.yaml")
    with pytest.raises(BadFile, match="Is a directory"):
        load_prices(tmp_path)
