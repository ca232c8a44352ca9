"""Models: what they have seen, what lies outside of it, and how folders of them come and go."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.outputs import MODEL_PARTS
from evenshard.placement.placement import check_placement
from evenshard.planner.pricing import model_of
from evenshard.price.costs import DeviceCost, MeasuredPlacement, PlacementCost
from evenshard.price.evidence import DeviceError
from evenshard.price.hardware import HardwareName
from evenshard.price.link import LINKS
from evenshard.price.link_model import Link
from evenshard.sharders.cost_model.cost_model import ExchangeTime
from evenshard.sharders.cost_model.sharder import EvenshardSharder
from evenshard.sharders.model import digest_of
from evenshard.sharders.models import PlacementModel, load_model
from evenshard.sharders.training_domain import TrainingDomain
from evenshard.tables.table import Table
from support.builders import BATCH_SIZE, PROVENANCE, cost, cost_net, measured, policy, some_tables, table, task
from support.convex_builders import NORMALIZER, bound_ms, random_model
from support.model_builders import save_model

SMALL, LARGE = (
    table("small", rows=1_000, dim=8, pooling=1.0),
    table("large", rows=100_000, dim=64, pooling=20.0, bits=16),
)
TABLES = (SMALL, table("middle", rows=5_000, dim=16, pooling=3.0), LARGE)


def seen() -> list[MeasuredPlacement]:
    """Batches of 64 and 256; up to three tables on a device, and three devices."""
    full = PlacementCost((DeviceCost.out_of_memory(),), "")
    return [
        measured(task(TABLES, 3), (0, 0, 2), cost(1.0, 0.0, 2.0)),
        measured(task(TABLES[:2], 2, batch_size=256), (1, 1), cost(0.0, 4.0)),
        measured(task([TABLES[2], TABLES[0], TABLES[1]], 1), (0, 0, 0), full),
    ]


TRAINED_ON = TrainingDomain.of(seen())


def outside(tables: Sequence[Table] = TABLES, devices: int = 2, batch_size: int = BATCH_SIZE) -> tuple[str, ...]:
    return TRAINED_ON.outside(task(tables, devices, batch_size=batch_size))


def test_ranges_by_hand(tmp_path: Path) -> None:
    (tmp_path / "costs").write_bytes(b"abc")
    found = TrainingDomain.of(seen(), "1234", [tmp_path / "costs"])
    assert found == TrainingDomain(
        hardware="simulated: adds up",
        link="ethernet_25g",
        versions="none 0",
        num_measured=3,
        batch_size=(64, 256),
        num_rows=(1_000, 100_000),
        embedding_dim=(8, 64),
        pooling_factor=(1.0, 20.0),
        tables_per_placement=(2, 3),
        num_devices=(1, 3),
        tables_per_device=(1, 3),
        dims_per_device=(24, 88),
        weight_bits=(16, 32),
        git_commit="1234",
        costs_sha256=("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",),
        num_rows_quantiles=(1_000,) * 5 + (5_000,) + (100_000,) * 5,
        embedding_dim_quantiles=(8,) * 5 + (16,) + (64,) * 5,
        pooling_factor_quantiles=(1.0,) * 5 + (3.0,) + (20.0,) * 5,
        reuse_quantiles=(1.0,) * 11,
        device_error=DeviceError(),
    )


def test_origin_of_costs_from_several_places() -> None:
    first, *others = seen()
    for errors, expected in (((14.2, 30.0), DeviceError(30.0, 40)), ((14.2, 14.2), DeviceError(14.2, 40))):
        provenances = [replace(PROVENANCE, device_error_percent=percent, device_error_points=40) for percent in errors]
        pair = [replace(one, provenance=of) for one, of in zip((first, others[0]), provenances, strict=True)]
        assert TrainingDomain.of(pair).device_error == expected
    real = replace(first, provenance=replace(PROVENANCE, hardware="cuda: NVIDIA H200", versions="none 1"))
    assert TrainingDomain.of([real]).device_error is None
    assert TrainingDomain.of([real, *others]).versions == "none 0; none 1"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"hardware": 3}, "hardware is 3, not a string"),
        ({"num_rows": [9, 1]}, "the range of num_rows is 9 to 1"),
        ({"num_devices": [-1, 1]}, "the range of num_devices is -1 to 1"),
        ({"weight_bits": [0]}, "weight_bits has 0, not one of"),
        ({"num_rows_quantiles": [1.0]}, "num_rows_quantiles is not 11 finite numbers"),
        ({"device_error": {"percent": -1.0, "points": 40}}, r"device_error\.percent is -1\.0, not a number from 0"),
        ({"optimizer": "lion"}, "optimizer is 'lion', not one of sgd"),
    ],
)
def test_a_file_comes_back_and_a_changed_one_is_refused(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    path = tmp_path / "trained_on.json"
    TRAINED_ON.save(path)
    assert TrainingDomain.load(path) == TRAINED_ON
    path.write_text(json.dumps({**asdict(TRAINED_ON), **change}))
    with pytest.raises(BadFile, match=problem):
        TrainingDomain.load(path)
    without = asdict(TRAINED_ON)
    del without["optimizer"]  # although it has a default
    path.write_text(json.dumps(without))
    with pytest.raises(BadFile, match="missing: optimizer"):
        TrainingDomain.load(path)


def test_nothing_to_say_inside_and_a_little_beyond() -> None:
    assert outside() == ()
    a_little = table("odd", rows=124_000, dim=80, pooling=0.81)
    assert outside([a_little], devices=1) == outside([table("small", rows=801, dim=7)], devices=1) == ()
    assert outside(batch_size=300) == outside(batch_size=52) == ()
    assert outside(TABLES * 2, devices=3) == outside([*TABLES, replace(SMALL, name="idle", pooling_factor=0.0)]) == ()


def odd(**changes: Any) -> dict[str, Any]:
    return {"tables": [*TABLES, replace(SMALL, name="odd", **changes)]}


@pytest.mark.parametrize(
    ("line", "what"),
    {
        "1 table has more rows than the 100,000 ... (largest: odd, 4,000,000)": odd(num_rows=4_000_000),
        "1 table has fewer rows than the 1,000 ... (smallest: odd, 3)": odd(num_rows=3),
        "1 table has a larger dim than the 64 ... (largest: odd, 84)": odd(embedding_dim=84),
        "1 table has a smaller dim than the 8 ... (smallest: odd, 4)": odd(embedding_dim=4),
        "1 table has more lookups than the 20 ... (largest: odd, 99.5)": odd(pooling_factor=99.5),
        "1 table has fewer lookups than the 1 ... (smallest: odd, 0.25)": odd(pooling_factor=0.25),
        "1 table has weights of 8 bits, ... 16 or 32 (first: odd)": odd(weight_bits=8),
        "3 tables have more rows than the 100,000 ... (largest: big3, 3,000,000)": {
            "tables": [*TABLES, *(table(f"big{n}", rows=10**6 * n, dim=8) for n in range(1, 4))],
            "devices": 3,
        },
        "the global batch of 1,024 samples is larger than the 256 ...": {"batch_size": 1024},
        "the global batch of 16 samples is smaller than the 64 ...": {"batch_size": 16},
        "4 devices are more than the 3 ...": {"devices": 4},
        "7 tables per device on average are far more than the 3 ...": {
            "tables": [replace(SMALL, name=f"t{n}") for n in range(7)],
            "devices": 1,
        },
        "192 dims per device on average are far more than the 88 ...": {
            "tables": [replace(LARGE, name=f"t{n}") for n in range(6)]
        },
    }.items(),
)
def test_each_quantity_outside_is_one_line_with_numbers(line: str, what: dict[str, Any]) -> None:
    assert outside(**what) == (line.replace("...", "the model was trained on"),)


def test_what_shards_alone_do_not_tell_is_said() -> None:
    """Others publish one time of a shard alone: neither its parts nor an exchange."""
    total = PlacementCost((DeviceCost.of_total(5.0),), "modelled")
    shard = measured(task(TABLES, 1), (0, 0, 0), total)
    trained_on = TrainingDomain.of([shard])
    sum_only = "only the sum of forward and backward was measured, so the split is assumed"
    alone = "communication was not measured, so it is modelled"
    assert trained_on.outside(task(TABLES, 1)) == (sum_only,)
    assert trained_on.outside(task(TABLES, 2)) == (sum_only, alone)
    assert TrainingDomain.of([shard, *seen()]).outside(task(TABLES, 2)) == ()


def test_factors_beyond_the_ranges_by_hand() -> None:
    """Of a table: the product over its quantities. A batch a little beyond, or up to twice the load, is inside."""
    assert TRAINED_ON.table_factor(table("inside", rows=110_000, dim=8)) == 1
    assert TRAINED_ON.table_factor(table("odd", rows=200_000, dim=4, pooling=80.0, bits=8)) == pytest.approx(32)
    assert TRAINED_ON.table_factor(table("idle", dim=8, rows=1000, pooling=0.0)) == 1
    assert TRAINED_ON.table_factor(table("huge", rows=10**9)) == 1000
    assert TRAINED_ON.load_factor(TABLES, 1, 300) == TRAINED_ON.load_factor(TABLES * 2, 1, 64) == 1
    assert TRAINED_ON.load_factor(TABLES * 6, 2, 512) == pytest.approx(2 * (9 / 3) * (264 / 88))
    assert [TRAINED_ON.exchange_factor(devices) for devices in (1, 3, 6)] == [1, 1, 2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path / "round_3", random_model(), TRAINED_ON, (cost_net(), policy(), NORMALIZER))
    return tmp_path / "round_3"


def test_a_model_comes_back_and_places(folder: Path) -> None:
    model, of_task = load_model(folder), task(some_tables(12), 3)
    assert model.trained_on == TRAINED_ON and model.source == str(folder)
    assert bound_ms(model.cost_model, of_task) == bound_ms(random_model(), of_task)
    check_placement(of_task, EvenshardSharder(model.cost_model, model.policy).place(of_task))
    assert model.policy is not None and model.policy.place(of_task).num_devices == 3


def test_the_policy_may_be_missing_and_is_nothing_without_its_cost_network(folder: Path) -> None:
    shutil.rmtree(folder / "cost_net")
    with pytest.raises(BadFile, match=r"cost_net: config\.json is missing"):
        load_model(folder)
    shutil.rmtree(folder / "policy")
    assert load_model(folder).policy is None  # a round before train-policy
    with pytest.raises(BadFile, match=r"no such folder.*make run"):
        load_model(folder / "round_9")


def test_saving_is_the_same_twice_and_the_digest_sees_every_change(folder: Path, tmp_path: Path) -> None:
    save_model(tmp_path / "again", random_model(), TRAINED_ON, (cost_net(), policy(), NORMALIZER))
    digest, of_weights = digest_of(folder), digest_of(folder, weights_only=True)
    assert load_model(folder).digest == digest == digest_of(tmp_path / "again")
    (folder / "costs.parquet").write_bytes(b"a round leaves more than its model")
    assert digest_of(folder) == digest
    for part in MODEL_PARTS:
        config = folder / part / "config.json"
        whole = config.read_bytes()
        config.write_bytes(whole + b" ")
        assert digest_of(folder) != digest
        config.write_bytes(whole)
    (folder / "cost_model" / "trained_on.json").unlink()
    assert digest_of(folder) != digest and digest_of(folder, weights_only=True) == of_weights
    (folder / "policy" / "config.json").rename(folder / "policy" / "config2.json")
    assert digest_of(folder, weights_only=True) != of_weights


def test_a_folder_is_of_the_hardware_that_it_was_trained_on(folder: Path) -> None:
    for hardware in (None, "auto", "simulated:adds up", "simulated:profiles/adds up.yaml"):
        assert load_model(folder, hardware).source == str(folder)
    for hardware in ("cpu", "cuda", "simulated:h200"):
        with pytest.raises(BadConfig, match=f"trained on simulated: adds up, not on {hardware}"):
            load_model(folder, hardware)
    replace(TRAINED_ON, hardware="cuda: NVIDIA H200").save(folder / "cost_model" / "trained_on.json")
    assert load_model(folder, "cuda").trained_on.hardware == "cuda: NVIDIA H200"
    with pytest.raises(BadConfig):
        load_model(folder, "cpu")


def test_the_link_is_that_of_the_training_or_what_was_fitted() -> None:
    def link_of(name: str, exchange: ExchangeTime) -> Link | None:
        trained_on = replace(TRAINED_ON, link=name)
        return PlacementModel(random_model(exchange=exchange), None, trained_on, "", "").exchange_link()

    fitted = ExchangeTime(0.5, 1e-6, 2e-6)
    assert link_of("ethernet_25g", fitted) == LINKS["ethernet_25g"]
    assert link_of("", ExchangeTime()) is None
    assert link_of("pigeons", fitted) == Link(500.0, "fitted to pigeons", 1.0, 0.5, math.inf)


@pytest.mark.parametrize("hardware", ["simulated:b200", "b200"])
def test_each_profile_is_a_model_of_its_own(hardware: str) -> None:
    found = model_of(None, hardware)
    assert found.trained_on is None and found.source == found.hardware == str(HardwareName.parse(hardware))
    assert model_of(found.source).digest == found.digest
    with pytest.raises(BadConfig, match="is not a model of"):
        found.require_hardware("cuda")
