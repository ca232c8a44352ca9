"""Network weights as tensors in a file: always finite, without pickled code.

A training that diverged ends where its network would be saved; a file that was damaged or changed ends where it is
read. Only tensors of the names, shapes and types that the network has are taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evenshard.base.errors import TrainingFailed
from evenshard.base.messages import brief
from evenshard.base.tensor_files import read_tensors


def save_weights(net: nn.Module, path: Path) -> None:
    """Writes a network's state.

    Raises:
        TrainingFailed: if a number of it is not finite.
    """
    check_trained(net)
    _save(net.state_dict(), path)


def _save(state: Any, path: Path) -> None:
    try:
        torch.save(state, path)
    except RuntimeError:  # in place of the error of a full disk, which this write raises
        content = BytesIO()
        torch.save(state, content)
        path.write_bytes(content.getbuffer())


def check_trained(net: nn.Module) -> None:
    """Whether all numbers of a network are finite.

    Raises:
        TrainingFailed: if not.
    """
    for name, tensor in net.state_dict().items():
        _refuse_diverged(name, tensor)


def load_weights(net: nn.Module, path: Path) -> None:
    """Fills a network with what ``save_weights`` wrote.

    Raises:
        ValueError: if the file holds anything else; one line.
    """
    state = _tensors(_load(path), path.name)
    expected = net.state_dict()
    unknown = next((name for name in state if name not in expected), None)
    if unknown is not None:
        raise ValueError(f"{path.name} holds {brief(unknown)}, which the network does not have")
    for name, wanted in expected.items():
        if name not in state:
            raise ValueError(f"{path.name} holds no {name}")
        _check_like(f"{path.name}, {name}", state[name], wanted)
        if "scale" in name and not (state[name] > 0).all():
            raise ValueError(f"{path.name}, {name}: a scale is not above 0")
    net.load_state_dict(state)


def save_adam(optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Writes an optimizer's state.

    Raises:
        TrainingFailed: if a number of it is not finite.
    """
    state = optimizer.state_dict()
    for number, kept in state["state"].items():
        for name, tensor in kept.items():
            _refuse_diverged(f"{name} of parameter {number}", tensor)
    _save(state, path)


def load_adam(optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Gives a new Adam the moments that ``save_adam`` wrote. Its settings stay those of the code, not of the file.

    Raises:
        ValueError: if the file holds anything else; one line.
    """
    own, found = optimizer.state_dict(), _load(path)
    kept = found.get("state") if isinstance(found, dict) else None
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    if not isinstance(kept, dict) or sorted(kept, key=repr) not in ([], sorted(range(len(parameters)), key=repr)):
        raise ValueError(f"{path.name} is not of an optimizer of {len(parameters)} parameters")
    for number, moments in kept.items():
        where = f"{path.name}, parameter {number}"
        if sorted(_tensors(moments, where)) != ["exp_avg", "exp_avg_sq", "step"]:
            raise ValueError(f"{where}: is not of an Adam")
        for name, wanted in (
            ("step", torch.zeros(())),
            ("exp_avg", parameters[number]),
            ("exp_avg_sq", parameters[number]),
        ):
            _check_like(f"{where}, {name}", moments[name], wanted)
        if min(moments["step"].min(), moments["exp_avg_sq"].min()) < 0:
            raise ValueError(f"{where}: a square or a count is below 0")
    optimizer.load_state_dict({**own, "state": kept})


def _load(path: Path) -> Any:
    try:
        return read_tensors(path)
    except ValueError as error:
        raise ValueError(f"{path.name} {error}") from None


def _tensors(state: Any, where: str) -> dict[str, torch.Tensor]:
    if not isinstance(state, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in state.items()
    ):
        raise ValueError(f"{where} does not hold tensors by name")
    return dict(state)


def _check_like(where: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    same = (found.shape, found.dtype, found.layout) == (wanted.shape, wanted.dtype, wanted.layout)
    if not same or not found.is_contiguous():
        raise ValueError(f"{where}: is {_kind(found)}, not {_kind(wanted)}")
    if not found.isfinite().all():
        raise ValueError(f"{where}: a number is not finite")


def _kind(tensor: torch.Tensor) -> str:
    return brief(list(tensor.shape)) + " " + str(tensor.dtype).removeprefix("torch.")


def _refuse_diverged(name: str, tensor: torch.Tensor) -> None:
    if not tensor.isfinite().all():
        raise TrainingFailed(
            f"the training diverged: {name} is not finite any more, so nothing was saved. Lower the learning rate, or "
            f"look for outliers among the measured times with `evenshard describe`."
        )
