"""Checkpoints for another plan, converted from files: states by hand, what is refused, what is shared."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from evenshard.cli import main
from evenshard.planner.file import load_answer, save_answer
from evenshard.torchrec import save_plan
from evenshard.torchrec.running.checkpoint import convert_checkpoint
from evenshard.utils.errors import BadConfig, BadFile
from support.documented import command
from support.explain_builders import answered, asked

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
TABLES = {"a": 5.0, "b": 3.0}  # 10 rows of 8 dims
A, B = "ebc.embedding_bags.a.weight", "ebc.embedding_bags.b.weight"
WEIGHTS = torch.arange(80.0).reshape(10, 8)
WHOLE, REPLICA = (0, 1), ((0, 1), 1)
HALVES = {"a": (4,)}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three placements of two tables, of which only ``a`` differs."""
    monkeypatch.chdir(tmp_path)
    request = asked(TABLES, 2)
    save_answer(answered(request, WHOLE), "whole.json")
    save_answer(answered(request, (0, 1, 1), HALVES), "halves.json")
    save_answer(answered(request, REPLICA), "replica.json")


def saved(states_of_a: dict[str, Any], states_of_b: dict[str, Any], dense: dict[str, Any] | None = None) -> None:
    """A checkpoint whose tables have these states."""
    state = {A: states_of_a, B: states_of_b, "over.weight": dense or {}}
    content = {
        "model": {A: WEIGHTS, B: WEIGHTS + 1, "over.weight": torch.ones(1, 8)},
        "optimizer": {"state": {fqn: one for fqn, one in state.items() if one}},
    }
    dcp.save(content, checkpoint_id="checkpoint", no_dist=True)


def loaded(states_of_a: dict[str, Any], out: str = "converted") -> dict[str, Any]:
    """The weights and states of table ``a``, as a job would load them."""
    content = {"model": {A: torch.zeros(10, 8)}, "optimizer": {"state": {A: states_of_a}}}
    dcp.load(content, checkpoint_id=out, no_dist=True)
    assert content["model"][A].equal(WEIGHTS)
    return content["optimizer"]["state"][A]


def row_state(*values: float) -> torch.Tensor:
    return torch.tensor(values).repeat_interleave(10)


def test_parts_become_a_whole_with_the_mean_of_their_states() -> None:
    saved({"a.momentum1": row_state(2.0, 6.0)}, {"b.momentum1": row_state(1.0)})
    done = convert_checkpoint("checkpoint", "halves.json", "whole.json", "converted")
    assert (done.converted, done.inexact, done.begun_anew) == (("a",), (), ())
    assert loaded({"a.momentum1": torch.zeros(10)})["a.momentum1"].equal(row_state(4.0))


def test_a_whole_is_cut_and_each_part_has_its_state() -> None:
    saved({"a.momentum1": row_state(3.0)}, {"b.momentum1": row_state(1.0)})
    done = convert_checkpoint("checkpoint", "whole.json", "halves.json", "converted")
    assert (done.converted, done.inexact) == (("a",), ("a",))
    assert loaded({"a.momentum1": torch.zeros(20)})["a.momentum1"].equal(row_state(3.0, 3.0))


def test_plans_of_torchrec_say_it_as_well() -> None:
    saved({"a.momentum1": row_state(2.0, 6.0)}, {"b.momentum1": row_state(1.0)})
    for name in ("halves", "whole"):
        save_plan(load_answer(f"{name}.json"), f"{name}_plan.json")
    convert_checkpoint("checkpoint", "halves_plan.json", "whole_plan.json", "converted")
    assert loaded({"a.momentum1": torch.zeros(10)})["a.momentum1"].equal(row_state(4.0))


@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_a_number_for_each_weight_loads_as_it_is(optimizer: str) -> None:
    names = ("momentum1",) if optimizer == "adagrad" else ("momentum1", "exp_avg_sq")
    saved({f"a.{one}": WEIGHTS * 2 for one in names}, {f"b.{one}": WEIGHTS for one in names})
    done = convert_checkpoint("checkpoint", "whole.json", "halves.json", "converted")
    assert (done.converted, done.written_bytes) == ((), 0)
    assert loaded({f"a.{one}": torch.zeros(10, 8) for one in names})["a.momentum1"].equal(WEIGHTS * 2)


ADAM = {"exp_avg": torch.full((1, 8), 7.0), "exp_avg_sq": torch.ones(1, 8), "step": torch.tensor(5.0)}


def test_adam_of_a_table_becomes_that_of_a_replica_and_back() -> None:
    saved(
        {"a.momentum1": WEIGHTS * 2, "a.exp_avg_sq": WEIGHTS * 3},
        {"b.momentum1": WEIGHTS, "b.exp_avg_sq": WEIGHTS},
        ADAM,
    )
    done = convert_checkpoint("checkpoint", "halves.json", "replica.json", "replicated")
    assert (done.converted, done.written_bytes) == (("a",), 0)  # nothing is copied: names change
    zeros = {"exp_avg": torch.zeros(10, 8), "exp_avg_sq": torch.zeros(10, 8), "step": torch.tensor(0.0)}
    state = loaded(zeros, "replicated")
    assert state["exp_avg"].equal(WEIGHTS * 2) and state["exp_avg_sq"].equal(WEIGHTS * 3) and state["step"] == 5
    convert_checkpoint("replicated", "replica.json", "whole.json", "converted")
    back = loaded({"a.momentum1": torch.zeros(10, 8), "a.exp_avg_sq": torch.zeros(10, 8)})
    assert back["a.momentum1"].equal(WEIGHTS * 2) and back["a.exp_avg_sq"].equal(WEIGHTS * 3)


