"""Interface of sharders, and the registry of learned sharders.

Every round of the loop trains two networks: a cost network on measurements, and a policy on the cost network's
predictions. The config.json of each network names its kind. To add a learned sharder, write a module that
defines ``SHARDER``, and list it in ``LEARNED``.
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

if TYPE_CHECKING:  # torch takes a second to import, and the command line only needs the names
    import torch

    from evenshard.placement.placement import Placement
    from evenshard.placement.task import ShardingTask
    from evenshard.price.costs import MeasuredPlacement
    from evenshard.sharders.checkpoint import Checkpoint, Network, Round
    from evenshard.sharders.training import FitConfig, FittedCostNet, Track


class Sharder(Protocol):
    """Interface of methods that place whole tables."""

    @property
    def name(self) -> str:
        """Return the sharder's name in reports."""

    def place(self, task: ShardingTask) -> Placement:
        """Return a placement within every device's memory.

        Raises:
            InfeasibleTask: if no device has enough memory for a table; the message has the numbers.
        """


class TrainedSharder(Sharder, Protocol):
    """A learned sharder with its trained networks."""

    def sample(self, tasks: Sequence[ShardingTask], generator: torch.Generator) -> list[Placement | None]:
        """Sample one placement per task, for exploration; None if a table fit on no device."""

    def predict_ms(self, task: ShardingTask, placement: Placement) -> float:
        """Return the cost network's prediction for the slowest device of a placement, ms."""


LEARNED = {"dreamshard": "evenshard.sharders.dreamshard.fit", "autoshard": "evenshard.sharders.autoshard.fit"}
DREAMSHARD = "dreamshard"


@dataclass(frozen=True)
class LearnedSharder:
    """Definition of a learned sharder: its settings, networks, training rounds and loading functions."""

    name: str  # name of its sharder, and value of ``train_policy.method``
    cost_net: type[Network]
    policy: type[Network]
    settings: type  # dataclass of its policy's training settings, in section ``train_policy``
    # Selects the training data of the cost network from all measurements that did not run out of memory.
    examples: Callable[[Iterable[MeasuredPlacement]], list[MeasuredPlacement]]
    # Trains the cost network for one round, in place.
    fit_round: Callable[
        [Checkpoint[Any], Sequence[MeasuredPlacement], FitConfig, Round, torch.Generator, Track], FittedCostNet[Any]
    ]
    # Trains the policy for one round, in place; also returns ``objective`` in every update, NaN if unknown.
    train_round: Callable[
        [Checkpoint[Any], Any, Sequence[ShardingTask], Any, Round, torch.Generator, Track],
        tuple[Checkpoint[Any], list[float]],
    ]
    # Builds the sharder from its trained networks, and a number of placements to sample and compare.
    sharder: Callable[[Any, Any, Any, int], TrainedSharder]
    objective: str  # name of the quantity that its training reports, such as predicted_ms

    def settings_of(self, config: Any) -> Any:
        """Return this sharder's settings: fields of ``config``, overridden by ``config.settings``.

        Raises:
            BadConfig: if ``config.settings`` has an unknown key or a value of the wrong type.
        """
        known = {field.name for field in fields(self.settings)}
        values = {name: value for name, value in asdict(config).items() if name in known}
        where = "train_policy.settings"
        return section({where: {**values, **config.settings}}, where, self.settings)


def load_learned_sharder(name: str) -> LearnedSharder:
    """Return the learned sharder of this name.

    Raises:
        BadConfig: if no learned sharder has this name.
    """
    if name not in LEARNED:
        raise BadConfig(f"train_policy.method is {brief(name)}. Choose from {', '.join(LEARNED)}.")
    declared: LearnedSharder = import_module(LEARNED[name]).SHARDER
    return declared


def identify_sharder(policy: Path) -> LearnedSharder:
    """Return the learned sharder of the policy in a folder.

    Raises:
        BadFile: if the folder is missing, incomplete, or has another network.
    """
    from evenshard.sharders.checkpoint import read_kind

    kind = read_kind(policy)
    found = next((one for one in map(load_learned_sharder, LEARNED) if kind == one.policy.kind), None)
    if found is None:
        raise BadFile(policy, f"contains a {brief(kind)}, not the policy of a sharder", "Name another folder.")
    return found


def load_sharder(cost_net: Path, policy: Path, num_rollouts: int = 0) -> TrainedSharder:
    """Load a sharder from the folders of its cost network and its policy.

    Raises:
        BadFile: if a folder is missing, incomplete, or has other content.
    """
    from evenshard.sharders.checkpoint import load_network

    of = identify_sharder(policy)
    net, normalizer = load_network(policy, of.policy)
    return of.sharder(load_network(cost_net, of.cost_net)[0], net, normalizer, num_rollouts)


# Limits of ``roll_out``: placements, and tables times devices times placements, so that they fit in a core's caches.
MOST_PROPOSALS, MOST_CHOICES = 64, 2**21


def roll_out(sharder: TrainedSharder, task: ShardingTask, seed: int, count: int = MOST_PROPOSALS) -> list[Placement]:
    """Sample up to ``count`` placements that fit in memory; fewer for large tasks."""
    import torch

    most = max(1, MOST_CHOICES // (len(task.tables) * task.num_devices))
    sampled = sharder.sample([task] * min(count, most), torch.Generator().manual_seed(seed))
    return [one for one in sampled if one is not None]
