"""Units and their formatting: bytes in code, GB = 1024**3 bytes in settings and texts, milliseconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import TypeVar

_Number = TypeVar("_Number", int, float)
BYTES_PER_GB = 1024**3  # as GPU memory is given; bandwidths are in 10**9 bytes per second
# Units of memory in texts and their bytes, the largest first.
UNITS = (("GB", BYTES_PER_GB), ("MB", 2**20), ("KB", 2**10))


def gb_to_bytes(gigabytes: float) -> int:
    """Convert GB (1024**3 bytes) to bytes, rounded to a whole byte."""
    return round(gigabytes * BYTES_PER_GB)


def bytes_to_gb(num_bytes: float) -> float:
    """Convert bytes to GB (1024**3 bytes)."""
    return num_bytes / BYTES_PER_GB


def seconds_to_ms(seconds: float) -> float:
    """Convert seconds to milliseconds."""
    return seconds * 1e3


# Formatting -----------------------------------------------------------------------------------------------------------


def decimals(largest: float) -> int:
    """Return the number of decimals, at most six, that shows three significant digits of the largest number."""
    if not math.isfinite(largest) or largest <= 0:
        return 2
    return min(max(2 - math.floor(math.log10(largest)), 0), 6)  # 1.23 has two decimals, 12.3 has one, 123 has none


def ms_text(time_ms: float) -> str:
    """Format milliseconds with three significant digits and without the unit."""
    return f"{time_ms:,.{decimals(time_ms)}f}" if math.isfinite(time_ms) else "out of memory"


def number_text(number: float) -> str:
    """Format whole numbers in full, and other numbers below 1000 with three digits."""
    return f"{number:,.0f}" if number >= 1000 or number == int(number) else f"{number:.3g}"


def utc_text(seconds: float) -> str:
    """Format seconds since 1970 as UTC, in ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def pct_text(per_cent: float) -> str:
    """Format a percentage, with one decimal below ten."""
    return f"{per_cent:.1f} %" if per_cent < 9.95 else f"{per_cent:,.0f} %"  # 9.95 would round to 10.0


def gb_text(num_bytes: float) -> str:
    """Format bytes as GB with two decimals, or in a smaller unit below 0.01 GB."""
    return f"{bytes_to_gb(num_bytes):,.2f} GB" if not 0 < num_bytes < BYTES_PER_GB / 100 else size_text(num_bytes)


def size_text(num_bytes: float) -> str:
    """Format bytes in the largest unit that gives at least 1; 1 KB = 1024 bytes."""
    for unit, unit_bytes in UNITS:
        if num_bytes >= unit_bytes:
            value = num_bytes / unit_bytes
            return f"{value:,.{min(decimals(value), 2)}f} {unit}"
    return f"{num_bytes:.0f} byte{'' if num_bytes == 1 else 's'}"


def missing_text(num_bytes: int) -> str:
    """Format missing memory, rounded up, such as "0.25 GB is missing"; below 0.01 GB in a smaller unit."""
    if num_bytes < BYTES_PER_GB / 100:
        size = size_text(num_bytes)
        return f"{size} are missing" if size.endswith("bytes") else f"{size} is missing"
    return f"{-(-num_bytes * 100 // BYTES_PER_GB) / 100:.2f} GB is missing"


def range_text(values: Collection[_Number], text: Callable[[_Number], str]) -> str:
    """Format the lowest and the highest value as a range, or as one value if both texts are equal."""
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"