def test_row_wise_states_of_replicas() -> None:
    """Adagrad's sums of squares, whose mean over the columns of a part is the state of its rows; and back."""
    saved({"sum": WEIGHTS, "step": torch.tensor(4.0)}, {"b.momentum1": row_state(1.0)}, {"sum": torch.ones(1, 8)})
    done = convert_checkpoint("checkpoint", "replica.json", "halves.json", "converted")
    assert (done.converted, done.inexact, done.begun_anew) == (("a",), (), ())
    found = loaded({"a.momentum1": torch.zeros(20)})["a.momentum1"]
    assert found.equal(torch.cat([WEIGHTS[:, :4].mean(dim=1), WEIGHTS[:, 4:].mean(dim=1)]))
    convert_checkpoint("converted", "halves.json", "replica.json", "again")
    columns = [found[:10, None].expand(-1, 4), found[10:, None].expand(-1, 4)]
    assert loaded({"sum": torch.zeros(10, 8)}, "again")["sum"].equal(torch.cat(columns, dim=1))


def test_optimizers_of_tables_and_replicas_that_differ_begin_anew() -> None:
    saved({"a.momentum1": row_state(2.0)}, {"b.momentum1": row_state(1.0)}, ADAM)
    done = convert_checkpoint("checkpoint", "whole.json", "replica.json", "replicated")
    assert done.begun_anew == ("a",)
    ones = {"exp_avg": torch.ones(10, 8), "exp_avg_sq": torch.ones(10, 8), "step": torch.tensor(1.0)}
    assert not any(value.any() for value in loaded(ones, "replicated").values())
    done = convert_checkpoint("replicated", "replica.json", "whole.json", "converted")
    assert done.begun_anew == ("a",)
    assert not loaded({"a.momentum1": torch.ones(10)})["a.momentum1"].any()


def test_sgd_has_nothing_to_convert() -> None:
    saved({}, {})
    assert convert_checkpoint("checkpoint", "replica.json", "halves.json", "converted").converted == ()
    assert loaded({}, "converted") == {}


# The command ----------------------------------------------------------------------------------------------------------


def test_the_documented_command_shares_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    saved({"a.momentum1": row_state(2.0, 6.0)}, {"b.momentum1": row_state(1.0)})
    Path("halves.json").rename("old.json")
    Path("whole.json").rename("new.json")
    words = command("docs/torchrec.md", "evenshard convert-checkpoint")
    assert main(words) == 0
    assert "converted: loads under new.json" in (said := " ".join(capsys.readouterr().out.split()))
    assert "1 with their optimizer state converted: a" in said
    assert os.path.samefile("checkpoint/__0_0.distcp", "converted/__0_0.distcp")
    assert main([*words, "--json"]) == 0  # replaces its own kind
    assert json.loads(capsys.readouterr().out)["converted"] == ["a"]
    assert main([*words[:-1], "checkpoint"]) == 2


def test_what_cannot_be_converted_is_refused() -> None:
    saved({"a.momentum1": row_state(2.0, 6.0)}, {"b.momentum1": row_state(1.0)})
    with pytest.raises(BadFile, match="the state momentum1 of table 'a' has the size 20, and 1 parts by columns"):
        convert_checkpoint("checkpoint", "whole.json", "halves.json", "converted")
    assert not Path("converted").exists()
    other = asked({"a": 5.0, "c": 3.0}, 2)
    save_answer(answered(other, WHOLE), "other.json")
    with pytest.raises(BadConfig, match="the plans have different tables: b, c"):
        convert_checkpoint("checkpoint", "whole.json", "other.json", "converted")
    with pytest.raises(BadConfig, match="the checkpoint has no weights of c"):
        convert_checkpoint("checkpoint", "other.json", "other.json", "converted")
    save_answer(answered(asked(TABLES, 2, rows=20), WHOLE), "larger.json")
    with pytest.raises(BadFile, match="table 'a' has 10 x 8 weights, 20 x 8 in the plan"):
        convert_checkpoint("checkpoint", "larger.json", "larger.json", "converted")


def test_what_the_checkpoint_does_not_tell_is_asked_for() -> None:
    saved({"sum": WEIGHTS}, {"sum": WEIGHTS}, {"sum": torch.ones(1, 8)})
    save_answer(answered(asked(TABLES, 2), ((0, 1), (0, 1))), "replicas.json")
    with pytest.raises(BadConfig, match="to tell the tables' optimizer by"):
        convert_checkpoint("checkpoint", "replicas.json", "whole.json", "converted")
    with pytest.raises(BadConfig, match="Name the place, such as --tables-state"):
        convert_checkpoint("checkpoint", "replicas.json", "whole.json", "converted", "adagrad")
    convert_checkpoint("checkpoint", "replicas.json", "whole.json", "converted", "adagrad", "optimizer.state")
    assert loaded({"a.momentum1": torch.zeros(10, 8)})["a.momentum1"].equal(WEIGHTS)


class _Evil:
    def __reduce__(self) -> Any:
        return (os.system, ("touch ran",))


def test_a_checkpoint_cannot_run_code() -> None:
    Path("checkpoint").mkdir()
    Path("checkpoint/.metadata").write_bytes(pickle.dumps(_Evil()))
    with pytest.raises(BadFile, match=r"does not hold a checkpoint \(posix.system\)"):
        convert_checkpoint("checkpoint", "whole.json", "halves.json", "converted")
    assert not Path("ran").exists()
    Path("checkpoint/.metadata").write_bytes(b"torn")
    with pytest.raises(BadFile, match=r"cannot be read|does not hold a checkpoint"):
        convert_checkpoint("checkpoint", "whole.json", "halves.json", "converted")
    with pytest.raises(BadFile, match=r"has no \.metadata"):
        convert_checkpoint("elsewhere", "whole.json", "halves.json", "converted")
