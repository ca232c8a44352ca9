"""The sharders that there are: one entry each, with its name, what it needs and how it is built.

A new sharder is its module and an entry here. The rules of thumb that others are compared with, the loop's evaluation,
``place --compare`` and the studies of benchmarks/ all take theirs from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evenshard.base.providers import provided
from evenshard.price.hardware import AUTO
from evenshard.sharders.learned import LEARNED, Sharder, TrainedSharder
from evenshard.sharders.simple import RandomSharder, expert_sharder, single_cost_sharder

if TYPE_CHECKING:  # torch takes a second to import, and rules of thumb need none
    from evenshard.sharders.cost_model.cost_model import CostModel
    from evenshard.sharders.cost_model.sharder import SearchConfig


@dataclass(frozen=True)
class Resources:
    """Parts from which a sharder may be built; None where one is missing."""

    seed: int = 0  # of what is drawn at random
    hardware: str = AUTO  # that is placed for
    link: str = AUTO  # between its devices
    single_cost_ms: Mapping[str, float] | None = None  # what every table of the tasks costs on its own, by name
    policy: TrainedSharder | None = None  # a learned sharder, as trained
    cost_model: CostModel | None = None  # as trained
    search: SearchConfig | None = None  # of a search with the cost model; None for the usual one


@dataclass(frozen=True)
class Entry:
    """A sharder."""

    name: str  # its ``Sharder.name``
    build: Callable[[Resources], Any]
    label: str = ""  # what a reader would call it; "" for its name
    needs: str = ""  # the attribute of ``Resources`` without which it cannot be built; "" if it needs none
    package: str = ""  # that must be installed; "" if it needs none
    is_full_space: bool = False  # it shards tables in every way, and what is built is made for a ``ShardingTask``

    @property
    def is_heuristic(self) -> bool:
        """A rule of thumb: it needs nothing."""
        return not self.needs and not self.package

    @property
    def is_privileged(self) -> bool:
        """It needs measurements of the very tables that it places."""
        return self.needs == "single_cost_ms"

    @property
    def in_loop(self) -> bool:
        """The loop's evaluation asks it: it needs no package. Of the learned sharders it has trained one."""
        return not self.package

    @property
    def is_learned(self) -> bool:
        """It needs trained networks."""
        return self.needs in ("policy", "cost_model")

    def can_use(self, resources: Resources) -> bool:
        """True if the resources that it needs are there; its package does not count."""
        if self.needs == "policy":
            return resources.policy is not None and resources.policy.name == self.name
        return not self.needs or getattr(resources, self.needs) is not None


SHARDERS = (
    Entry("random", lambda given: RandomSharder(given.seed)),
    Entry("size_greedy", lambda _: expert_sharder("size_greedy"), "greedy by size"),
    Entry("dim_greedy", lambda _: expert_sharder("dim_greedy"), "greedy by dim"),
    Entry("lookup_greedy", lambda _: expert_sharder("lookup_greedy"), "greedy by lookups"),
    Entry("size_lookup_greedy", lambda _: expert_sharder("size_lookup_greedy"), "greedy by size and lookups"),
    Entry("single_cost_greedy", lambda given: single_cost_sharder(given.single_cost_ms or {}), needs="single_cost_ms"),
    Entry(
        "torchrec_planner",
        lambda given: provided("torchrec_sharder")(given.hardware, given.link, "storage"),
        "TorchRec's planner",
        package="torchrec",
    ),
    Entry(
        "torchrec_planner_perf",
        lambda given: provided("torchrec_sharder")(given.hardware, given.link, "perf"),
        "TorchRec's planner, costliest first",
        package="torchrec",
    ),
    Entry(
        "torchrec_planner_full",
        lambda given: provided("torchrec_planner")(given.hardware, given.link),
        "TorchRec's planner, every sharding type",
        package="torchrec",
        is_full_space=True,
    ),
    *(Entry(name, lambda given: given.policy, needs="policy") for name in LEARNED),
    Entry("evenshard", lambda given: _evenshard(given), needs="cost_model"),
)
HEURISTICS = tuple(one.name for one in SHARDERS if one.is_heuristic)


def entry(name: str) -> Entry:
    """The sharder of a name."""
    return next(one for one in SHARDERS if one.name == name)


def sharder(name: str, resources: Resources) -> Sharder:
    """The sharder of a name, built.

    Raises:
        BadConfig: if it needs a package that is not installed.
    """
    built: Sharder = entry(name).build(resources)
    return built


def label_of(name: str) -> str:
    """Return the name of a sharder for a reader, also of one that is no longer in the table."""
    known = next((one.label for one in SHARDERS if one.name == name), "")
    return known or name.replace("_", " ")


def _evenshard(given: Resources) -> Sharder:
    from evenshard.sharders.cost_model.sharder import EvenshardSharder

    assert given.cost_model is not None, "the search needs a cost model"
    return EvenshardSharder(given.cost_model, given.policy, given.search)
