"""Shards that others measured, as a cost dataset: what comes in, what is refused, and that a training takes it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.provenance import Lineage
from evenshard.base.typed import section
from evenshard.cli import main
from evenshard.loop import benchmark, generate_tables, loop
from evenshard.loop.commands import ImportCostsConfig
from evenshard.loop.import_costs import merge_parts, read_shards
from evenshard.measure.config import MeasureConfig
from evenshard.measure.cost_dataset import load_costs
from evenshard.measure.cost_rows import read_lineage, read_rows, save_rows
from evenshard.planner.file import load_answer
from evenshard.price.costs import CONTROL, RANDOM_SHARD, DeviceCost
from evenshard.tables.files import load_tables
from evenshard.tables.table import Table
from evenshard.tracking import StageRun
from support.documented import command, snippet
from support.kubeflow_builders import SMALL_PARAMS

GPU = ImportCostsConfig("cuda: RTX 2080 Ti", batch_size=64)
STATISTICS = "num_rows,pooling_factor," + ",".join(f"bin_{number}" for number in range(17))
ONCE, NONE = "1.0" + ",0" * 16, "0.0" + ",0" * 16
SHARDS = "tables,dims,fwd_bwd_ms\n1,8,2.5\n0 2 0,8 4 16,4\n0 0,8 8,3e0\n"
IMPORT = ["import-costs", "s.csv", "--tables", "t.csv", "--batch-size", "64", "--hardware", "cuda: RTX 2080 Ti"]
OUT = ["--out", "costs.parquet", "--tables-out", "tables.parquet"]


@pytest.fixture(autouse=True)
def no_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening MLflow's database takes seconds."""
    monkeypatch.setattr("evenshard.tracking.runs._open", lambda *args: StageRun())


@pytest.fixture
def files(workdir: Path) -> Path:
    """Three tables without names and dims, the last one without lookups; three shards of them."""
    lines = [STATISTICS, f"100,2.5,{ONCE}", f"2000,0.5,{ONCE}", f"100,0.0,{NONE}"]
    (workdir / "t.csv").write_text("\n".join(lines) + "\n")
    (workdir / "s.csv").write_text(SHARDS)
    return workdir


def refused(shards: str, config: ImportCostsConfig = GPU) -> str:
    Path("s.csv").write_text(shards)
    with pytest.raises(BadFile) as caught:
        read_shards(Path("s.csv"), Path("t.csv"), config)
    return str(caught.value)


def test_shards_come_in_with_their_tables_dims_and_sums(files: Path) -> None:
    assert main([*IMPORT, *OUT]) == 0
    pool = load_tables("tables.parquet")
    first, second, third = load_costs(Path("costs.parquet"), pool)
    once = (1.0,) + (0.0,) * 16
    assert first.task.tables == (Table("1-dim-8", 2000, 8, 0.5, once),)
    assert {(table.name, table.embedding_dim, table.reuse_bins) for table in second.task.tables} == {
        ("0-dim-8", 8, once),
        ("2-dim-4", 4, None),
        ("0-dim-16", 16, once),
    }
    assert [table.name for table in third.task.tables] == ["0-dim-8", "0-dim-8-copy-2"]
    assert [one.cost.devices for one in (first, second, third)] == [
        (DeviceCost.of_total(total_ms),) for total_ms in (2.5, 4.0, 3.0)
    ]
    for one in (first, second, third):
        assert (one.task.num_devices, one.task.batch_size, one.proposed_by) == (1, 64, RANDOM_SHARD)
        assert one.task.memory_cap_bytes == sum(table.size_bytes for table in one.task.tables)
        assert (one.provenance.hardware, one.provenance.repeats) == ("cuda: RTX 2080 Ti", 0)


def test_the_documented_command_maps_columns(workdir: Path, caplog: pytest.LogCaptureFixture) -> None:
    shards, tables = snippet("docs/loop.md", "tables,fwd_bwd_ms"), snippet("docs/tables.md", "feature,cardinality")
    Path("shards.csv").write_text(shards.partition("\n\n")[0] + "\n")
    Path("ours.csv").write_text(tables.partition("\n\n")[0] + "\n")
    assert main(command("docs/loop.md", "evenshard import-costs")) == 0
    assert "ours.csv: 1 column is not used: 'owner'." in caplog.text
    pool = load_tables("tables.parquet")
    assert [(one.name, one.num_rows, one.embedding_dim, one.pooling_factor) for one in pool] == [
        ("user_id", 5_000_000, 64, 1.0),
        ("clicked_items", 800_000, 32, 23.4),
    ]
    assert [len(one.task.tables) for one in load_costs(Path("costs.parquet"), pool)] == [1, 2]


