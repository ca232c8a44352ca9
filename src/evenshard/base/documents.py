"""Readers for untrusted text, JSON, YAML and gzip files; they return plain data and enforce size limits.

Python's JSON reader accepts NaN, and reads 1e400 as infinity. Both it and PyYAML silently keep the last of two equal
keys. The readers in this module raise an error with a one-line message instead.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from evenshard.base.errors import BadFile, blame_file
from evenshard.base.messages import brief, reason_of
from evenshard.base.outputs import scratch_folder

# Largest YAML, JSON or CSV file; it is read into memory as a whole. Larger tables fit in Parquet.
MAX_TEXT_BYTES = 64 * 2**20
# Largest unpacked size of a gzipped file, so that a decompression bomb does not fill the disk.
MAX_UNPACKED_BYTES = 64 * 2**30
_CHUNK_BYTES = 16 * 2**20  # read and written per step while unpacking
_MAX_DIGITS = 300  # most digits of an integer; floats end at 1.8e308, so a longer one could overflow when converted
_MAX_LEVELS = 100  # deepest nesting: libyaml recurses for each level, and a stack overflow ends the process
# Most aliases inside anchored collections: each may double the content ("billion laughs" attack).
_MAX_NESTED_ALIASES = 20


def read_text(path: Path) -> str:
    """Return the text of a file with its line endings unchanged.

    Raises:
        OSError: as from ``open``.
        ValueError: if it is larger than ``MAX_TEXT_BYTES`` or not UTF-8; the message is one line.
    """
    with path.open("rb") as file:
        content = file.read(MAX_TEXT_BYTES + 1)
    if len(content) > MAX_TEXT_BYTES:
        raise ValueError(f"it is larger than {MAX_TEXT_BYTES / 2**20:,.0f} MB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 (byte {error.start + 1:,})") from None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# JSON -----------------------------------------------------------------------------------------------------------------


def read_json(path: str | Path, what: str, remedy: str) -> Any:
    """Return the content of a JSON file; errors call the file ``what``, such as "a plan".

    Raises:
        BadFile: if it cannot be read, is not valid JSON, or is too large.
    """
    try:
        return load_json(read_text(Path(path)))
    except FileNotFoundError:
        raise BadFile(path, "no such file", remedy) from None
    except OSError as error:
        raise BadFile(path, f"cannot be read ({reason_of(error)})", remedy) from None
    except ValueError as error:
        raise BadFile(path, f"is not {what}: {reason_of(error)}", remedy) from None


def load_json(source: str | bytes, max_bytes: int = MAX_TEXT_BYTES) -> Any:
    """Parse a JSON document strictly; bytes must be UTF-8.

    Raises:
        ValueError: if it is invalid or too large, or has a non-finite number or duplicate key; the message is one line.
    """
    if len(source) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes / 1024**2:,.0f} MB")
    try:
        text = source if isinstance(source, str) else source.decode("utf-8-sig")
        content = json.loads(
            text, object_pairs_hook=_object, parse_constant=_refuse, parse_float=_float, parse_int=_int
        )
        if "\\u" in text:  # an escape may encode half a surrogate pair, which neither files nor terminals accept
            json.dumps(content, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 (byte {error.start + 1:,})") from None
    except UnicodeEncodeError:
        raise ValueError("it contains an invalid character (a lone surrogate)") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({reason_of(error)})") from None
    return content


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ValueError(f"the key {brief(twice)} appears twice")
    return found


def _float(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _int(text: str) -> int:
    return int(text) if len(text) <= _MAX_DIGITS else _refuse(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{brief(text)} is not a valid number")


def replace_non_finite(value: Any) -> Any:
    """Replace infinite numbers and NaN by None, at any depth, as JSON requires."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: replace_non_finite(item) for key, item in value.items()}
    return [replace_non_finite(item) for item in value] if isinstance(value, list | tuple) else value


# YAML -----------------------------------------------------------------------------------------------------------------


def read_yaml(path: Path, remedy: str, if_missing: str = "Check the path.", most: int = 1) -> Any:
    """Return the content of a YAML file; if ``most`` is above 1, the list of its documents, at most ``most``.

    Raises:
        BadFile: if it is missing (with the remedy ``if_missing``) or cannot be read (with ``remedy``).
    """
    try:
        found = load_documents(read_text(path), most)
        return found if most > 1 else found[0]
    except FileNotFoundError:
        raise BadFile(path, "no such file", if_missing) from None
    except (OSError, ValueError) as error:
        raise BadFile(path, f"not readable as YAML ({error})", remedy) from None


