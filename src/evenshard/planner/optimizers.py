"""The optimizers of a request's tables, and of their replicas.

``DistributedModelParallel`` trains replicas (data_parallel) like the dense model: the job's dense optimizer updates
them, not the fused optimizer that updates all other tables in the backward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from evenshard.base.messages import count_text, cut, printable
from evenshard.placement.memory import OPTIMIZERS, SGD
from evenshard.placement.sharding import REPLICATED, SHARDING_TYPES
from evenshard.placement.task import impossible_types
from evenshard.planner.request import PlacementRequest
from evenshard.tables.assumptions import Assumption


@dataclass(frozen=True)
class TableOptimizers:
    """The optimizers of a request."""

    optimizer: str = SGD  # of tables without their own
    of_tables: Mapping[str, str] = field(default_factory=dict)  # fused optimizers of tables, by name
    assumptions: tuple[Assumption, ...] = ()  # about both


OTHER_TYPES = tuple(one for one in SHARDING_TYPES if one not in REPLICATED)


def replica_notes(request: PlacementRequest, replicated: Sequence[str]) -> Iterator[str]:
    """Yield notes about replicated tables, and about tables that may not be replicated."""
    leaving = [name for name in replicated if request.leaves_optimizer(name)]
    staying = [name for name in replicated if name not in leaving]
    if leaving:
        yield (
            f"{_subject(leaving)} replicated (data_parallel), as it is allowed by name: the job's dense optimizer "
            f"trains replicas, not the table's own fused one "
            f"({_optimizers(request.optimizer_of(name) for name in leaving)})."
        )
    if staying:
        yield _of_same_optimizer(request, staying)
    if left_out := tables_without_replicas(request):
        yield left_out_note({name: request.optimizer_of(name) for name in left_out})


def _of_same_optimizer(request: PlacementRequest, names: Sequence[str]) -> str:
    found = f"{_subject(names)} replicated (data_parallel): the job's dense optimizer trains replicas"
    if request.dense_optimizer:
        return (
            f"{found}. It is {request.dense_optimizer} too, as dense_optimizer says; its learning rate and other "
            f"settings have to be those of the tables."
        )
    optimizers = dict.fromkeys(request.optimizer_of(name) for name in names)
    lacking = "".join(f"; {problem}" for one in optimizers if (problem := OPTIMIZERS[one].dense_problem))
    return (
        f"{found}, not a fused one: it has to be {_optimizers(optimizers)} with the settings of the tables{lacking}. "
        f"To leave replicas out: --sharding-types {','.join(OTHER_TYPES)}."
    )


def tables_without_replicas(request: PlacementRequest) -> tuple[str, ...]:
    """Return the tables that only their optimizer excludes from replication."""
    if request.num_devices == 1 or request.sharding_types:
        return ()
    task = request.task()
    return tuple(
        table.name
        for position, table in enumerate(request.tables)
        if request.leaves_optimizer(table.name)
        and table.name not in request.rules.table_types
        and not {*REPLICATED} <= impossible_types(task, position).keys()
    )


def left_out_note(optimizers: Mapping[str, str]) -> str:
    """Explain why tables with these optimizers are not replicated, and how to allow it."""
    words = tuple(dict.fromkeys(optimizers.values()))
    same = f"dense_optimizer={words[0]!r}" if len(words) == 1 else "dense_optimizer"
    return (
        f"Replicas (data_parallel) of {_tables(tuple(optimizers))} are left out: the dense optimizer would train them "
        f"in place of their own fused one ({_optimizers(words)}). Where it is the same, with the same learning rate "
        f"and settings, say {same}; or allow them by name (sharding_types, table_types, or constraints of TorchRec)."
    )


def _tables(names: Sequence[str]) -> str:
    return f"{count_text(len(names), 'table')} ({printable(cut(', '.join(names), 60))})"


def _subject(names: Sequence[str]) -> str:
    return f"{_tables(names)} {'are' if len(names) > 1 else 'is'}"


def _optimizers(words: Iterable[str]) -> str:
    return " or ".join(one for one, _ in Counter(words).most_common())
