"""Checkpoints of networks: folders with config.json, state.pt and optimizer.pt, which contain no pickled code.

A cost network's folder also has trained_on.json. Inference reads only config.json and state.pt (``load_network``).
Training continues from a whole checkpoint.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import torch
from torch import nn

from evenshard.base.documents import load_json
from evenshard.base.errors import BadFile, blame_file, blame_folder
from evenshard.base.messages import cut
from evenshard.base.outputs import DOMAIN_FILE, NETWORK_FOLDER, atomic_path
from evenshard.base.tensor_files import load_adam, load_weights, save_adam, save_weights
from evenshard.base.typed import record_of
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.training_domain import TrainingDomain


class Network(nn.Module):
    """Base class of the networks of learned sharders, which checkpoints store."""

    kind: ClassVar[str]
    """The kind in its config.json, such as dreamshard_policy."""


Net = TypeVar("Net", bound=Network)


@dataclass(frozen=True)
class Round:
    """Index of a training round and the total number of rounds."""

    number: int  # from 1
    num_rounds: int

    def decay(self, learning_rate: float) -> float:
        """Return this round's learning rate: it falls linearly to 0 after the last round (DreamShard, section 4.1)."""
        return learning_rate * (1 - (self.number - 1) / self.num_rounds)


@dataclass(frozen=True)
class Checkpoint(Generic[Net]):
    """Network with its feature normalizer and optimizer, for inference and further training."""

    net: Net
    normalizer: FeatureNormalizer  # fitted to the pool that the network was trained on
    optimizer: torch.optim.Optimizer  # Adam, with its last state
    round: int  # number of finished rounds of the loop

    @property
    def is_new(self) -> bool:
        """Return True if the network has not been trained yet."""
        return self.round == 0


def new_checkpoint(net: Net, normalizer: FeatureNormalizer) -> Checkpoint[Net]:
    """Return a checkpoint of an untrained network with a new Adam; training loops set its learning rate."""
    return Checkpoint(net, normalizer, torch.optim.Adam(net.parameters(), fused=True), round=0)


def save_checkpoint(checkpoint: Checkpoint[Net], folder: Path, trained_on: TrainingDomain | None = None) -> None:
    """Write a checkpoint folder atomically.

    Raises:
        TrainingFailed: if the training diverged; an existing folder is kept.

    Args:
        trained_on: the training domain of a cost network; None for a policy.
    """
    net, normalizer = checkpoint.net, checkpoint.normalizer
    config = {"kind": net.kind, "round": checkpoint.round, "normalizer": asdict(normalizer)}
    with atomic_path(folder, NETWORK_FOLDER) as draft:
        draft.mkdir()
        (draft / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        save_weights(net, draft / "state.pt")
        if trained_on is not None:
            trained_on.save(draft / DOMAIN_FILE)
        save_adam(checkpoint.optimizer, draft / "optimizer.pt")


def load_checkpoint(folder: Path, kind: type[Net]) -> Checkpoint[Net]:
    """Load a network of the given class for further training.

    Raises:
        BadFile: if the folder is missing, incomplete, or has another kind of network.
    """
    with _explain_read_errors(folder):
        net, normalizer, round_number = _read_network(folder, kind)
        checkpoint = new_checkpoint(net, normalizer)
        load_adam(checkpoint.optimizer, folder / "optimizer.pt")
        return replace(checkpoint, round=round_number)


@blame_file
def load_network(folder: Path, kind: type[Net]) -> tuple[Net, FeatureNormalizer]:
    """Load a network of the given class for inference, which needs no optimizer.pt.

    Raises:
        BadFile: if the folder is missing, incomplete, or has another kind of network.
    """
    with _explain_read_errors(folder):
        return _read_network(folder, kind)[:2]


def read_kind(folder: Path) -> str:
    """Read the kind of the network in a folder.

    Raises:
        BadFile: if the folder is missing or incomplete.
    """
    with _explain_read_errors(folder):
        return record_of(_Config, load_json((folder / "config.json").read_bytes())).kind


def _explain_read_errors(folder: Path) -> AbstractContextManager[None]:
    return blame_folder(folder, "network", "Train it again with `evenshard train-cost` or `evenshard train-policy`.")


def _read_network(folder: Path, kind: type[Net]) -> tuple[Net, FeatureNormalizer, int]:
    config = record_of(_Config, load_json((folder / "config.json").read_bytes()))
    if config.kind != kind.kind:
        raise BadFile(folder, f"contains a {cut(config.kind)}, not a {kind.__name__}", "Name another folder.")
    if config.round < 0:
        raise ValueError(f"round is {config.round}, below 0")
    net = kind()
    load_weights(net, folder / "state.pt")
    return net, config.normalizer, config.round


@dataclass(frozen=True)
class _Config:
    kind: str
    round: int
    normalizer: FeatureNormalizer
