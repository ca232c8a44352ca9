"""What others would do: the model prices each, and TorchRec's planner shards tables in every way that is allowed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import whole_part
from evenshard.placement.sharding import BY_COLUMNS, TABLE_WISE
from evenshard.planner.answer import BY_MODEL, BY_RATING, DEFAULT_PLAN, Baseline
from evenshard.planner.baselines import (
    FULL_SPACE,
    MOST_SHARDS,
    RULE,
    TORCHREC,
    place_baselines,
    predict_baselines,
)
from evenshard.planner.intervals import predict_saving
from evenshard.planner.pricing import part_costs, price_parts
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rules import Rules
from evenshard.sharders.model import DeviceModel
from evenshard.torchrec.baseline.topology import DEFAULT_SETTING, SETTINGS, machine_bandwidths
from evenshard.torchrec.plan.plans import shards_of
from support.builders import table
from support.request_builders import ROOM, untrained

pytest.importorskip("torchrec", reason="TorchRec is not installed", exc_type=ImportError)
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from evenshard.torchrec.baseline.sharder import TorchRecPlanner

COSTLY = (table("costly", 100_000, 64, 100.0), *(table(name, 100_000, 64, 1.0) for name in "abc"))


def asked(**more: object) -> PlacementRequest:
    known = {"tables": COSTLY, "caps_bytes": (ROOM,) * 4, "batch_size": 65_536, "hardware": "simulated:h200"}
    return PlacementRequest(**{**known, **more})  # type: ignore[arg-type]


def found(request: PlacementRequest, *names: str) -> tuple[Baseline, ...]:
    costs = part_costs(request, untrained())
    return predict_baselines(place_baselines(request, costs, names), costs)


def test_torchrec_is_asked_for_more_than_whole_tables_only_where_that_is_allowed() -> None:
    names = ("random", *TORCHREC, FULL_SPACE)
    assert [one.sharder for one in found(asked(), *names)] == [*names, FULL_SPACE, FULL_SPACE]
    whole = found(asked(sharding_types=(TABLE_WISE,)), *names)
    assert [one.sharder for one in whole] == ["random", *TORCHREC]


def test_no_user_waits_minutes_for_torchrec() -> None:
    many = tuple(table(f"t{number}", 10, 64) for number in range(MOST_SHARDS // 4 + 1))
    assert found(asked(tables=many), FULL_SPACE) == ()


def test_torchrecs_plan_as_it_comes_its_best_by_rating_and_the_best_by_the_model() -> None:
    request = asked(sharding_types=BY_COLUMNS)
    costs = part_costs(request, untrained())
    answer = costs.predict([whole_part(one, (at,)) for at, one in enumerate(COSTLY)])
    priced, _ = price_parts(request, untrained(), costs, answer)
    saves = partial(predict_saving, request, untrained(), costs, priced)
    plain, rated, best = predict_baselines(place_baselines(request, costs, [FULL_SPACE]), costs, saves=saves)
    assert [one.chosen for one in (plain, rated, best)] == [DEFAULT_PLAN, BY_RATING, BY_MODEL]
    planner = TorchRecPlanner(request.task(), machine_bandwidths(request.hardware, request.nodes, costs.links))
    plans = list(planner.plans(SETTINGS))
    assert plain.setting == str(DEFAULT_SETTING)
    assert plain.predicted_ms == pytest.approx(costs.predict(plans[0].parts).predicted_ms)
    assert best.predicted_ms == pytest.approx(min(costs.predict(plan.parts).predicted_ms for plan in plans))
    of_rated = min(plans, key=lambda plan: planner.rating_ms(plan.parts))
    assert (rated.setting, rated.predicted_ms) == (
        str(of_rated.setting),
        pytest.approx(costs.predict(of_rated.parts).predicted_ms),
    )
    assert best.setting.endswith("; best of 4 settings") and len(plans) == 4
    assert plain.saves is not None and plain.predicted_ms is not None
    assert plain.saves.ms == pytest.approx(plain.predicted_ms - answer.predicted_ms)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:HeuristicalStorageReservation")
def test_torchrecs_plan_without_settings_is_never_better_than_its_answer_here() -> None:
    """Replicas, and bandwidths that it was told, made it up to 80 % slower than it is."""
    shapes, types = ((2**14, 128, 1.0), (2**16, 128, 8.0), (2**17, 64, 1.0)), ("row_wise", "data_parallel")
    tables = tuple(table(f"t{number}", *shape) for number, shape in enumerate(shapes))
    request = asked(tables=tables, caps_bytes=(64 * 2**30,) * 4, sharding_types=types)
    costs = part_costs(request, DeviceModel("simulated:h200"))
    configs = [
        EmbeddingBagConfig(
            name=one.name, feature_names=[one.name], num_embeddings=one.num_rows, embedding_dim=one.embedding_dim
        )
        for one in tables
    ]
    model = torch.nn.ModuleDict({"tables": EmbeddingBagCollection(device=torch.device("meta"), tables=configs)})
    constraints = {one.name: ParameterConstraints(sharding_types=list(types)) for one in tables}
    topology = Topology(world_size=4, local_world_size=4, compute_device="cuda", hbm_cap=80 * 2**30)
    planner = EmbeddingShardingPlanner(topology, batch_size=65_536 // 4, constraints=constraints)
    plan = planner.plan(model, [EmbeddingBagCollectionSharder()])
    without_settings = costs.predict(shards_of(plan, tables)).predicted_ms
    plain, _, best = predict_baselines(place_baselines(request, costs, [FULL_SPACE]), costs)
    assert plain.predicted_ms is not None and best.predicted_ms is not None
    assert best.predicted_ms <= min(plain.predicted_ms, 1.001 * without_settings)


def test_tables_that_stay_together_stay_whole_and_what_breaks_a_rule_is_said() -> None:
    together = asked(rules=Rules(together=(("costly", "a"),)), sharding_types=BY_COLUMNS)
    for one in found(together, FULL_SPACE):
        assert one.predicted_ms is not None
        assert "costly, a are not on the same device" in one.note


@pytest.mark.slow
def test_where_tables_do_not_fit_torchrec_has_caches_too() -> None:
    small = asked(caps_bytes=(20 * 2**20,) * 4, machine=Nodes(4, 4, host_bytes=(2**30,)))
    plain, rated, one = found(small, FULL_SPACE)
    assert plain.predicted_ms is None and plain.note == "TorchRec's planner with its defaults found no plan"
    assert rated.predicted_ms is not None and one.predicted_ms is not None and one.predicted_ms > 0
    assert one.setting.startswith("load factor 0.02, ") and one.note == ""
    assert one.setting.endswith("; best of 8 settings")
    (none,) = found(asked(caps_bytes=(20 * 2**20,) * 4), FULL_SPACE)
    assert none.predicted_ms is None and "in any of 4 settings" in none.note
    in_device_memory = replace(small, compute_kernels=("fused",))
    assert "in any of 4 settings" in found(in_device_memory, FULL_SPACE)[0].note


def test_the_best_rule_of_thumb_may_replicate_and_cut_where_the_request_allows_it() -> None:
    """As the search prices it; its name says the rule. Whole tables alone have other baselines."""
    tables = (table("costly", 2**20, 128, 100.0), *(table(name, 2**8, 64, 8.0) for name in "abc"))
    (one,) = found(asked(tables=tables), RULE)
    assert "1 row-wise" in one.setting.split(", ") and one.predicted_ms is not None
    (whole,) = found(asked(tables=tables), "lookup_greedy")
    assert whole.predicted_ms is not None and one.predicted_ms < 0.9 * whole.predicted_ms
    assert found(asked(sharding_types=(TABLE_WISE,)), RULE) == ()
    (none,) = found(asked(caps_bytes=(20 * 2**20,) * 4), RULE)
    assert none.note == "no heuristic found a placement that fits"
