"""Jobs that change their plan, while they run or from a checkpoint: losses table by table as if nothing changed.

A table for each of the 42 ordered pairs of sharding types, and of the 6 that sequences have on the CPU, goes from its
first type to its second. Snippets are those of the page.
"""

from __future__ import annotations

import logging
import os
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from evenshard.base.errors import BadConfig
from evenshard.placement.nodes import Nodes
from evenshard.placement.sharding import COLUMN_WISE, ROW_WISE, SHARDING_TYPES, TABLE_ROW_WISE, TABLE_WISE
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rules import Rules
from evenshard.torchrec import load_delta, reshard_delta, save_delta, sharding_plan, tables_of
from support.documented import snippet
from support.explain_builders import ROOM, answered
from support.ranks import run_ranks
from support.torchrec_builders import META
from support.torchrec_training import Job, bag, in_one_piece, in_parts, summed_squares

PAGE = "docs/torchrec.md"
NUM_STEPS, CHANGES_BEFORE = 4, 2
MACHINE = Nodes(4, 2, inter="infiniband_ndr")
PAIRS = {f"{old}_to_{new}": (old, new) for old, new in permutations(SHARDING_TYPES, 2)}
PAIRS |= {f"sequence_{old}_to_{new}": (old, new) for old, new in permutations((TABLE_WISE, COLUMN_WISE, ROW_WISE), 2)}
ROWS, DIM = 11, 8
SHARDED = [name for name, pair in PAIRS.items() if "data_parallel" not in pair]
# In halves, each of which has a row-wise state of its own.
BY_COLUMNS = ("column_wise", "table_column_wise", "grid_shard")
SAME_CUTS = [name for name, (old, new) in PAIRS.items() if (old in BY_COLUMNS) == (new in BY_COLUMNS)]
# The tables whose checkpoint loads as it is; more of them, and what torch.distributed.checkpoint says to that.
LOADS = {"adagrad": SHARDED, "rowwise_adagrad": [one for one in SHARDED if one in SAME_CUTS]}
REFUSED = {"adagrad": (list(PAIRS), "Missing key"), "rowwise_adagrad": (SHARDED, "Size mismatch")}


class EveryPair(nn.Module):
    """A prediction for each table. Tables share no weights, so that an error of one stays its own.

    Where a collection has tables that are cut by columns, evenshard writes whole ones as such, and ``table_row_wise``
    beside grids. So pooled tables that become one of these have a collection of their own, whose lookups are weighted.
    """

    rows = dict.fromkeys(PAIRS, ROWS)
    with_weights = [name for name, (_, new) in PAIRS.items() if new in (TABLE_WISE, TABLE_ROW_WISE) and name[0] != "s"]  # noqa: RUF012

    def __init__(self, device: torch.device | None = None) -> None:
        super().__init__()
        sequences = [name for name in PAIRS if name.startswith("sequence")]
        plain = [name for name in PAIRS if name not in (*sequences, *self.with_weights)]
        weighted = [bag(name, ROWS, dim=DIM) for name in self.with_weights]
        self.bags = EmbeddingBagCollection([bag(name, ROWS, dim=DIM) for name in plain], device=device)
        self.weighted = EmbeddingBagCollection(weighted, is_weighted=True, device=device)
        tables = [
            EmbeddingConfig(name=one, feature_names=[one], num_embeddings=ROWS, embedding_dim=DIM) for one in sequences
        ]
        self.sequences = EmbeddingCollection(tables, device=device)
        self.over = nn.Parameter(torch.rand(len(PAIRS), DIM, device=device))

    def forward(self, plain: KeyedJaggedTensor, weighted: KeyedJaggedTensor) -> torch.Tensor:
        """[samples, tables]"""
        found = {**self.bags(plain).to_dict(), **self.weighted(weighted).to_dict()}
        found |= summed_squares(self.sequences(plain))
        return (torch.stack([found[name] for name in PAIRS], dim=1) * self.over).sum(dim=2)


TABLES = {table.name: table for table in tables_of(EveryPair(META))}


