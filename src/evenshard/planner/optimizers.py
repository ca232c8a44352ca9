"""The optimizers of a request's tables and of their replicas.

``DistributedModelParallel`` trains data_parallel tables (replicas) like the dense model: the job's dense optimizer
updates them. A fused optimizer updates all other tables in the backward pass.
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
    """The optimizers of a request's tables."""

    optimizer: str = SGD  # of tables that are not in ``of_tables``
    of_tables: Mapping[str, str] = field(default_factory=dict)  # fused optimizers by table name
    assumptions: tuple[Assumption, ...] = ()


OTHER_TYPES = tuple(name for name in SHARDING_TYPES if name not in REPLICATED)  # sharding types without replicas


def note_replicas(request: PlacementRequest, replicated: Sequence[str]) -> Iterator[str]:
    """Yield notes about replicated tables, and about tables that may not be replicated."""
    leaving = [name for name in replicated if request.leaves_optimizer(name)]
    staying = [name for name in replicated if name not in leaving]
    if leaving:
        yield (
            f"Your dense optimizer updates {_tables(leaving, 'data_parallel table')}, not the fused optimizer "
            f"({_optimizers(request.optimizer_of(name) for name in leaving)}), because the request names data_parallel."
        )
    if staying:
        yield _of_same_optimizer(request, staying)
    if left_out := list_without_replicas(request):
        yield note_left_out_replicas({name: request.optimizer_of(name) for name in left_out})


def _of_same_optimizer(request: PlacementRequest, names: Sequence[str]) -> str:
    found = f"Your dense optimizer updates {_tables(names, 'data_parallel table')}."
    if request.dense_optimizer:
        return f"{found} Give {request.dense_optimizer} the same learning rate and settings as the tables."
    optimizers = dict.fromkeys(request.optimizer_of(name) for name in names)
    lacking = "".join(f"; {problem}" for name in optimizers if (problem := OPTIMIZERS[name].dense_problem))
    return (
        f"{found} Use {_optimizers(optimizers)} with the same settings{lacking}. "
        f"To avoid replicas: --sharding-types {','.join(OTHER_TYPES)}."
    )


def list_without_replicas(request: PlacementRequest) -> tuple[str, ...]:
    """Return the tables that are not replicated only because the dense optimizer differs from theirs."""
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


def note_left_out_replicas(optimizers: Mapping[str, str]) -> str:
    """Explain why tables with these optimizers are not replicated, and how to allow it."""
    words = tuple(dict.fromkeys(optimizers.values()))
    same = f"dense_optimizer={words[0]!r}" if len(words) == 1 else "dense_optimizer"
    return (
        f"Replicas (data_parallel) of {_tables(tuple(optimizers))} are left out: your dense optimizer would update "
        f"them in place of their fused optimizer ({_optimizers(words)}). If both are the same, with the same settings, "
        f"give {same}. You can also allow data_parallel by name (sharding_types, table_types, TorchRec's constraints)."
    )


def _tables(names: Sequence[str], kind: str = "table") -> str:
    return f"{count_text(len(names), kind)} ({printable(cut(', '.join(names), 60))})"


def _optimizers(words: Iterable[str]) -> str:
    return " or ".join(word for word, _ in Counter(words).most_common())
