"""What trains replicas: who may be replicated, and what an answer says about it."""

from __future__ import annotations

import html
import io
import json
from pathlib import Path
from typing import Any

import pytest

from evenshard.base.errors import BadConfig
from evenshard.placement.sharding import DATA_PARALLEL, SHARDING_TYPES
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.file import json_text, load_answer
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rules import Rules
from evenshard.report.answer import print_answer
from evenshard.report.page.page import page
from support.effort import LITTLE
from support.request_builders import request, untrained

ALL: dict[str, Any] = {"sharding_types": (DATA_PARALLEL,)}
OWN: dict[str, Any] = {"table_optimizers": {"a": "adagrad", "b": "sgd"}}


def answer(**more: Any) -> PlacementAnswer:
    return place_request(request(8, 16, **more), untrained(), PlaceConfig(LITTLE))


def replicable(asked: PlacementRequest) -> set[str]:
    task = asked.task()
    return {table.name for at, table in enumerate(asked.tables) if DATA_PARALLEL in task.types[at]}


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({}, {"a", "b"}),
        (OWN, set()),
        ({**OWN, "dense_optimizer": "adagrad"}, {"a"}),
        ({**OWN, "sharding_types": SHARDING_TYPES}, {"a", "b"}),
        ({**OWN, "rules": Rules(table_types={"b": SHARDING_TYPES})}, {"b"}),
        ({"table_optimizers": {"a": "adagrad"}}, {"b"}),
        ({"optimizer": "adam", "dense_optimizer": "sgd"}, set()),
        ({"optimizer": "adam", "dense_optimizer": "adam"}, {"a", "b"}),
    ],
)
def test_a_table_is_replicated_where_its_optimizer_is_the_dense_one_or_who_asks_for_it(
    more: dict[str, Any], names: set[str]
) -> None:
    assert replicable(request(8, 16, **more)) == names


NOTES: list[tuple[dict[str, Any], list[str]]] = [
    (
        ALL,
        [
            "Your dense optimizer updates 2 data_parallel tables (a, b). Use sgd with the same settings. "
            "To avoid replicas: --sharding-types "
            "table_wise,column_wise,row_wise,table_row_wise,table_column_wise,grid_shard."
        ],
    ),
    (
        {**ALL, "optimizer": "rowwise_adagrad"},
        ["; torch.optim has no row-wise Adagrad (torchrec.optim.RowWiseAdagrad is one). To avoid replicas: "],
    ),
    (
        {**ALL, "dense_optimizer": "sgd"},
        ["data_parallel tables (a, b). Give sgd the same learning rate and settings as the tables."],
    ),
    (
        {**ALL, **OWN, "dense_optimizer": "sgd"},
        [
            "Your dense optimizer updates 1 data_parallel table (a), not the fused optimizer (adagrad), "
            "because the request names data_parallel.",
            "Your dense optimizer updates 1 data_parallel table (b). Give sgd",
        ],
    ),
    (
        OWN,
        [
            "Replicas (data_parallel) of 2 tables (a, b) are left out: your dense optimizer would update them in place "
            "of their fused optimizer (adagrad or sgd). If both are the same, with the same settings, give "
            "dense_optimizer. You can also allow data_parallel by name (sharding_types, table_types, TorchRec's "
            "constraints)."
        ],
    ),
    ({**OWN, "sharding_types": ("table_wise",)}, []),
    ({"sharding_types": ("table_wise",)}, []),
]


@pytest.mark.slow
@pytest.mark.parametrize(("more", "said"), NOTES)
def test_an_answer_says_what_trains_replicas(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], said: list[str]
) -> None:
    """In the terminal, on the page and in the file."""
    monkeypatch.setenv("COLUMNS", "2000")
    one, file = answer(**more), io.StringIO()
    print_answer(one, file)
    about = [note for note in one.notes if DATA_PARALLEL in note]
    assert len(about) == len(said)
    for note, words in zip(about, said, strict=True):
        assert words in note
        assert note in file.getvalue() and note in html.unescape(page(one))
        assert note in json.loads(json_text(one))["notes"]


def test_the_file_keeps_the_optimizers_and_an_earlier_one_has_none(tmp_path: Path) -> None:
    path, one = tmp_path / "placement.json", answer(**OWN, dense_optimizer="sgd")
    path.write_text(json_text(one))
    assert load_answer(path) == one
    record = json.loads(json_text(answer()))
    for name in ("table_optimizers", "dense_optimizer"):
        del record["request"][name]
    path.write_text(json.dumps(record))
    earlier = load_answer(path).request
    assert (earlier.table_optimizers, earlier.dense_optimizer, earlier.optimizer) == ({}, "", "sgd")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"dense_optimizer": "lion"}, "dense_optimizer is 'lion', not one of sgd"),
        ({"table_optimizers": {"a": "lion"}}, "optimizer is 'lion', not one of sgd"),
        ({"table_optimizers": {"x": "sgd"}}, "table_optimizers has the key 'x', which is no table"),
    ],
)
def test_optimizers_that_make_no_sense_are_refused(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadConfig, match=problem):
        request(8, 16, **more)
