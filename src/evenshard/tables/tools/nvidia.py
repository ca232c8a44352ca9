"""Tables of HugeCTR's models, and of NVTabular's and Merlin's schemas."""

import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from evenshard.tables.table import MAX_FEATURES, SEQUENCE
from evenshard.tables.tools.protobuf_text import Message, first
from evenshard.tables.tools.tool_file import ToolFile

PARAMETERS = "sparse_embedding_hparam"
_COMBINERS = {0: "sum", 1: "mean"}
# The dim in an annotation: as a number in a serialized ``google.protobuf.Struct``, or in JSON.
_STRUCT_DIM, _JSON_DIM = re.compile(rb"dimension\x12\t\x11(.{8})", re.DOTALL), re.compile(r"dimension\W+(\d+)")


def read_hugectr(model: Mapping[str, Any], found: ToolFile) -> None:
    """Add the tables of a model: one per slot, or one per layer if the file does not state the rows of its slots."""
    found.kind, solver, layers = "a HugeCTR model", model.get("solver", {}), model["layers"]
    found.batch = f"{solver['batchsize']:,} samples over all devices" if "batchsize" in solver else ""
    num_gpus = sum(map(len, solver.get("vvgpu") or [solver.get("gpu") or [0]]))
    data: Mapping[str, Any] = next((layer for layer in layers if "sparse" in layer), {"sparse": []})
    inputs, sizes_of, left = {}, {}, list(data.get("slot_size_array", []))
    for entry in data["sparse"]:
        count = entry.get("slot_num", 1)
        inputs[entry["top"]], sizes_of[entry["top"]], left = entry, left[:count], left[count:]
    for layer in (layer for layer in layers if PARAMETERS in layer):
        own, name, bottom = layer[PARAMETERS], str(layer.get("top")), str(layer.get("bottom"))
        entry, sizes = inputs.get(bottom, {}), own.get("slot_size_array") or sizes_of.get(bottom)
        num_slots = len(sizes or []) or min(entry.get("slot_num", 1), MAX_FEATURES)
        counts = entry.get("nnz_per_slot")
        per_slot = counts if isinstance(counts, list) else [counts] * num_slots
        for rows, slots in _group_slots(sizes) if sizes else [(_capacity(own, num_gpus), range(num_slots))]:
            table, combiner = f"{name}_{slots[-1]}" if sizes else name, own.get("combiner")
            lookups = {f"{name}_{slot}": per_slot[slot] for slot in slots}
            found.add(table, rows, own.get("embedding_vec_size"), lookups, pooling=_COMBINERS.get(combiner, combiner))
            if counts and not entry.get("is_fixed_length"):
                found.assume(table, "pooling_factor", "the most of a sample, by nnz_per_slot")
            if not sizes:
                found.assume(table, "num_rows", "the capacity of the layer, which has no slot_size_array")


def _group_slots(sizes: list[int]) -> Iterator[tuple[int, range]]:
    """Yield the rows and slots of each table; slots of size 0 share the table of the next slot that has rows."""
    start = 0
    for slot, size in enumerate(sizes):
        if size:
            yield size, range(start, slot + 1)
            start = slot + 1


def _capacity(own: Mapping[str, Any], num_gpus: int) -> int | None:
    of_all: int | None = own.get("max_vocabulary_size_global") or own.get("vocabulary_size")
    megabytes = own.get("workspace_size_per_gpu_in_mb", 0)
    of_gpu = own.get("max_vocabulary_size_per_gpu") or megabytes * 2**20 // (4 * own["embedding_vec_size"])
    return of_all or of_gpu * num_gpus or None


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
    serialized = first(annotation, "extra_metadata", "value")
    if isinstance(serialized, str) and (number := _STRUCT_DIM.search(serialized.encode(errors="surrogateescape"))):
        return int(struct.unpack("<d", number[1])[0])
    in_json = _JSON_DIM.search(repr(annotation))
    return int(in_json[1]) if in_json else None