def answer_of(number: int, optimizer: str, **changed: str) -> PlacementAnswer:
    """The placement before, number 0, or after, number 1; each table may have its type alone."""
    ways = {name: pair[number] for name, pair in PAIRS.items()} | changed
    request = PlacementRequest(
        tables=tuple(TABLES.values()),
        caps_bytes=(ROOM,) * MACHINE.num_devices,
        batch_size=16,
        optimizer=optimizer,
        rules=Rules.of(table_types=ways),
        machine=MACHINE,
    )
    firsts = {name: 2 * at + 1 if ways[name] == COLUMN_WISE else at for at, name in enumerate(TABLES, number)}
    parts = [
        part
        for name, table in TABLES.items()
        for part in in_parts(table, ways[name], MACHINE, firsts[name] % MACHINE.num_devices)
    ]
    return answered(request, (), parts=parts)


# In the ranks ---------------------------------------------------------------------------------------------------------


def job_of(answer: PlacementAnswer) -> Job:
    plan = sharding_plan(answer, EveryPair(META), compute_device="cpu")
    return Job(plan, None, answer.request.optimizer, EveryPair)


def types_of(job: Job) -> dict[str, str]:
    """The sharding type that TorchRec has for each table."""
    return {name: one.sharding_type for of in job.model.plan.plan.values() for name, one in of.items()}


def known(job: Job, folder: Path) -> dict[str, Any]:
    """What the page's snippets know."""
    from torchrec.optim.keyed import CombinedOptimizer

    optimizer = CombinedOptimizer([job.model.fused_optimizer, job.dense])
    names: dict[str, Any] = {"torch": torch, "CombinedOptimizer": CombinedOptimizer, "optimizer": optimizer}
    return names | {"model": job.model, "dense_optimizer": job.dense, "folder": folder / "checkpoint"}


def load(job: Job, folder: Path, state_of: Any, tables: list[str]) -> None:
    """Loads a checkpoint; of the optimizer's states, those of these tables."""

    def some(model: Any, optimizer: Any) -> dict[str, Any]:
        state: dict[str, Any] = state_of(model, optimizer)
        states = state["optimizer"]["state"]
        for key in list(states):
            if key.endswith(".weight") and key.split(".")[-2] not in tables:
                del states[key]
        return state

    exec(snippet(PAGE, "checkpoint.load"), known(job, folder) | {"state_of": some})


def changed(folder: Path, optimizer: str) -> dict[str, Any]:
    """Losses of the job that stays, of the one that moves, and of those that start again: as the page shows them."""
    old, new = answer_of(0, optimizer), answer_of(1, optimizer)
    job = job_of(old)
    before = job.steps(0, CHANGES_BEFORE)
    exec(snippet(PAGE, "checkpoint.save"), names := known(job, folder))
    state_of = names["state_of"]
    found: dict[str, Any] = {"staying": before + job.steps(CHANGES_BEFORE, NUM_STEPS), "old types": types_of(job)}
    for way in ("moving", "resumed"):
        job = job_of(old)
        if way == "moving":
            job.steps(0, CHANGES_BEFORE)
        else:
            load(job, folder, state_of, list(PAIRS))
        exec(snippet(PAGE, "reshard(model"), {"model": job.model, "delta_json": folder / "delta.json"})
        found[way] = before + job.steps(CHANGES_BEFORE, NUM_STEPS)
        found["moved types"] = types_of(job)
    job = job_of(new)
    found["new types"] = types_of(job)
    with pytest.raises(CheckpointException, match=REFUSED[optimizer][1]):
        load(job, folder, state_of, REFUSED[optimizer][0])
    load(job, folder, state_of, LOADS[optimizer])
    found["loaded"] = before + job.steps(CHANGES_BEFORE, NUM_STEPS)
    return found


def refusals() -> list[str]:
    """What is said of deltas that are not for the running job, or that TorchRec cannot train."""
    old, new = answer_of(0, "sgd"), answer_of(1, "sgd")
    impossible = answer_of(1, "sgd", sequence_table_wise_to_row_wise=TABLE_ROW_WISE)
    job, delta, said = job_of(old), reshard_delta(old, new, partial=True), []
    for wrong in (
        delta.model_copy(update={"world_size": 2}),
        reshard_delta(new, old, partial=True),
        reshard_delta(old, impossible, partial=True),
    ):
        with pytest.raises(BadConfig) as caught:
            load_delta(wrong, job.model)
        said.append(str(caught.value))
    return said


