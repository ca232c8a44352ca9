"""The interface of sharders, and the learned ones: what each learns from, what it saves, and how it is loaded.

Each learned sharder trains two networks in every round of the loop: a cost network on measurements, and a policy
against the cost network. The two folders name their kinds, so that whoever reads them needs no setting. Another learned
sharder is a package that declares its ``SHARDER``, and a line in ``LEARNED``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.messages import brief
from evenshard.base.typed import section

if TYPE_CHECKING:  # torch takes a second to import, and the command line asks for the names alone
    import torch

    from evenshard.placement.placement import Placement
    from evenshard.placement.task import ShardingTask
    from evenshard.price.costs import MeasuredPlacement
    from evenshard.sharders.checkpoint import Checkpoint, Network, Round
    from evenshard.sharders.training import FitConfig, FittedCostNet, Track


class Sharder(Protocol):
    """A way to decide where tables live."""

    @property
    def name(self) -> str:
        """Name in reports."""

    def place(self, task: ShardingTask) -> Placement:
        """A placement within every device's memory.

        Raises:
            InfeasibleTask: if the sharder finds no room for a table; the message has the numbers.
        """


class TrainedSharder(Sharder, Protocol):
    """A learned sharder with its trained networks."""

    def sample(self, tasks: Sequence[ShardingTask], generator: torch.Generator) -> list[Placement | None]:
        """One sampled placement per task, for exploring; None where the policy found no room."""

    def predicted_ms(self, task: ShardingTask, placement: Placement) -> float:
        """Predict the time of the slowest device of a placement by the cost network, ms."""


LEARNED = {
    "dreamshard": "evenshard.sharders.dreamshard.fit",
    "autoshard": "evenshard.sharders.autoshard.fit",
}
DREAMSHARD = "dreamshard"


@dataclass(frozen=True)
class LearnedSharder:
    """A learned sharder."""

    name: str  # of its sharder, and of ``train_policy.method``
    cost_net: type[Network]
    policy: type[Network]
    settings: type  # dataclass of its policy's training, a part of section ``train_policy``
    # Selects the measurements that its cost network learns from, among all that fit their devices.
    examples: Callable[[Iterable[MeasuredPlacement]], list[MeasuredPlacement]]
    # One round of the cost network, which is trained in place.
    fit_round: Callable[
        [Checkpoint[Any], Sequence[MeasuredPlacement], FitConfig, Round, torch.Generator, Track], FittedCostNet[Any]
    ]
    # One round of the policy, which is trained in place; and its success in every update, NaN where it is unknown.
    train_round: Callable[
        [Checkpoint[Any], Any, Sequence[ShardingTask], Any, Round, torch.Generator, Track],
        tuple[Checkpoint[Any], list[float]],
    ]
    # Builds the sharder of the trained networks, which compares so many sampled placements, if it can.
    sharder: Callable[[Any, Any, Any, int], TrainedSharder]
    objective: str  # name of what its training reports, such as predicted_ms

    def settings_of(self, config: Any) -> Any:
        """Its settings: the fields of ``config`` that it has, and those of ``config.settings``, which win.

        Raises:
            BadConfig: if ``config.settings`` has a key that it does not know, or a value of another type.
        """
        known = {field.name for field in fields(self.settings)}
        values = {name: value for name, value in asdict(config).items() if name in known}
        where = "train_policy.settings"
        return section({where: {**values, **config.settings}}, where, self.settings)


def load_learned_sharder(name: str) -> LearnedSharder:
    """The learned sharder of a name.

    Raises:
        BadConfig: if there is none.
    """
    if name not in LEARNED:
        raise BadConfig(f"train_policy.method is {brief(name)}, which is none of {', '.join(LEARNED)}. Correct it.")
    declared: LearnedSharder = import_module(LEARNED[name]).SHARDER
    return declared


def learned_in(policy: Path) -> LearnedSharder:
    """The learned sharder whose policy a folder holds.

    Raises:
        BadFile: if the folder is missing, torn, or holds another network.
    """
    from evenshard.sharders.checkpoint import kind_in

    kind = kind_in(policy)
    found = next((one for one in map(load_learned_sharder, LEARNED) if kind == one.policy.kind), None)
    if found is None:
        raise BadFile(policy, f"holds a {brief(kind)}, not the policy of a sharder", "Name the other folder.")
    return found


def load_sharder(cost_net: Path, policy: Path, num_rollouts: int = 0) -> TrainedSharder:
    """The sharder of a cost network's folder and a policy's.

    Raises:
        BadFile: if a folder is missing, torn, or holds something else.
    """
    from evenshard.sharders.checkpoint import load_network

    of = learned_in(policy)
    net, normalizer = load_network(policy, of.policy)
    return of.sharder(load_network(cost_net, of.cost_net)[0], net, normalizer, num_rollouts)


# Sampled placements that are proposed, and tables times devices of all of them: what fits a core's caches.
MOST_PROPOSALS, MOST_CHOICES = 64, 2**21


def rollouts(sharder: TrainedSharder, task: ShardingTask, seed: int, count: int = MOST_PROPOSALS) -> list[Placement]:
    """Return ``count`` sampled placements, fewer if tables and devices are many, without those out of memory."""
    import torch

    most = max(1, MOST_CHOICES // (len(task.tables) * task.num_devices))
    sampled = sharder.sample([task] * min(count, most), torch.Generator().manual_seed(seed))
    return [one for one in sampled if one is not None]
