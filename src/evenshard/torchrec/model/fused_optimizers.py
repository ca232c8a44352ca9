"""Fused optimizers of a TorchRec model's tables, read from the model and its module sharders.

``apply_optimizer_in_backward`` stores the optimizer's class on a table's parameter. A module sharder's
``fused_params`` name an optimizer for all tables of its modules. As in TorchRec, the parameter's takes precedence.

The dense optimizer updates data_parallel tables in place of their fused optimizer, so the user must allow this.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief
from evenshard.placement.memory import OPTIMIZERS, SGD, optimizer_problem
from evenshard.placement.sharding import DATA_PARALLEL
from evenshard.planner.optimizers import OTHER_TYPES, TableOptimizers
from evenshard.planner.request import PlacementRequest
from evenshard.tables.assumptions import Assumption
from evenshard.torchrec.model.modules import LocatedTable, locate_tables

if TYPE_CHECKING:
    from evenshard.torchrec.model.modules import Collections

log = logging.getLogger(__name__)

# Optimizers by FBGEMM's name (``EmbOptimType``).
OPTIMIZER_OF = {fbgemm: name for name, one in OPTIMIZERS.items() for fbgemm in one.fbgemm_names}
UNKNOWN = "adam"  # assumed for unknown optimizers, because no known optimizer has a larger state
# Where a model names an optimizer, for messages.
IN_BACKWARD, FUSED_PARAMS = "apply_optimizer_in_backward", "fused_params"
# Keys of ``fused_params`` that select the optimizer or its settings; FBGEMM's default optimizer is SGD.
OF_FUSED_PARAMS = ("optimizer", "learning_rate", "lr")


@dataclass(frozen=True)
class FusedOptimizer:
    """The fused optimizer of a model's table."""

    word: str  # name in ``OPTIMIZERS``, whose state is counted
    called: str  # name in the model
    where: str  # ``IN_BACKWARD`` or ``FUSED_PARAMS``
    is_known: bool = True  # True if its state is known to be that of ``word``


def find_optimizers(
    model: Collections, given: str | None = None, sharders: Sequence[Any] | None = None
) -> TableOptimizers:
    """Return the optimizer of each table, from the user's choice for all tables, the model, and the module sharders.

    Raises BadConfig if a table of the model has several optimizers, or one that differs from ``given``.
    """
    located = locate_tables(model, sharders)
    fused = find_fused_optimizers(located, sharders)
    if given is not None and (problem := optimizer_problem(given)):
        raise BadConfig(f"{problem}. Choose one of these.")
    for name, one in fused.items():
        if given is not None and one.is_known and one.word != given:
            raise BadConfig(
                f"the model trains table {brief(name)} with {one.word} ({one.called}, by {one.where}), but optimizer "
                f"is {given}. Leave optimizer out to use the model's, or change the model."
            )
    words = {name: one.word if one.is_known else given or one.word for name, one in fused.items()}
    # The request's optimizer applies to tables without their own; if all have one, it is the most frequent.
    usual = Counter(words.values()).most_common(1)[0][0] if words and len(words) == len(located) else SGD
    assumed = [
        Assumption(name, "optimizer", f"{one.called} is unknown: its state is counted as that of {words[name]}")
        for name, one in fused.items()
        if not one.is_known
    ]
    if given is None:
        text = f"{SGD}, FBGEMM's default, because the model names no optimizer"
        assumed += [Assumption(one.name, "optimizer", text) for one in located if one.name not in fused]
    return TableOptimizers(given or usual, words, tuple(assumed))


def find_fused_optimizers(
    located: Sequence[LocatedTable], sharders: Sequence[Any] | None = None
) -> dict[str, FusedOptimizer]:
    """Return the fused optimizers that the model or its module sharders set, by table name."""
    params_of = {one.module_type: dict(getattr(one, "fused_params", None) or {}) for one in sharders or ()}
    found = {}
    for one in located:
        params = params_of.get(type(one.collection)) or {}
        if (own := _of_parameter(one) or _of_fused_params(params)) is not None:
            found[one.name] = own
    return found


def _of_parameter(located: LocatedTable) -> FusedOptimizer | None:
    """Return the optimizer set by ``apply_optimizer_in_backward``; TorchRec accepts one per parameter."""
    from torchrec.distributed.utils import optimizer_type_to_emb_opt_type

    weight = weight_of(located)
    classes = getattr(weight, "_optimizer_classes", None) or []
    if len(classes) > 1:
        names = ", ".join(one.__name__ for one in classes)
        raise BadConfig(
            f"table {brief(located.name)} has several optimizers ({names}), but TorchRec supports one. Apply only one."
        )
    for kind in classes:
        settings: Mapping[str, Any] = next(iter(getattr(weight, "_optimizer_kwargs", [])), {})
        try:
            name = getattr(settings.get("optimizer") or optimizer_type_to_emb_opt_type(kind), "name", "")
        except ValueError:  # not an optimizer that TorchRec has kernels for
            name = ""
        return replace(_of_fbgemm(name, IN_BACKWARD), called=kind.__name__)
    return None


def weight_of(located: LocatedTable) -> Any:
    """Return the parameter of a table; None if only the configuration of the table is known."""
    tables: Any = getattr(located.collection, "embedding_bags", getattr(located.collection, "embeddings", {}))
    name = located.config.name
    return tables[name].weight if name in tables else None


def _of_fused_params(params: Mapping[str, Any]) -> FusedOptimizer | None:
    if not any(key in params for key in OF_FUSED_PARAMS):
        return None
    kind = params.get("optimizer")  # FBGEMM's default without it is SGD
    return _of_fbgemm("EXACT_SGD" if kind is None else str(getattr(kind, "name", kind)), FUSED_PARAMS)


def _of_fbgemm(name: str, where: str) -> FusedOptimizer:
    word = OPTIMIZER_OF.get(name)
    return FusedOptimizer(word or UNKNOWN, name, where, word is not None)


# Replicas -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AllowedReplicas:
    """Tables that may be replicated, because the request names them or their fused optimizer equals the dense one."""

    dense_optimizer: str = ""  # empty if unknown
    by_name: frozenset[str] = frozenset()  # tables that the request allows to replicate by name

    @staticmethod
    def of(request: PlacementRequest) -> AllowedReplicas:
        """Return the replicas that a request allows."""
        names = (table.name for table in request.tables)
        return AllowedReplicas(
            request.dense_optimizer, frozenset(name for name in names if request.names_replicas_of(name))
        )

    def list_leaving(self, fused_of: Mapping[str, FusedOptimizer]) -> Iterator[str]:
        """Yield the replicated tables whose fused optimizers, by name, forbid this, each as a sentence."""
        for name, fused in fused_of.items():
            if fused.word != self.dense_optimizer and name not in self.by_name:
                yield (
                    f"table {brief(name)} is {DATA_PARALLEL}: your dense optimizer would update it in place of its "
                    f"fused optimizer, {fused.word} ({fused.where}). Place the tables again without replicas "
                    f"(--sharding-types {','.join(OTHER_TYPES)}), or with --dense-optimizer {fused.word} if your dense "
                    f"optimizer is the same and has the same settings."
                )


def warn_of_replicas(replicated: Sequence[LocatedTable]) -> None:
    """Log a warning on replicated tables with a fused optimizer."""
    if found := find_fused_optimizers(replicated):
        name, fused = next(iter(found.items()))
        log.warning(
            "Your dense optimizer updates %d data_parallel tables (%s, ...), not their fused optimizer (%s, by %s).",
            len(found),
            name,
            fused.word,
            fused.where,
        )
