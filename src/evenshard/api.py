"""The Python API: ``evenshard.place`` and ``evenshard.what_if``, equivalent to the commands of the same names.

``evenshard.planner.knobs`` declares their knobs. Heavy modules are imported on the first call.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenshard.base.errors import BadConfig
from evenshard.base.knobs import changed_knobs, knobs_of
from evenshard.base.typed import check_arguments
from evenshard.base.units import bytes_to_gb, gb_to_bytes
from evenshard.planner.knobs import InUse, Knobs, TableSources, WhatIf, group_knobs, groups, place_knobs, shared_knobs

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import ParameterConstraints

    from evenshard.planner.answer import Near
    from evenshard.planner.optimizers import TableOptimizers
    from evenshard.planner.request import PlacementRequest
    from evenshard.planner.what_if.answer import WhatIfAnswer
    from evenshard.price.dense import DenseLayers
    from evenshard.report.answer import PlacementAnswer
    from evenshard.sharders.model import Model
    from evenshard.tables.assumptions import TableSet
    from evenshard.tables.table import Table
    from evenshard.torchrec.model.modules import Collections

# Number of moments at which a candidate is measured, so that a disturbance of one moment does not decide.
VISITS = 3


@check_arguments((*place_knobs(), *group_knobs(place_knobs())), Model="evenshard.sharders.model")
def place(
    tables: "str | Path | Sequence[Table] | Sequence[Mapping[str, Any]] | Collections | Any",
    num_devices: int | None = None,
    memory_cap_gb: float | Sequence[float] | None = None,
    *,
    progress: Callable[[float, float], None] | None = None,
    **knobs: Any,
) -> "PlacementAnswer":
    """Decide how each embedding table is sharded, and which of its rows and columns are on which device.

    Ctrl-C ends the search with the best placement so far, if there is one; a note of the answer says so.

    Args:
        tables: a table file, another tool's file, a text with sizes (1460-583), the name of a public set, a DLRM batch
            file or a folder of traffic, local or on S3 (s3://bucket/tables.parquet); or ``Table``s, a
            ``pandas.DataFrame`` or a list of dicts with the columns of a table file; or TorchRec's
            ``EmbeddingBagCollection`` or ``EmbeddingCollection``, a model with some, or a list of their configurations.
        knobs: the fields of ``Machine``, ``Memory``, ``Training``, ``Sharding``, ``TableSources``, ``TableRules``,
            ``Search`` and ``InUse``, as arguments of their own names, or as instances of these classes.
        progress: called with the predicted time of the best placement so far, ms, and the share of the search that is
            done, 0 to 1.

    Returns:
        The placement, with its predicted times, their uncertainty, and a lower bound. Deterministic.

    Raises:
        BadInput: if an argument cannot be used; the message tells how to fix it.
        InfeasibleTask: if there is no legal placement; the message says what is missing.
    """
    from evenshard.planner.hosts import devices_of
    from evenshard.planner.place import PlaceConfig, build_request, place_request
    from evenshard.planner.pricing import model_of, resolve_model
    from evenshard.planner.request import check_batch
    from evenshard.report.answer import make_displayable
    from evenshard.tables.assumptions import apply_pooling_factors

    asked = Knobs.of({"num_devices": num_devices, "memory_cap_gb": memory_cap_gb, **knobs})
    training, search = asked.training, asked.search
    named, own_hardware = resolve_model(search.model, asked.machine.hardware)
    devices = devices_of(replace(asked.machine, hardware=own_hardware), asked.memory)
    check_batch(training.batch_size, devices.machine.num_devices)
    loaded = named or model_of(None, devices.hardware)
    loaded.require_hardware(devices.hardware)
    known = _tables(tables, training.batch_size, asked.table_sources)
    known = apply_pooling_factors(known, asked.table_sources.pooling_factors)
    optimizers = _optimizers(tables, training.optimizer, loaded)
    request = build_request(asked, known, optimizers, devices, _dense_bytes(tables, asked.memory.dense_gb))
    request = replace(request, dense=request.dense or _dense_layers(tables, request))
    if asked.sharding.constraints is not None:
        request, unused = _apply_constraints(request, tables, asked.sharding.constraints)
        known = replace(known, notes=(*known.notes, *unused))
    config = replace(
        PlaceConfig.of(search),
        near=_near(asked.in_use),
        tables_from=str(tables) if isinstance(tables, str | Path) else None,
        progress=progress,
    )
    if search.num_measured:
        from evenshard.measure.placements import open_measurer

        with open_measurer(request, loaded, VISITS) as measure:
            answer = place_request(request, loaded, replace(config, measure=measure))
    else:
        answer = place_request(request, loaded, config)
    return make_displayable(replace(answer, notes=(*answer.notes, *devices.notes, *known.notes)))


def _apply_constraints(
    request: "PlacementRequest", tables: Any, constraints: "Mapping[str, ParameterConstraints]"
) -> "tuple[PlacementRequest, tuple[str, ...]]":
    from evenshard.torchrec.planner.constraints import constrain_request

    if not _is_of_torchrec(tables):
        raise BadConfig(
            "constraints apply only to tables of a TorchRec model. For these tables, use table_types, table_kernels, "
            "min_columns and pooling_factors."
        )
    return constrain_request(request, tables, constraints)


def _near(in_use: InUse) -> "Near | None":
    near, max_move_gb = in_use.near, in_use.max_move_gb
    if near is None:
        if max_move_gb is not None:
            raise BadConfig(
                f"max_move_gb is {max_move_gb:g}, but near is not set. Set near to the file of the placement in use, "
                "or leave max_move_gb out."
            )
        return None
    from evenshard.base.s3 import local_copy
    from evenshard.planner.answer import Near
    from evenshard.planner.file import load_answer

    with local_copy(near) as path:
        old = load_answer(path / "placement.json" if path.is_dir() else path)
    return Near(old, str(near), None if max_move_gb is None else gb_to_bytes(max_move_gb))


def _dense_bytes(tables: Any, dense_gb: float | None) -> int:
    if dense_gb is not None or not hasattr(tables, "named_parameters"):
        return gb_to_bytes(dense_gb or 0.0)
    from evenshard.torchrec.model.modules import dense_bytes

    return dense_bytes(tables)


def _dense_layers(tables: Any, request: "PlacementRequest") -> "DenseLayers | None":
    if not hasattr(tables, "named_parameters"):
        return None
    from evenshard.torchrec.model.dense_layers import find_dense_layers

    return find_dense_layers(tables, request.tables)


def _optimizers(tables: Any, optimizer: str | None, model: "Model") -> "TableOptimizers":
    from evenshard.placement.memory import DEFAULT_OPTIMIZER
    from evenshard.planner.optimizers import TableOptimizers

    if not _is_of_torchrec(tables):
        known = DEFAULT_OPTIMIZER if model.trained_on is None else model.trained_on.optimizer
        return TableOptimizers(optimizer or known)
    from evenshard.torchrec.model.fused_optimizers import find_optimizers

    return find_optimizers(tables, optimizer)


def _is_of_torchrec(tables: Any) -> bool:
    several = tuple(tables.values()) if isinstance(tables, Mapping) else tables
    return hasattr(tables, "named_parameters") or (
        isinstance(several, Sequence)
        and any(hasattr(one, "named_parameters") or hasattr(one, "num_embeddings") for one in several)
    )


def _tables(tables: Any, batch_size: int, sources: TableSources) -> "TableSet":
    from evenshard.base.s3 import is_address, local_copy
    from evenshard.tables.assumptions import TableSet
    from evenshard.tables.sources import complete_tables, tables_from, tables_in_python
    from evenshard.tables.table import Table

    traffic, columns, weight_bits = sources.traffic, sources.columns, sources.weight_bits
    default_pooling_factor = sources.default_pooling_factor
    if isinstance(tables, str | Path):
        with local_copy(tables) if is_address(tables) else nullcontext(tables) as here:
            return tables_from(
                here, batch_size, traffic, sources.embedding_dim, weight_bits, default_pooling_factor, columns
            )
    if sources.embedding_dim is not None:
        raise BadConfig(f"the tables already have dims. Leave embedding_dim ({sources.embedding_dim}) out.")
    known = tables_in_python(tables, batch_size, traffic, weight_bits, default_pooling_factor, columns)
    if known is not None:
        return known
    if not isinstance(tables, Sequence) or not all(isinstance(table, Table) for table in tables):
        from evenshard.torchrec.model.tables import table_set_of

        known = table_set_of(tables, default_pooling_factor=default_pooling_factor)
    else:
        known = TableSet.of(tables)
    return complete_tables(replace(known, missed=tuple(columns or ())), batch_size, traffic, weight_bits, columns)


@check_arguments(
    (*knobs_of(WhatIf), *shared_knobs(), *group_knobs(shared_knobs())), Prices="evenshard.planner.what_if.option"
)
def what_if(
    tables: Any,
    hardware: Sequence[str] = WhatIf.hardware,
    devices: Sequence[int] = WhatIf.devices,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] | None = None,
    **knobs: Any,
) -> "WhatIfAnswer":
    """Place the same tables on every combination of hardware, number of devices and size of memory.

    If the tables do not fit a machine, its option states the missing memory. Arguments that may differ by hardware take
    one value for all, or a mapping such as {"h100": 12, "a100": 25}.

    Args:
        tables: as for ``evenshard.place``.
        knobs: the fields of ``WhatIf``, as arguments of their own names, and the knobs of ``evenshard.place`` that
            apply to every machine (``shared_knobs``).
        progress: iterates over a list and shows its progress, such as ``tqdm``.

    Returns:
        The options, each with times, costs and memory, and the cheapest and fastest of them.

    Raises:
        BadInput: if an argument cannot be used; the message tells how to fix it.
    """
    from evenshard.planner.what_if.answer import answer_what_if

    names = {one.name for one in knobs_of(WhatIf)}
    taken = [one.name for one in shared_knobs()]
    known = {*names, *taken, *(group.name for group in groups())}
    if unknown := next((name for name in knobs if name not in known), None):
        raise BadConfig(f"{unknown} is neither an argument of what_if nor one of place that applies to every machine.")
    own = {name: value for name, value in knobs.items() if name in names}
    shared = Knobs.of({name: value for name, value in knobs.items() if name not in names}, taken)
    given = {name: value for group in groups() for name, value in changed_knobs(getattr(shared, group.name)).items()}
    given["dense_gb"] = bytes_to_gb(_dense_bytes(tables, shared.memory.dense_gb))
    return answer_what_if(WhatIf(hardware, devices, **own), given, partial(place, tables), progress)
