"""Prices of devices by the hour, from a YAML file of the user.

::

    currency: USD
    note: Where these prices come from.
    hardware:
      h100: {per_device_hour: 3.0}
      a100: {per_device_hour: 1.5, per_node_hour: 0.4}
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from evenshard.measure.hardware import HardwareName
from evenshard.utils.errors import BadConfig, BadFile, blame_file
from evenshard.utils.limits import Range
from evenshard.utils.messages import brief
from evenshard.utils.records import record_of
from evenshard.utils.yaml_files import read_yaml

_PRICE = Range(0, 1_000_000)


@dataclass(frozen=True)
class HardwarePrice:
    """What devices of one kind cost.

    Attributes:
        per_device_hour: of one device for an hour.
        per_node_hour: of the host around them for an hour, besides its devices.
    """

    per_device_hour: float
    per_node_hour: float = 0.0

    def per_hour(self, num_devices: int, num_nodes: int) -> float:
        """What a machine costs for an hour."""
        return num_devices * self.per_device_hour + num_nodes * self.per_node_hour

    def problem(self) -> str | None:
        """Says in one clause what makes it impossible, or None."""
        for one in fields(self):
            if problem := _PRICE.problem(getattr(self, one.name)):
                return f"{one.name} {problem}"
        return None


@dataclass(frozen=True)
class Prices:
    """Prices of some kinds of devices.

    Attributes:
        hardware: by the name of the hardware, such as simulated:h100 or short h100.
        currency: of all of them.
        note: what to know of them, in a sentence.
    """

    hardware: dict[str, HardwarePrice]
    currency: str = ""
    note: str = ""

    def price_of(self, hardware: str) -> HardwarePrice | None:
        """The price of some hardware by its full name; None where there is none."""
        return next((price for name, price in self.hardware.items() if str(HardwareName.parse(name)) == hardware), None)


@blame_file
def load_prices(path: str | Path) -> Prices:
    """Reads a file of prices.

    Raises:
        BadFile: if it is missing, is not YAML, or makes no sense.
    """
    remedy = (
        "Its keys are currency, note and hardware; under hardware each kind, such as h100, has per_device_hour and, "
        "where hosts cost extra, per_node_hour."
    )
    try:
        found = record_of(Prices, read_yaml(Path(path), remedy))
    except ValueError as error:
        raise BadFile(path, f"is not a price file ({error})", remedy) from None
    if not found.hardware:
        raise BadFile(path, "hardware is empty", remedy)
    seen: dict[str, str] = {}
    for name, price in found.hardware.items():
        try:
            full = str(HardwareName.parse(name))
        except BadConfig as error:
            raise BadFile(path, f"hardware: {str(error).rstrip('.')}", "Correct the name.") from None
        if full in seen:
            raise BadFile(path, f"hardware: {brief(seen[full])} and {brief(name)} are the same", "Keep one of them.")
        seen[full] = name
        if problem := price.problem():
            raise BadFile(path, f"hardware, {brief(name)}: {problem}", "Correct it.")
    return found
