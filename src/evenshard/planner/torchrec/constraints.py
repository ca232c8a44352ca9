"""TorchRec's ``ParameterConstraints`` as rules and tables: what of them changes a placement, and what is left aside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from evenshard.placement.sharding import DATA_PARALLEL
from evenshard.placement.storage import COMPUTE_KERNELS
from evenshard.planner.rules import Rules
from evenshard.planner.torchrec.entries import DENSE_KERNEL, FUSED_KERNEL
from evenshard.planner.torchrec.modules import LocatedTable
from evenshard.tables.sources import TableSet
from evenshard.tables.table import Table
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief, cut

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import ShardingPlan

USED = (
    "sharding_types",
    "compute_kernels",
    "min_partition",
    "pooling_factors",
    "feature_names",
    "is_weighted",
    "device_group",
)
"""Fields that change what is placed, or where."""
CARRIED = ("enforce_hbm", "stochastic_rounding", "bounds_check_mode", "output_dtype")
"""Fields that a plan hands on to the kernels as they are; all others are named in a note where they are set."""


@dataclass(frozen=True)
class Constrained:
    """What constraints make of a model.

    Attributes:
        known: its tables.
        rules: their rules.
        notes: what changes nothing, in a sentence.
    """

    known: TableSet
    rules: Rules
    notes: tuple[str, ...]


def constrained(
    constraints: Mapping[str, ParameterConstraints],
    known: TableSet,
    located: Sequence[LocatedTable],
    types: Sequence[str],
    compute_device: str,
    kernels: Sequence[str] = COMPUTE_KERNELS,
) -> Constrained:
    """The tables of a model and their rules, by constraints.

    Args:
        constraints: by the names of tables, as TorchRec's planner takes them.
        known: the tables. A pooling factor that is not assumed is kept.
        located: where they are in the model, in the same order.
        types: the ways in which tables may be sharded that have no rule of their own.
        compute_device: cuda or cpu.
        kernels: where it has memory for weights; of what a constraint names, others are left aside.

    Raises:
        BadConfig: if a constraint asks for what evenshard does not place.
    """
    names = {name for one in located for name in (one.name, one.config.name)}
    unknown = cut(", ".join(name for name in constraints if name not in names), 400)
    constraints = {name: own for name, own in constraints.items() if name in names}
    assumed = {one.table for one in known.assumptions if one.column == "pooling_factor"}
    tables: list[Table] = []
    table_types: dict[str, tuple[str, ...]] = {}
    min_columns: dict[str, int] = {}
    table_kernels: dict[str, tuple[str, ...]] = {}
    for table, one in zip(known.tables, located, strict=True):
        own = constraints.get(one.name, constraints.get(one.config.name))
        if own is None:
            tables.append(table)
            continue
        _check_device(table.name, own, compute_device)
        lookups = _lookups(table.name, own, one.features)
        if lookups is not None and table.name in assumed:
            assumed.remove(table.name)
            several = lookups if len(lookups) > 1 else ()
            table = replace(table, pooling_factor=sum(lookups), feature_pooling_factors=several)
        tables.append(replace(table, is_weighted=table.is_weighted or own.is_weighted))
        if own.sharding_types is not None or own.compute_kernels is not None:
            table_types[table.name], own_kernels = _types_and_kernels(table.name, own, types, kernels)
            if own_kernels:
                table_kernels[table.name] = own_kernels
        if own.min_partition is not None:
            min_columns[table.name] = own.min_partition
    assumptions = (one for one in known.assumptions if one.column != "pooling_factor" or one.table in assumed)
    unused = cut(", ".join(_unused(constraints)), 400)
    return Constrained(
        TableSet(tuple(tables), tuple(assumptions)),
        Rules.of(table_types=table_types, min_columns=min_columns, table_kernels=table_kernels),
        (
            *((f"The model has none of the tables of these constraints: {unknown}.",) if unknown else ()),
            *((f"Of TorchRec's constraints, these change nothing in the placement: {unused}.",) if unused else ()),
        ),
    )


def _check_device(name: str, own: ParameterConstraints, compute_device: str) -> None:
    if own.device_group is not None and own.device_group != compute_device:
        raise BadConfig(
            f"constraints of table {brief(name)}: device_group is {brief(own.device_group)}, the devices are "
            f"{compute_device}. To name a rank, use pinned={{{brief(name)}: 3}}."
        )


def _lookups(name: str, own: ParameterConstraints, features: Sequence[str]) -> tuple[float, ...] | None:
    """Pooling factors in the order of the table's features; None where TorchRec's default stands."""
    named = features if own.feature_names is None else own.feature_names
    if sorted(named) != sorted(features):
        raise BadConfig(
            f"constraints of table {brief(name)}: feature_names are {brief(own.feature_names)}, the table's are "
            f"{brief(list(features))}. Correct them."
        )
    if _is_default(_field(own, "pooling_factors"), own):
        return None
    if len(own.pooling_factors) != len(features):
        raise BadConfig(
            f"constraints of table {brief(name)}: there are {len(own.pooling_factors)} pooling_factors for "
            f"{len(features)} features. Give one for each."
        )
    by_feature = dict(zip(named, own.pooling_factors, strict=True))
    return tuple(float(by_feature[feature]) for feature in features)


def _types_and_kernels(
    name: str, own: ParameterConstraints, types: Sequence[str], kernels: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The ways in which a table may be sharded, and where its weights may be kept; empty for wherever others are.

    A dense kernel is that of replicas, which device memory holds; all others are of parts.
    """
    asked = tuple(types) if own.sharding_types is None else _words(own.sharding_types)
    if own.compute_kernels is None:
        return asked, ()
    named = _words(own.compute_kernels)
    of_parts = tuple(one for one in kernels if one in named)
    if not of_parts and DENSE_KERNEL not in named:
        usable = ", ".join((DENSE_KERNEL, *kernels))
        raise BadConfig(
            f"constraints of table {brief(name)}: compute_kernels are {brief(sorted(named))}, evenshard can use "
            f"{usable} here. Add one, or leave the table to TorchRec."
        )
    if not of_parts and own.sharding_types is None:
        return (DATA_PARALLEL,), ()
    cut_types = tuple(one for one in asked if one != DATA_PARALLEL) if of_parts else ()
    may_be_replicated = DENSE_KERNEL in named and (FUSED_KERNEL in of_parts or not cut_types)
    left = tuple(one for one in asked if one in cut_types or (one == DATA_PARALLEL and may_be_replicated))
    if not left:
        raise BadConfig(
            f"constraints of table {brief(name)}: no kernel of compute_kernels {brief(sorted(named))} shards it "
            f"{' or '.join(asked)}. {DENSE_KERNEL} is for {DATA_PARALLEL}, others for all other types."
        )
    return left, of_parts if cut_types else ()


