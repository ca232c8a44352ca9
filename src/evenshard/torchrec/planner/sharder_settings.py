"""Settings of module sharders that a price or a plan depends on: quantized communication and ``fused_params``.

TorchRec keeps what a plan does not name, such as ``stochastic_rounding`` and ``bounds_check_mode``. A plan's cache
parameters replace those of ``fused_params``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evenshard.placement.sharding import Communication
from evenshard.torchrec.model.modules import LocatedTable
from evenshard.utils.messages import cut

# Operations of TorchRec's registry, by whether their tables are pooled; the first names the data types of all.
_OPERATIONS = {
    True: ("POOLED_EMBEDDINGS_ALL_TO_ALL", "POOLED_EMBEDDINGS_REDUCE_SCATTER"),
    False: ("SEQUENCE_EMBEDDINGS_ALL_TO_ALL",),
}
# Keys of ``fused_params`` that a plan's cache parameters replace, and those that no price knows.
_REPLACED = ("cache_load_factor", "cache_algorithm", "cache_reserved_memory", "prefetch_pipeline")
_UNPRICED = ("use_one_tbe_per_table", "cache_precision", "weights_precision")


def communication_of(located: Sequence[LocatedTable], sharders: Iterable[Any]) -> tuple[Communication, tuple[str, ...]]:
    """Return the data types in which embeddings and gradients travel, and notes on what they leave aside.

    They are those of the sharders' ``qcomm_codecs_registry``, else the ``output_dtype`` of their ``fused_params``.
    One pair counts for all tables: that of the most columns.

    Args:
        located: tables of the model.
        sharders: sharders of modules.
    """
    sharder_of = {one.module_type: one for one in sharders}
    columns: Counter[Communication] = Counter()
    for one in located:
        sharder = sharder_of.get(type(one.collection))
        operations = _OPERATIONS["EmbeddingBag" in type(one.config).__name__]
        found = [_communication(sharder, operation) for operation in operations]
        columns[found[0]] += one.shape[1] * len(one.features)
        for other in found[1:]:
            columns[other] += 0
    if not columns:
        return Communication(), ()
    chosen = columns.most_common(1)[0][0]
    others = [f"{one.forward} and {one.backward}" for one in columns if one != chosen]
    if not others:
        return chosen, ()
    return chosen, (
        f"The sharders' qcomms differ between modules or operations. All exchanges are priced in {chosen.forward} "
        f"forward and {chosen.backward} backward, also those in {cut('; '.join(others))}.",
    )


def settings_notes(sharders: Iterable[Any]) -> tuple[str, ...]:
    """Return a line each about settings of ``fused_params`` that the plan replaces, and that no price counts."""
    params: dict[str, Any] = {}
    for one in sharders:
        params |= getattr(one, "fused_params", None) or {}
    notes = []
    if replaced := _settings_text(params, _REPLACED):
        notes.append(f"fused_params of the sharders: the plan replaces {replaced} for tables that it caches.")
    if unpriced := _settings_text(params, _UNPRICED):
        notes.append(f"fused_params of the sharders: predicted times and memory leave {unpriced} aside.")
    return tuple(notes)


def _settings_text(params: Mapping[str, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{key}={params[key]}" for key in keys if params.get(key) is not None)


def _communication(sharder: Any, operation: str) -> Communication:
    output = _word(getattr(sharder, "fused_params", None) and sharder.fused_params.get("output_dtype"))
    codecs = (getattr(sharder, "qcomm_codecs_registry", None) or {}).get(operation)
    both = (getattr(codecs, way, None) for way in ("forward", "backward"))
    return Communication(*(output if one is None else _word(one.quantized_dtype) for one in both))


def _word(data_type: Any) -> str:
    name = str(getattr(data_type, "name", data_type)).removeprefix("torch.").lower()
    words = {"none": "fp32", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "uint8": "int8"}
    word = words.get(name, name)
    return word if word in ("fp32", "fp16", "bf16", "int8", "fp8") else "fp32"
