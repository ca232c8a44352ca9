"""Plans in TorchRec's planner rated by evenshard: as it prices the same placements, and better plans for it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from evenshard.base.errors import BadConfig
from evenshard.placement.nodes import Nodes
from evenshard.planner.pricing import part_costs
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.model import DeviceModel
from evenshard.tables.table import Table
from evenshard.torchrec import EvenshardPerfModel, tables_of
from evenshard.torchrec.plan.plans import shards_of
from support.documented import snippet
from support.torchrec_builders import META, config

PAGE = "docs/torchrec_costs.md"
BATCH = 8192
POOLING = {"t0": [40.0], "t1": [3.0, 2.0], "t2": [9.0], "t3": [30.0], "t4": [25.0]}
TYPES = ["table_wise", "row_wise", "data_parallel"]
ROWS = (2_000_000, 500_000, 3_000, 800_000, 20_000)
TABLES = [
    config(name, rows, 64, *(f"{name}_{feature}" for feature in range(len(lookups))))
    for rows, (name, lookups) in zip(ROWS, POOLING.items(), strict=True)
]
MODEL = nn.ModuleDict({"bags": EmbeddingBagCollection(tables=TABLES, device=META)})
SHARDERS = [EmbeddingBagCollectionSharder()]
CONSTRAINTS = {
    name: ParameterConstraints(pooling_factors=lookups, compute_kernels=["fused", "dense"], sharding_types=TYPES)
    for name, lookups in POOLING.items()
}


def topology() -> Topology:
    return Topology(world_size=4, compute_device="cuda", local_world_size=2)


def known_tables() -> tuple[Table, ...]:
    of_features = {f"{name}_{at}": one for name, lookups in POOLING.items() for at, one in enumerate(lookups)}
    return tables_of(MODEL, of_features)


def true_ms(plan: Any, tables: Sequence[Table] | None = None) -> float:
    """Predict the step of the finished plan, which evenshard reads back."""
    tables = tuple(tables or known_tables())
    request = PlacementRequest(
        tables=tables,
        caps_bytes=(10**15,) * 4,
        batch_size=4 * BATCH,
        hardware="simulated:h100",
        optimizer="sgd",
        machine=Nodes(4, 2, inter="infiniband_ndr"),
    )
    return part_costs(request, DeviceModel("simulated:h100")).predict(shards_of(plan, tables)).predicted_ms


@pytest.fixture(scope="module")
def documented() -> dict[str, Any]:
    """What the page's snippet leaves."""
    scope: dict[str, Any] = {
        "EmbeddingShardingPlanner": EmbeddingShardingPlanner,
        "topology": topology(),
        "batch_size": BATCH,
        "constraints": CONSTRAINTS,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of TorchRec's default reservation
        exec(snippet(PAGE, "import EvenshardPerfModel"), scope)
    scope["plan"] = scope["planner"].plan(MODEL, SHARDERS)
    return scope


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of TorchRec's default reservation
def test_a_plan_is_rated_as_evenshard_prices_it(documented: dict[str, Any]) -> None:
    """It is read back from TorchRec's plan; TorchRec's own plan costs more."""
    planner, rates, plan = documented["planner"], documented["rates"], documented["plan"]
    assert rates.rate(planner._best_plan) == pytest.approx(true_ms(plan))
    own = EmbeddingShardingPlanner(topology=topology(), batch_size=BATCH, constraints=CONSTRAINTS)
    assert true_ms(plan) < 0.95 * true_ms(own.plan(MODEL, SHARDERS))


def test_a_step_has_waits_and_hides_what_the_pipeline_hides(documented: dict[str, Any]) -> None:
    options = documented["planner"]._best_plan
    usual, exposed = (
        EvenshardPerfModel(topology(), "simulated:h100", training_pipeline=one) for one in ("sparse_dist", "base")
    )
    assert usual.rate(options) > max(usual.times(options))  # ranks wait for each other
    assert exposed.rate(options) > usual.rate(options)
    with pytest.raises(BadConfig, match="training_pipeline is 'fast'"):
        EvenshardPerfModel(topology(), "simulated:h100", training_pipeline="fast").rate(options)


def test_what_was_counted_in_traffic_counts(documented: dict[str, Any]) -> None:
    """All lookups of t0 are of rows that a batch asks for some 16,000 times."""
    options, plan = documented["planner"]._best_plan, documented["plan"]
    bins = (0.0,) * 14 + (1.0, 0.0, 0.0)
    tables = [replace(one, reuse_bins=bins if one.name == "t0" else None) for one in known_tables()]
    rates = EvenshardPerfModel(topology(), "simulated:h100", tables=[tables[0]])
    assert rates.rate(options) == pytest.approx(true_ms(plan, tables))
    assert rates.times(options) != pytest.approx(documented["rates"].times(options))


def test_rows_on_the_host_cost_more(documented: dict[str, Any]) -> None:
    rates = documented["rates"]
    options = documented["planner"]._enumerator.enumerate(MODEL, SHARDERS)
    whole = {one.name: one for one in options if (one.sharding_type, one.compute_kernel) == ("table_wise", "fused")}
    for one in whole.values():
        one.shards[0].rank = 0
    in_memory = rates.times([*whole.values()])
    whole["t0"].compute_kernel = "fused_uvm"
    assert rates.times([*whole.values()])[0] > 1.5 * in_memory[0]


def test_one_pooling_factor_for_several_features_is_split_evenly(documented: dict[str, Any]) -> None:
    options, found = documented["planner"]._best_plan, []
    (own,) = (one for one in options if one.name == "t1")
    for lengths in ([600.0], [300.0, 300.0], [600.0, 600.0]):
        with patch.object(own, "input_lengths", lengths):
            found.append(documented["rates"].times(options))
    assert found[0] == pytest.approx(found[1]) and found[0] != pytest.approx(found[2])


def test_other_modules_are_refused(documented: dict[str, Any]) -> None:
    options = documented["planner"]._enumerator.enumerate(MODEL, SHARDERS)
    with pytest.raises(BadConfig, match="which has no device model"):
        EvenshardPerfModel(topology(), "cpu")
    options[0]._module = ("bags", nn.Linear(1, 1))
    with pytest.raises(BadConfig, match="'t0' is in a Linear, which evenshard cannot predict"):
        documented["rates"].rate(options[:1])
