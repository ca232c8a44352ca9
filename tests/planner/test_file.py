"""placement.json: what is written comes back, matches its schema, and torn files are refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from evenshard.measure.costs import DeviceCost, PlacementCost
from evenshard.measure.evidence import DeviceError
from evenshard.planner.answer import PlacementAnswer, Rival
from evenshard.planner.file import json_schema, json_text, load_answer, save_answer
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.planner.rules import Rules
from evenshard.tables.assumptions import assumed_reuse_bins
from evenshard.utils.errors import BadFile
from support.request_builders import QUICK, ROOM, request, untrained


def answer(**more: Any) -> PlacementAnswer:
    asked = request(8, 16, 64, caps=(2**18, 2**19), rules=Rules({"a": (1,)}, apart=(("a", "b"),)), **more)
    return place_request(asked, untrained(), PlaceConfig(QUICK, compare=("random", "size_greedy")))


def test_an_answer_comes_back_as_it_was(tmp_path: Path) -> None:
    for one in (answer(), answer(allow_column_split=True, optimizer="rowwise_adagrad")):
        save_answer(one, tmp_path / "placement.json")
        assert load_answer(tmp_path / "placement.json") == one


def test_a_measured_answer_comes_back_as_it_was(tmp_path: Path) -> None:
    def measure(jobs: Any) -> list[PlacementCost]:
        return [PlacementCost((DeviceCost(1, 2, 3, 4.5),) * task.num_devices, "modelled") for task, _ in jobs]

    one = place_request(request(8, 16), untrained(), PlaceConfig(QUICK, ("random",), num_measured=2), measure)
    assert one.measured is not None and one.measured.max_device_ms == 10.5
    assert one.comparison == (Rival("random", one.comparison[0].predicted_ms, 10.5),)
    save_answer(one, tmp_path / "placement.json")
    assert load_answer(tmp_path / "placement.json") == one


def test_the_contract() -> None:
    one = answer(allow_column_split=True)
    record = json.loads(json_text(one))
    assert record["num_devices"] == 2
    assert record["schema_version"] == 2
    first = {name: record["shards"][0][name] for name in ("table", "rows", "columns", "devices")}
    assert first == {"table": "a", "rows": [0, 1000], "columns": [0, 8], "devices": [1]}
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


OLD = Path(__file__).parent / "data" / "placement_v1.json"


def test_a_file_of_version_1_is_the_answer_that_it_was(tmp_path: Path) -> None:
    """It said the one device of each part, which had all rows."""
    old = load_answer(OLD)
    assert [(one.table, *one.rows, *one.columns, *one.devices) for one in old.parts] == [
        ("a", 0, 1000, 0, 8, 1),
        ("b", 0, 1000, 0, 16, 0),
        ("c", 0, 1000, 0, 32, 0),
        ("c", 0, 1000, 32, 64, 1),
    ]
    assert old.alone_ms[2:] == (1.9499213695526123, 1.9499213695526123)
    assert old.request.rules == Rules({"a": (1,)}, apart=(("a", "b"),))
    assert old.request.assumptions == (assumed_reuse_bins("a"),)
    assert old.measured == PlacementCost((DeviceCost(1, 2, 3, 4.5),) * 2, "modelled")
    record, written = json.loads(OLD.read_text()), json.loads(json_text(old))
    changed = {name for name in written if written[name] != record.get(name)}
    ours = {"measured", "predicted", "uncertainty_ms", "device_error"}
    assert changed == {"schema_version", "shards"} | ours, "which say now that nothing confirms the simulated device"
    save_answer(old, tmp_path / "placement.json")
    assert load_answer(tmp_path / "placement.json") == old


def test_files_from_before_device_errors_were_kept_have_the_models_interval(tmp_path: Path) -> None:
    path = tmp_path / "placement.json"
    for hardware, error in (("simulated:h200", DeviceError()), ("cuda", None)):
        one = answer(hardware=hardware)
        record = json.loads(json_text(one))
        del record["device_error"], record["predicted"]["model_low_ms"], record["predicted"]["model_high_ms"]
        record["predicted"].update(low_ms=one.model_low_ms, high_ms=one.model_high_ms)
        path.write_text(json.dumps(record))
        assert load_answer(path) == replace(one, device_error=error)


def test_a_part_of_version_1_has_all_rows_of_its_table(tmp_path: Path) -> None:
    record = json.loads(OLD.read_text())
    record["request"]["tables"][2]["num_rows"] = 70
    (tmp_path / "placement.json").write_text(json.dumps(record))
    assert [part.rows for part in load_answer(tmp_path / "placement.json").parts] == [
        (0, 1000),
        (0, 1000),
        *[(0, 70)] * 2,
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["shards"][0].update(device=7), "on device 7, but the devices are 0 to 1"),
        (lambda r: r["shards"][0].update(table="x"), "'x', which is not among the tables"),
        (lambda r: r["shards"][0].update(rows=[0, 1000]), r"shards\.0\.rows: .*: the field is unknown"),
        (lambda r: r["shards"][0].pop("device"), r"shards\.0\.device: .*: the field is missing"),
    ],
)
def test_a_damaged_file_of_version_1_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    record = json.loads(OLD.read_text())
    change(record)
    (tmp_path / "placement.json").write_text(json.dumps(record))
    with pytest.raises(BadFile, match=message):
        load_answer(tmp_path / "placement.json")


def test_more_devices_than_the_models_link_connects_are_noted() -> None:
    of_h200 = replace(untrained(), trained_on=replace(untrained().trained_on, link="nvlink_h200"))
    for caps, count in (((ROOM,) * 8, 0), ((ROOM,) * 9, 1)):
        one = place_request(request(*[8] * 9, caps=caps), of_h200, PlaceConfig(QUICK))
        assert (one.link, len(one.notes)) == ("nvlink_h200", count)
    assert one.notes[0].startswith("9 devices are priced as if one node held them all")
    assert place_request(request(*[8] * 9, caps=(ROOM,) * 9), untrained(), PlaceConfig(QUICK)).notes == ()


def test_the_schema_says_what_the_contract_says() -> None:
    schema = json_schema()
    contract = {"num_devices", "shards", "predicted", "lower_bound_ms", "uncertainty_ms", "lineage"}
    assert contract <= set(schema["required"])
    assert schema["additionalProperties"] is False
    jsonschema.validate(json.loads(json_text(answer(allow_column_split=True))), schema)


def test_the_same_request_gives_the_same_text() -> None:
    assert json_text(answer()) == json_text(answer())


def rename(record: dict[str, Any], old: str, new: str) -> None:
    for one in (*record["request"]["tables"], *record["shards"]):
        for key in ("name", "table"):
            if one.get(key) == old:
                one[key] = new
    record["request"]["rules"]["apart"] = []


def cut_in_two(shards: list[dict[str, Any]]) -> None:
    """The first shard, of eight columns."""
    shards[0]["columns"] = [0, 4]
    shards.append({**shards[0], "columns": [4, 8]})


def measured(ms: float) -> dict[str, Any]:
    times = {name: ms for name in DeviceCost.__dataclass_fields__ if name.endswith("_ms")}
    device = {name: ms for name in times if not any(word in name for word in ("spread", "wait", "fwd_bwd"))}
    return {"total_ms": 4 * ms, "all_to_all": "modelled", "devices": [{"device": 0, **device, "total_ms": 4 * ms}]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.pop("shards"), r"shards: is not a placement\.json: the field is missing\. Write it"),
        (lambda r: r.update(extra=1), "extra: .*: the field is unknown"),
        (lambda r: r["shards"][0].update(device=1), r"shards\.0\.device: .*: the field is unknown"),
        (lambda r: r["shards"][0].pop("alone_ms"), r"shards\.0\.alone_ms: .*: the field is missing"),
        (lambda r: r["request"].pop("tables"), r"request\.tables: .*: the field is missing"),
        (lambda r: r["request"]["rules"].update(extra=1), r"request\.rules\.extra: .*: the field is unknown"),
        (lambda r: r["request"]["tables"][0].update(num_rows=0.5), r"request\.tables\.0\.num_rows: .* valid integer"),
        (lambda r: r["request"]["tables"][0].update(num_rows=0), "table 'a': num_rows is 0"),
        (lambda r: r.update(schema_version=0), "schema_version: .* should be 2"),
        (lambda r: r.update(schema_version=3), "schema_version is 3, but this evenshard reads 2 and earlier.* Update"),
        (lambda r: r["shards"][0].update(rows=[0, 999]), "hold the rows 0:999; each of its 1000 rows"),
        (lambda r: r["shards"][0].update(rows=[0]), r"shards\.0\.rows"),
        (lambda r: r["shards"][0].update(devices=[0, 1]), r"'a' is on the devices \(0, 1\). Place each part on one"),
        (lambda r: r["shards"].pop(), "columns none"),
        (lambda r: r["shards"][0].update(table="x"), "'x', which is not among the tables"),
        (lambda r: r["shards"][0].update(devices=[7]), "on device 7, but the devices are 0 to 1"),
        (lambda r: r["shards"][0].update(columns=[0, 4]), "hold the columns 0:4"),
        (lambda r: r.update(num_devices=3), "num_devices is 3"),
        (lambda r: (rename(r, "b", "a[0:4]"), cut_in_two(r["shards"])), r"a table is called 'a\[0:4\]', as a part"),
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
