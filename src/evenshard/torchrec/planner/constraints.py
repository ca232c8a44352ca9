"""Conversion of TorchRec's ``ParameterConstraints`` to evenshard's rules and tables."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from numbers import Real
from typing import TYPE_CHECKING, Any

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief, cut
from evenshard.placement.parts import COLUMN_STEP, COMPUTE_KERNELS, FUSED
from evenshard.placement.sharding import COLUMNS_ALONE, DATA_PARALLEL, TABLE_WISE
from evenshard.planner.request import PlacementRequest, memory_problem
from evenshard.planner.rules import Rules
from evenshard.price.hardware import HardwareName
from evenshard.tables.assumptions import TableSet
from evenshard.tables.table import LOAD_FACTORS, Table
from evenshard.torchrec.baseline.topology import DENSE_KERNEL, TooStrict
from evenshard.torchrec.model.modules import find_other_tables, locate_tables
from evenshard.torchrec.model.tables import list_changed_fields, with_bags

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import ShardingPlan

    from evenshard.torchrec.model.modules import Collections

log = logging.getLogger(__name__)

# Fields that limit sharding types, kernels or ranks, or that set lookups.
USED = (
    *("sharding_types", "compute_kernels", "min_partition", "device_group"),
    *("pooling_factors", "num_poolings", "batch_sizes", "feature_names", "is_weighted"),
)
# Fields that the plan copies to every table.
CARRIED = ("enforce_hbm", "stochastic_rounding", "bounds_check_mode", "output_dtype")
# Fields that the plan copies to tables with a cache or an SSD, except cache sizes; see ``carry_over``.
OF_KERNELS = ("cache_params", "key_value_params")


@dataclass(frozen=True)
class ConstrainedModel:
    """Tables and rules of a model after its constraints were applied."""

    known: TableSet  # tables, and assumptions that constraints did not replace
    rules: Rules
    lookups: Mapping[str, tuple[float, ...]]  # lookups per bag of each feature, by table
    notes: tuple[str, ...]


def apply_constraints(
    collections: Collections,
    constraints: Mapping[str, ParameterConstraints],
    known: TableSet,
    types: Sequence[str],
    compute_device: str,
    kernels: Sequence[str],
    batch_size: float,
    sharders: Sequence[Any] | None = None,
) -> ConstrainedModel:
    """Apply constraints to a model's tables and rules; constraints of tables left to TorchRec are ignored.

    Fields without effect on the placement are logged at DEBUG.

    Args:
        collections: in any form that ``tables_of`` accepts.
        constraints: by table name, as for TorchRec's planner.
        known: the tables of the model; constraints replace only assumed pooling factors.
        types: sharding types of tables without a rule.
        kernels: kernels whose memory is available; other kernels of a constraint are ignored.
        batch_size: samples per rank.

    Raises:
        BadConfig: if a constraint is invalid, or names an unsupported type or kernel.
    """
    _check_kind(constraints)
    located = locate_tables(collections, sharders)
    names = {name for one in located for name in (one.name, one.config.name)}
    others = {name.rpartition(".")[2] for name, _ in find_other_tables(collections, sharders)}
    unknown = cut(", ".join(name for name in constraints if name not in names | others), 400)
    constraints = {name: own for name, own in constraints.items() if name in names}
    assumed = {one.table for one in known.assumptions if one.column == "pooling_factor"}
    tables: list[Table] = []
    found_lookups: dict[str, tuple[float, ...]] = {}
    table_types: dict[str, tuple[str, ...]] = {}
    min_columns: dict[str, int] = {}
    table_kernels: dict[str, tuple[str, ...]] = {}
    for table, one in zip(known.tables, located, strict=True):
        own = constraints.get(one.name, constraints.get(one.config.name))
        if own is None:
            tables.append(table)
            found_lookups[table.name] = table.feature_lookups
            continue
        _check_device(table.name, own, compute_device)
        lookups = _lookups(table.name, own, one.features, constraints.values())
        if lookups is not None and table.name in assumed:
            assumed.remove(table.name)
            several = lookups if len(lookups) > 1 else ()
            table = replace(table, pooling_factor=sum(lookups), feature_pooling_factors=several)
        found_lookups[table.name] = table.feature_lookups
        table = with_bags(table, _bags(table.name, own, one.features, batch_size))
        table = replace(
            table, is_weighted=table.is_weighted or own.is_weighted, miss_ratios=_miss_ratios(own) or table.miss_ratios
        )
        if problem := table.problem():
            raise BadConfig(f"constraints of table {brief(table.name)}: {problem}. Correct them.")
        tables.append(table)
        if own.sharding_types is not None or own.compute_kernels is not None:
            table_types[table.name], own_kernels = _types_and_kernels(table.name, own, types, kernels)
            if own_kernels:
                table_kernels[table.name] = own_kernels
        if own.min_partition is not None:
            min_columns[table.name] = own.min_partition
    assumptions = (one for one in known.assumptions if one.column != "pooling_factor" or one.table in assumed)
    if idle := sorted(
        {field for own in constraints.values() for field in list_changed_fields(own) if field not in USED}
    ):
        log.debug("These fields of constraints do not affect the placement: %s", ", ".join(idle))
    return ConstrainedModel(
        replace(known, tables=tuple(tables), assumptions=tuple(assumptions)),
        Rules.of(table_types=table_types, min_columns=min_columns, table_kernels=table_kernels),
        found_lookups,
        (f"constraints names tables that the model does not have: {unknown}.",) if unknown else (),
    )


def constrain_request(
    request: PlacementRequest, collections: Collections, constraints: Mapping[str, ParameterConstraints]
) -> tuple[PlacementRequest, tuple[str, ...]]:
    """Apply TorchRec's constraints to the request of a model's tables; return the request and notes."""
    found = apply_constraints(
        collections,
        constraints,
        TableSet(request.tables, request.assumptions),
        request.types,
        HardwareName.parse(request.hardware).kind.compute_device,
        tuple(one for one in COMPUTE_KERNELS if memory_problem(one, request.nodes) is None),
        request.batch_size / request.num_devices,
    )
    rules, _ = keep_narrow_tables_whole(request.rules + found.rules, found.known, request.types)
    changed = replace(request, tables=found.known.tables, rules=rules, assumptions=found.known.assumptions)
    return changed, found.notes


def keep_narrow_tables_whole(rules: Rules, known: TableSet, types: Sequence[str]) -> tuple[Rules, dict[str, str]]:
    """Allow tables that may only be cut by columns to stay whole if they are too narrow, as TorchRec does.

    Returns the rules, and the sharding type that the plan writes for each of these tables.
    """
    table_types, written = dict(rules.table_types), {}
    for table in known.tables:
        asked = table_types.get(table.name, tuple(types))
        # A table needs two shards of the minimum width, rounded up to FBGEMM's step.
        steps = -(-rules.min_columns.get(table.name, COLUMN_STEP) // COLUMN_STEP)
        if {*asked} <= {*COLUMNS_ALONE} and table.embedding_dim < 2 * steps * COLUMN_STEP:
            table_types[table.name], written[table.name] = (*asked, TABLE_WISE), asked[0]
    return replace(rules, table_types=table_types), written


def _check_kind(constraints: Mapping[str, ParameterConstraints]) -> None:
    from torchrec.distributed.planner.types import ParameterConstraints

    remedy = "Give TorchRec's constraints by table, such as {'clicks': ParameterConstraints(pooling_factors=[37.5])}."
    if not isinstance(constraints, Mapping):
        raise BadConfig(f"constraints is {brief(constraints)}. {remedy}")
    for name, own in constraints.items():
        if not isinstance(own, ParameterConstraints):
            raise BadConfig(f"constraints of table {brief(name)} are {brief(own)}. {remedy}")


def _check_device(name: str, own: ParameterConstraints, compute_device: str) -> None:
    if own.device_group is not None and own.device_group != compute_device:
        raise BadConfig(
            f"constraints of table {brief(name)}: device_group is {brief(own.device_group)}, but the devices are "
            f"{compute_device}. To choose a rank, use pinned={{{brief(name)}: 3}}."
        )


def _lookups(
    name: str, own: ParameterConstraints, features: Sequence[str], constraints: Iterable[ParameterConstraints]
) -> tuple[float, ...] | None:
    """Return pooling factors in the features' order; None if they are TorchRec's default."""
    named = features if own.feature_names is None else own.feature_names
    if sorted(named) != sorted(features):
        raise BadConfig(
            f"constraints of table {brief(name)}: feature_names are {brief(own.feature_names)}, but the table's are "
            f"{brief(list(features))}. Correct them."
        )
    # Pooling factors equal to the default count as given if the constraints seem to be made for this purpose: no other
    # field is set, or another table has the same fields and pooling factors.
    changed = {*list_changed_fields(own)}
    if "pooling_factors" not in changed:
        others = [{*list_changed_fields(other)} for other in constraints]
        if len(features) > 1 or (changed and changed | {"pooling_factors"} not in others):
            return None
    return _of_features(name, own, features, "pooling_factors")


def _bags(name: str, own: ParameterConstraints, features: Sequence[str], batch_size: float) -> tuple[float, ...]:
    """Return the bags per sample of each feature: ``num_poolings`` x the feature's batch size / ``batch_size``."""
    bags = (1.0,) * len(features)
    if own.num_poolings:
        bags = _of_features(name, own, features, "num_poolings")
    if own.batch_sizes:
        sizes = _of_features(name, own, features, "batch_sizes")
        bags = tuple(number * size / batch_size for number, size in zip(bags, sizes, strict=True))
    return bags


