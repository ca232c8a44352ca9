"""The interface of a sharder: it turns a task into a legal placement."""

from __future__ import annotations

from typing import Protocol

from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask


class Sharder(Protocol):
    """A way to decide where tables live."""

    @property
    def name(self) -> str:
        """How reports call it."""
        ...

    def place(self, task: ShardingTask) -> Placement:
        """A placement within every device's memory.

        Raises:
            InfeasibleTask: if the sharder finds no room for a table; the message has the numbers.
        """
        ...
