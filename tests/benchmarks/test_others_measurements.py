"""The study of cost networks on other people's shards: what it judges by, and the network that is NeuroShard's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.references.neuroshard import fit_neuroshard
from benchmarks.scripts import others_measurements
from benchmarks.scripts.others_measurements import FILES, File, Row, measure, report, split, table_numbers
from evenshard.measure.costs import DeviceCost, MeasuredPlacement, PlacementCost
from support.builders import measured, some_tables, task
from support.truth import truth_file

TABLES = [replace(one, name=f"{number}-dim-{one.embedding_dim}") for number, one in enumerate(some_tables(30))]
FILE = File("cpu: by hand", groups=5, sizes=(20,), most=150)


def shards(count: int = 200) -> list[MeasuredPlacement]:
    """Shards of one to three tables that take as many ms as they have lookups per sample, and a half."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(count):
        chosen = [TABLES[n] for n in rng.choice(len(TABLES), int(rng.integers(1, 4)), replace=False)]
        total_ms = 0.5 + sum(table.pooling_factor for table in chosen)
        alone = PlacementCost((DeviceCost.of_total(total_ms),), "modelled")
        found.append(measured(task(chosen, 1, task_id=f"s{number}"), (0,) * len(chosen), alone, f"s{number}"))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_unseen_tables_are_in_no_shard_that_is_learned_from(seed: int) -> None:
    known, judged = split(shards(), FILE, seed, unseen_tables=True)
    seen, unseen = ({n for one in side for n in table_numbers(one)} for side in (known, judged))
    assert known and judged and not seen & unseen
    assert len({number % 5 for number in unseen}) == 1 and 0 not in {number % 5 for number in unseen}


def test_unseen_shards_are_all_the_others() -> None:
    known, judged = split(shards(), FILE, 0, unseen_tables=False)
    names = [one.measurement_id for one in (*known, *judged)]
    assert len(known) == 150 and sorted(names) == sorted(one.measurement_id for one in shards())


def test_neuroshards_network_learns_sums_over_tables() -> None:
    known, judged = shards()[:150], shards()[150:]
    net = fit_neuroshard(known, num_updates=600, seed=0)
    actual = np.array([one.cost.max_device_ms for one in judged])
    assert np.median(np.abs(net.times_ms(judged) / actual - 1)) < 0.1
    assert [tuple(layer.weight.shape) for layer in net.modules() if isinstance(layer, torch.nn.Linear)] == [
        (128, 21),
        (32, 128),
        (64, 32),
        (1, 64),
    ]


def test_errors_and_ranks_by_hand() -> None:
    row = Row("f", "unseen tables", "evenshard", 0, 2, 2, (1.1, 1.8, 4.0), (1.0, 2.0, 4.0), (1, 2, 3), (1.0, 5.0, 9.0))
    assert row.errors_percent == pytest.approx([10.0, 10.0, 0.0]) and row.rank_correlation == 1.0
    other = replace(row, seed=1, predicted_ms=(1.2, 2.4, 4.8))
    text = report([row, other])
    assert "| unseen tables | 2 | evenshard | 15.0 % |" in text  # the median of two medians
    assert "| 1 table | unseen tables | 2 | 15.0 % | - | - |" in text
    assert "| more than 4.1 lookups per sample | unseen tables | 4 |" in text


@pytest.mark.slow
def test_a_run_goes_on_from_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "cpu_shards_4.csv"
    folder = truth_file(name).parent
    read = others_measurements.read_shards
    monkeypatch.setattr(others_measurements, "read_shards", lambda *files: read(*files)[:500])
    monkeypatch.setitem(FILES, name, replace(FILES[name], sizes=(50,), most=60))
    monkeypatch.setattr(others_measurements, "FEW_UPDATES", 20)
    rows = measure(tmp_path / "rows.jsonl", folder, [name], num_seeds=1)
    assert {(row.network, row.judged_on, row.learned_from) for row in rows} == {
        (network, judged_on, size)
        for network in ("evenshard", "DreamShard", "NeuroShard")
        for judged_on, size in (("unseen tables", 50), ("unseen shards", 60))
    }
    again = measure(tmp_path / "rows.jsonl", folder, [name], num_seeds=1)
    assert [row.key for row in again] == [row.key for row in rows] and report(again) == report(rows)