def _of_features(name: str, own: ParameterConstraints, features: Sequence[str], column: str) -> tuple[float, ...]:
    """Return the values of a field of a constraint, by feature of the table; raise BadConfig for invalid values."""
    values = getattr(own, column)
    if not isinstance(values, Sequence) or not all(isinstance(one, Real) for one in values):
        raise BadConfig(
            f"constraints of table {brief(name)}: {column} are {brief(values)}. Give a list with one number per "
            f"feature."
        )
    if len(values) != len(features):
        raise BadConfig(
            f"constraints of table {brief(name)}: there are {len(values)} {column} for {len(features)} features. "
            f"Give one per feature."
        )
    if not all(math.isfinite(one) and one >= 0 for one in values):
        raise BadConfig(
            f"constraints of table {brief(name)}: {column} are {brief(list(values))}. Give numbers of at least 0."
        )
    by_feature = dict(zip(features if own.feature_names is None else own.feature_names, values, strict=True))
    return tuple(float(by_feature[feature]) for feature in features)


def _miss_ratios(own: ParameterConstraints) -> tuple[float, ...] | None:
    """Return the miss-ratio curve of ``CacheStatistics``, non-increasing and 0 at load factor 1; None without them."""
    stats = getattr(own.cache_params, "stats", None)
    if stats is None:
        return None
    ratios = (min(max(float(stats.expected_miss_rate(factor)), 0.0), 1.0) for factor in LOAD_FACTORS[:-1])
    return (*accumulate(ratios, min), 0.0)


