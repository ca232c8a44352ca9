"""The largest values that a user may give: one range for each named number, and the sizes of files and of text.

The ranges are far beyond any placement of today; within them, every sum of bytes stays below 2**63 and no search runs
for hours because of a typing error. They hold for every way in: files, flags, params.yaml, Python and pipelines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from evenshard.base.messages import brief

MAX_TABLES = 100_000
MAX_TABLE_BYTES = 2**50
# Most bytes of all tables with their optimizer state, and of all devices together: numpy's whole numbers end at 2**63.
MAX_TOTAL_BYTES = 2**62
# Largest file of text: YAML, JSON or CSV.
MAX_TEXT_BYTES = 64 * 2**20
# Most values in a Parquet file of tables.
MAX_VALUES = 4_000_000


@dataclass(frozen=True)
class Range:
    """The values that a number may have.

    Attributes:
        least, most: both are allowed, but for a ``least`` that must be exceeded.
        whole: whether it counts something.
        above: whether it must exceed ``least``.
    """

    least: float
    most: float
    whole: bool = False
    above: bool = False

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value, as a clause such as "is -1, not a whole number from 1 to 4,096"; or None."""
        right_kind = isinstance(value, Integral if self.whole else Real) and not isinstance(value, bool)
        if right_kind and self.least <= value <= self.most and not (self.above and value == self.least):
            return None
        limits = f"{'above' if self.above else 'from'} {self.least:,} {'and at most' if self.above else 'to'}"
        return f"is {brief(value)}, not a {'whole ' * self.whole}number {limits} {self.most:,}"


COUNT, COUNT_OR_NONE = Range(1, 2**31 - 1, whole=True), Range(0, 2**31 - 1, whole=True)
SHARE, POSITIVE, NOT_NEGATIVE = Range(0, 1), Range(0, 1_000_000_000, above=True), Range(0, 1_000_000_000)
# By the name of the number, for every way in.
RANGES: Mapping[str, Range] = {
    "num_devices": Range(1, 4_096, whole=True),
    "nodes": Range(1, 4_096, whole=True),
    "devices_per_node": Range(1, 4_096, whole=True),
    "nodes_per_domain": Range(1, 4_096, whole=True),
    "batch_size": COUNT,
    "batch_per_device": COUNT,
    "dense_batch": COUNT,
    "dense_ms": NOT_NEGATIVE,
    "overlap": SHARE,
    "max_step_ms": POSITIVE,
    "sync_every": COUNT,
    "memory_cap_gb": Range(0, 2**20, above=True),
    "reserved_gb": Range(0, 2**20),
    "dense_gb": Range(0, 2**20),
    "host_memory_gb": Range(0, 2**20),
    "host_bandwidth_gb_s": Range(0, 1_000_000, above=True),
    "ssd_gb": Range(0, 2**20),
    "ssd_bandwidth_gb_s": Range(0, 1_000_000, above=True),
    "seed": COUNT_OR_NONE,
    "num_rows": Range(1, MAX_TABLE_BYTES, whole=True),
    "embedding_dim": Range(1, 2**16, whole=True),
    "pooling_factor": Range(0, 1_000_000),
    "default_pooling_factor": Range(0, 1_000_000),
}


def read_text(path: Path) -> str:
    """The text of a file, line ends as they are.

    Raises:
        OSError: as ``open`` does.
        ValueError: if it is larger than ``MAX_TEXT_BYTES`` or is not UTF-8; one line.
    """
    with path.open("rb") as file:
        content = file.read(MAX_TEXT_BYTES + 1)
    if len(content) > MAX_TEXT_BYTES:
        raise ValueError(f"it has more than {MAX_TEXT_BYTES / 2**20:,.0f} MB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 (byte {error.start + 1:,})") from None
