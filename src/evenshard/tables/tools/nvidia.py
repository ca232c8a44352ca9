"""Tables of HugeCTR's models, and of NVTabular's and Merlin's schemas."""

import re
from collections.abc import Mapping
from itertools import pairwise
from struct import unpack
from typing import Any

from evenshard.tables.table import MAX_FEATURES, SEQUENCE
from evenshard.tables.tools import ToolFile
from evenshard.tables.tools.protobuf_text import Message, first

PARAMETERS = "sparse_embedding_hparam"
_COMBINERS = {0: "sum", 1: "mean"}


def read_hugectr(model: Mapping[str, Any], found: ToolFile) -> None:
    """Add the tables of a model: one per slot, or one per layer if the file does not state the rows of its slots."""
    found.kind, solver, layers = "a HugeCTR model", model.get("solver", {}), model["layers"]
    found.batch = f"{solver['batchsize']:,} samples over all devices" if "batchsize" in solver else ""
    num_gpus = sum(map(len, solver.get("vvgpu") or [solver.get("gpu") or [0]]))
    data: Mapping[str, Any] = next((layer for layer in layers if "sparse" in layer), {"sparse": []})
    inputs, left = {}, data.get("slot_size_array", [])
    for entry in data["sparse"]:
        count = entry.get("slot_num", 1)
        inputs[entry["top"]], left = {**entry, "sizes": left[:count]}, left[count:]
    for layer in (layer for layer in layers if PARAMETERS in layer):
        own, name, entry = layer[PARAMETERS], str(layer.get("top")), inputs.get(str(layer.get("bottom")), {})
        sizes = own.get("slot_size_array") or entry.get("sizes", [])
        num_slots = len(sizes) or min(entry.get("slot_num", 1), MAX_FEATURES)
        counts = entry.get("nnz_per_slot")
        # Slots of size 0 share the table of the next slot that has rows.
        ends = [-1, *(slot for slot, rows in enumerate(sizes) if rows)]
        groups = [(sizes[last], range(before + 1, last + 1)) for before, last in pairwise(ends)]
        dim, in_workspace = own.get("embedding_vec_size"), own.get("workspace_size_per_gpu_in_mb", 0) * 2**18
        of_gpu = own.get("max_vocabulary_size_per_gpu") or in_workspace // (dim or 1)
        capacity = own.get("max_vocabulary_size_global") or own.get("vocabulary_size") or of_gpu * num_gpus
        for rows, slots in groups if sizes else [(capacity or None, range(num_slots))]:
            table, combiner = f"{name}_{slots[-1]}" if sizes else name, own.get("combiner")
            lookups = {f"{name}_{slot}": counts[slot] if isinstance(counts, list) else counts for slot in slots}
            found.add(table, rows, dim, lookups, pooling=_COMBINERS.get(combiner, combiner))
            if counts and not entry.get("is_fixed_length"):
                found.assume(table, "pooling_factor", "the most of a sample, by nnz_per_slot")
            if not sizes:
                found.assume(table, "num_rows", "the capacity of the layer, which has no slot_size_array")


def as_message(content: Any) -> Any:
    """Convert the JSON of a message to the form of ``parse_text``."""
    if not isinstance(content, dict):
        return content
    pairs = ((re.sub("(?=[A-Z])", "_", key).lower(), value) for key, value in content.items())
    return {key: [as_message(item) for item in (value if isinstance(value, list) else [value])] for key, value in pairs}


def read_schema(schema: Message, found: ToolFile) -> None:
    """Add the tables of a schema's categorical features; as in Merlin, features of one domain share a table."""
    found.kind, domains, sequences = "a Merlin schema", dict[str, list[Message]](), set[str]()
    for feature in schema["feature"]:
        domain, tags = first(feature, "int_domain", default={}), first(feature, "annotation", default={}).get("tag", [])
        words = {str(tag).lower().rpartition(".")[2] for tag in tags}
        if "max" in domain and (first(domain, "is_categorical") or "categorical" in words):
            name = str(first(domain, "name") or first(feature, "name"))
            domains.setdefault(name, []).append(feature)
            sequences |= {name} if "sequence" in words else set()
    for name, features in domains.items():
        rows = max(int(first(feature, "int_domain", "max")) for feature in features) + 1
        dim = None if found.embedding_dim else next(filter(None, map(_dim, features)), None)
        if not (dim or found.embedding_dim):  # the rule of NVTabular's ``get_embedding_sizes``
            dim = min(max(16, round(1.6 * float(rows**0.56))), 512)
            found.assume(name, "embedding_dim", f"{dim}, by NVTabular's rule for this number of rows")
        lookups = {str(first(each, "name")): first(each, "value_count", "max") for each in features}
        found.add(name, rows, dim, lookups, pooling=SEQUENCE if name in sequences else None)
        if any(lookups.values()):
            found.assume(name, "pooling_factor", "the most of a sample, by value_count")
        if name in sequences:
            found.assume(name, "pooling", f"{SEQUENCE}, because of the tag sequence")


def _dim(feature: Message) -> int | None:
    annotation = first(feature, "annotation", default={})
    if in_json := re.search(r"dimension\W+(\d+)", repr(annotation)):
        return int(in_json[1])
    struct = str(first(annotation, "extra_metadata", "value")).encode(errors="surrogateescape")
    number = re.search(rb"dimension\x12\t\x11(.{8})", struct, re.DOTALL)  # in a serialized google.protobuf.Struct
    return int(unpack("<d", number[1])[0]) if number else None
