"""Placement request for a TorchRec model: its tables, the rules of its sharders and constraints, and the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief, cut
from evenshard.placement.parts import FUSED, FUSED_UVM, FUSED_UVM_CACHING, KEY_VALUE
from evenshard.placement.sharding import DATA_PARALLEL, NODE, SHARDING_TYPES, TABLE_WISE, TYPES, Communication
from evenshard.planner.knobs import Knobs
from evenshard.planner.optimizers import list_without_replicas, note_left_out_replicas
from evenshard.planner.place import build_request
from evenshard.planner.request import PlacementRequest, sharding_types_of
from evenshard.planner.rules import Rules
from evenshard.tables.assumptions import TableSet
from evenshard.torchrec.baseline.topology import DENSE_KERNEL, KERNELS_OF_TABLES, TooStrict
from evenshard.torchrec.model.dense_layers import find_dense_layers
from evenshard.torchrec.model.fused_optimizers import find_optimizers
from evenshard.torchrec.model.modules import LocatedTable, locate_tables
from evenshard.torchrec.model.tables import table_set_of
from evenshard.torchrec.model.trainable import leaves_a_rank_empty
from evenshard.torchrec.planner.constraints import apply_constraints, keep_narrow_tables_whole
from evenshard.torchrec.planner.machine import TorchRecMachine

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.planner.types import Enumerator, ParameterConstraints
    from torchrec.distributed.types import ModuleSharder

# Types whose shards TorchRec keeps in a node, or in a pod if the job's environment configures pods.
ROWS_IN_NODE = tuple(own_type.name for own_type in TYPES.values() if own_type.scope == NODE)

# Allowed pairs of sharding type and kernel, by the path of a table's module and the table's name.
AllowedOptions = Mapping[tuple[str, str], frozenset[tuple[str, str]]]


def check_kernels(knobs: Knobs, compute_device: str) -> None:
    """Raise BadConfig for invalid rules, or a compute kernel that TorchRec lacks on this device type."""
    usable = (FUSED,) if compute_device == "cpu" else KERNELS_OF_TABLES
    rules = Rules.of(**vars(knobs.table_rules))
    for kernel in (*knobs.sharding.compute_kernels, *(one for own in rules.table_kernels.values() for one in own)):
        if kernel not in usable:
            raise BadConfig(
                f"TorchRec has no compute kernel {brief(kernel)} on {compute_device}. Choose from {', '.join(usable)}."
            )


@dataclass(frozen=True)
class ModelRequest:
    """Placement request for a model. The mappings' keys are (module path, table name)."""

    request: PlacementRequest
    lookups: Mapping[tuple[str, str], tuple[float, ...]]  # per bag, of each feature
    written_as: Mapping[tuple[str, str], str]  # types to write for tables that are too narrow for their column types
    notes: tuple[str, ...]


def request_of(
    module: nn.Module,
    sharders: Sequence[ModuleSharder[Any]],
    machine: TorchRecMachine,
    dense: int,
    constraints: Mapping[str, ParameterConstraints],
    knobs: Knobs,
    is_whole: bool,
    enumerator: Enumerator | None = None,
) -> ModelRequest:
    """Return the placement request of a model on a machine.

    Args:
        dense: bytes of the dense model on each device.
        knobs: knobs of ``evenshard.place``, with the batch size over all ranks and the topology's links.
        is_whole: True if a sharder places whole tables in device memory.
        enumerator: its search space limits sharding types and kernels.

    Raises:
        BadConfig: if a table has no possible sharding type, or a constraint is invalid.
    """
    sources, kernels = knobs.table_sources, tuple(knobs.sharding.compute_kernels)
    known = table_set_of(module, sources.pooling_factors, sources.default_pooling_factor, sharders)
    types = (TABLE_WISE,) if is_whole else sharding_types_of(knobs.sharding) or SHARDING_TYPES
    if machine.nodes.nodes_per_domain > 1 and set(types) == set(SHARDING_TYPES):
        # evenshard cannot know if the job's environment configures pods, so these types would be ambiguous.
        types = tuple(name for name in types if name not in ROWS_IN_NODE)
    located = locate_tables(module, sharders)
    available = _available_kernels(machine, is_whole)
    batch_size = knobs.training.batch_size // machine.nodes.num_devices
    found = apply_constraints(
        module, constraints, known, types, machine.compute_device, available, batch_size, sharders
    )
    bounds = (
        _options_of_sharders(module, sharders, located, machine.compute_device),
        _options_of_enumerator(enumerator, module, sharders),
    )
    optimizers = find_optimizers(module, knobs.training.optimizer, sharders)
    communication, unlike = communication_of(located, sharders)
    request = build_request(knobs, found.known, optimizers, machine.devices(knobs.machine, is_whole), dense)
    layers = request.dense or find_dense_layers(module, request.tables, sharders)
    request = replace(request, rules=request.rules + found.rules, communication=communication, dense=layers)
    if is_whole:
        request = replace(request, sharding_types=types)
    left_out = _left_out(request, located, bounds)
    rules, others = request.rules, tuple(name for name in types if not TYPES[name].is_replicated)
    if len(left_out) == len(located):
        types = others
    else:
        rules = replace(rules, table_types={**rules.table_types, **dict.fromkeys(left_out, others)})
    on_cpu = _types_on_cpu(found.known, rules, types, machine)
    rules = replace(rules, table_types={**rules.table_types, **on_cpu})
    for allowed in bounds:
        rules = _limit_rules(rules, allowed, located, types, kernels or available)
    rules, written = keep_narrow_tables_whole(rules, found.known, types)
    request = replace(request, rules=rules, sharding_types=types)
    lookups = {(one.path, one.config.name): found.lookups[one.name] for one in located}
    written_as = {(one.path, one.config.name): written[one.name] for one in located if one.name in written}
    notes = (note_left_out_replicas({name: request.optimizer_of(name) for name in left_out}),) if left_out else ()
    return ModelRequest(request, lookups, written_as, (*found.notes, *notes, *unlike, *note_fused_params(sharders)))


