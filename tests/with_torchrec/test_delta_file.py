"""What of a change of plan moves in a running job: its bytes, what is refused and why, and pieces by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evenshard.base.errors import BadConfig, BadFile
from evenshard.cli import main
from evenshard.placement.parts import Span, Storage
from evenshard.planner.file import save_answer
from evenshard.torchrec.running.delta_file import read_delta, reshard_delta
from evenshard.torchrec.running.reshard import Rectangle, add_overlap, find_overlaps, slice_block
from support.documented import command
from support.explain_builders import answered, asked

TWO = {"a": 5.0, "b": 3.0}  # 10 rows of 8 dims of 32 bits: 320 bytes each
CUT = {"a": (4,)}


def answer(*devices: Any, cuts: Any = None, optimizer: str = "sgd", num_devices: int = 2, works: Any = TWO) -> Any:
    return answered(asked(works, num_devices, optimizer=optimizer), devices, cuts)


@pytest.mark.parametrize(
    ("optimizer", "state"), [("sgd", 0), ("rowwise_adagrad", 10 * 4), ("adagrad", 320), ("adam", 640)]
)
def test_bytes_that_move_by_hand(optimizer: str, state: int) -> None:
    delta = reshard_delta(answer(0, 1, optimizer=optimizer), answer(1, 1, optimizer=optimizer))
    assert list(delta.tables) == ["a"] and not delta.left
    assert (delta.weight_bytes, delta.state_bytes, delta.tables["a"].state_is_exact) == (320, state, True)
    assert (delta.tables["a"].old.ranks, delta.tables["a"].new.ranks) == ((0,), (1,))


def test_a_half_that_stays_moves_nothing() -> None:
    """And one number for a row is exact unless a part is cut."""
    delta = reshard_delta(answer(0, 1), answer(0, 1, 1, cuts=CUT))
    assert delta.weight_bytes == 160 and delta.tables["a"].new.sharding_type == "column_wise"
    for optimizer, is_exact in (("rowwise_adagrad", False), ("adam", True)):
        whole, halves = answer(0, 1, optimizer=optimizer), answer(0, 1, 1, cuts=CUT, optimizer=optimizer)
        assert reshard_delta(whole, halves).tables["a"].state_is_exact is is_exact
        assert reshard_delta(halves, whole).tables["a"].state_is_exact


def test_what_cannot_move_live_is_refused_with_its_reason_or_left() -> None:
    old, new = answer(0, 1), answer((0, 1), 0)
    with pytest.raises(
        BadConfig,
        match=r"1 of 2 changed tables cannot move while the job runs\. Replicated \(data_parallel\) .*: a\. "
        r"Keep them in place \(--partial\), or save a checkpoint and restart from it",
    ):
        reshard_delta(old, new)
    delta = reshard_delta(old, new, partial=True)
    assert list(delta.tables) == ["b"] and list(delta.left) == ["a"]
    gone = reshard_delta(answer(0, 1), answer(1, works={"a": 5.0}), partial=True)
    assert gone.left == {"b": "not in the new placement"} and list(gone.tables) == ["a"]
    added = reshard_delta(answer(1, works={"a": 5.0}), answer(0, 1), partial=True)
    assert added.left == {"b": "not in the job"}
    wider = answered(asked(TWO, 2, rows=20), (1, 1))
    assert reshard_delta(old, wider, partial=True).left["a"] == "different shape (num_rows 10 -> 20)"
    on_host = [replace(part, devices=(1,), storage=Storage("fused_uvm")) for part in old.parts]
    moved = reshard_delta(old, answered(asked(TWO, 2), (), parts=on_host), partial=True)
    assert moved.left["a"] == "outside of device memory in the old or new placement"


def test_ranks_and_optimizer_of_a_job_stay() -> None:
    with pytest.raises(BadConfig, match=r"the old placement has 2 devices .* the new one 4"):
        reshard_delta(answer(0, 1), answer(0, 1, num_devices=4))
    with pytest.raises(
        BadConfig, match="has sgd in the old placement and adam in the new one, but a running job keeps"
    ):
        reshard_delta(answer(0, 1), answer(0, 1, optimizer="adam"))


# The command ----------------------------------------------------------------------------------------------------------


def test_the_documented_command_writes_a_delta(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_answer(answer(0, 1, optimizer="rowwise_adagrad"), "old.json")
    save_answer(answer(1, 0, 1, cuts=CUT, optimizer="rowwise_adagrad"), "new.json")
    assert main(command("docs/torchrec.md", "evenshard diff old.json new.json --reshard-delta")) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "delta.json: 1 table to move, 160 bytes of weights and 40 bytes of optimizer state" in said
    assert "each new shard of a gets a copy of the old shard's row-wise Adagrad state" in said
    assert read_delta("delta.json").tables["a"].new.ranks == (1, 0)
    record = json.loads(Path("delta.json").read_text())
    Path("delta.json").write_text(json.dumps({**record, "world_size": 0}))
    with pytest.raises(BadFile, match=r"delta\.json: world_size is 0"):
        read_delta("delta.json")


# Pieces ---------------------------------------------------------------------------------------------------------------

OLD = [Rectangle(Span(0, 2), Span(0, 4)), Rectangle(Span(0, 2), Span(4, 16))]
WEIGHTS = torch.arange(2 * 16.0).reshape(2, 16)
STATES = [torch.tensor([8.0, 0.0]), torch.tensor([4.0, 16.0])]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([WEIGHTS[:, :4], WEIGHTS[:, 4:]], Rectangle(Span(1, 2), Span(2, 10)), WEIGHTS[1:, 2:10]),
        # Mean squares of 4 and of 12 columns, 8 and 4: those of all 16 are (4 * 8 + 12 * 4) / 16 = 5.
        (STATES, Rectangle(Span(0, 2), Span(0, 16)), torch.tensor([5.0, 12.0])),
        (STATES, Rectangle(Span(0, 2), Span(8, 12)), STATES[1]),  # a part of one has its states
    ],
)
def test_a_new_part_has_the_weights_and_the_mean_of_row_states_of_the_old_ones(
    old: list[torch.Tensor], new: Rectangle, expected: torch.Tensor
) -> None:
    target = torch.zeros_like(expected)
    for source, piece in find_overlaps(new, OLD):
        add_overlap(target, new, piece, slice_block(old[source], OLD[source], piece))
    assert target.equal(expected)