def _types_and_kernels(
    name: str, own: ParameterConstraints, types: Sequence[str], kernels: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the sharding types and kernels that a constraint allows; kernels are empty if it allows all."""
    asked = tuple(types) if own.sharding_types is None else _words(own.sharding_types)
    if own.compute_kernels is None:
        return asked, ()
    named = _words(own.compute_kernels)
    of_parts = tuple(one for one in kernels if one in named)
    if not of_parts and DENSE_KERNEL not in named:
        usable = ", ".join((DENSE_KERNEL, *kernels))
        raise TooStrict(
            f"constraints of table {brief(name)}: compute_kernels are {brief(sorted(named))}, but evenshard can only "
            f"use {usable} here. Add one of them, or leave the table to TorchRec."
        )
    if not of_parts and own.sharding_types is None:
        return (DATA_PARALLEL,), ()
    cut_types = tuple(name for name in asked if name != DATA_PARALLEL) if of_parts else ()
    # Replicas are in device memory. Next to other types, they are allowed only if these may use device memory, too.
    may_be_replicated = DENSE_KERNEL in named and (FUSED in of_parts or not cut_types)
    left = tuple(one for one in asked if one in cut_types or (one == DATA_PARALLEL and may_be_replicated))
    if not left:
        raise TooStrict(
            f"constraints of table {brief(name)}: compute_kernels {brief(sorted(named))} do not support "
            f"{' or '.join(asked)}. Use {DENSE_KERNEL} for {DATA_PARALLEL}, and fused kernels for all other types."
        )
    return left, of_parts if cut_types else ()


def _words(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(str(getattr(one, "value", one)) for one in values)


# Settings that a plan passes on to kernels ----------------------------------------------------------------------------


def carry_over(plan: ShardingPlan, constraints: Mapping[str, ParameterConstraints]) -> tuple[str, ...]:
    """Copy kernel settings, such as stochastic rounding, from the constraints to a plan, except for cache sizes.

    As in TorchRec, ``cache_params`` are also copied to tables without a cache; a note names these tables.
    """
    without_cache: list[str] = []
    for tables in plan.plan.values():
        for name, entry in tables.items():
            own = constraints.get(name)
            if own is None:
                continue
            for word in CARRIED:
                setattr(entry, word, getattr(own, word))
            for word in OF_KERNELS:
                given, ours = getattr(own, word), getattr(entry, word)
                if given is not None and ours is not None:
                    setattr(entry, word, _with_own_sizes(given, ours))
                elif given is not None and word == "cache_params":
                    setattr(entry, word, given)
                    if not list_changed_fields(given).keys() <= {"stats"}:  # the search already uses the stats
                        without_cache.append(name)
    if not without_cache:
        return ()
    return (
        f"As in TorchRec, the plan has the constraints' cache_params for tables without a cache "
        f"({cut(', '.join(without_cache), 200)}). TorchRec looks up tables with different cache_params in separate "
        f"kernel calls; predicted times do not include this.",
    )


# Cache fields that the search sets, or that separate kernel calls.
_SIZES = ("load_factor", "reserved_memory", "max_l1_cache_size")


def _with_own_sizes(given: Any, ours: Any) -> Any:
    said = {one.name: getattr(given, one.name) for one in fields(given) if one.name not in _SIZES}
    return replace(ours, **{name: value for name, value in said.items() if value is not None})
