"""Files of torch.save: only tensors that fit the network are loaded, and only finite weights are saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from evenshard.base.errors import BadFile, TrainingFailed
from evenshard.base.tensor_files import integer_problem, load_adam, load_tensors, load_weights, save_adam, save_weights


def net(scale: float = 1.0) -> torch.nn.Module:
    made = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(made.weight, scale)
    made.register_buffer("scale", torch.tensor([scale]))
    return made


def adam(of: torch.nn.Module) -> torch.optim.Adam:
    made = torch.optim.Adam(of.parameters(), lr=0.5)
    of(torch.ones(1, 2)).sum().backward()
    made.step()
    return made


def test_weights_and_an_optimizer_come_back(tmp_path: Path) -> None:
    save_weights(net(3.0), tmp_path / "state.pt")
    again = net()
    load_weights(again, tmp_path / "state.pt")
    assert again.weight.tolist() == [[3.0, 3.0]]
    with pytest.raises(TrainingFailed, match="weight is not finite"):
        save_weights(net(float("nan")), tmp_path / "nan.pt")
    assert not (tmp_path / "nan.pt").exists()
    save_adam(adam(net()), tmp_path / "adam.pt")
    again = torch.optim.Adam(net().parameters(), lr=0.25)
    load_adam(again, tmp_path / "adam.pt")
    assert [int(one["step"]) for one in again.state.values()] == [1, 1] and again.param_groups[0]["lr"] == 0.25


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"more": torch.ones(1)}, "'more', which the network does not have"),
        ({"bias": None}, "not a mapping of names to tensors"),
        ({"weight": torch.ones(1, 3)}, r"weight: is \[1, 3\] float32, not \[1, 2\] float32"),
        ({"weight": torch.ones(1, 2).double()}, "float64, not"),
        ({"weight": torch.tensor([[1.0, float("inf")]])}, "weight: a number is not finite"),
        ({"weight": torch.ones(1, 2).to_sparse()}, "weight: is "),
        ({"weight": torch.ones(1, 1).expand(1, 2)}, "weight: is "),
        ({"scale": torch.zeros(1)}, "a scale is not positive"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    torch.save({**net().state_dict(), **change}, tmp_path / "state.pt")
    with pytest.raises(ValueError, match=said):
        load_weights(net(), tmp_path / "state.pt")
    torch.save({"bias": torch.ones(1)}, tmp_path / "state.pt")
    with pytest.raises(ValueError, match=r"state\.pt lacks weight"):
        load_weights(net(), tmp_path / "state.pt")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda state: state.pop(1), "not the state of an optimizer with 2 parameters"),
        (lambda state: state[0].pop("step"), "parameter 0 is not the state of an Adam optimizer"),
        (lambda state: state[0].update(exp_avg=torch.ones(3)), "parameter 0, exp_avg: is"),
        (lambda state: state[0]["exp_avg"].mul_(float("nan")), "exp_avg: a number is not finite"),
        (lambda state: state[1]["step"].neg_(), "parameter 1: step or exp_avg_sq is negative"),
        (lambda state: state[1]["exp_avg_sq"].sub_(100), "parameter 1: step or exp_avg_sq is negative"),
    ],
)
def test_a_state_that_does_not_fit_the_optimizer_is_refused(
    tmp_path: Path, spoil: Callable[[Any], object], said: str
) -> None:
    content = adam(net()).state_dict()
    spoil(content["state"])
    torch.save(content, tmp_path / "adam.pt")
    with pytest.raises(ValueError, match=said):
        load_adam(torch.optim.Adam(net().parameters()), tmp_path / "adam.pt")


def test_files_of_others_hold_plain_data_and_dense_integers(tmp_path: Path) -> None:
    torch.save([torch.ones(2)], tmp_path / "good.pt")
    assert load_tensors(tmp_path / "good.pt")[0].tolist() == [1, 1]
    torch.save(net(), tmp_path / "code.pt")
    (tmp_path / "torn.pt").write_bytes((tmp_path / "good.pt").read_bytes()[:100])
    for name in ("code.pt", "torn.pt"):
        with pytest.raises(BadFile, match="it is damaged, or contains objects other than tensors"):
            load_tensors(tmp_path / name)
    assert integer_problem(torch.tensor([1], dtype=torch.int32)) is None
    claimed = torch.ones(1, dtype=torch.int64).as_strided((2,), (0,))
    wrong = [[1], torch.ones(1), torch.ones(2, dtype=torch.int64).to_sparse(), torch.ones(1, dtype=torch.bool), claimed]
    assert all(map(integer_problem, wrong))