def process(rank: int, out: Path) -> Any:
    """One rank."""
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("evenshard").addHandler(handler)
    notes: dict[str, Any] = {optimizer: changed(out / optimizer, optimizer) for optimizer in LOADS}
    return notes | {"logged": [*logged], "refusals": refusals()}


# In pytest ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw."""
    out = tmp_path_factory.mktemp("ranks")
    for optimizer in LOADS:
        (out / optimizer).mkdir()
        answers = [answer_of(number, optimizer) for number in (0, 1)]
        save_delta(reshard_delta(*answers, partial=True), out / optimizer / "delta.json")
    return run_ranks(process, MACHINE.num_devices, out)


def same(losses: list[list[float]], others: list[list[float]], names: list[str]) -> bool:
    """Whether the losses of these tables are alike in all steps."""
    places = [list(PAIRS).index(name) for name in names]
    return torch.allclose(torch.tensor(losses)[:, places], torch.tensor(others)[:, places], rtol=1e-5, atol=0)


def test_every_type_is_what_it_says(notes: list[dict[str, Any]]) -> None:
    """A moved table that is a case of the type it had, is written as that one: it has then a single part by columns."""
    moved = {name: new if name in SHARDED else old for name, (old, new) in PAIRS.items()}
    moved |= {"column_wise_to_table_wise": "column_wise", "grid_shard_to_table_row_wise": "grid_shard"}
    for of_rank in notes:
        assert of_rank["adagrad"]["old types"] == {name: old for name, (old, _) in PAIRS.items()}
        assert of_rank["adagrad"]["new types"] == {name: new for name, (_, new) in PAIRS.items()}
        assert of_rank["adagrad"]["moved types"] == moved


def test_a_changed_job_has_the_losses_of_the_one_that_stays(notes: list[dict[str, Any]]) -> None:
    """And those of the model in one piece: whether its tables move, or a checkpoint is loaded and they move then, or it
    is loaded under the new plan."""
    expected, _ = in_one_piece(MACHINE.num_devices, "adagrad", EveryPair, NUM_STEPS)
    assert expected[0] != pytest.approx(expected[-1], rel=1e-3), "they learn"
    for of_rank in notes:
        found = of_rank["adagrad"]
        assert same(found["staying"], expected, list(PAIRS))
        for way, names in (("moving", list(PAIRS)), ("resumed", list(PAIRS)), ("loaded", SHARDED)):
            assert same(found[way], expected, names), way


def test_row_wise_states_go_the_same_way_live_and_in_a_checkpoint(notes: list[dict[str, Any]]) -> None:
    """Where columns are cut as before, the losses are those of the job that stays; else those of one another."""
    for found in (of_rank["rowwise_adagrad"] for of_rank in notes):
        kept = [name for name in SHARDED if name in SAME_CUTS]
        assert same(found["resumed"], found["moving"], SHARDED)
        assert same(found["moving"], found["staying"], kept) and same(found["loaded"], found["staying"], kept)


def test_a_changed_order_of_outputs_is_logged_by_rank_0(notes: list[dict[str, Any]]) -> None:
    assert any(one.startswith("The order of the pooled output of bags changes: ") for one in notes[0]["logged"])
    assert not any("pooled output" in one for of_rank in notes[1:] for one in of_rank["logged"])


def test_a_delta_for_another_job_is_refused(notes: list[dict[str, Any]]) -> None:
    for of_rank in notes:
        other_ranks, other_plan, impossible = of_rank["refusals"]
        assert "the delta is for 2 ranks, but the job has 4. To change them, save a checkpoint" in other_ranks
        assert "is not on the ranks of the old placement. Write the delta from the placement that" in other_plan
        assert "is sharded table_row_wise, which TorchRec does not support there" in impossible
