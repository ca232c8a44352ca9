"""Units in texts: as many decimals as a number deserves, and the unit that fits it."""

from __future__ import annotations

import pytest

from evenshard.base import units
from evenshard.base.units import BYTES_PER_GB as GB


@pytest.mark.parametrize(
    ("function", "texts"),
    [
        (units.ms_text, {0.0123456: "0.0123", 1.234: "1.23", 12.34: "12.3", 123.4: "123", 1234.5: "1,234"}),
        (units.ms_text, {0.0: "0.00", 1e-9: "0.000000", float("inf"): "out of memory"}),
        (units.pct_text, {0: "0.0 %", 9.94: "9.9 %", 9.95: "10 %", 1234.5: "1,234 %", -20: "-20.0 %"}),
        (units.gb_text, {0: "0.00 GB", 1: "1 byte", GB // 100 - 1: "10.2 MB", GB // 100 + 1: "0.01 GB"}),
        (units.gb_text, {3 * GB // 2: "1.50 GB", 1234 * GB: "1,234.00 GB"}),
        (units.size_text, {0: "0 bytes", 1: "1 byte", 1023: "1023 bytes", 1024: "1.00 KB", GB: "1.00 GB"}),
        (units.size_text, {20 * 2**20: "20.0 MB", 200 * 1024: "200 KB"}),
        (units.missing_text, {1: "1 byte is missing", 2: "2 bytes are missing", 2**20: "1.00 MB is missing"}),
        (units.missing_text, {GB // 4: "0.25 GB is missing", GB // 4 + 1: "0.26 GB is missing"}),
        (units.utc_text, {0: "1970-01-01T00:00:00+00:00", 86_461.9: "1970-01-02T00:01:01+00:00"}),
    ],
)
def test_texts(function: object, texts: dict[float, str]) -> None:
    assert {value: function(value) for value in texts} == texts  # type: ignore[operator]


def test_conversions_and_ranges() -> None:
    assert (units.gb_to_bytes(1.5), units.bytes_to_gb(3 * GB), units.seconds_to_ms(0.25)) == (3 * GB // 2, 3.0, 250.0)
    assert units.gb_to_bytes(0.7 / GB) == 1, "bytes are rounded"
    assert units.range_text([3.0, 1.0, 2.0], units.ms_text) == "1.00 to 3.00"
    assert units.range_text([1.0, 1.0001], units.ms_text) == "1.00"
