"""Model folder that ``evenshard place`` loads: a cost model and optionally a policy.

::

    cost_model/   the cost model (config.json, state.pt), and its training domain (trained_on.json)
    cost_net/     cost network of a learned sharder                        (only together with policy/)
    policy/       policy of the learned sharder; the search starts from placements that it samples

Each round of the loop writes a model folder, such as ``work/round_3``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenshard.base.errors import BadConfig, BadFile, blame_file
from evenshard.base.installation import how_to_train
from evenshard.base.outputs import DOMAIN_FILE, MODEL_PARTS, NETWORK_FOLDER, atomic_path
from evenshard.price.evidence import DeviceError
from evenshard.price.hardware import AUTO, HardwareName
from evenshard.price.kernel_calls import DevicePrice
from evenshard.price.link import LINKS, NO_LINK
from evenshard.price.link_model import Link
from evenshard.sharders.catalog import TrainedSharder, load_sharder
from evenshard.sharders.cost_model.cost_model import CostModel
from evenshard.sharders.cost_model.price import LearnedPrice
from evenshard.sharders.model import digest_of
from evenshard.sharders.training_domain import TrainingDomain

COST_MODEL, COST_NET, POLICY = MODEL_PARTS


@dataclass(frozen=True)
class PlacementModel:
    """Learned model of placement times, optionally with a policy that proposes placements."""

    cost_model: CostModel
    policy: TrainedSharder | None
    trained_on: TrainingDomain
    source: str  # origin of the model: its folder, or its name in MLflow
    digest: str  # SHA-256 of its files (``digest_of``)
    # For a model from MLflow: its name, version, model_id and run_id, and its policy's name and version.
    registered: Mapping[str, Any] | None = None

    @property
    def hardware(self) -> str:
        """Return the hardware of the training data, as in flags: cpu, cuda or simulated:<profile>."""
        return str(HardwareName.parse(self.trained_on.hardware))

    @property
    def link(self) -> str:
        """Return the name of the link in the training data; empty if unknown."""
        return self.trained_on.link

    def device_error(self, optimizer: str, lookups: float) -> DeviceError | None:
        """Return the accuracy of the device model behind simulated training data; None for measured data."""
        return self.trained_on.device_error

    def price(self) -> DevicePrice:
        """Return the predictor (price) of compute times."""
        return LearnedPrice(self.cost_model)

    def exchange_link(self) -> Link | None:
        """Return the link in the training data, or, if its name is unknown, a link with the fitted constants."""
        if self.link in LINKS:
            return LINKS[self.link]
        learned = self.cost_model.exchange
        if self.link in ("", NO_LINK) and not learned.takes_time:
            return None
        return learned.link(f"fitted to {self.link or 'the all-to-alls of the training data'}")

    def require_hardware(self, hardware: str) -> None:
        """Raise BadConfig unless the model was trained on this hardware."""
        if not HardwareName.parse(hardware).has_measured(self.trained_on.hardware):
            raise BadConfig(
                f"{self.source}: this model was trained on {self.trained_on.hardware}, not on {hardware}. Name "
                f"another model, or leave the hardware out."
            )


@blame_file
def load_model(folder: str | Path, hardware: str | None = None) -> PlacementModel:
    """Load the model in a folder.

    Args:
        hardware: required hardware of the training data, such as simulated:h200 or cuda; None or auto for any.

    Raises:
        BadConfig: if the model was trained on other hardware.
        BadFile: if the folder is missing, incomplete, or has other content.
    """
    folder = Path(folder)
    if not folder.is_dir():
        problem = "is a file, but a model is a folder" if folder.exists() else "no such folder"
        raise BadFile(folder, problem, f"Name the folder of a round, such as work/round_3; {how_to_train()} trains it.")
    cost_model = CostModel.load(folder / COST_MODEL)
    trained_on = TrainingDomain.load(folder / COST_MODEL / DOMAIN_FILE)
    model = PlacementModel(cost_model, _policy(folder), trained_on, str(folder), digest_of(folder))
    model.require_hardware(hardware or AUTO)
    return model


def save_cost_model(folder: Path, cost_model: CostModel, trained_on: TrainingDomain) -> None:
    """Write the ``cost_model`` subfolder of a model folder, atomically."""
    with atomic_path(folder, NETWORK_FOLDER) as draft:
        cost_model.save(draft)
        trained_on.save(draft / DOMAIN_FILE)


def _policy(folder: Path) -> TrainedSharder | None:
    if not (folder / POLICY).exists():
        return None
    return load_sharder(folder / COST_NET, folder / POLICY)
