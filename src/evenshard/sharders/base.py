"""The interface of a sharder, which turns a task into a legal placement, and of one that has learned to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask

if TYPE_CHECKING:  # torch takes a second to import, and rules of thumb need none
    import torch


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


class TrainedSharder(Sharder, Protocol):
    """A learned sharder with its trained networks."""

    def sample(self, tasks: Sequence[ShardingTask], generator: torch.Generator) -> list[Placement | None]:
        """One sampled placement per task, for exploring; None where the policy found no room."""
        ...

    def sample_one(self, task: ShardingTask, count: int, generator: torch.Generator) -> list[Placement | None]:
        """Sampled placements of one task; None where the policy found no room."""
        ...

    def predicted_ms(self, task: ShardingTask, placement: Placement) -> float:
        """What the cost network predicts for the slowest device of any placement, ms."""
        ...
