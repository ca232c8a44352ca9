"""Constraints with which TorchRec's own planner comes near an answer: as a file without evenshard, and in Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import Topology
from torchrec.modules.embedding_modules import EmbeddingBagCollection

import evenshard
from evenshard.cli import main
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span, Storage, TablePart
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.pricing import part_costs
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.model import DeviceModel
from evenshard.tables.table import Table
from evenshard.torchrec import shards_of, torchrec_constraints
from evenshard.torchrec.plan.file import constraint_fields, constraints_text
from support.documented import command, snippet
from support.torchrec_builders import META, WARNINGS, config

PAGE = "docs/torchrec_costs.md"
pytestmark = WARNINGS


def true_ms(answer: PlacementAnswer, parts: tuple[TablePart, ...]) -> float:
    """Predict the step of a placement by the device model."""
    return part_costs(answer.request, DeviceModel("simulated:h100")).predict(parts).predicted_ms


@pytest.mark.nightly
def test_the_documented_file_makes_torchrec_find_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    argv = command(PAGE, "evenshard place mlperf_dlrm_v2")
    assert main([*argv, "--quiet"]) == 0
    assert "evenshard" not in (tmp_path / "constraints.py").read_text().partition('"""\n\nfrom')[2]
    answer = evenshard.place("mlperf_dlrm_v2", 8, hardware="simulated:h100")
    topology = Topology(world_size=8, compute_device="cuda", hbm_cap=80 * 2**30)
    scope: dict[str, Any] = {"topology": topology, "batch_size": 8192}
    exec(snippet(PAGE, "from constraints import constraints"), scope)
    del sys.modules["constraints"]
    assert scope["constraints"] == torchrec_constraints(answer)
    tables = [config(one.name, one.num_rows, one.embedding_dim) for one in answer.request.tables]
    model = EmbeddingBagCollection(tables=tables, device=META)
    found = shards_of(scope["planner"].plan(model, [EmbeddingBagCollectionSharder()]), answer.request.tables)
    assert true_ms(answer, found) <= 1.12 * true_ms(answer, answer.parts)


def answer_of(*parts: TablePart) -> PlacementAnswer:
    """An answer of one table of 100 rows and 32 columns on two nodes of two devices."""

    class Answer:
        request = PlacementRequest(
            tables=(Table("t", 100, 32, 7.0),),
            caps_bytes=(2**40,) * 4,
            batch_size=65_536,
            hardware="simulated:h100",
            optimizer="sgd",
            machine=Nodes(4, 2, inter="infiniband_ndr"),
        )

    Answer.parts = parts  # type: ignore[attr-defined]
    return Answer()  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([(Span(0, 100), Span(0, 32), (2,))], {"sharding_types": ["table_wise"], "compute_kernels": ["fused"]}),
        ([(Span(0, 100), Span(0, 32), (0, 1, 2, 3))], {"compute_kernels": ["dense"]}),
        (
            [(Span(0, 100), Span(0, 16), (0,)), (Span(0, 100), Span(16, 32), (2,))],
            {"sharding_types": ["column_wise"], "min_partition": 16},
        ),
        (
            [(Span(0, 100), Span(0, 20), (0,)), (Span(0, 100), Span(20, 32), (1,))],
            {"sharding_types": ["table_column_wise"], "min_partition": 16},
        ),
        (
            [(Span(0, 50), Span(0, 32), (2,)), (Span(50, 100), Span(0, 32), (3,))],
            {"sharding_types": ["table_row_wise"], "pooling_factors": [7.0]},
        ),
    ],
)
def test_what_the_constraints_say(parts: list[tuple[Span, Span, tuple[int, ...]]], expected: dict[str, Any]) -> None:
    fields = constraint_fields(answer_of(*(TablePart("t", *one) for one in parts)))["t"]
    assert expected.items() <= fields.items()
    assert ("min_partition" in fields) is ("min_partition" in expected)


def test_a_cache_goes_with_its_load_factor() -> None:
    cached = answer_of(
        TablePart("t", Span(0, 100), Span(0, 32), (2,), Storage("fused_uvm_caching", 0.25)),
    )
    (own,) = torchrec_constraints(cached).values()
    assert own.compute_kernels == ["fused_uvm_caching"]
    assert own.cache_params is not None
    assert own.cache_params.load_factor == 0.25
    written = json.loads(constraints_text(cached, "constraints.json"))
    assert written["tables"]["t"]["cache_params"]["load_factor"] == 0.25
    scope: dict[str, Any] = {}
    exec(constraints_text(cached, "constraints.py"), scope)
    assert scope["constraints"] == {"t": own}
