"""Interface of sharders, the registry of learned sharders, and the catalog of all sharders.

Every round of the loop trains two networks: a cost network on measurements, and a policy on the cost network's
predictions. The config.json of each network names its kind. To add a learned sharder, write a module that
defines ``SHARDER``, and list it in ``LEARNED``.

To add any other sharder, write a module and an entry of ``SHARDERS``. Comparisons, the loop's evaluation, ``place
--compare`` and the studies in benchmarks/ select their sharders from this catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.messages import brief
from evenshard.base.providers import load_provider
from evenshard.base.typed import section
from evenshard.price.hardware import AUTO

if TYPE_CHECKING:  # torch takes a second to import, and neither the command line nor heuristics need it
    import torch

    from evenshard.placement.placement import Placement
    from evenshard.placement.task import ShardingTask
    from evenshard.price.costs import MeasuredPlacement
    from evenshard.sharders.checkpoint import Checkpoint, Network, Round
    from evenshard.sharders.cost_model.cost_model import CostModel
    from evenshard.sharders.cost_model.sharder import SearchConfig
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


# The catalog ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resources:
    """Inputs for building sharders, such as trained networks and measured costs; None if not available."""

    seed: int = 0  # seed of random draws
    hardware: str = AUTO  # hardware to place for
    link: str = AUTO  # link between the devices
    single_cost_ms: Mapping[str, float] | None = None  # cost of every table, measured alone, by table name
    policy: TrainedSharder | None = None  # a learned sharder
    cost_model: CostModel | None = None  # a trained cost model
    search: SearchConfig | None = None  # settings of the cost model's search; None for the defaults


@dataclass(frozen=True)
class Entry:
    """Catalog entry of a sharder: its name, requirements and constructor."""

    name: str  # its ``Sharder.name``
    build: Callable[[Resources], Any]
    label: str = ""  # label in reports; "" for its name
    needs: str = ""  # the attribute of ``Resources`` without which it cannot be built; "" if it needs none
    package: str = ""  # package that must be installed; "" if it needs none
    is_full_space: bool = False  # True if it uses all sharding types instead of whole tables

    @property
    def is_privileged(self) -> bool:
        """Return True if the sharder needs measurements of the tables that it places."""
        return self.needs == "single_cost_ms"

    @property
    def in_loop(self) -> bool:
        """Return True if the loop's evaluation includes this sharder, because it needs no extra package."""
        return not self.package

    @property
    def is_learned(self) -> bool:
        """Return True if the sharder needs trained networks."""
        return self.needs in ("policy", "cost_model")

    def can_use(self, resources: Resources) -> bool:
        """Return True if all required resources are available; the package is not checked."""
        if self.needs == "policy":
            return resources.policy is not None and resources.policy.name == self.name
        return not self.needs or getattr(resources, self.needs) is not None


SHARDERS = (
    Entry("random", lambda given: _simple().RandomSharder(given.seed)),
    Entry("size_greedy", lambda _: _simple().expert_sharder("size_greedy"), "greedy by size"),
    Entry("dim_greedy", lambda _: _simple().expert_sharder("dim_greedy"), "greedy by dim"),
    Entry("lookup_greedy", lambda _: _simple().expert_sharder("lookup_greedy"), "greedy by lookups"),
    Entry("size_lookup_greedy", lambda _: _simple().expert_sharder("size_lookup_greedy"), "greedy by size and lookups"),
    Entry(
        "single_cost_greedy",
        lambda given: _simple().single_cost_sharder(given.single_cost_ms or {}),
        needs="single_cost_ms",
    ),
    Entry(
        "torchrec_planner",
        lambda given: load_provider("torchrec_sharder")(given.hardware, given.link, "storage"),
        "TorchRec's planner",
        package="torchrec",
    ),
    Entry(
        "torchrec_planner_perf",
        lambda given: load_provider("torchrec_sharder")(given.hardware, given.link, "perf"),
        "TorchRec's planner, costliest first",
        package="torchrec",
    ),
    Entry(
        "torchrec_planner_full",
        lambda given: load_provider("torchrec_planner")(given.hardware, given.link),
        "TorchRec's planner, every sharding type",
        package="torchrec",
        is_full_space=True,
    ),
    *(Entry(name, lambda given: given.policy, needs="policy") for name in LEARNED),
    Entry("evenshard", lambda given: _evenshard(given), needs="cost_model"),
)
HEURISTICS = tuple(one.name for one in SHARDERS if not one.needs and not one.package)


def entry(name: str) -> Entry:
    """Return the entry of a sharder by name."""
    return next(one for one in SHARDERS if one.name == name)


def sharder(name: str, resources: Resources) -> Sharder:
    """Build the sharder of this name.

    Raises:
        BadConfig: if it needs a package that is not installed.
    """
    built: Sharder = entry(name).build(resources)
    return built


def label_of(name: str) -> str:
    """Return the label of a sharder in reports, also if it is no longer in the catalog."""
    known = next((one.label for one in SHARDERS if one.name == name), "")
    return known or name.replace("_", " ")


def _simple() -> ModuleType:
    from evenshard.sharders import simple  # imports NumPy, which the help of commands does not need

    return simple


def _evenshard(given: Resources) -> Sharder:
    from evenshard.sharders.cost_model.sharder import EvenshardSharder

    assert given.cost_model is not None, "the search needs a cost model"
    return EvenshardSharder(given.cost_model, given.policy, given.search)
