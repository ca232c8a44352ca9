"""The folder of a cost dataset in data/, one for each hardware and collection."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from evenshard.measure.hardware import HardwareName, folder_name, is_simulated
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief

DATA = Path("data")
_HARDWARE, _COLLECTION = "hardware=", "collection="
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True, order=True)
class Partition:
    """A cost dataset's place.

    Attributes:
        hardware: hardware as in the folder's name: "h200", "cpu", "simulated-h200".
        collection: name of the collection, such as "reference".
    """

    hardware: str
    collection: str

    @staticmethod
    def of(hardware: str, collection: str) -> Partition:
        """The partition that a user types: "simulated:h200" and "Simulated-H200" are one.

        Raises:
            BadConfig: a name cannot be a folder's.
        """
        partition = Partition(folder_name(hardware), collection.lower())
        for flag, name in (("--hardware", partition.hardware), ("--collection", partition.collection)):
            if not _NAME.fullmatch(name):
                raise BadConfig(f"{flag} is {brief(name)}. Use letters, digits, dots, dashes and underscores.")
        return partition

    @property
    def folder(self) -> Path:
        """Below the root of the repository."""
        return DATA / f"{_HARDWARE}{self.hardware}" / f"{_COLLECTION}{self.collection}"

    @property
    def is_simulated(self) -> bool:
        """Whether no device has measured it."""
        return is_simulated(self.hardware)

    def require_hardware(self, measured_on: Iterable[str]) -> None:
        """Refuses costs of other hardware, and simulated ones under the name of a device.

        Args:
            measured_on: column ``hardware`` of the costs, such as "cuda: NVIDIA H200" or "simulated: h200".

        Raises:
            BadConfig: they do not fit this partition.
        """
        for hardware in sorted(set(measured_on)):
            name = HardwareName.parse(hardware)
            if not name.may_lie_in(self.hardware):
                fitting = name.folder if name.kind.device else "the device's name"
                raise BadConfig(
                    f"the costs are of {brief(hardware)}, which is not hardware {brief(self.hardware)}. "
                    f"Add them with --hardware {fitting}."
                )

    def __str__(self) -> str:
        return f"{self.hardware}/{self.collection}"