def _words(values: Iterable[Any]) -> tuple[str, ...]:
    """Of TorchRec's enumerations, or their values."""
    return tuple(str(getattr(one, "value", one)) for one in values)


def _unused(constraints: Mapping[str, ParameterConstraints]) -> Iterator[str]:
    """Fields that are set and change nothing, each with its tables."""
    tables_of: dict[str, list[str]] = {}
    for name, own in constraints.items():
        for one in fields(own):
            if one.name not in (*USED, *CARRIED) and not _is_default(one, own):
                tables_of.setdefault(one.name, []).append(name)
    for field_name, names in tables_of.items():
        yield f"{field_name} ({cut(', '.join(names), 40)})"


def _field(own: ParameterConstraints, name: str) -> Field[Any]:
    return next(one for one in fields(own) if one.name == name)


def _is_default(one: Field[Any], own: ParameterConstraints) -> bool:
    default = one.default if one.default_factory is MISSING else one.default_factory()
    return bool(getattr(own, one.name) == default)


def carry_over(plan: ShardingPlan, constraints: Mapping[str, ParameterConstraints]) -> None:
    """Writes into a plan what constraints say to the kernels: ``CARRIED``, and of caches all but their sizes.

    Args:
        plan: of the tables that evenshard places.
        constraints: by table.
    """
    for tables in plan.plan.values():
        for name, entry in tables.items():
            own = constraints.get(name)
            if own is None:
                continue
            for word in CARRIED:
                setattr(entry, word, getattr(own, word))
            cache, theirs = entry.cache_params, own.cache_params
            if cache is not None and theirs is not None:
                entry.cache_params = replace(
                    cache, algorithm=theirs.algorithm or cache.algorithm, precision=theirs.precision
                )
