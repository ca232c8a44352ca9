"""Catalog of all sharders: one entry each, with name, requirements and constructor.

To add a sharder, write a module and an entry here. Comparisons, the loop's evaluation, ``place --compare`` and the
studies in benchmarks/ select their sharders from this catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evenshard.base.providers import load_provider
from evenshard.price.hardware import AUTO
from evenshard.sharders.learned import LEARNED, Sharder, TrainedSharder
from evenshard.sharders.simple import RandomSharder, expert_sharder, single_cost_sharder

if TYPE_CHECKING:  # torch takes a second to import, and heuristics do not need it
    from evenshard.sharders.cost_model.cost_model import CostModel
    from evenshard.sharders.cost_model.sharder import SearchConfig


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
    def is_heuristic(self) -> bool:
        """Return True for a heuristic, which needs no resources."""
        return not self.needs and not self.package

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
    Entry("random", lambda given: RandomSharder(given.seed)),
    Entry("size_greedy", lambda _: expert_sharder("size_greedy"), "greedy by size"),
    Entry("dim_greedy", lambda _: expert_sharder("dim_greedy"), "greedy by dim"),
    Entry("lookup_greedy", lambda _: expert_sharder("lookup_greedy"), "greedy by lookups"),
    Entry("size_lookup_greedy", lambda _: expert_sharder("size_lookup_greedy"), "greedy by size and lookups"),
    Entry("single_cost_greedy", lambda given: single_cost_sharder(given.single_cost_ms or {}), needs="single_cost_ms"),
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
HEURISTICS = tuple(one.name for one in SHARDERS if one.is_heuristic)


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


def _evenshard(given: Resources) -> Sharder:
    from evenshard.sharders.cost_model.sharder import EvenshardSharder

    assert given.cost_model is not None, "the search needs a cost model"
    return EvenshardSharder(given.cost_model, given.policy, given.search)
