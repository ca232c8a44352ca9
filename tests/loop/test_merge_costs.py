"""A round measured in parts, and merged, is the round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.provenance import Lineage
from evenshard.base.typed import section
from evenshard.cli import main
from evenshard.loop import benchmark, generate_tables, loop
from evenshard.loop.import_costs import merge_parts
from evenshard.measure.config import MeasureConfig
from evenshard.measure.cost_rows import read_lineage, read_rows, save_rows
from evenshard.price.costs import CONTROL
from evenshard.tracking import StageRun
from support.kubeflow_builders import SMALL_PARAMS

MEASURE = MeasureConfig(hardware="simulated:h200", visits=1, controls=2, control_repeats=3)
CONFIG = loop.BenchmarkConfig(placements_per_round=7, shards_per_round=4)


@pytest.fixture(autouse=True)
def no_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening MLflow's database takes seconds."""
    monkeypatch.setattr("evenshard.tracking.runs._open", lambda *args: StageRun())


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


def test_a_part_that_cannot_be_is_refused(pool: Pool) -> None:
    for part, num_parts, why in ((0, 2, "part is 0, but"), (3, 2, "the parts are 1 to 2"), (1, 12, "at most 11")):
        with pytest.raises(BadConfig, match=why):
            pool.part(part, num_parts)


def test_parts_that_do_not_belong_together_are_refused(pool: Pool) -> None:
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