def _left_out(
    request: PlacementRequest, located: Sequence[LocatedTable], bounds: Sequence[AllowedOptions]
) -> tuple[str, ...]:
    """Return the tables whose optimizer rules out replicas, except tables that must be replicated."""
    forced = {
        table.name
        for table in located
        for allowed in bounds
        if {name for name, _ in allowed.get((table.path, table.config.name), ())} == {DATA_PARALLEL}
    }
    return tuple(name for name in list_without_replicas(request) if name not in forced)


def _available_kernels(machine: TorchRecMachine, is_whole: bool) -> tuple[str, ...]:
    if is_whole or machine.compute_device == "cpu":
        return (FUSED,)
    return (
        FUSED,
        *((FUSED_UVM_CACHING, FUSED_UVM) if machine.nodes.host_bytes else ()),
        *((KEY_VALUE,) if machine.nodes.ssd_bytes else ()),
    )


def _types_on_cpu(
    known: TableSet, given: Rules, types: Sequence[str], machine: TorchRecMachine
) -> dict[str, tuple[str, ...]]:
    """Return, by table, the types that FBGEMM can train on the CPU; tables without a limit are left out."""
    table_types: dict[str, tuple[str, ...]] = {}
    if machine.compute_device != "cpu":
        return table_types
    for table in known.tables:
        allowed = given.table_types.get(table.name, types)
        left = tuple(
            name
            for name in allowed
            if not (table.is_sequence and TYPES[name].is_replicated)
            and not leaves_a_rank_empty(table.num_rows, name, machine.nodes)
        )
        if left and left != tuple(allowed):
            table_types[table.name] = left
    return table_types


# Limits of module sharders and of an enumerator -----------------------------------------------------------------------


_OVERRIDES = ("sharding_types", "compute_kernels")  # methods of a module sharder that limit its tables


def _options_of_sharders(
    module: nn.Module, sharders: Sequence[ModuleSharder[Any]], located: Iterable[LocatedTable], compute_device: str
) -> AllowedOptions:
    """Return sharding types and kernels of tables whose module sharder overrides those of TorchRec's class."""
    from torchrec.distributed.sharding_plan import get_default_sharders

    usual = {one.module_type: type(one) for one in get_default_sharders()}
    sharder_of = {one.module_type: one for one in sharders}
    found = {}
    for one in located:
        holder = module.get_submodule(one.path)
        sharder = sharder_of[type(holder)]
        if (theirs := usual.get(sharder.module_type)) is not None:
            pairs = ((getattr(kind, name, None) for kind in (type(sharder), theirs)) for name in _OVERRIDES)
            if all(own is usual_one for own, usual_one in pairs):
                continue
        found[one.path, one.config.name] = frozenset(
            (name, str(kernel))
            for name in sharder.sharding_types(compute_device)
            for kernel in sharder.compute_kernels(name, compute_device)
        )
    return found


def _options_of_enumerator(
    enumerator: Enumerator | None, module: nn.Module, sharders: Sequence[ModuleSharder[Any]]
) -> AllowedOptions:
    found: dict[tuple[str, str], set[tuple[str, str]]] = {}
    options = [] if enumerator is None else enumerator.enumerate(module, list(sharders))
    for one in options:
        found.setdefault((one.path, one.name), set()).add((one.sharding_type, one.compute_kernel))
    return {key: frozenset(allowed) for key, allowed in found.items()}


