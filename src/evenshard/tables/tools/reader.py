"""Recognition of other tools' files, and of lists of sizes, by their content."""

import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evenshard.base.documents import MAX_TEXT_BYTES, load_json, read_text
from evenshard.base.errors import BadConfig, BadFile, blame_file
from evenshard.base.messages import reason_of
from evenshard.tables.assumptions import TableSet
from evenshard.tables.files import tables_of_records
from evenshard.tables.records import COLUMN_ALIASES, KNOWN_COLUMNS
from evenshard.tables.tools import ToolFile, nvidia
from evenshard.tables.tools.easyrec import read_easyrec
from evenshard.tables.tools.protobuf_text import parse_text

# JSON, but not a list of records, which is a table file.
_JSON = re.compile(r"\s*(\{|\[\s*[^\s{])")
_PROTOBUF = re.compile(r"^\s*feature(_configs)?\s*:?\s*[{<]", re.MULTILINE)
# Numbers with dashes (DLRM), commas (TorchRec) or spaces between them, in one line; or one per line.
_SIZES = re.compile(r"\s*\d+((\s*[-,]\s*|[^\S\n]+)\d+)*\s*|(\s*\d+[^\S\n]*\n)+\s*(\d+\s*)?")


@blame_file
def read_tool_file(source: str, found: ToolFile) -> bool:
    """Add the tables in a file of another tool or a list of sizes; return False if it is neither."""
    path = Path(source)
    if zipfile.is_zipfile(path):
        return _add_values(enumerate(_read_counts(path)), found)
    try:
        text = read_text(path) if path.is_file() else source
        content = load_json(text) if _JSON.match(text) else None
    except ValueError:
        return False  # the reader of table files reports the problem
    if content is None and _PROTOBUF.search(text):
        try:
            content = parse_text(text)
        except ValueError as error:
            raise BadFile(path, reason_of(error), "Correct it, or write the file again.") from None
    elif content is None and len(text) < 2**21 and _SIZES.fullmatch(text):
        content = [int(number) for number in re.findall(r"\d+", text)]
    match content:
        case None:
            return False
        case {"layers": [*_]}:
            nvidia.read_hugectr(content, found)
        case {"feature": [*_]}:
            nvidia.read_schema(nvidia.as_message(content), found)
        case {"feature_configs": [*_]}:
            read_easyrec(content, found)
        case {"cats": [*columns]}:  # NVTabular's metadata
            return _add_values(((column.get("col_name"), column.get("cardinality")) for column in columns), found)
        case {"counts": [*sizes]} | {"num_embeddings_per_feature": [*sizes]} | {"slot_size_array": [*sizes]} | [*sizes]:
            return _add_values(enumerate(sizes), found)
        case _:
            return _add_values(content.items(), found)
    return True


def _add_values(values: Iterable[tuple[Any, Any]], found: ToolFile) -> bool:
    """Add tables by name or number, from rows, [rows, dim], or mappings of columns; return False for other values."""
    for key, value in values:
        name = f"t{key:03d}" if isinstance(key, int) else str(key)
        numbers = value if isinstance(value, list) else [value]
        if isinstance(value, dict) and not {*KNOWN_COLUMNS, *COLUMN_ALIASES}.isdisjoint(value):
            found.records.append({"name": name, **value})
        elif len(numbers) in (1, 2) and all(type(number) is int for number in numbers):
            found.add(name, numbers[0], numbers[1] if len(numbers) > 1 else None, {})
        else:
            return False
    return bool(found.records)


def _read_counts(path: Path) -> Any:
    try:
        with zipfile.ZipFile(path) as archive, archive.open("counts.npy") as file:
            if archive.getinfo(file.name).file_size > MAX_TEXT_BYTES:
                raise ValueError("it is too large")
            return np.lib.format.read_array(file, allow_pickle=False).ravel().tolist()
    except (KeyError, OSError, ValueError, zipfile.BadZipFile) as error:
        raise BadFile(path, f"has no array counts ({reason_of(error)})", "Give DLRM's *_fea_count.npz.") from None


def load_tool_tables(
    source: str, batch_size: int, dim: int | None, default_pooling_factor: float, columns: Mapping[str, str] | None
) -> TableSet | None:
    """Return the tables of another tool's file or of a text with sizes, such as 1460-583; None for any other source."""
    found = ToolFile(default_pooling_factor, dim)
    if source.lower().endswith(".parquet") or not read_tool_file(source, found):
        return None
    if not found.records:
        raise BadFile(source, f"is {found.kind}, but states the rows of no table", "Add them, or give a table file.")
    lacking = [record for record in found.records if record.get("embedding_dim", record.get("dim")) is None]
    if (dim is None) == bool(lacking):
        stated = f"states each table's dim. Leave embedding_dim ({dim}) out."
        raise BadConfig(f"{source} {stated if dim else 'states no embedding dims. Give embedding_dim (--dim).'}")
    for record in lacking:
        record["embedding_dim"] = dim
    if found.batch:
        found.notes.append(f"the file's batch has {found.batch}; the answer is for {batch_size:,} over all devices.")
    tables = tables_of_records(found.records, default_pooling_factor, columns, source)
    notes = (f"{source}: {note}" for note in found.notes)
    return replace(tables, assumptions=(*found.assumptions, *tables.assumptions), notes=(*notes, *tables.notes))
