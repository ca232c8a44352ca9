"""``evenshard export-estimator``: an estimator for TorchRec's planner, fitted to the costs of a device or a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evenshard.measure.hardware import HardwareName
from evenshard.measure.link import GPUS_OF_A_NODE
from evenshard.planner.model import named_with_hardware
from evenshard.planner.torchrec.estimator.examples import FittedMachine
from evenshard.planner.torchrec.estimator.files import check_estimator_path, save_estimator
from evenshard.planner.torchrec.estimator.fit import NODES, fit_estimator
from evenshard.sharders.model import Model
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief
from evenshard.utils.params import check_ranges


def export_estimator(
    path: str | Path,
    hardware: str | None = None,
    *,
    model: str | Path | Model | None = None,
    devices_per_node: int = GPUS_OF_A_NODE,
    intra: str = "",
    inter: str = "infiniband_ndr",
    batch_size: int = 65_536,
    optimizer: str = "sgd",
    seed: int = 0,
    command: str = "",
) -> dict[str, Any]:
    """Fits an estimator for TorchRec's ``EmbeddingShardingPlanner``, and writes it. TorchRec is not needed.

    Args:
        path: a .py file, which needs no evenshard, or a .json file for ``load_estimator``.
        hardware: simulated:<profile>, whose device model prices placements; with a model, what it was trained on.
        model: a model as in ``evenshard.place``, whose predictions are fitted to in place of a device model.
        devices_per_node: devices of a host.
        intra: link within a host; that of the hardware where left out.
        inter: link between hosts.
        batch_size: samples of all devices together, of the placements that are fitted to.
        optimizer: one of those of ``evenshard.place``.
        seed: of the random placements.
        command: that the file names as its origin.

    Returns:
        what the file holds; ``error`` says how far off it is.

    Raises:
        BadInput: if something is unknown or cannot be written.
    """
    check_estimator_path(path)
    check_ranges(devices_per_node=devices_per_node, batch_size=batch_size)
    machine = machine_to_fit(hardware, model, devices_per_node, intra, inter, batch_size, optimizer)
    hardware, loaded = machine.hardware, machine.model
    costs = f"the device model of {hardware}" if loaded is None else f"what the model {loaded.source} predicts"
    nodes = ", ".join(map(str, NODES))
    fit = {
        "fitted_to": f"{costs}: random placements of random tables on {nodes} nodes of {devices_per_node} "
        f"devices, batch {batch_size:,}, {optimizer}",
        **fit_estimator(machine, seed),
    }
    save_estimator(fit, path, command)
    return fit


def machine_to_fit(
    hardware: str | None,
    model: str | Path | Model | None,
    devices_per_node: int,
    intra: str,
    inter: str,
    batch_size: int = 65_536,
    optimizer: str = "sgd",
) -> FittedMachine:
    """A machine whose costs are known; see ``export_estimator`` for the arguments.

    Raises:
        BadInput: if something is unknown.
    """
    loaded, hardware = named_with_hardware(model, hardware)
    if hardware is None:
        raise BadConfig("neither --hardware nor --model is given. Name one, such as --hardware simulated:h100.")
    simulated = HardwareName.parse(hardware).kind.is_simulated
    if loaded is None and not simulated:
        raise BadConfig(
            f"hardware is {brief(hardware)}, and only a model knows its costs. Name one, such as --model work/round_3."
        )
    return FittedMachine(hardware, devices_per_node, intra, inter, batch_size, optimizer, loaded)
