"""A model, as ``evenshard place`` loads it: a folder with a cost model and, where there is one, a policy.

::

    cost_model/   the cost model (config.json, state.pt) and trained_on.json, the ranges of its training data
    cost_net/     a learned sharder's cost network, which its policy needs     (with policy/, or not at all)
    policy/       its policy, whose rollouts are starts of the search; both folders name their kind

A round of the loop leaves such a folder (``work/round_3``). For each simulated profile one comes with the package.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from evenshard.measure.hardware import AUTO, HardwareName
from evenshard.sharders.checkpoint import save_network
from evenshard.sharders.convex_search.cost_model import CostModel
from evenshard.sharders.dreamshard.cost_net import DreamShardCostNet
from evenshard.sharders.dreamshard.sharder import DreamShardPolicy
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.learned import TrainedSharder, load_sharder
from evenshard.sharders.trained_on import TRAINED_ON, TrainedOn
from evenshard.utils.atomic import atomic_path
from evenshard.utils.errors import BadConfig, BadFile
from evenshard.utils.installation import how_to_train
from evenshard.utils.messages import brief
from evenshard.utils.outputs import MODEL_FOLDER, MODEL_PARTS, NETWORK_FOLDER

COST_MODEL, COST_NET, POLICY = MODEL_PARTS
BUNDLED = "bundled:"
"""What a model that comes with the package is named by, before its profile: bundled:h200."""


@dataclass(frozen=True)
class PlacementModel:
    """What places tables.

    Attributes:
        cost_model: predicts what placements cost.
        policy: proposes some; None where there is none.
        trained_on: training data of the cost model.
        source: origin of the model: bundled:h200, or its folder.
        digest: SHA-256 of its files (``digest_of``).
        registered: identity in MLflow, if it came from there: name, version, model_id, run_id, and the names of its
            policy's own version.
    """

    cost_model: CostModel
    policy: TrainedSharder | None
    trained_on: TrainedOn
    source: str
    digest: str
    registered: Mapping[str, Any] | None = None

    @property
    def hardware(self) -> str:
        """Hardware that it was trained on, as flags say it: cpu, cuda or simulated:<profile>."""
        return str(HardwareName.parse(self.trained_on.hardware))

    def require_hardware(self, hardware: str) -> None:
        """Raises BadConfig if it was trained on other hardware than this, in any spelling."""
        if not HardwareName.parse(hardware).has_measured(self.trained_on.hardware):
            raise BadConfig(
                f"{self.source}: this model was trained on {self.trained_on.hardware}, not on {hardware}. Name the "
                f"other model, or leave the hardware out."
            )


def load_model(where: str | Path | None = None, hardware: str | None = None) -> PlacementModel:
    """The model in a folder, or the one that comes with the package.

    Args:
        where: the folder; or the one that comes with the package: bundled:h200, or None for that of ``hardware``.
        hardware: hardware that the model must have been trained on, such as simulated:h200 or cuda; None or auto for
            any.

    Raises:
        BadConfig: if no model comes with the package for this hardware, or the folder's is for another one.
        BadFile: if the folder is missing, torn, or holds something else.
    """
    hardware = None if hardware is None else str(HardwareName.parse(hardware))
    if where is None or str(where).startswith(BUNDLED):
        folder = _bundled_folder(hardware if where is None else _simulated(str(where).removeprefix(BUNDLED)))
        model = _load(folder, BUNDLED + folder.name)
    else:
        model = _load(Path(where), str(where))
    model.require_hardware(hardware or AUTO)
    return model


def bundled_models() -> tuple[str, ...]:
    """Names of the simulated profiles whose model comes with the package."""
    folder = _bundle_root()
    if not folder.is_dir():
        return ()
    return tuple(sorted(entry.name for entry in folder.iterdir() if (entry / COST_MODEL / TRAINED_ON).is_file()))


def save_model(
    folder: Path,
    cost_model: CostModel,
    trained_on: TrainedOn,
    policy: tuple[DreamShardCostNet, DreamShardPolicy, FeatureNormalizer] | None = None,
) -> None:
    """Writes a model's folder as a whole or not at all.

    Args:
        policy: DreamShard's two networks and what they see tables through, if there are any.
    """
    with atomic_path(folder, MODEL_FOLDER) as draft:
        draft.mkdir()
        save_cost_model(draft / COST_MODEL, cost_model, trained_on)
        if policy is not None:
            cost_net, policy_net, normalizer = policy
            save_network(cost_net, normalizer, draft / COST_NET)
            save_network(policy_net, normalizer, draft / POLICY)


def save_cost_model(folder: Path, cost_model: CostModel, trained_on: TrainedOn) -> None:
    """Writes the ``cost_model`` of a model's folder, as a whole or not at all."""
    with atomic_path(folder, NETWORK_FOLDER) as draft:
        cost_model.save(draft)
        trained_on.save(draft / TRAINED_ON)


def digest_of(folder: Path, weights_only: bool = False) -> str:
    """SHA-256 over names and contents of the files of a model's three parts, in the order of their names.

    Args:
        weights_only: leaves out what the parts were trained on.
    """
    digest = hashlib.sha256()
    files = [path for part in MODEL_PARTS for path in (folder / part).rglob("*") if path.is_file()]
    files = [path for path in files if not (weights_only and path.name == TRAINED_ON)]
    for path in sorted(files, key=lambda one: one.relative_to(folder).as_posix()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _load(folder: Path, source: str) -> PlacementModel:
    if not folder.is_dir():
        raise BadFile(
            folder, "no such folder", f"Name the folder of a round, such as work/round_3; {how_to_train()} trains it."
        )
    cost_model = CostModel.load(folder / COST_MODEL)
    trained_on = TrainedOn.load(folder / COST_MODEL / TRAINED_ON)
    return PlacementModel(cost_model, _policy(folder), trained_on, source, digest_of(folder))


def _policy(folder: Path) -> TrainedSharder | None:
    """The policy, if the folder has one: before it is trained, there is a cost network alone."""
    if not (folder / POLICY).exists():
        return None
    return load_sharder(folder / COST_NET, folder / POLICY)


def _bundle_root() -> Path:
    return Path(str(resources.files("evenshard.sharders").joinpath("bundled")))


def _bundled_folder(hardware: str | None) -> Path:
    profile_of = {_simulated(profile): profile for profile in bundled_models()}
    if hardware not in profile_of:
        raise BadConfig(
            f"there is no model for hardware {brief(hardware)}. Train one with {how_to_train()} and name its folder "
            f"(--model work/round_3), or use one that comes with evenshard: {', '.join(profile_of) or 'none'}."
        )
    return _bundle_root() / profile_of[hardware]


def _simulated(profile: str) -> str:
    return str(HardwareName.of("simulated", profile))
