"""``evenshard place`` and ``evenshard.place``: the same answer, every kind of input and rule, one line for mistakes."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import evenshard
from evenshard.base.errors import BadConfig, BadInput, InfeasibleTask
from evenshard.base.units import BYTES_PER_GB
from evenshard.cli import main
from evenshard.planner.file import json_text, load_answer
from evenshard.tables.files import save_tables
from evenshard.tables.table import Table

TABLES = (
    Table("clicks", 2_000_000, 64, 30.0),
    Table("user", 5_000_000, 32, 1.0),
    Table("item", 1_000_000, 64, 8.0),
    Table("country", 200, 16, 1.0),
    Table("query", 3_000_000, 16, 3.5),
    Table("title", 800_000, 32, 12.0),
)

WHOLE = ("table_wise",)


@pytest.fixture
def table_file(tmp_path: Path) -> Path:
    save_tables(TABLES, tmp_path / "tables.yaml")
    return tmp_path / "tables.yaml"


def shards(path: Path) -> dict[str, list[tuple[int, int, int]]]:
    """Device and columns of each part, by table."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    for one in json.loads(path.read_text())["shards"]:
        found.setdefault(one["table"], []).append((*one["devices"], *one["columns"]))
    return found


@pytest.mark.slow
def test_the_command_and_the_function_answer_alike(table_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = table_file.with_name("placement.json")
    assert main(["place", str(table_file), "--devices", "3", "--memory-cap-gb", "4", "-o", str(out)]) == 0
    from evenshard.sharders.catalog import HEURISTICS

    answer = evenshard.place(str(table_file), 3, 4, compare=HEURISTICS)
    assert out.read_text() == json_text(answer)
    assert load_answer(out) == answer
    assert f"{answer.predicted_ms:.3g} ms" in capsys.readouterr().out
    assert {one.table for one in answer.parts} == {table.name for table in TABLES}


def test_the_answer_is_better_than_the_rules_of_thumb_and_says_how_good_it_is(table_file: Path) -> None:
    answer = evenshard.place(table_file, 3, compare=("random", "dim_greedy"))
    assert all(
        baseline.predicted_ms is not None and baseline.predicted_ms >= answer.predicted_ms
        for baseline in answer.comparison
    )
    assert answer.low_ms < answer.predicted_ms < answer.high_ms
    assert answer.lower_bound_ms <= answer.predicted_ms * 1.001


def test_every_rule_holds(table_file: Path) -> None:
    out = table_file.with_name("placement.json")
    rules = table_file.with_name("rules.yaml")
    rules.write_text("pinned: {country: 2}\nforbidden: {title: [0, 2]}\napart: [[clicks, item]]\n")
    words = ["--rules", str(rules), "--pin", "user=0,1", "--forbid", "user=1", "--forbid-device", "3"]
    words += ["--forbid", "title=3", "--forbid", "user=3", "--pin", "country=2"]
    words += ["--together", "query,title", "--apart", "clicks,title"]
    assert main(["place", str(table_file), "--devices", "4", *words, "-o", str(out)]) == 0
    device = {name: of_table[0][0] for name, of_table in shards(out).items()}
    assert (device["country"], device["user"]) == (2, 0)
    assert device["query"] == device["title"] == 1
    assert device["clicks"] not in (device["item"], device["title"])
    assert 3 not in device.values()


@pytest.mark.slow
def test_memory_differs_by_device_and_counts_reserve_state_and_precision() -> None:
    table = Table("one", BYTES_PER_GB // 64, 16, 1.0)  # 1 GB in FP32
    small = Table("two", 1000, 16, 1.0)

    weights: dict[str, Any] = {"reserved_gb": 0.0, "training_pipeline": "", "sharding_types": WHOLE}

    def device(**more: Any) -> int:
        return evenshard.place([table, small], 2, (1.2, 4), **{**weights, **more}).device_of_table[0]

    with pytest.raises(InfeasibleTask):
        evenshard.place([table, small], 2, (1.2, 1.2), pinned={"one": 0}, optimizer="adam", **weights)
    assert device(pinned={"one": 0}) == 0
    assert device(optimizer="rowwise_adagrad", pinned={"one": 0}) == 0  # 64 MB more
    assert device(optimizer="adagrad") == 1
    assert device(reserved_gb=0.5) == 1
    assert device(reserved_gb=0.5, weight_bits=16, pinned={"one": 0}) == 0


@pytest.mark.slow
def test_what_is_left_out_keeps_memory_for_what_is_not_counted_and_for_batches_on_the_way() -> None:
    """A table of 1 GB: without 15 %, 1.2 GB are 1.02, which has room for inputs and outputs of a batch."""
    table = [Table("one", BYTES_PER_GB // 64, 16, 1.0)]

    def used(cap_gb: float, **more: Any) -> int:
        return evenshard.place(table, 1, cap_gb, optimizer="sgd", **more).used_bytes[0]

    assert used(1.2, training_pipeline="") == BYTES_PER_GB
    inputs = 65_536 * (8 + 12)
    assert used(1.2) == used(1.2, training_pipeline="none") + inputs > BYTES_PER_GB + 2 * inputs
    assert used(1.2, training_pipeline="prefetch") == used(1.2) + inputs
    with pytest.raises(InfeasibleTask):
        used(1.17, training_pipeline="")
    assert used(1.17, training_pipeline="", reserved_gb=0.17) == BYTES_PER_GB
    with pytest.raises(InfeasibleTask):
        used(1.17, training_pipeline="", reserved_gb=0.17, dense_gb=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"training_pipeline": "semi_sync"}, "training_pipeline is 'semi_sync'. Choose from none, base, sparse_dist,"),
        ({"dense_gb": -1}, "dense_gb is -1, not a number from 0"),
        ({"reserved_gb": -0.5}, "reserved_gb is -0.5, not a number from 0"),
        (
            {"compute_kernels": ["fused", "uvm"]},
            "compute_kernels contains 'uvm'. Choose from fused, fused_uvm_caching,",
        ),
        ({"compute_kernels": ["fused_uvm"]}, "fused_uvm stores weights in host memory, but no host memory"),
        ({"compute_kernels": ["key_value"], "host_memory_gb": 9}, "key_value stores weights on SSDs, but no SSD space"),
        ({"table_kernels": {"a": "fused_uvm"}}, "fused_uvm stores weights in host memory, but no host memory"),
        ({"table_kernels": {"a": "uvm"}}, "a rule for table 'a' names 'uvm'. Choose from fused, fused_uvm_caching,"),
        ({"table_kernels": {"a": []}}, "a rule for table 'a' names no kernel. Choose from fused,"),
        ({"table_kernels": {"z": "fused"}}, "a rule names table 'z', which is not among the tables"),
        ({"host_memory_gb": -1}, "host_memory_gb is -1, not a number from 0"),
        ({"host_bandwidth_gb_s": 9}, "host_bandwidth_gb_s is given without host_memory_gb. Give host_memory_gb"),
    ],
)
def test_memory_that_makes_no_sense_is_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        evenshard.place([Table("a", 1000, 16, 1.0)], 2, **arguments)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2, 8])
def test_a_table_too_big_for_a_device_is_split_only_if_that_is_allowed(devices: int) -> None:
    tables = [Table("giant", BYTES_PER_GB // 16, 64, 2.0), *TABLES]  # 16 GB
    with pytest.raises(InfeasibleTask):
        evenshard.place(tables, devices, 8 if devices > 1 else 15, sharding_types=WHOLE)
    if devices > 2:
        answer = evenshard.place(tables, devices, 8, allow_column_split=True)
        assert set(answer.type_of_table.values()) <= {"table_wise", "column_wise"}
        assert evenshard.place(tables, devices, 8, sharding_types=("row_wise",)).type_of_table["giant"] == "row_wise"
        parts = [one for one in answer.parts if one.table == "giant"]
        assert len(parts) > 1 and max(answer.used_bytes) <= 8 * BYTES_PER_GB
        assert sum(part.columns.size for part in parts) == 64
        assert all(part.columns.size % 4 == 0 for part in parts)


def test_candidates_are_measured_where_that_is_asked_for(table_file: Path) -> None:
    answer = evenshard.place(table_file, 2, num_measured=3, compare=("random",))
    assert answer.measured is not None
    assert answer.measured_ms == pytest.approx(answer.predicted_ms, rel=0.1)
    assert answer.comparison[0].measured_ms is not None


def test_a_missing_pooling_factor_is_assumed_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tables.csv"
    path.write_text("name,num_rows,embedding_dim,pooling_factor\na,1000,16,\nb,2000,32,4\n")
    out = tmp_path / "placement.json"
    assert main(["place", str(path), "--devices", "2", "--default-pooling-factor", "2.5", "-o", str(out)]) == 0
    request = json.loads(out.read_text())["request"]
    assert [table["pooling_factor"] for table in request["tables"]] == [2.5, 4.0]
    assert ("a", "pooling_factor") in {(one["table"], one["column"]) for one in request["assumptions"]}
    assert "pooling_factor" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "TABLES is missing"),
        (["nowhere.yaml"], "nowhere.yaml: no such file"),
        (["mlperf_dlrm_v3"], "mlperf_dlrm_v2"),
        (["TABLES", "--devices", "2", "--memory-cap-gb", "1,2,3"], "3 numbers for 2 devices"),
        (["TABLES", "--pin", "nobody=0"], "'nobody', which is not among the tables"),
        (["TABLES", "--pin", "user=9"], "device 9, but device ids are 0 to 7"),
        (["TABLES", "--hardware", "simulated:h900"], "h900"),
        (["TABLES", "--hardware", "cpu"], "--model"),
        (["TABLES", "--model", "nowhere"], "nowhere"),
        (["TABLES", "--memory-cap-gb", "0.1"], "GB"),
        (["TABLES", "--pin", "user=0", "--forbid", "user=0"], "user"),
        (["TABLES", "--devices", "2", "--forbid", "user=0", "--forbid", "user=1"], "user"),
        (["TABLES", "--pin", "user=0", "--pin", "user=1,2"], "pinned twice, to different devices"),
        (["TABLES", "--together", "user,item", "--apart", "user,item"], "together"),
        (["TABLES", "--devices", "2", "--apart", "user,item,query"], "apart"),
        (["TABLES", "--embedding-dim", "16"], "embedding_dim"),
        (["TABLES", "--devices", "16"], "16 devices are more than nvlink_h100 connects (8)"),
        (["TABLES", "--sharding-types", "table_wise,by_hand"], "sharding_types contains 'by_hand'"),
        (["TABLES", "--sharding-types", "row_wise", "--allow-column-split"], "allow_column_split is short for"),
    ],
)
def test_mistakes_and_impossible_requests_get_one_line_and_exit_code_2(
    table_file: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    out = table_file.with_name("placement.json")
    asked = [str(table_file) if word == "TABLES" else word for word in words]
    assert main(["place", *asked, "-o", str(out)]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("flag", "value", "problem"),
    [
        ("--devices", "two", ": 'two' is not a whole number."),
        ("--reserved-gb", "two", ": 'two' is not a number."),
        ("--memory-cap-gb", "1,two", ": 'two' is not a number."),
        ("--reserved-gb", "inf", " is inf, not a number from 0 to 1,048,576."),
        ("--devices", "0", " is 0, not a whole number from 1 to 4,096."),
    ],
)
def test_a_number_of_a_flag_has_its_kind_and_its_range(
    flag: str, value: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["place", "mlperf_dlrm_v2", flag, value])
    assert f"{flag}{problem}" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_takes_the_best_placement_so_far(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[float] = []

    def interrupt(best_ms: float, done: float) -> None:
        seen.append(best_ms)
        signal.raise_signal(signal.SIGINT)

    answer = evenshard.place(TABLES, 4, progress=interrupt)
    assert len(seen) == 1 and answer.predicted_ms == pytest.approx(seen[0])
    assert answer.notes[0].startswith("The search was interrupted. This is the best placement found so far")
    better: list[float] = []
    assert evenshard.place(TABLES, 4, progress=lambda best_ms, done: better.append(best_ms)).notes == ()
    assert better == sorted(better, reverse=True) and len(better) >= 1


def test_dims_that_no_kernel_takes_are_refused() -> None:
    """In FBGEMM's own words, on the CPU; TorchRec passes the dim on as it is."""
    common = pytest.importorskip("fbgemm_gpu.split_table_batched_embeddings_ops_common")
    training = pytest.importorskip("fbgemm_gpu.split_table_batched_embeddings_ops_training")
    where = (common.EmbeddingLocation.HOST, training.ComputeDevice.CPU)
    with pytest.raises(AssertionError, match="embedding_dim must be a multiple of 4, but got 15"):
        training.SplitTableBatchedEmbeddingBagsCodegen([(10, 15, *where)])
    training.SplitTableBatchedEmbeddingBagsCodegen([(10, 16, *where)])
    said = "table 'odd' has embedding_dim 15, but FBGEMM's kernels need a multiple of 4. Use 16"
    tables = [
        {"name": "even", "num_rows": 10, "embedding_dim": 16},
        {"name": "odd", "num_rows": 10, "embedding_dim": 15},
    ]
    with pytest.raises(BadConfig, match=said):
        evenshard.place(tables, 2, 4)
