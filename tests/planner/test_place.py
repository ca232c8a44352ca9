"""``evenshard place`` and ``evenshard.place``: the same answer, every kind of input and rule, one line for mistakes."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import evenshard
from evenshard.base.errors import BadConfig, BadInput, InfeasibleTask
from evenshard.base.units import BYTES_PER_GB
from evenshard.cli import main
from evenshard.placement.parts import Span, TablePart, whole_part
from evenshard.placement.sharding import TABLE_WISE
from evenshard.planner import place as module
from evenshard.planner.answer import BY_MODEL, Baseline
from evenshard.planner.baselines import FULL_SPACE
from evenshard.planner.file import json_text, load_answer
from evenshard.planner.place import (
    MOST_BYTES,
    MOST_SLOWER,
    RESOLUTION_MS,
    PlaceConfig,
    make_small_tables_whole,
    place_request,
)
from evenshard.planner.pricing import part_costs
from evenshard.planner.request import PlacementRequest
from evenshard.price.costs import DeviceCost, PlacementCost
from evenshard.search.search import PlanSearchEffort
from evenshard.sharders.catalog import HEURISTICS
from evenshard.sharders.model import DeviceModel
from evenshard.tables.files import save_tables
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.table import Table
from support.effort import LITTLE
from support.explain_builders import additive, asked
from support.request_builders import request, untrained

TABLES = (
    Table("clicks", 2_000_000, 64, 30.0),
    Table("user", 5_000_000, 32, 1.0),
    Table("item", 1_000_000, 64, 8.0),
    Table("country", 200, 16, 1.0),
    Table("query", 3_000_000, 16, 3.5),
    Table("title", 800_000, 32, 12.0),
)
GB_TABLE = Table("one", BYTES_PER_GB // 64, 16, 1.0)  # 1 GB in FP32


@pytest.fixture
def table_file(tmp_path: Path) -> Path:
    save_tables(TABLES, tmp_path / "tables.yaml")
    return tmp_path / "tables.yaml"


@pytest.mark.slow
def test_the_command_and_the_function_answer_alike(table_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = table_file.with_name("placement.json")
    assert main(["place", str(table_file), "--devices", "3", "--memory-cap-gb", "4", "-o", str(out)]) == 0
    answer = evenshard.place(str(table_file), 3, 4, compare=HEURISTICS)
    assert out.read_text() == json_text(answer)
    assert load_answer(out) == answer
    assert f"{answer.predicted_ms:.3g} ms" in capsys.readouterr().out
    assert {one.table for one in answer.parts} == {table.name for table in TABLES}
    of_file, of_python = evenshard.place(table_file, 2), evenshard.place(TABLES, 2)
    assert (of_file.parts, of_file.predicted_ms) == (of_python.parts, of_python.predicted_ms)
    assert {one.column for one in of_python.request.assumptions} == {"reuse_bins"}


def test_the_answer_is_better_than_the_rules_of_thumb_and_says_how_good_it_is(table_file: Path) -> None:
    answer = evenshard.place(table_file, 3, num_measured=3, compare=("random", "dim_greedy"), effort="quick")
    for baseline in answer.comparison:
        assert baseline.predicted_ms is not None and baseline.predicted_ms >= answer.predicted_ms
        assert baseline.measured_ms is not None
    assert answer.low_ms < answer.predicted_ms < answer.high_ms
    assert answer.lower_bound_ms <= answer.predicted_ms * 1.001
    assert answer.measured is not None and answer.measured_ms == pytest.approx(answer.predicted_ms, rel=0.1)


def test_of_the_candidates_the_fastest_as_measured_is_the_answer() -> None:
    seen: list[Sequence[TablePart]] = []

    def measure(task: Any, placements: Sequence[Sequence[TablePart]]) -> list[PlacementCost]:
        seen.extend(placements)
        times = [float(len(placements) - at) for at in range(len(placements))]
        return [PlacementCost((DeviceCost(one, 0, 0, 0),) * 2, "modelled") for one in times]

    answer = place_request(request(8, 16, 32, 64), untrained(), PlaceConfig(LITTLE, num_measured=2, measure=measure))
    assert len(seen) == 2 and answer.parts == tuple(seen[1]) and answer.measured_ms == 1.0


def test_every_rule_holds(table_file: Path) -> None:
    out, rules = table_file.with_name("placement.json"), table_file.with_name("rules.yaml")
    rules.write_text("pinned: {country: 2}\nforbidden: {title: [0, 2]}\napart: [[clicks, item]]\n")
    words = ["--rules", str(rules), "--pin", "user=0,1", "--forbid", "user=1", "--forbid-device", "3"]
    words += ["--forbid", "title=3", "--forbid", "user=3", "--pin", "country=2"]
    words += ["--together", "query,title", "--apart", "clicks,title"]
    assert main(["place", str(table_file), "--devices", "4", *words, "-o", str(out)]) == 0
    device = {one["table"]: one["devices"][0] for one in json.loads(out.read_text())["shards"]}
    assert (device["country"], device["user"]) == (2, 0)
    assert device["query"] == device["title"] == 1
    assert device["clicks"] not in (device["item"], device["title"])
    assert 3 not in device.values()


def test_memory_differs_by_device_and_counts_reserve_state_and_precision() -> None:
    weights: dict[str, Any] = {"reserved_gb": 0.0, "training_pipeline": "", "sharding_types": (TABLE_WISE,)}

    def device(**more: Any) -> int:
        tables = [GB_TABLE, Table("two", 1000, 16, 1.0)]
        return evenshard.place(tables, 2, (1.2, 4), effort="quick", **{**weights, **more}).device_of_table[0]

    assert device(pinned={"one": 0}) == 0
    assert device(optimizer="rowwise_adagrad", pinned={"one": 0}) == 0  # 64 MB more
    assert device(optimizer="adagrad") == 1
    assert device(reserved_gb=0.5) == 1
    assert device(reserved_gb=0.5, weight_bits=16, pinned={"one": 0}) == 0


def test_what_is_left_out_keeps_memory_for_what_is_not_counted_and_for_batches_on_the_way() -> None:
    """A table of 1 GB: without 15 %, 1.2 GB are 1.02, which has room for inputs and outputs of a batch."""

    def used(cap_gb: float, **more: Any) -> int:
        return evenshard.place([GB_TABLE], 1, cap_gb, optimizer="sgd", effort="quick", **more).used_bytes[0]

    inputs = 65_536 * (8 + 12)
    assert used(1.2, training_pipeline="") == BYTES_PER_GB
    assert used(1.2) == used(1.2, training_pipeline="none") + inputs > BYTES_PER_GB + 2 * inputs
    assert used(1.2, training_pipeline="prefetch") == used(1.2) + inputs
    assert used(1.17, training_pipeline="", reserved_gb=0.17) == BYTES_PER_GB
    for more in ({}, {"reserved_gb": 0.17, "dense_gb": 0.01}):
        with pytest.raises(InfeasibleTask):
            used(1.17, training_pipeline="", **more)


def test_ctrl_c_takes_the_best_placement_so_far() -> None:
    seen: list[float] = []

    def interrupt(best_ms: float, done: float) -> None:
        seen.append(best_ms)
        signal.raise_signal(signal.SIGINT)

    answer = evenshard.place(TABLES, 4, progress=interrupt)
    assert len(seen) == 1 and answer.predicted_ms == pytest.approx(seen[0])
    assert answer.notes[0].startswith("The search was interrupted. This is the best placement found so far")


# Mistakes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"training_pipeline": "semi_sync"}, "training_pipeline is 'semi_sync'. Choose from none, base, sparse_dist,"),
        ({"dense_gb": -1}, "dense_gb is -1, not a number from 0"),
        ({"compute_kernels": ["fused", "uvm"]}, "compute_kernels contains 'uvm'. Choose from fused, fused_uvm_caching"),
        ({"compute_kernels": ["fused_uvm"]}, "fused_uvm stores weights in host memory, but no host memory"),
        ({"compute_kernels": ["key_value"], "host_memory_gb": 9}, "key_value stores weights on SSDs, but no SSD space"),
        ({"table_kernels": {"a": "fused_uvm"}}, "fused_uvm stores weights in host memory, but no host memory"),
        ({"table_kernels": {"a": []}}, "a rule for table 'a' names no kernel. Choose from fused,"),
        ({"sharding_types": ["row_wise"], "allow_column_split": True}, "allow_column_split is short for"),
        ({"compare": ("nobody",)}, "there is no baseline 'nobody'. Choose from random"),
        ({"hardware": "cpu"}, "there is no cost model for hardware 'cpu'. Train one"),
    ],
)
def test_what_makes_no_sense_is_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        evenshard.place([Table("a", 1000, 16, 1.0)], 2, **arguments)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_devices_without_memory_for_tables_and_dims_that_no_kernel_takes_are_refused() -> None:
    """All memory is reserved, or taken by inputs and outputs."""
    for cap_gb in (1.0, 0.001):
        with pytest.raises(InfeasibleTask, match=r"is missing\."):
            evenshard.place(TABLES[2:4], 2, cap_gb, hardware="h100", reserved_gb=cap_gb)
    tables = [{"name": name, "num_rows": 10, "embedding_dim": dim} for name, dim in (("even", 16), ("odd", 15))]
    with pytest.raises(BadConfig, match="'odd' has embedding_dim 15, but FBGEMM's kernels need a multiple of 4"):
        evenshard.place(tables, 2, 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "TABLES is missing"),
        (["mlperf_dlrm_v3"], "mlperf_dlrm_v2"),
        (["TABLES", "--devices", "two"], "--devices: 'two' is not a whole number."),
        (["TABLES", "--reserved-gb", "inf"], "--reserved-gb is inf, not a number from 0 to 1,048,576."),
        (["TABLES", "--pin", "user="], "--pin"),
        (["TABLES", "--pin", "user=9"], "device 9, but device ids are 0 to 7"),
        (["TABLES", "--pin", "user=0", "--forbid", "user=0"], "user"),
        (["TABLES", "--pin", "user=0", "--pin", "user=1,2"], "pinned twice, to different devices"),
        (["TABLES", "--devices", "2", "--apart", "user,item,query"], "apart"),
    ],
)
def test_mistakes_of_the_command_get_one_line_and_exit_code_2(
    table_file: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    out = table_file.with_name("placement.json")
    command = [str(table_file) if word == "TABLES" else word for word in words]
    try:
        code: Any = main(["place", *command, "-o", str(out)])
    except SystemExit as stopped:  # argparse's own
        code = stopped.code
    error = capsys.readouterr().err.strip()
    assert code == 2 and message in error and len(error.splitlines()) == 1
    assert not out.exists()


# Known placements -----------------------------------------------------------------------------------------------------

MANY = generate_tables(GeneratorConfig(16, (16, 64, 128), 10**6, 32), 65_536, seed=1)
REQUEST = PlacementRequest(tables=MANY, caps_bytes=(2**36,) * 4, batch_size=65_536, hardware="simulated:h200")
MODEL = DeviceModel("simulated:h200")
# Hardly any effort: the search ends where it begins.
NONE = PlaceConfig(PlanSearchEffort(changes=0))


@pytest.fixture(scope="module")
def good() -> Sequence[TablePart]:
    return place_request(REQUEST, MODEL, PlaceConfig(PlanSearchEffort(2000))).parts


def ms(parts: Sequence[TablePart]) -> float:
    return part_costs(REQUEST, MODEL).predict(parts).predicted_ms


def test_the_answer_is_no_worse_than_a_known_placement_or_a_baseline(
    good: Sequence[TablePart], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = place_request(REQUEST, MODEL, NONE)
    assert ms(good) < 0.99 * alone.predicted_ms
    assert place_request(REQUEST, MODEL, replace(NONE, known=[good])).predicted_ms <= ms(good)
    best, none = Baseline(FULL_SPACE, None, chosen=BY_MODEL), Baseline("random", None, note="found none")
    monkeypatch.setattr(module, "place_baselines", lambda *args: [(none, None), (best, good)])
    answer = place_request(REQUEST, MODEL, replace(NONE, compare=("random",)))
    assert answer.predicted_ms <= ms(good) and len(answer.comparison) == 2


def test_known_placements_that_are_not_allowed_are_left_out(good: Sequence[TablePart]) -> None:
    """By types, by memory, and with rows that evenshard does not cut so."""
    by_columns = replace(REQUEST, sharding_types=("column_wise",))
    overfull = [whole_part(table, (0,)) for table in MANY]
    halves = [Span(0, MANY[0].num_rows // 2), Span(MANY[0].num_rows // 2, MANY[0].num_rows)]
    odd = [replace(overfull[0], rows=rows, devices=(at,)) for at, rows in enumerate(halves)] + overfull[1:]
    least = replace(REQUEST, caps_bytes=(sum(table.size_bytes for table in MANY) // 2,) * 4)
    for limited, known in ((by_columns, good), (least, overfull), (REQUEST, odd)):
        alone = place_request(limited, MODEL, NONE)
        assert place_request(limited, MODEL, replace(NONE, known=[known])).parts == alone.parts


# Small tables stay whole where cutting them gains next to nothing -----------------------------------------------------


def made_whole(cut: str, rows: int = 10, works: tuple[float, float] = (5.0, 0.002)) -> tuple[list[TablePart], float]:
    """Parts after the pass over two tables on two devices, one in halves on both; and the time that it adds."""
    asked_for = asked(dict(zip("ab", works, strict=True)), 2, rows=rows)
    costs, halved = part_costs(asked_for, additive()), []
    for device, one in enumerate(asked_for.tables):
        whole = whole_part(one, (device,))
        rows = [Span(0, one.num_rows // 2), Span(one.num_rows // 2, one.num_rows)]
        halves = [replace(whole, rows=own, devices=(at,)) for at, own in enumerate(rows)]
        halved += halves if one.name == cut else [whole]
    found = costs.predict(halved)
    after = make_small_tables_whole(costs, found)
    return list(after.parts), after.predicted_ms - found.predicted_ms


def test_a_small_table_is_whole_where_that_takes_hardly_longer() -> None:
    parts, added = made_whole("b")
    assert [part.table for part in parts] == ["a", "b"] and added <= MOST_SLOWER * 5.0 + RESOLUTION_MS
    assert len(made_whole("b", rows=MOST_BYTES)[0]) == 3, "a large table is left as it is"
    assert len(made_whole("a", works=(5.0, 2.0))[0]) == 3, "halves gain more"


def test_rules_of_the_request_hold_for_small_tables() -> None:
    small = [Table(f"t{at}", 100, 64, 1.0) for at in range(4)]
    free = evenshard.place(small, 2, hardware="h100", batch_size=1024, sharding_types=["table_wise", "row_wise"])
    assert sorted(part.devices for part in free.parts) == [(0,), (0,), (1,), (1,)]
    rows = evenshard.place(small, 2, hardware="h100", batch_size=1024, sharding_types=["row_wise"])
    assert len(rows.parts) == 8
    assert rows.predicted_ms < free.predicted_ms <= rows.predicted_ms + RESOLUTION_MS
