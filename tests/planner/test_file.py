"""placement.json: what is written comes back, matches its schema, and torn files are refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evenshard.measure.costs import DeviceCost, PlacementCost
from evenshard.planner.answer import PlacementAnswer, Rival
from evenshard.planner.file import json_schema, json_text, load_answer, save_answer
from evenshard.planner.place import PlaceConfig, place
from evenshard.planner.rules import Rules
from evenshard.utils.errors import BadFile
from support.request_builders import QUICK, ROOM, request, untrained


def answer(**more: Any) -> PlacementAnswer:
    asked = request(8, 16, 64, caps=(2**18, 2**19), rules=Rules({"a": (1,)}, apart=(("a", "b"),)), **more)
    return place(asked, untrained(), PlaceConfig(QUICK, compare=("random", "size_greedy")))


def test_an_answer_comes_back_as_it_was(tmp_path: Path) -> None:
    for one in (answer(), answer(allow_column_split=True, optimizer="rowwise_adagrad")):
        save_answer(one, tmp_path / "placement.json")
        assert load_answer(tmp_path / "placement.json") == one


def test_a_measured_answer_comes_back_as_it_was(tmp_path: Path) -> None:
    def measure(jobs: Any) -> list[PlacementCost]:
        return [PlacementCost((DeviceCost(1, 2, 3, 4.5),) * task.num_devices, "modelled") for task, _ in jobs]

    one = place(request(8, 16), untrained(), PlaceConfig(QUICK, ("random",), num_measured=2), measure)
    assert one.measured is not None and one.measured.max_device_ms == 10.5
    assert one.comparison == (Rival("random", one.comparison[0].predicted_ms, 10.5),)
    save_answer(one, tmp_path / "placement.json")
    assert load_answer(tmp_path / "placement.json") == one


def test_the_contract() -> None:
    one = answer(allow_column_split=True)
    record = json.loads(json_text(one))
    assert record["num_devices"] == 2
    assert {"table", "device", "columns"} <= set(record["shards"][0])
    assert sorted((s["table"], *s["columns"]) for s in record["shards"])[0] == ("a", 0, 8)
    assert record["predicted"]["total_ms"] == pytest.approx(max(d["total_ms"] for d in record["predicted"]["devices"]))
    assert record["predicted"]["total_ms"] == pytest.approx(one.predicted_ms)
    assert record["lower_bound_ms"] <= record["predicted"]["total_ms"]
    assert record["uncertainty_ms"] == pytest.approx((one.high_ms - one.low_ms) / 2)
    assert record["lineage"]["model"]["source"] == "untrained"
    assert sum(d["used_bytes"] for d in record["predicted"]["devices"]) == sum(one.task.table_bytes)


def test_link_and_notes_come_back_and_files_from_before_them_load(tmp_path: Path) -> None:
    one = replace(answer(), link="nvlink_h200", notes=("16 devices are priced.",))
    save_answer(one, tmp_path / "placement.json")
    assert load_answer(tmp_path / "placement.json") == one
    record = json.loads((tmp_path / "placement.json").read_text())
    assert (record.pop("link"), record.pop("notes")) == ("nvlink_h200", ["16 devices are priced."])
    (tmp_path / "placement.json").write_text(json.dumps(record))
    assert load_answer(tmp_path / "placement.json") == replace(one, link="", notes=())


def test_more_devices_than_the_models_link_connects_are_noted() -> None:
    of_h200 = replace(untrained(), trained_on=replace(untrained().trained_on, link="nvlink_h200"))
    for caps, count in (((ROOM,) * 8, 0), ((ROOM,) * 9, 1)):
        one = place(request(*[8] * 9, caps=caps), of_h200, PlaceConfig(QUICK))
        assert (one.link, len(one.notes)) == ("nvlink_h200", count)
    assert one.notes[0].startswith("9 devices are priced as if one node held them all")
    assert place(request(*[8] * 9, caps=(ROOM,) * 9), untrained(), PlaceConfig(QUICK)).notes == ()


def test_the_schema_says_what_the_contract_says() -> None:
    schema = json_schema()
    contract = {"num_devices", "shards", "predicted", "lower_bound_ms", "uncertainty_ms", "lineage"}
    assert contract <= set(schema["required"])
    assert schema["additionalProperties"] is False


def test_the_same_request_gives_the_same_text() -> None:
    assert json_text(answer()) == json_text(answer())


def measured(ms: float) -> dict[str, Any]:
    times = {name: ms for name in DeviceCost.__dataclass_fields__ if name.endswith("_ms")}
    device = {name: ms for name in times if "spread" not in name and "wait" not in name}
    return {"total_ms": 4 * ms, "all_to_all": "modelled", "devices": [{"device": 0, **device, "total_ms": 4 * ms}]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.pop("shards"), "Field required"),
        (lambda r: r.update(extra=1), "Extra inputs"),
        (lambda r: r["shards"].pop(), "columns none"),
        (lambda r: r["shards"][0].update(table="x"), "'x', which is not among the tables"),
        (lambda r: r["shards"][0].update(device=7), "on device 7, but the devices are 0 to 1"),
        (lambda r: r["shards"][0].update(columns=[0, 4]), "hold the columns 0:4"),
        (lambda r: r.update(num_devices=3), "num_devices is 3"),
        (lambda r: r["request"].update(optimizer="lion"), "optimizer is 'lion'"),
        (lambda r: r["predicted"].update(total_ms=math.nan), "'NaN' is not a valid number"),
        (lambda r: r["predicted"]["devices"][0].update(fwd_compute_ms=math.inf), "'Infinity' is not a valid number"),
        (lambda r: r.update(lower_bound_ms=-math.inf), "'-Infinity' is not a valid number"),
        (lambda r: r.update(lower_bound_ms=0.0), "lower_bound_ms"),
        (lambda r: r.update(measured=measured(-1.0)), r"device 0: fwd_compute_ms is -1\.0, not a time"),
        (lambda r: r.update(measured={**measured(1.0), "devices": []}), "at least one device"),
        (lambda r: r.update(lineage=[]), "lineage: .* valid dictionary"),
        (lambda r: r["lineage"].update(model=3), "model: .* valid dictionary"),
        (lambda r: r["lineage"].update(model={"source": 3}), r"model\.source: .* valid string"),
        (lambda r: r["lineage"].update(model={"trained_on": {"costs_sha256": 5}}), "costs_sha256: .* valid tuple"),
        (lambda r: r["lineage"].update(model={"trained_on": {"costs_sha256": [None]}}), "costs_sha256.0: .* string"),
        (lambda r: r["lineage"].update(model={"mlflow": {"name": []}}), r"mlflow\.name: .* valid string"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, change: Any, message: str) -> None:
    record = json.loads(json_text(answer()))
    change(record)
    path = tmp_path / "placement.json"
    path.write_text(json.dumps(record))
    with pytest.raises(BadFile, match=message) as caught:
        load_answer(path)
    assert "\n" not in str(caught.value)


def test_a_missing_or_torn_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no such file"):
        load_answer(tmp_path / "none.json")
    for deep in ("[" * 100_000, '{"lineage":' * 100_000):
        (tmp_path / "deep.json").write_text(deep)
        with pytest.raises(BadFile, match=r"not a placement\.json: it is nested more than 100 levels deep"):
            load_answer(tmp_path / "deep.json")
    (tmp_path / "torn.json").write_text(json_text(answer())[:200])
    with pytest.raises(BadFile, match=r"is not a placement\.json"):
        load_answer(tmp_path / "torn.json")