def test_bits_and_optimizer_are_those_of_the_flags(files: Path) -> None:
    assert main([*IMPORT, *OUT, "--weight-bits", "16", "--optimizer", "adam"]) == 0
    pool = load_tables("tables.parquet")
    assert {table.weight_bits for table in pool} == {16}
    assert {one.provenance.optimizer for one in load_costs(Path("costs.parquet"), pool)} == {"adam"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("3,8,1.0", "s.csv, shard 2: tables contains '3', not a table number from 0 to 2"),
        ("-1,8,1.0", "shard 2: tables contains '-1', not a table number"),
        ("a,8,1.0", "shard 2: tables contains 'a', not a table number"),
        (",,1.0", "shard 2: tables is empty"),
        ("1 2,8,1.0", "shard 2: dims has 1 values for 2 tables"),
        ("1,0,1.0", "shard 2: table '1-dim-0': embedding_dim is 0"),
        ("1,8.5,1.0", "shard 2: dims contains '8.5', not an embedding dim"),
        ("1,99999,1.0", "shard 2: dims contains '99999', not an embedding dim"),
        ("1,8,0", "shard 2: fwd_bwd_ms is '0', not a time above 0 ms"),
        ("1,8,inf", "shard 2: fwd_bwd_ms is 'inf', not a time"),
        ("1,8", "record 2: has fewer fields"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(files: Path, line: str, words: str) -> None:
    assert words in refused(f"tables,dims,fwd_bwd_ms\n0,8,1.0\n{line}\n")


def test_a_file_that_is_something_else_is_named(files: Path) -> None:
    for content, words in (
        ("", "contains no shard"),
        ("tables,dims,fwd_bwd_ms\n", "contains no shard"),
        ("tables,dims\n0,8\n", "column 'fwd_bwd_ms' is missing"),
        ("dims,fwd_bwd_ms\n8,1.0\n", "column 'tables' is missing"),
        ("tables,fwd_bwd_ms\n0,1.0\n", "t.csv, records 1, 2, 3: column 'embedding_dim' is missing"),
    ):
        assert words in refused(content)
    Path("s.csv").write_text("tables,dims,fwd_bwd_ms\n7,8,1.0\n")
    assert main([*IMPORT, *OUT]) == 2 and not Path("costs.parquet").exists() and not Path("tables.parquet").exists()
    with pytest.raises(BadConfig, match="weight_bits is 7"):
        ImportCostsConfig("cpu", 64, 7)


@pytest.mark.slow
def test_a_training_takes_the_dataset(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{n} {n + 1},{dim} 8,{1 + n / 4 + dim / 64}" for n in range(5) for dim in (4, 8, 16)]
    Path("s.csv").write_text("\n".join(["tables,dims,fwd_bwd_ms", *lines]) + "\n")
    Path("t.csv").write_text("\n".join([STATISTICS, *(f"{100 * n},{n},{ONCE}" for n in range(1, 8))]) + "\n")
    assert main([*IMPORT, *OUT]) == 0
    made = ["--tables-out", "t.parquet", "--tasks-out", "t.json"]
    assert main(["generate-tables", "--source", "tables.parquet", *made]) == 0
    train = ["train-cost", "--tables", "tables.parquet", "--tasks", "t.json", "--costs", "costs.parquet"]
    assert main([*train, "--out", "net", "--model-out", "round/cost_model", "--metrics", "m.json"]) == 0
    assert json.loads(Path("m.json").read_text())["cost_model_num_devices"] == 15
    place = ["place", "tables.parquet", "--devices", "2", "--model", "round", "--memory-cap-gb", "1", "-o", "p.json"]
    capsys.readouterr()
    assert main(place) == 2 and not Path("p.json").exists()
    assert "has no link and no communication times" in capsys.readouterr().err
    assert main([*place, "--intra", "10gb_s"]) == 0
    assert load_answer("p.json").request.nodes.intra == "10gb_s"


MEASURE = MeasureConfig(hardware="simulated:h200", visits=1, controls=2, control_repeats=3)
CONFIG = loop.BenchmarkConfig(placements_per_round=7, shards_per_round=4)


@dataclass(frozen=True)
class Pool:
    tables: Path
    tasks: Path
    folder: Path

    def part(self, number: int, num_parts: int, **changes: Any) -> Path:
        out = self.folder / f"part_{number}_of_{num_parts}.parquet"
        inputs = loop.BenchmarkInputs(self.tables, self.tasks, 1, part=number, num_parts=num_parts)
        config, lineage = replace(CONFIG, **changes), Lineage("c", "p")
        benchmark.run(config, MEASURE, inputs, loop.BenchmarkOutputs(out), lineage)
        return out


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    folder = tmp_path_factory.mktemp("pool")
    made = Pool(folder / "tables.parquet", folder / "tasks.json", folder)
    outputs = loop.GenerateTablesOutputs(made.tables, made.tasks)
    config = section(SMALL_PARAMS, "generate_tables", loop.GenerateTablesConfig)
    generate_tables.run(config, loop.GenerateTablesInputs(), outputs)
    return made


def of_round(path: Path, controls: bool = False) -> dict[tuple[str, int], Any]:
    """Tables and times of each device of each placement that is not a control, or is one."""
    return {
        (row["measurement_id"], row["device_id"]): (row["tables"], row["max_device_ms"], row["proposed_by"])
        for row in read_rows(path)
        if (row["proposed_by"] == CONTROL) == controls
    }


def merged(*parts: Path) -> Path:
    out = parts[0].with_name("merged.parquet")
    merge_parts(parts, out)
    return out


def test_parts_make_up_the_round_and_share_nothing_but_controls(pool: Pool) -> None:
    whole, parts = pool.part(1, 1), [pool.part(number, 3) for number in (1, 2, 3)]
    shares = [{name for name, _ in of_round(path)} for path in parts]
    assert sorted(map(len, shares)) == [3, 4, 4]  # 11 placements and shards
    assert len(set().union(*shares)) == 11
    costs = merged(parts[2], parts[0], parts[1])
    assert of_round(costs) == of_round(whole)
    keys = [(row["measurement_id"], row["device_id"]) for row in read_rows(costs)]
    assert keys == sorted(keys)
    lineage = read_lineage(costs)
    assert lineage["params_hash"] == "p" and lineage["hardware"] == ["simulated: h200"]
    of_whole, of_part = ({name for name, _ in of_round(path, controls=True)} for path in (whole, parts[1]))
    assert len(of_whole) == 2 * 3 and of_part == {f"part2-{name}" for name in of_whole}


def test_parts_that_cannot_be_or_do_not_belong_together_are_refused(pool: Pool) -> None:
    for number, num_parts, why in ((0, 2, "part is 0, but"), (3, 2, "the parts are 1 to 2"), (1, 12, "at most 11")):
        with pytest.raises(BadConfig, match=why):
            pool.part(number, num_parts)
    one, part, other = pool.part(1, 2), pool.part(2, 2), pool.folder / "other.parquet"
    rows, lineage = read_rows(part), read_lineage(part)
    for name, value in (("hardware", "cpu: another"), ("versions", "torch 1"), ("link", "gloo"), ("optimizer", "adam")):
        save_rows([{**row, name: value} for row in rows], lineage, other)
        with pytest.raises(BadFile, match=f"{name} is '{value}'"):
            merged(one, other)
    for name in ("params_hash", "evenshard_version"):
        save_rows(rows, {**lineage, name: "q"}, other)
        with pytest.raises(BadFile, match=f"{name} is q, but"):
            merged(one, other)
    for content, why in ((read_rows(one), r"is also in .*part_1_of_2\.parquet"), ([], "holds no measurement")):
        save_rows(content, lineage, other)
        with pytest.raises(BadFile, match=why):
            merged(one, other)


def test_the_commands_measure_and_merge_parts(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate-tables", "--tables-out", "t.parquet", "--tasks-out", "tasks.json"]) == 0
    words = ["benchmark", "--tables", "t.parquet", "--tasks", "tasks.json", "--hardware", "simulated:h200"]
    for part in ("1", "2"):
        assert main([*words, "--part", part, "--num-parts", "2", "--out", f"{part}.parquet"]) == 0
    capsys.readouterr()
    assert main(["merge-costs", "1.parquet", "2.parquet", "--out", "costs.parquet"]) == 0
    assert capsys.readouterr().out == f"saved: costs.parquet ({4 + 2 * 2 * 4} placements from 2 parts)\n"
    assert main(["merge-costs", "1.parquet", "1.parquet", "--out", "costs.parquet"]) == 2
