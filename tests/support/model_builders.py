"""Folders of models and networks, as a round of the loop leaves them behind."""

from __future__ import annotations

from pathlib import Path

from evenshard.sharders.checkpoint import Network, new_checkpoint, save_checkpoint
from evenshard.sharders.cost_model.cost_model import CostModel
from evenshard.sharders.dreamshard.sharder import DreamShardCostNet, DreamShardPolicy
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.models import COST_MODEL, COST_NET, POLICY, save_cost_model
from evenshard.sharders.training_domain import TrainingDomain


def save_model(
    folder: Path,
    cost_model: CostModel,
    trained_on: TrainingDomain,
    policy: tuple[DreamShardCostNet, DreamShardPolicy, FeatureNormalizer] | None = None,
) -> None:
    """A model's folder; with DreamShard's two networks and what they see tables through, if there are any."""
    save_cost_model(folder / COST_MODEL, cost_model, trained_on)
    if policy is not None:
        cost_net, policy_net, normalizer = policy
        save_network(cost_net, normalizer, folder / COST_NET)
        save_network(policy_net, normalizer, folder / POLICY)


def save_network(net: Network, normalizer: FeatureNormalizer, folder: Path) -> None:
    """A network that learns no more: without its optimizer."""
    save_checkpoint(new_checkpoint(net, normalizer), folder)
    (folder / "optimizer.pt").unlink()