def load_yaml(text: str) -> Any:
    """Parse a YAML document strictly.

    Raises:
        ValueError: if it is not YAML, is too large, or has a duplicate key; the message names line and column.
    """
    return load_documents(text, most=1)[0]


def load_documents(text: str, most: int = 100) -> list[Any]:
    """Parse a stream of YAML documents; return [None] if it is empty.

    Raises:
        ValueError: see ``load_yaml``; or if there are more than ``most`` documents.
    """
    import yaml

    if len(text) > MAX_TEXT_BYTES:
        raise ValueError(f"it is larger than {MAX_TEXT_BYTES / 2**20:,.0f} MB")
    try:
        anchors: list[str | None] = []  # anchor of each open collection
        num_nested = 0
        for event in yaml.parse(text, _loader()):
            if isinstance(event, yaml.CollectionStartEvent):
                anchors.append(event.anchor)
            elif isinstance(event, yaml.CollectionEndEvent):
                anchors.pop()
            elif isinstance(event, yaml.AliasEvent):
                num_nested += any(anchors)
                if event.anchor in anchors:
                    raise ValueError(f"the alias {brief(event.anchor)} refers to a value that contains it")
            if len(anchors) > _MAX_LEVELS:
                raise ValueError("it is nested too deeply")
            if num_nested > _MAX_NESTED_ALIASES:
                raise ValueError(f"more than {_MAX_NESTED_ALIASES} of its aliases are inside anchored values")
        documents = list(yaml.load_all(text, _loader()))
    except MemoryError:
        raise
    except Exception as error:  # the loader raises various errors, for example for the date 2024-13-45
        raise ValueError(" ".join(str(error).split()).replace(' in "<unicode string>", line', ", line")) from None
    if len(documents) > most:
        raise ValueError(f"it contains more than {most} {'documents' if most > 1 else 'document'}")
    return documents or [None]


@cache
def _loader() -> Any:
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set[str]()
            for key, _ in node.value:  # keys as written: a key that "<<" merges may be replaced
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        raise yaml.constructor.ConstructorError(
                            "in a mapping", node.start_mark, f"{brief(key.value)} appears twice", key.start_mark
                        )
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    return Loader


@blame_file
def load_params(path: Path) -> dict[str, Any]:
    """Return the sections of a params.yaml.

    Raises:
        BadFile: if it is missing or not a YAML mapping.
    """
    params = read_yaml(path, "Repair it.", "Give its path with --params.")
    if not isinstance(params, dict):
        raise BadFile(path, "is not a mapping of sections", "Write `generate_tables: {source: dlrm_2021}`.")
    key = next(_non_string_keys(params), None)
    if key is not None:
        raise BadFile(path, f"key {brief(key)} is not a string", "Put it in quotes, or remove it.")
    return params


def _non_string_keys(content: Any) -> Iterator[Any]:
    """Yield all keys that are not strings, at any depth; they could not be sorted or written as JSON."""
    waiting, seen = [content], set()
    while waiting:
        inner = waiting.pop()
        if not isinstance(inner, (dict, list)) or id(inner) in seen:
            continue
        seen.add(id(inner))  # YAML aliases repeat an object
        if isinstance(inner, dict):
            yield from (key for key in inner if not isinstance(key, str))
            waiting.extend(inner.values())
        else:
            waiting.extend(inner)


# gzip -----------------------------------------------------------------------------------------------------------------


def is_gzipped(path: Path) -> bool:
    """Return True if a file begins with gzip's magic number."""
    with path.open("rb") as file:
        return has_gzip_magic(file.read(2))


def has_gzip_magic(content: bytes) -> bool:
    """Return True if the content begins with gzip's magic number."""
    return content.startswith(b"\x1f\x8b")


@contextmanager
def unpack_file(path: Path, is_packed: bool = True) -> Iterator[Path]:
    """Yield a temporary unpacked copy of a gzipped file, or the file itself if it is not packed.

    Raises:
        BadFile: if it is damaged, or unpacks to more than ``MAX_UNPACKED_BYTES``.
    """
    if not is_packed:
        yield path
        return
    with scratch_folder() as folder:
        target = folder / path.name.removesuffix(".gz")
        try:
            with gzip.open(path) as file, target.open("wb") as content:
                while chunk := file.read(_CHUNK_BYTES):
                    content.write(chunk)
                    if content.tell() > MAX_UNPACKED_BYTES:
                        problem = f"unpacks to more than {MAX_UNPACKED_BYTES / 2**30:,.2g} GB"
                        raise BadFile(path, problem, "Use a smaller sample.")
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            problem = f"cannot be unpacked ({reason_of(error)})"
            raise BadFile(path, problem, "Save or download the file again.") from None
        yield target
