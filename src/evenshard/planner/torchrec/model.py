"""The cost model for a TorchRec user: the named one, or the one of the GPU that the job runs on."""

from __future__ import annotations

import logging
from pathlib import Path

from evenshard.measure.hardware import DEFAULT_HARDWARE, HardwareName
from evenshard.measure.profiles import profile_of_gpu
from evenshard.planner.model import model_of, named_with_hardware
from evenshard.sharders.model import Model

log = logging.getLogger(__name__)


def chosen_model(where: str | Path | Model | None, hardware: str | None, compute_device: str) -> tuple[Model, str]:
    """A model and the hardware that it speaks of.

    Args:
        where: model as in ``evenshard.place``; None: the device model of simulated hardware.
        hardware: None: the model's, or the GPU's if there is no model either.
        compute_device: cuda or cpu.

    Raises:
        BadInput: if there is no such model, or it is of other hardware.
    """
    model, own = named_with_hardware(where, hardware)
    own = own or _hardware_here(compute_device)
    return model or model_of(None, own), own


def _hardware_here(compute_device: str) -> str:
    """By the name of the GPU; of others, and on the CPU, the default."""
    import torch

    if compute_device != "cuda" or not torch.cuda.is_available():
        return DEFAULT_HARDWARE
    name = torch.cuda.get_device_name()
    profile = profile_of_gpu(name)
    if profile is not None:
        return str(HardwareName.of("simulated", profile))
    log.warning("no model is known for %s; it is placed as for %s. Name hardware or model.", name, DEFAULT_HARDWARE)
    return DEFAULT_HARDWARE
