"""Tables of TorchEasyRec's pipeline configs, by the rules of its tzrec/features and tzrec/modules/embedding.py.

Features with one ``embedding_name`` share a table, but sequence groups have tables of their own, without pooling.
"""

from collections.abc import Iterator
from typing import Any

from evenshard.base.messages import names_text
from evenshard.tables.table import SEQUENCE
from evenshard.tables.tools import ToolFile
from evenshard.tables.tools.protobuf_text import Message, first

_WIDE, _SEQUENCES = "WIDE", ("SEQUENCE", "JAGGED_SEQUENCE")
_ROWS = (("zch", "zch_size"), ("dynamicemb", "max_capacity"), ("hash_bucket_size",), ("num_buckets",))
_LENGTH, _IS_SEQUENCE = "sequence_length", "is sequence"  # the latter is added here


def read_easyrec(config: Message, found: ToolFile) -> None:
    """Add the tables of a pipeline config."""
    found.kind = "a TorchEasyRec config"
    if batch_size := first(config, "data_config", "batch_size"):
        found.batch = f"{batch_size:,} samples per device"
    features, model = dict(_list_features(config["feature_configs"])), first(config, "model_config", default={})
    stated = (first(model, name, "wide_embedding_dim") for name in model)
    wide_dim = next(filter(None, stated), 16 if "xdeepfm" in model else 4)
    usual = [(name, _SEQUENCES[0] if _IS_SEQUENCE in spec else "", "") for name, spec in features.items()]
    uses = list(_list_uses(model)) or usual
    tables: dict[tuple[str, bool, int | None], dict[str, Message]] = {}
    for name, group, suffix in uses:
        if (spec := features.get(name)) and _num_rows(spec) is not None:
            table = first(spec, "embedding_name", default=f"{name}_emb") + ("_wide" if group == _WIDE else "") + suffix
            dim = wide_dim if group == _WIDE else first(spec, "embedding_dim")
            tables.setdefault((table, group in _SEQUENCES, dim), {})[name] = spec
    pooled = {table for table, is_sequence, _ in tables if not is_sequence}
    for (table, is_sequence, dim), specs in tables.items():
        spec, name = next(iter(specs.values())), table
        if is_sequence and table in pooled:
            name += "_sequence"
            found.assume(name, "name", "a second table for sequences, as in TorchEasyRec")
        lookups = {feature: _lookups(spec) for feature, spec in specs.items()}
        pooling = SEQUENCE if is_sequence else first(spec, "pooling")
        more = {"data_type": first(spec, "data_type"), "is_weighted": first(spec, "weighted")}
        found.add(name, _num_rows(spec), dim, lookups, pooling=pooling, **more)
        if any(lookups[feature] and _IS_SEQUENCE in spec for feature, spec in specs.items()):
            found.assume(name, "pooling_factor", "the longest sequence, by sequence_length")
    if unread := [name for name, *_ in uses if "vocab_file" in features.get(name, {})]:
        found.notes.append(f"no table for features with their rows in a vocab_file: {names_text(unread)}.")


def _list_features(configs: list[Any], prefix: str = "", **of_group: list[Any]) -> Iterator[tuple[str, Message]]:
    for kind, spec in ((kind, spec) for config in configs for kind, specs in config.items() for spec in specs):
        is_sequence = {_IS_SEQUENCE: [True]} if kind.startswith("sequence_") else {}
        if kind == "sequence_feature":
            group = {**is_sequence, _LENGTH: spec.get(_LENGTH, [])}
            yield from _list_features(spec.get("features", []), f"{first(spec, 'sequence_name')}__", **group)
        else:
            yield f"{prefix}{first(spec, 'feature_name')}", {**spec, **is_sequence, **of_group}


def _list_uses(model: Message) -> Iterator[tuple[str, Any, str]]:  # feature, type of group, suffix of tables
    for group in model.get("feature_groups", []):
        suffix = "".join(f"_{text}" for text in group.get("embedding_name_suffix", []) if text)
        yield from ((name, first(group, "group_type"), suffix) for name in group.get("feature_names", []))
        for inner in group.get("sequence_groups", []):
            yield from ((name, _SEQUENCES[0], suffix) for name in inner.get("feature_names", []))


def _num_rows(spec: Message) -> int | None:
    """Return the rows of a feature's table; None for a dense feature, or if they are in a vocab_file."""
    if stated := [rows for path in _ROWS if (rows := first(spec, *path)) is not None]:
        return int(stated[0])
    if words := spec.get("vocab_list"):  # after rows for the default and for unknown words
        return len(words) + (0 if "default_bucketize_value" in spec else 2)
    if entries := spec.get("vocab_dict"):
        return max(int(first(entry, "value", default=0)) for entry in entries) + 1
    return len(spec["boundaries"]) + 1 if "boundaries" in spec else None


def _lookups(spec: Message) -> float | None:
    values = first(spec, "value_dim")
    lookups: float | None = first(spec, _LENGTH, default=0) * (values or 1) if _IS_SEQUENCE in spec else values
    return lookups or None
