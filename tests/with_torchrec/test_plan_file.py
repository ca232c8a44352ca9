"""Plans as files, answers as plans, and TorchRec's plans judged by evenshard's model."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from evenshard.base.errors import BadConfig, BadFile, MissingPackage
from evenshard.placement.parts import Storage
from evenshard.placement.sharding import BY_COLUMNS, TABLE_WISE
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rules import Rules
from evenshard.torchrec import load_plan, predicted, save_plan, sharding_plan, shards_of, tables_of
from evenshard.torchrec.plan.file import load_plan_parts
from support.request_builders import untrained
from support.torchrec_builders import META, SPLIT, Model

# Bytes; the widest table fits on neither rank beside those that are pinned there.
CAPS = (5000, 4400)


@cache
def asked(split: bool) -> PlacementRequest:
    pinned = {"user.ebc.id": (0,), "item.id": (0,), "clicks": (1,), "tags": (1,)}
    tables = tables_of(Model(META))
    if split:
        return PlacementRequest(tables, CAPS, 1024, rules=Rules(pinned=pinned), sharding_types=BY_COLUMNS)
    return PlacementRequest(tables, (10**6,) * 4, 2048, sharding_types=(TABLE_WISE,))


@cache
def answer(split: bool) -> PlacementAnswer:
    """Whole tables on 4 ranks, or a split one on 2."""
    return place_request(asked(split), untrained(), PlaceConfig())


# Answers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [False, True])
def test_an_answer_is_a_plan_that_is_predicted_the_same(split: bool) -> None:
    one, model = answer(split), Model(META)
    plan = sharding_plan(one, model)
    assert shards_of(plan, one.request.tables) == one.parts
    assert sharding_plan(one, one.request.tables, model) == plan
    assert sharding_plan(one.parts, one.request.tables, model, one.num_devices) == plan
    assert (len(one.parts) > len(one.request.tables)) is split
    assert sharding_plan(one, model, local_world_size=1, compute_device="cpu") != plan
    found = predicted(plan, one, untrained())
    assert (found.parts, found.devices, found.predicted_ms) == (one.parts, one.devices, one.predicted_ms)
    assert (found.low_ms, found.high_ms) == (one.model_low_ms, one.model_high_ms)


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [False, True])
def test_a_file_becomes_the_plan_of_its_answer(tmp_path: Path, split: bool) -> None:
    one, model = answer(split), Model(META)
    save_plan(one, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json", model) == sharding_plan(one, model)
    save_plan(one, tmp_path / "nodes.json", local_world_size=1, compute_device="cpu")
    ranks: dict[str, Any] = {"local_world_size": 1, "compute_device": "cpu"}
    assert load_plan(str(tmp_path / "nodes.json"), model) == sharding_plan(one, model, **ranks)
    assert load_plan(tmp_path / "plan.json", model, **ranks) == sharding_plan(one, model, **ranks)
    with pytest.raises(BadConfig, match=r"table 'user\.ebc\.id' is not in the model"):
        load_plan(tmp_path / "plan.json", model.user)


def offloaded(training_pipeline: str, *storages: Storage) -> PlacementAnswer:
    """The answer of whole tables, as if it kept the first ones so."""
    one = answer(False)
    kept = dict(zip((table.name for table in one.request.tables), storages, strict=False))
    parts = tuple(replace(part, storage=kept.get(part.table, part.storage)) for part in one.parts)
    return replace(one, parts=parts, request=replace(one.request, training_pipeline=training_pipeline))


ELSEWHERE = (Storage("fused_uvm_caching", 0.05), Storage("fused_uvm"), Storage("key_value", 0.5))


@pytest.mark.parametrize(("training_pipeline", "prefetched"), [("", None), ("sparse_dist", False), ("prefetch", True)])
def test_a_file_says_where_weights_are_kept(tmp_path: Path, training_pipeline: str, prefetched: bool | None) -> None:
    one, model, path = offloaded(training_pipeline, *ELSEWHERE), Model(META), tmp_path / "plan.json"
    save_plan(one, path)
    assert load_plan_parts(path)[0] == one.parts
    plan = load_plan(path, model)
    assert plan == sharding_plan(one, model)
    assert shards_of(plan, one.request.tables) == one.parts
    assert plan.plan["user.ebc"]["id"].cache_params.prefetch_pipeline is prefetched
    content = json.loads(path.read_text())["tables"]
    known = {} if prefetched is None else {"prefetch_pipeline": prefetched}
    assert content["user.ebc.id"]["cache_params"] == {"algorithm": "LRU", "load_factor": 0.05, **known}
    kernels = [*(one.kernel for one in ELSEWHERE), "fused", "fused"]
    assert [content[name]["compute_kernel"] for name in content] == kernels
    assert "cache_params" not in content["clicks"]


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        (None, "types of table 'user.ebc.id' contradict each other"),
        ({"algorithm": "LFU", "load_factor": 0.05}, "algorithm is .LFU., not"),
        ({"algorithm": "LRU", "load_factor": 1.5}, "load_factor is .*, not"),
    ],
)
def test_a_cache_that_makes_no_sense_is_refused(tmp_path: Path, cache: Any, message: str) -> None:
    path = tmp_path / "plan.json"
    save_plan(offloaded("", *ELSEWHERE), path)
    content = json.loads(path.read_text())
    content["tables"]["user.ebc.id"]["cache_params"] = cache
    path.write_text(json.dumps(content))
    with pytest.raises(BadFile, match=message):
        load_plan(path, Model(META))


def test_a_file_says_what_torchrec_says(tmp_path: Path) -> None:
    """The entries are those that TorchRec serializes, by table instead of by module; whole tables are called so."""
    one = answer(True)
    save_plan(one, tmp_path / "plan.json", local_world_size=1)
    content = json.loads((tmp_path / "plan.json").read_text())
    plan = sharding_plan(one, Model(META), local_world_size=1)
    theirs = plan._serialize()["plan"]
    for whole in (theirs["user.ebc"]["id"], theirs["user.ebc"]["clicks"]):
        assert whole["sharding_type"] == "column_wise"  # beside a split one
        whole["sharding_type"] = "table_wise"
    ours = {"user.ebc.id": theirs["user.ebc"].pop("id"), "item.id": theirs["item"].pop("id")}
    assert content["tables"] == json.loads(json.dumps({**ours, **theirs["user.ebc"], **theirs["item"]}))
    assert {shard["placement"] for shard in content["tables"]["wide"]["shards"]} == {"rank:0/cuda:0", "rank:1/cuda:0"}
    assert (content["world_size"], content["local_world_size"], content["compute_device"]) == (2, 1, "cuda")
    assert content["lineage"] == one.lineage


def test_writing_needs_no_torchrec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = answer(False)
    monkeypatch.setitem(sys.modules, "torchrec", None)
    monkeypatch.setitem(sys.modules, "torchrec.distributed.model_parallel", None)
    save_plan(one, tmp_path / "plan.json")
    with pytest.raises(MissingPackage, match="planner needs torchrec"):
        load_plan(tmp_path / "plan.json", Model(META))


def wide(content: dict[str, Any]) -> dict[str, Any]:
    return content["tables"]["wide"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(schema_version=2), "schema_version is 2, not 1"),
        (lambda c: c.update(compute_device="tpu"), "compute_device is 'tpu', not 'cuda' or 'cpu'"),
        (lambda c: c.update(world_size=1), "'user.ebc.id' is on device|'clicks' is on device 1, but the devices are"),
        (lambda c: c.update(local_world_size=1), "types of table '.*' contradict each other"),
        (lambda c: wide(c).update(sharding_type="table_wise"), "types of table 'wide' contradict each other"),
        (lambda c: wide(c)["ranks"].reverse(), "types of table 'wide' contradict each other"),
        (lambda c: wide(c)["shards"][1].update(placement="rank:7/cuda:7"), "table 'wide' contradict each other"),
        (lambda c: wide(c)["shards"][1].update(shard_sizes=[29, 12]), "shards with the rows 0:29; each"),
        (lambda c: wide(c)["shards"][0].update(shard_sizes=[30, 8]), "shards with the columns 0:8, 12:24; each"),
        (lambda c: wide(c)["ranks"].pop(), "table 'wide' has 1 ranks for 2 shards"),
        (lambda c: wide(c).update(ranks=[], shards=[]), "table 'wide' has 0 ranks for 0 shards"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "plan.json"
    save_plan(answer(True), path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(BadFile, match=message) as caught:
        load_plan(path, Model(META))
    assert str(path) in str(caught.value) and "--format torchrec" in str(caught.value)


def test_a_file_that_is_no_plan(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(BadFile, match="is not a TorchRec plan: it is not JSON"):
        load_plan(tmp_path / "plan.json", Model(META))


# Comparisons ----------------------------------------------------------------------------------------------------------


def test_torchrecs_plan_is_judged_by_the_same_model() -> None:
    """Rules and memory left aside: this one breaks both. Without a model, the one of the request's hardware judges."""
    plan = sharding_plan(SPLIT, tables_of(Model(META)), Model(META), 2)
    theirs = predicted(plan, asked(True), untrained())
    assert [part.device for part in theirs.parts] == [0, 0, 1, 0, 1, 1, 0]
    worst = max(device.predicted_total_ms for device in theirs.devices)
    assert theirs.predicted_ms == pytest.approx(worst)
    now = predicted(plan, asked(True))
    assert now.predicted_ms != theirs.predicted_ms and 0 < now.predicted_ms < 10
    with pytest.raises(BadConfig, match="on device 1, but the devices are 0 to 0"):
        predicted(plan, PlacementRequest(asked(True).tables, (10**6,), 1024), untrained())
