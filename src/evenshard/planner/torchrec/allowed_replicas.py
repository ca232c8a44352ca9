"""Whether a plan may replicate tables of a model: replicas leave their fused optimizer, so somebody has to say so."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from evenshard.placement.sharding import DATA_PARALLEL
from evenshard.planner.replicas import OTHER_TYPES
from evenshard.planner.request import PlacementRequest
from evenshard.planner.torchrec.fused_optimizers import fused_optimizers
from evenshard.planner.torchrec.modules import LocatedTable
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AllowedReplicas:
    """What is said about the replicas of a placement.

    Attributes:
        dense_optimizer: the optimizer of the dense model; empty where it is not told.
        by_name: tables that may be replicated whatever trains them.
    """

    dense_optimizer: str = ""
    by_name: frozenset[str] = frozenset()

    @staticmethod
    def of(request: PlacementRequest) -> AllowedReplicas:
        """What a request says."""
        names = (table.name for table in request.tables)
        return AllowedReplicas(
            request.dense_optimizer, frozenset(name for name in names if request.names_replicas_of(name))
        )

    def check(self, replicated: Sequence[LocatedTable]) -> None:
        """Raises BadConfig if one of these tables of a model has a fused optimizer, and may not be replicated."""
        for name, fused in fused_optimizers(replicated).items():
            if fused.word != self.dense_optimizer and name not in self.by_name:
                raise BadConfig(
                    f"table {brief(name)} is replicated ({DATA_PARALLEL}): the job's dense optimizer would train it in "
                    f"place of its own, {fused.word} ({fused.where}). Place the tables again without replicas "
                    f"(--sharding-types {','.join(OTHER_TYPES)}); or, where the dense optimizer is the same, with the "
                    f"same learning rate and settings, with --dense-optimizer {fused.word}."
                )


def warn_of_replicas(replicated: Sequence[LocatedTable]) -> None:
    """Logs which of these tables, that parts replicate by themselves, have a fused optimizer."""
    if found := fused_optimizers(replicated):
        name, fused = next(iter(found.items()))
        log.warning(
            "%d replicated tables (%s, ...) are trained by the job's dense optimizer, not by their own (%s, by %s).",
            len(found),
            name,
            fused.word,
            fused.where,
        )
