"""placement.json: what is written comes back, matches its schema, and torn files are refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from evenshard.base.errors import BadFile
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span, Storage, TablePart
from evenshard.placement.sharding import TABLE_WISE, Communication
from evenshard.placement.task import ShardingTask
from evenshard.planner.answer import Baseline, PlacementAnswer
from evenshard.planner.file import json_schema, json_text, load_answer, save_answer
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.planner.rules import Rules
from evenshard.price.costs import DeviceCost, PlacementCost
from evenshard.price.evidence import DeviceError
from support.answer_builders import answer as made
from support.builders import table
from support.effort import LITTLE
from support.request_builders import request, untrained


@cache
def answer() -> PlacementAnswer:
    """Of whole tables."""
    rules = Rules({"a": (1,)}, apart=(("a", "b"),))
    asked = request(8, 16, 64, caps=(2**18, 2**19), rules=rules, sharding_types=(TABLE_WISE,))
    return place_request(asked, untrained(), PlaceConfig(LITTLE, compare=("random", "size_greedy")))


GRID = Nodes(4, 2, inter="infiniband_ndr")
EVERY_WAY = (
    TablePart("a", Span(0, 1000), Span(0, 8), (3,)),
    TablePart("b", Span(0, 1000), Span(0, 16), (0, 1, 2, 3)),
    *(TablePart("c", Span(250 * part, 250 * (part + 1)), Span(0, 64), (part,)) for part in range(4)),
    *(
        TablePart("d", Span(500 * part, 500 * (part + 1)), Span(32 * node, 32 * (node + 1)), (2 * node + part,))
        for node in range(2)
        for part in range(2)
    ),
)


def every_way() -> PlacementAnswer:
    """A whole table, a replica, rows, and a grid on two nodes."""
    asked = {"machine": GRID, "sharding_types": (), "communication": Communication("fp16", "bf16")}
    tables = [table(name, 1000, dim) for name, dim in zip("abcd", (8, 16, 64, 64), strict=True)]
    return made(totals_ms=(4.0, 2.0, 3.0, 1.0), tables=tables, parts=EVERY_WAY, asked=asked)


def test_an_answer_comes_back_as_it_was(tmp_path: Path) -> None:
    noted = replace(answer(), link="nvlink_h200", notes=("16 devices are priced.",), device_error=DeviceError(12.0, 40))
    for one in (answer(), noted, every_way(), offloaded()):
        save_answer(one, tmp_path / "placement.json")
        assert load_answer(tmp_path / "placement.json") == one
        jsonschema.validate(json.loads((tmp_path / "placement.json").read_text()), json_schema())


def test_a_measured_answer_comes_back_as_it_was(tmp_path: Path) -> None:
    def measure(task: ShardingTask, placements: Any) -> list[PlacementCost]:
        cost = DeviceCost(1, 2, 3, 4.5, input_dist_ms=0.25)
        return [PlacementCost((cost,) * task.num_devices, "modelled") for _ in placements]

    config = PlaceConfig(LITTLE, compare=("random",), num_measured=2, measure=measure)
    one = place_request(request(8, 16), untrained(), config)
    assert one.measured is not None and one.measured.max_device_ms == 10.75
    assert one.measured_ms == 10.5 and one.measured_device_ms == (10.5, 10.5)  # indices beside the step before
    assert one.comparison == (Baseline("random", one.comparison[0].predicted_ms, 10.5),)
    save_answer(one, tmp_path / "placement.json")
    assert load_answer(tmp_path / "placement.json") == one


def test_the_contract() -> None:
    one = answer()
    record = json.loads(json_text(one))
    assert (record["num_devices"], record["schema_version"]) == (2, 4)
    assert record["type_of_table"] == dict.fromkeys("abc", "table_wise")
    assert record["predicted"]["total_ms"] == pytest.approx(one.predicted_ms)
    assert record["lower_bound_ms"] == one.lower_bound_ms
    assert record["uncertainty_ms"] == pytest.approx((one.high_ms - one.low_ms) / 2)
    assert record["lineage"]["model"]["source"] == "untrained"
    assert [one["used_bytes"] for one in record["predicted"]["devices"]] == list(one.used_bytes)


def test_every_way_to_shard_is_in_the_file() -> None:
    record = json.loads(json_text(every_way()))
    assert record["type_of_table"] == {"a": "table_wise", "b": "data_parallel", "c": "row_wise", "d": "grid_shard"}
    shards = [(one["table"], one["rows"], one["columns"], one["devices"]) for one in record["shards"]]
    assert shards[:3] == [
        ("a", [0, 1000], [0, 8], [3]),
        ("b", [0, 1000], [0, 16], [0, 1, 2, 3]),
        ("c", [0, 250], [0, 64], [0]),
    ]
    assert shards[-1] == ("d", [500, 1000], [32, 64], [3])
    assert record["request"]["machine"]["inter"] == "infiniband_ndr"
    assert record["request"]["communication"] == {"forward": "fp16", "backward": "bf16"}
    first = record["predicted"]["devices"][0]
    assert first["input_dist_ms"] == 0.25 and first["num_shards"] == 3
    assert (first.pop("hidden_ms"), first.pop("wait_ms")) == (0.0, 0.0)
    times = [first[name] for name in first if name.endswith("_ms") and name != "total_ms"]
    assert len(times) == 5 and sum(times) == first["total_ms"] == 4.0


def offloaded() -> PlacementAnswer:
    """Table a in device memory, b behind a cache, c in host memory; all that there is to count."""
    kept = (Storage(), Storage("fused_uvm_caching", 0.25), Storage("fused_uvm"))
    parts = tuple(
        TablePart(name, Span(0, 2**20), Span(0, 64), (0,), storage) for name, storage in zip("abc", kept, strict=True)
    )
    asked = {
        "machine": Nodes(2, 2, host_bytes=(2**40,), host_gb_s=200.0),
        "training_pipeline": "prefetch",
        "reserved_share": 0.15,
        "dense_bytes": 1000,
        "compute_kernels": ("fused", "fused_uvm", "fused_uvm_caching"),
        "table_optimizers": {"a": "adagrad"},
        "dense_optimizer": "sgd",
    }
    return made(parts=parts, asked=asked)


def test_storage_and_memory_are_in_the_file() -> None:
    one = offloaded()
    record = json.loads(json_text(one))
    assert [shard.get("storage") for shard in record["shards"]] == [
        None,
        {"kernel": "fused_uvm_caching", "load_factor": 0.25},
        {"kernel": "fused_uvm", "load_factor": 1.0},
    ]
    assert ["offload_ms" in shard for shard in record["shards"]] == [False, True, True]
    assert [shard["offload_ms"] for shard in record["shards"][1:]] == [one.offload_ms for one in one.offloaded]
    first, second = record["memory"]["devices"]
    assert (first["device"], first["weights"], first["cache_rows"]) == (0, 2**28, 2**26)
    assert (second["weights"], second["received"], second["dense_model"]) == (0, 3 * 32 * 64 * 4, 1000)
    assert record["memory"]["hosts"] == [
        {"node": 0, "weights": 2**29, "optimizer_state": 0, "room": 2**40, "ssd": 0, "ssd_room": 0}
    ]
    assert record["memory"]["warnings"] == []
    assert json.loads(json_text(every_way()))["memory"]["hosts"] == []


@cache
def written() -> str:
    """The file of an answer."""
    return json_text(answer())


def measured(ms: float) -> dict[str, Any]:
    times = {name: ms for name in DeviceCost.__dataclass_fields__ if name.endswith("_ms")}
    device = {name: ms for name in times if not any(word in name for word in ("spread", "wait", "fwd_bwd", "input"))}
    devices = [{"device": 0, **device, "total_ms": 4 * ms}]
    return {"times": "measured", "total_ms": 4 * ms, "all_to_all": "modelled", "devices": devices}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.pop("shards"), r"json: shards is missing\. Write it"),
        (lambda r: r.update(schema_version=3), "schema_version is 3, but this evenshard reads 4. Place again"),
        (lambda r: r.update(world_size=2), "is a TorchRec plan or a reshard delta, which has no times. Give the"),
        (
            lambda r: r["shards"][0].update(rows=[0, 999]),
            r"'a' has shards with the rows '?0:999'?; each of its 1000 rows",
        ),
        (lambda r: r["shards"][0].update(devices=[0, 1]), "says 'table_wise' for 'a', .* data_parallel"),
        (lambda r: r["request"].update(machine={"num_devices": 4, "devices_per_node": 4}), "the machine has 4 devices"),
        (lambda r: r.update(num_devices=3), "num_devices is 3"),
        (lambda r: r["predicted"].update(total_ms=math.nan), "'NaN' is not a valid number"),
        (lambda r: r.update(lower_bound_ms=0.0), "lower_bound_ms"),
        (lambda r: r.update(measured=measured(-1.0)), r"device 0: fwd_compute_ms is -1\.0, not a time"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, change: Any, message: str) -> None:
    record = json.loads(written())
    change(record)
    path = tmp_path / "placement.json"
    path.write_text(json.dumps(record))
    with pytest.raises(BadFile, match=message) as caught:
        load_answer(path)
    assert "\n" not in str(caught.value)


def test_a_missing_or_torn_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no such file"):
        load_answer(tmp_path / "none.json")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(BadFile, match=r"not a placement\.json: it is nested too deep"):
        load_answer(tmp_path / "deep.json")
    (tmp_path / "torn.json").write_text(json_text(answer())[:200])
    with pytest.raises(BadFile, match=r"is not a placement\.json"):
        load_answer(tmp_path / "torn.json")
