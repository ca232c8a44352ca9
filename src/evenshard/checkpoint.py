"""How do networks survive between stages? A folder: config.json, state.pt, optimizer.pt; no pickled code."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import nn

from evenshard.atomic import atomic_path
from evenshard.cost_nets.autoshard import AutoShardCostNet
from evenshard.cost_nets.dreamshard import DreamShardCostNet
from evenshard.errors import BadFile
from evenshard.features import NUM_FEATURES, FeatureNormalizer
from evenshard.saved import reading_saved
from evenshard.sharders.autoshard import AutoShardPolicy
from evenshard.sharders.dreamshard import DreamShardPolicy

Net = TypeVar("Net", bound=nn.Module)
KINDS: dict[str, type[nn.Module]] = {
    "autoshard_cost_net": AutoShardCostNet,
    "autoshard_policy": AutoShardPolicy,
    "dreamshard_cost_net": DreamShardCostNet,
    "dreamshard_policy": DreamShardPolicy,
}


@dataclass(frozen=True)
class Checkpoint(Generic[Net]):
    """A network with all that is needed to use it and to train it further.

    Attributes:
        net: the network.
        normalizer: of the pool it was trained on.
        optimizer: Adam in the state it was left in.
        round: rounds of the loop behind it.
    """

    net: Net
    normalizer: FeatureNormalizer
    optimizer: torch.optim.Optimizer
    round: int


def new_checkpoint(net: Net, normalizer: FeatureNormalizer) -> Checkpoint[Net]:
    """An untrained network with a fresh Adam (its learning rate is set by each training loop)."""
    return Checkpoint(net, normalizer, torch.optim.Adam(net.parameters(), fused=True), round=0)


def save_checkpoint(checkpoint: Checkpoint[Net], folder: Path) -> None:
    """Writes the folder as a whole or not at all."""
    kind = next(name for name, kind in KINDS.items() if isinstance(checkpoint.net, kind))
    config = {"kind": kind, "round": checkpoint.round, "normalizer": asdict(checkpoint.normalizer)}
    with atomic_path(folder) as draft:
        draft.mkdir()
        (draft / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        torch.save(checkpoint.net.state_dict(), draft / "state.pt")
        torch.save(checkpoint.optimizer.state_dict(), draft / "optimizer.pt")


def load_checkpoint(folder: Path, kind: type[Net]) -> Checkpoint[Net]:
    """Reads a network of the given class.

    Raises:
        BadFile: if the folder is missing, torn, or holds another kind of network.
    """
    with reading_saved(folder, "network", "Train it again with `evenshard train-cost` or `evenshard train-policy`."):
        config = json.loads((folder / "config.json").read_text())
        if KINDS.get(config["kind"]) is not kind:
            raise BadFile(folder, f"holds a {config['kind']}, not a {kind.__name__}", "Name the other folder.")
        normalizer = FeatureNormalizer(**{key: tuple(value) for key, value in config["normalizer"].items()})
        if not len(normalizer.mean) == len(normalizer.scale) == NUM_FEATURES:
            raise ValueError(f"its normalizer is not for {NUM_FEATURES} features")
        checkpoint = new_checkpoint(kind(), normalizer)
        checkpoint.net.load_state_dict(torch.load(folder / "state.pt", weights_only=True))
        checkpoint.optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))
        return Checkpoint(checkpoint.net, normalizer, checkpoint.optimizer, int(config["round"]))