def _limit_rules(
    rules: Rules, allowed: AllowedOptions, located: Iterable[LocatedTable], types: Sequence[str], kernels: Sequence[str]
) -> Rules:
    """Limit types and kernels of rules to allowed (type, kernel) pairs; raise TooStrict if a table has none left."""
    table_types, table_kernels = dict(rules.table_types), dict(rules.table_kernels)
    for one in located:
        own = allowed.get((one.path, one.config.name))
        if own is None:
            continue
        asked, kept_as = table_types.get(one.name, tuple(types)), table_kernels.get(one.name, tuple(kernels))
        pairs = [
            (name, kernel)
            for name in asked
            for kernel in ((DENSE_KERNEL,) if TYPES[name].is_replicated else kept_as)
            if (name, kernel) in own
        ]
        if not pairs:
            raise TooStrict(
                f"table {brief(one.name)}: its module sharder or the enumerator allows {_words(own)}, but the rules "
                f"allow {', '.join(asked)} on {', '.join(kept_as)}. Allow a sharding type and kernel that both allow."
            )
        table_types[one.name] = tuple(name for name in asked if name in {name for name, _ in pairs})
        left = tuple(kernel for kernel in kept_as if kernel in {kernel for _, kernel in pairs})
        if left and set(left) != set(kernels):
            table_kernels[one.name] = left
    return replace(rules, table_types=table_types, table_kernels=table_kernels)


def _words(pairs: Iterable[tuple[str, str]]) -> str:
    return cut(", ".join(sorted(f"{name} on {kernel}" for name, kernel in pairs)))


# Operations of TorchRec's codec registry, for pooled tables and for sequences; the first one's data types apply to all.
_OPERATIONS = {
    True: ("POOLED_EMBEDDINGS_ALL_TO_ALL", "POOLED_EMBEDDINGS_REDUCE_SCATTER"),
    False: ("SEQUENCE_EMBEDDINGS_ALL_TO_ALL",),
}
# Keys of ``fused_params`` that a plan's ``CacheParams`` replace, and keys that no cost model includes.
_REPLACED = ("cache_load_factor", "cache_algorithm", "cache_reserved_memory", "prefetch_pipeline")
_UNPRICED = ("use_one_tbe_per_table", "cache_precision", "weights_precision")


def communication_of(located: Sequence[LocatedTable], sharders: Iterable[Any]) -> tuple[Communication, tuple[str, ...]]:
    """Return the data types of embeddings and gradients in communication, and notes on ignored settings.

    They come from the sharders' ``qcomm_codecs_registry``, else from ``output_dtype`` of their ``fused_params``. The
    pair of data types that covers the most embedding columns applies to all tables.
    """
    sharder_of = {one.module_type: one for one in sharders}
    columns: Counter[Communication] = Counter()
    for one in located:
        sharder = sharder_of.get(type(one.collection))
        operations = _OPERATIONS["EmbeddingBag" in type(one.config).__name__]
        found = [_communication(sharder, operation) for operation in operations]
        columns[found[0]] += one.shape[1] * len(one.features)
        for other in found[1:]:
            columns[other] += 0  # only to mention it in the note
    if not columns:
        return Communication(), ()
    chosen = columns.most_common(1)[0][0]
    others = [f"{one.forward} and {one.backward}" for one in columns if one != chosen]
    if not others:
        return chosen, ()
    return chosen, (
        f"The sharders' qcomms differ between modules or operations. All communication is predicted with "
        f"{chosen.forward} forward and {chosen.backward} backward, including {cut('; '.join(others))}.",
    )


def note_fused_params(sharders: Iterable[Any]) -> tuple[str, ...]:
    """Return a note for each setting of ``fused_params`` that the plan replaces or that no cost model includes."""
    params: dict[str, Any] = {}
    for one in sharders:
        params |= getattr(one, "fused_params", None) or {}
    notes = []
    if replaced := _settings_text(params, _REPLACED):
        notes.append(f"The plan replaces {replaced} of the sharders' fused_params for tables with a cache.")
    if unpriced := _settings_text(params, _UNPRICED):
        notes.append(f"Predicted times and memory ignore {unpriced} of the sharders' fused_params.")
    return tuple(notes)


def _settings_text(params: Mapping[str, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{key}={params[key]}" for key in keys if params.get(key) is not None)


def _communication(sharder: Any, operation: str) -> Communication:
    output = _word(getattr(sharder, "fused_params", None) and sharder.fused_params.get("output_dtype"))
    codecs = (getattr(sharder, "qcomm_codecs_registry", None) or {}).get(operation)
    both = (getattr(codecs, direction, None) for direction in ("forward", "backward"))
    return Communication(*(output if codec is None else _word(codec.quantized_dtype) for codec in both))


def _word(data_type: Any) -> str:
    """Return evenshard's name of a TorchRec or PyTorch data type; fp32 for unknown types."""
    name = str(getattr(data_type, "name", data_type)).removeprefix("torch.").lower()
    words = {"none": "fp32", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "uint8": "int8"}
    word = words.get(name, name)
    return word if word in ("fp32", "fp16", "bf16", "int8", "fp8") else "fp32"
