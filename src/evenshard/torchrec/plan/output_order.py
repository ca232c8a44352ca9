"""The order of pooled outputs under a TorchRec plan, beside that of the unsharded model."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any

from evenshard.planner.output_order import BY_NAME, OrderChange, OutputTable, order_changes, output_keys, sort_outputs
from evenshard.tables.table import SEQUENCE
from evenshard.torchrec.model.fused_optimizers import weight_of
from evenshard.torchrec.model.modules import LocatedTable

if TYPE_CHECKING:
    from torchrec.distributed.types import ParameterSharding, ShardingPlan

log = logging.getLogger(__name__)

# Kernels whose tables share calls with those of the "fused" kernel.
_LIKE_FUSED = ("fused", "fused_uvm", "fused_uvm_caching")


def plan_orders(plan: ShardingPlan, located: Sequence[LocatedTable]) -> dict[str, tuple[OutputTable, ...]]:
    """Return the tables of each pooled collection in the order of its output under a plan."""
    collections: dict[str, list[LocatedTable]] = {}
    for one in located:
        if one.pooling != SEQUENCE:
            collections.setdefault(one.path, []).append(one)
    found = {}
    for path, tables in collections.items():
        keys = output_keys([(one.config.name, one.features) for one in tables])
        entries: Any = plan.plan[path]
        found[path] = sort_outputs(
            [_output_table(one, own, entries[one.config.name]) for one, own in zip(tables, keys, strict=True)]
        )
    return found


def warn_of_order(changes: Sequence[OrderChange], why: str) -> None:
    """Log each change of an order with its reason."""
    for one in changes:
        log.warning("%s %s %s", one.text, why, BY_NAME)


def warn_of_unsharded_order(plan: ShardingPlan, located: Sequence[LocatedTable]) -> None:
    """Log on rank 0 the pooled collections whose output has another order under a plan than in the unsharded model."""
    import torch.distributed as dist

    if dist.is_initialized() and dist.get_rank():
        return
    under_plan = plan_orders(plan, located)
    position = {(one.path, one.config.name): at for at, one in enumerate(located)}
    unsharded = {
        path: sorted(tables, key=lambda one, path=path: position[path, one.name])  # type: ignore[misc]
        for path, tables in under_plan.items()
    }
    warn_of_order(order_changes(unsharded, under_plan), "The first is of the unsharded model, the second of the plan.")


def _output_table(located: LocatedTable, keys: tuple[str, ...], entry: ParameterSharding) -> OutputTable:
    kernel, cache = entry.compute_kernel, entry.cache_params
    weight = weight_of(located)
    call: Hashable = (
        located.config.data_type,
        located.pooling,
        repr(getattr(weight, "_optimizer_classes", None)),
        repr(getattr(weight, "_optimizer_kwargs", None)),
        "fused" if kernel in _LIKE_FUSED else kernel,
        None if cache is None else repr(astuple(replace(cache, load_factor=None, stats=None))),
        repr((entry.enforce_hbm, entry.stochastic_rounding, entry.bounds_check_mode, entry.output_dtype)),
    )
    ranks = tuple(entry.ranks or ()) if entry.sharding_spec is not None else (0,)
    return OutputTable(located.config.name, keys, entry.sharding_type, ranks, call)
