"""The dense rest of a TorchRec model: the bytes that every rank holds of it, with gradients and optimizer state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from evenshard.torchrec.model.modules import collections_in, other_modules_in
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief

if TYPE_CHECKING:
    import torch
    from torch import nn

# Optimizers of dense parameters, and the numbers that each keeps of a parameter.
STATES = {"sgd": 0, "momentum": 1, "adagrad": 1, "adam": 2}


def dense_bytes(model: nn.Module, optimizer: str = "adam", sharders: Sequence[Any] | None = None) -> int:
    """Memory of everything but the tables, on each rank: parameters, gradients, optimizer state and buffers.

    ``DistributedModelParallel`` trains the rest of a model with ``DistributedDataParallel``, whose buckets are the
    gradients themselves: they count once. The states have the parameters' data types. Not counted: activations, and
    what an update computes in between, such as square roots. Where gradients are not set to None before the forward
    pass, as TorchRec's pipelines do, they live twice while the buckets are laid out anew in the third step.

    Args:
        model: before it is sharded; on the meta device too.
        optimizer: of the dense parameters, one of ``STATES``.
        sharders: of modules, as for ``tables_of``; tables that they leave to TorchRec are no dense parameters either.

    Raises:
        BadConfig: if the optimizer is unknown.
    """
    if optimizer not in STATES:
        raise BadConfig(f"optimizer is {brief(optimizer)}, which is none of {', '.join(STATES)}. Choose one of these.")
    kept = trained = 0
    for tensor in _dense_tensors(model, sharders):
        size = tensor.numel() * tensor.element_size()
        kept += size
        trained += size if tensor.requires_grad else 0
    return kept + (1 + STATES[optimizer]) * trained


def _dense_tensors(model: nn.Module, sharders: Sequence[Any] | None) -> Iterator[torch.Tensor]:
    """Parameters and buffers that are not in a module of tables; those that stand at several paths once."""
    sharded = (*collections_in(model, sharders).values(), *other_modules_in(model, sharders).values())
    seen = {id(tensor) for module in sharded for tensor in (*module.parameters(), *module.buffers())}
    for tensor in (*model.parameters(), *model.buffers()):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor
