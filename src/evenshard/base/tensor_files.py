"""Files of ``torch.save``: tensors written by other programs, and the weights of evenshard's networks.

Only plain data is read, because a pickle could run code. Weights with infinite or NaN values are neither saved nor
loaded. Loaded tensors must have the names, shapes and types of the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from evenshard.base.errors import BadFile, TrainingFailed
from evenshard.base.messages import brief

if TYPE_CHECKING:  # torch takes seconds to import
    import torch
    from torch import nn


def load_tensors(path: Path, source: Path | IO[bytes] | None = None, mmap: bool = False) -> Any:
    """Read a file of torch.save.

    Args:
        path: path in error messages.
        source: file to read instead, such as an unpacked copy.
        mmap: read the tensors from disk only when they are accessed; needs a path, and a file of torch 1.6 or newer.

    Raises:
        BadFile: if it is damaged, or contains anything but plain data.
    """
    try:
        return read_tensors(path if source is None else source, mmap)
    except MemoryError:
        raise BadFile(path, "does not fit into memory", "Use a machine with more memory or a smaller sample.") from None
    except ValueError as error:
        raise BadFile(path, str(error), "Save or download the file again.") from None


def read_tensors(source: Path | IO[bytes], mmap: bool = False) -> Any:
    """Read a file of torch.save without running code from it; errors do not name the file.

    Raises:
        ValueError: if it is damaged, or contains anything but plain data. The message is one line.
    """
    import torch

    try:
        # weights_only: an untrusted pickle must not run code.
        return torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)
    except (MemoryError, FileNotFoundError):
        raise
    except Exception:  # damaged files raise many types of errors in torch, with misleading advice
        raise ValueError("cannot be read: it is damaged, or contains objects other than tensors") from None


def integer_problem(value: Any) -> str | None:
    """Return the reason that a value from a file is not a dense tensor of integers; None if it is."""
    import torch

    if not isinstance(value, torch.Tensor):
        return f"is a {type(value).__name__}, not a tensor"
    integers = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    if value.dtype not in integers or value.layout != torch.strided:
        return f"has type {value.dtype} ({value.layout}), not dense integers"
    if value.device.type != "cpu" or value.numel() * value.element_size() > value.untyped_storage().nbytes():
        return f"claims {value.numel():,} values, more than the file contains"
    return None


# Weights --------------------------------------------------------------------------------------------------------------


def save_weights(net: nn.Module, path: Path) -> None:
    """Write a network's state; raise TrainingFailed if a weight is not finite."""
    for name, tensor in net.state_dict().items():
        _refuse_diverged(name, tensor)
    _save(net.state_dict(), path)


def _save(state: Any, path: Path) -> None:
    import torch

    try:
        torch.save(state, path)
    except RuntimeError:  # it hides the cause, such as a full disk; the second attempt raises OSError
        content = BytesIO()
        torch.save(state, content)
        path.write_bytes(content.getbuffer())


def load_weights(net: nn.Module, path: Path) -> None:
    """Load a network's weights from a file written by ``save_weights``.

    Raises:
        ValueError: if the file does not fit the network. The message is one line.
    """
    state = _tensors(_load(path), path.name)
    expected = net.state_dict()
    unknown = next((name for name in state if name not in expected), None)
    if unknown is not None:
        raise ValueError(f"{path.name} contains {brief(unknown)}, which the network does not have")
    for name, wanted in expected.items():
        if name not in state:
            raise ValueError(f"{path.name} lacks {name}")
        _check_like(f"{path.name}, {name}", state[name], wanted)
        if "scale" in name and not (state[name] > 0).all():
            raise ValueError(f"{path.name}, {name}: a scale is not positive")
    net.load_state_dict(state)


def save_adam(optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Write an optimizer's state; raise TrainingFailed if a number is not finite."""
    state = optimizer.state_dict()
    for number, kept in state["state"].items():
        for name, tensor in kept.items():
            _refuse_diverged(f"{name} of parameter {number}", tensor)
    _save(state, path)


def load_adam(optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Load state that ``save_adam`` wrote into a new Adam optimizer, whose settings do not change.

    Raises:
        ValueError: if the file does not fit the optimizer. The message is one line.
    """
    import torch

    own, found = optimizer.state_dict(), _load(path)
    kept = found.get("state") if isinstance(found, dict) else None
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not isinstance(kept, dict) or sorted(kept, key=repr) not in ([], sorted(range(len(parameters)), key=repr)):
        raise ValueError(f"{path.name} is not the state of an optimizer with {len(parameters)} parameters")
    for number, moments in kept.items():
        where = f"{path.name}, parameter {number}"
        if sorted(_tensors(moments, where)) != ["exp_avg", "exp_avg_sq", "step"]:
            raise ValueError(f"{where} is not the state of an Adam optimizer")
        for name, wanted in (
            ("step", torch.zeros(())),
            ("exp_avg", parameters[number]),
            ("exp_avg_sq", parameters[number]),
        ):
            _check_like(f"{where}, {name}", moments[name], wanted)
        if min(moments["step"].min(), moments["exp_avg_sq"].min()) < 0:
            raise ValueError(f"{where}: step or exp_avg_sq is negative")
    optimizer.load_state_dict({**own, "state": kept})


def _load(path: Path) -> Any:
    try:
        return read_tensors(path)
    except ValueError as error:
        raise ValueError(f"{path.name} {error}") from None


def _tensors(state: Any, where: str) -> dict[str, torch.Tensor]:
    import torch

    if not isinstance(state, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in state.items()
    ):
        raise ValueError(f"{where} is not a mapping of names to tensors")
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
            f"the training diverged: {name} is not finite, so nothing was saved. Lower the learning rate, or "
            f"look for outliers among the measured times with `evenshard describe`."
        )
