"""The units of the project, and how people read them: bytes inside, GB = 1024**3 bytes in configuration, ms."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import TypeVar

_Number = TypeVar("_Number", int, float)
BYTES_PER_GB = 1024**3
# Units of memory that people read, the largest first, and their bytes.
UNITS = (("GB", BYTES_PER_GB), ("MB", 2**20), ("KB", 2**10))


def gb_to_bytes(gigabytes: float) -> int:
    """Bytes in ``gigabytes`` GB (1 GB = 1024**3 bytes), rounded to a whole byte."""
    return round(gigabytes * BYTES_PER_GB)


def bytes_to_gb(num_bytes: float) -> float:
    """GB (1024**3 bytes) in ``num_bytes``."""
    return num_bytes / BYTES_PER_GB


def seconds_to_ms(seconds: float) -> float:
    """Milliseconds in ``seconds``."""
    return seconds * 1e3


# For people -----------------------------------------------------------------------------------------------------------


def decimals(largest: float) -> int:
    """Decimals that leave three digits or more of the largest of some numbers."""
    if not math.isfinite(largest) or largest <= 0:
        return 2
    return min(max(2 - math.floor(math.log10(largest)), 0), 6)


def ms_text(time_ms: float) -> str:
    """Three digits, without the unit."""
    return f"{time_ms:,.{decimals(time_ms)}f}" if math.isfinite(time_ms) else "out of memory"


def utc_text(seconds: float) -> str:
    """Return a time in seconds since 1970 as UTC, in ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def pct_text(per_cent: float) -> str:
    """One decimal below ten."""
    return f"{per_cent:.1f} %" if per_cent < 9.95 else f"{per_cent:,.0f} %"


def gb_text(num_bytes: float) -> str:
    """GB with two digits; in a smaller unit where these would show little of it."""
    return f"{bytes_to_gb(num_bytes):,.2f} GB" if not 0 < num_bytes < BYTES_PER_GB / 100 else size_text(num_bytes)


def size_text(num_bytes: float) -> str:
    """Bytes with the unit that suits them; 1 KB = 1024 bytes."""
    for unit, of_unit in UNITS:
        if num_bytes >= of_unit:
            value = num_bytes / of_unit
            return f"{value:,.{min(decimals(value), 2)}f} {unit}"
    return f"{num_bytes:.0f} byte{'' if num_bytes == 1 else 's'}"


def missing_text(num_bytes: int) -> str:
    """Return the missing memory in words, rounded up to be enough; below 0.01 GB in a smaller unit."""
    if num_bytes < BYTES_PER_GB / 100:
        size = size_text(num_bytes)
        return f"{size} are missing" if size.endswith("bytes") else f"{size} is missing"
    return f"{-(-num_bytes * 100 // BYTES_PER_GB) / 100:.2f} GB is missing"


def range_text(values: Collection[_Number], text: Callable[[_Number], str]) -> str:
    """Return the lowest and the highest of some values in words, or one where both read alike."""
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"
