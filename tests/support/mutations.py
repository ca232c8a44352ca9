"""Bad inputs made from good ones: seeded changes to documents, by their structure or byte by byte.

A document is plain data until it is written: a changed value is a marker, and the text of something nasty takes its
place at the end. So numbers that no float holds, deep nesting, aliases and half characters can stand anywhere.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml

# As JSON writes it, which YAML reads too.
NASTY = [
    "null", "true", "-1", "0", "1", "2", "0.5", "-0.0", "1e308", "1e400", "-1e400", "4294967296", "9223372036854775807",
    "-9223372036854775809", "1" + "0" * 400, "9" * 5000, '""', '" "', '"0"', '"-5"', '"+-5"', '"nan"', '"1e3"', "[]",
    "{}",
    "[[]]", "[null]", '{"": 0}', '{"a": 1, "a": 2}', '"' + "x" * 5000 + '"', r'"\u001b[31m\n\u202e\u0000"', r'"\t\r\n"',
    '"../../etc/passwd"', '"/etc/passwd"', '"http://user:secret@host/"', "[" * 50 + "]" * 50, "[" * 5000 + "]" * 5000,
    '{"a":' * 3000 + "1" + "}" * 3000, "[" + "1," * 20_000 + "1]", '["a", "a"]', "[1, 2.5, null]", "1.0000000000000002",
]  # fmt: skip
ONLY_JSON = ["NaN", "Infinity", "-Infinity", r'"\ud800"', r'"\udfff\ud800x"', "01", "'x'", "tru", "1_000"]
_BOMB = "[&a0 [x]" + "".join(f", &a{number} [{f'*a{number - 1}, ' * 9}]" for number in range(1, 10)) + "]"
ONLY_YAML = [
    ".nan", ".inf", "-.inf", "~", "0x" + "f" * 5000, "1:1:1", ":".join(["59"] * 400), "2024-13-45", "2024-01-01",
    "&a [*a]",
    "*nothing", "!!python/object:os.system {}", "!!bool perhaps", "!!binary ====", "!!set {a, b}", "!!float x", "<<: 3",
    _BOMB,
    "0o17", "1_000", "- - - - a", "? [a, b]", "yes", "\t", "@", '"\\x1b\\u202e"',
]  # fmt: skip
CELLS = [
    "", " ", "-5", "+-5", "--5", "1e308", "nan", "inf", "9" * 5000, "0x10", "1_000", "x" * 5000, "\x1b[31m\u202e", '"',
    '"a\nb"', "٣", "1.5", "4611686018427387904", "[" * 5000, "[0.5, 0.5]", "[NaN]", "true", "\0", "a,b", "=1+1",
]  # fmt: skip
_MARK = "@@nasty@@"


def mutated_json(content: Any, rng: random.Random) -> bytes:
    """A JSON document that is not quite ``content``."""
    changed = _changed(content, rng)
    text = json.dumps(changed, indent=rng.choice([None, 1]), default=str)
    return _damaged(_filled(text, f'"{_MARK}"', [*NASTY, *ONLY_JSON], rng).encode("utf-8", "surrogatepass"), rng)


def mutated_lines(content: Sequence[Any], rng: random.Random) -> bytes:
    """JSON lines, one or more of them changed, moved or dropped."""
    lines = [json.dumps(line) for line in content]
    for _ in range(rng.choice([1, 1, 2])):
        number = rng.randrange(len(lines))
        text = json.dumps(_changed(content[number], rng), default=str)
        lines[number] = _filled(text, f'"{_MARK}"', [*NASTY, *ONLY_JSON], rng)
    if rng.random() < 0.2:
        rng.shuffle(lines)
    if rng.random() < 0.2:
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
    return _damaged(("\n".join(lines) + "\n").encode("utf-8", "surrogatepass"), rng)


def mutated_yaml(content: Any, rng: random.Random) -> bytes:
    """A YAML document that is not quite ``content``."""
    flow = rng.choice([True, False, None])
    text = yaml.safe_dump(_changed(content, rng), sort_keys=False, default_flow_style=flow, width=10**6)
    text = _filled(text.replace(f"'{_MARK}'", _MARK), _MARK, [*NASTY, *ONLY_YAML, *ONLY_YAML], rng)
    if rng.random() < 0.1:
        text += rng.choice(
            ["\n---\na: 1\n", "\n" + text, "\n...\n", "\nextra: &x [*x]\n", "\n1: 2\n", "\n? {a: b}\n: c\n"]
        )
    return _damaged(text.encode("utf-8", "surrogatepass"), rng)


def mutated_csv(rows: Sequence[Sequence[Any]], rng: random.Random) -> bytes:
    """A CSV file, header first, that is not quite ``rows``."""
    table = [[str(cell) for cell in row] for row in rows]
    for _ in range(rng.choice([1, 1, 2, 5])):
        row = rng.choice(table)
        match rng.randrange(6):
            case 0:
                row.insert(rng.randrange(len(row) + 1), rng.choice(CELLS))
            case 1 if len(row) > 1:
                del row[rng.randrange(len(row))]
            case 2:
                table.insert(rng.randrange(len(table) + 1), list(rng.choice(table)))
            case _:
                row[rng.randrange(len(row))] = rng.choice(CELLS)
    out = io.StringIO()
    quoting = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
    csv.writer(out, quoting=quoting, lineterminator=rng.choice(["\n", "\r\n", "\r"])).writerows(table)
    return _damaged(out.getvalue().encode("utf-8", "surrogatepass"), rng)


def mutated_parquet(content: bytes, rng: random.Random) -> bytes:
    """A Parquet file with changed columns, or changed bytes."""
    if rng.random() < 0.4:
        return damaged_bytes(content, rng)
    table = pq.read_table(io.BytesIO(content))
    for _ in range(rng.choice([1, 1, 2])):
        number = rng.randrange(table.num_columns)
        name = table.column_names[number]
        match rng.randrange(8):
            case 0 if table.num_columns > 1:
                table = table.remove_column(number)
            case 1:
                other = rng.choice([f"{name}x", "", "\x1b[31m", "x" * 3000])
                table = table.rename_columns([other if one == name else one for one in table.column_names])
            case 2:
                table = table.append_column(rng.choice([name, "more"]), table.column(number))
            case 3:
                table = table.slice(0, rng.choice([0, 1, len(table) // 2]))
            case 4:
                table = pa.concat_tables([table, table])
            case 5:
                metadata = {
                    key: rng.choice([b"", b"\xff", b"[" * 100_000, b"[]", b"{}", b'{"a": NaN}', b"null", value])
                    for key, value in (table.schema.metadata or {b"evenshard": b"{}"}).items()
                }
                table = table.replace_schema_metadata({**metadata, rng.choice([b"x", b"\xff"]): b"\xfe"})
            case _:
                table = table.set_column(number, name, _nasty_column(len(table), rng))
    out = io.BytesIO()
    compression = rng.choice(["snappy", "none", "gzip", "zstd"])
    pq.write_table(table, out, compression=compression, store_schema=rng.random() < 0.8)
    return out.getvalue() if rng.random() < 0.9 else damaged_bytes(out.getvalue(), rng)


def _nasty_column(length: int, rng: random.Random) -> Any:
    bad_text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
    )
    dictionary = pa.DictionaryArray.from_arrays(pa.array([0] * length, pa.int8()), pa.array(["x" * 10_000]))
    repeated: list[Callable[[], Any]] = [
        lambda: pa.array([rng.choice([0, -1, 2**31, 2**62, -(2**63), 1])] * length, pa.int64()),
        lambda: pa.array([rng.choice([2**64 - 1, 2**63])] * length, pa.uint64()),
        lambda: pa.array([rng.choice([float("nan"), float("inf"), -1.0, 1e308, 0.0, 5e-324, 1.5])] * length),
        lambda: pa.array([rng.choice(["", "x" * 5000, "\x1b[31m\n\u202e", "a", "1", "nan", "[" * 5000])] * length),
        lambda: pa.concat_arrays([bad_text] * length) if length else pa.array([], pa.string()),
        lambda: pa.array([None] * length, rng.choice([pa.null(), pa.int64(), pa.string(), pa.float64()])),
        lambda: pa.array([[rng.choice([None, 1, -1])] * rng.choice([0, 1, 17, 100])] * length, pa.list_(pa.int64())),
        lambda: pa.array([[[1]]] * length),
        lambda: pa.array([{"a": 1}] * length),
        lambda: pa.array([b"\xff"] * length, pa.binary()),
        lambda: pa.array([2**60] * length, pa.timestamp("ms")),
        lambda: pa.array([True] * length),
        lambda: pa.array([rng.choice([1e308, float("nan")])] * length, pa.float64()).cast(pa.float32()),
        lambda: pa.array(["1.5"] * length).cast(pa.decimal128(20, 3)),
        lambda: dictionary,
    ]
    return rng.choice(repeated)()


def mutated_tensors(content: Any, rng: random.Random) -> bytes:
    """What torch.save writes of something that is not quite ``content``, or changed bytes of it."""
    changed, by_structure = copy.deepcopy(content), rng.random() < 0.6
    if by_structure:
        holder, key = rng.choice(list(_places(changed)))
        if holder is None:
            changed = _nasty_tensor(changed, rng)
        else:
            holder[key] = _nasty_tensor(holder[key], rng)
    out = io.BytesIO()
    torch.save(changed, out, _use_new_zipfile_serialization=rng.random() < 0.7)
    return out.getvalue() if by_structure and rng.random() < 0.9 else damaged_bytes(out.getvalue(), rng)


def _nasty_tensor(value: Any, rng: random.Random) -> Any:
    other = torch.tensor([rng.choice([-1, 0, 1, 2**40, 2**62])])
    if isinstance(value, torch.Tensor) and rng.random() < 0.8:
        flat = value.flatten()
        spoilt = value.clone()
        if spoilt.numel():
            spots = [-1, 0, 7, 2**31 - 1] if not value.is_floating_point() else [float("nan"), float("inf"), -1.0, 1e38]
            spoilt.view(-1)[rng.randrange(spoilt.numel())] = rng.choice(spots)
        more = [
            value.float(), value.bool(), value.to(torch.int8), flat, value[None], flat[:0], flat[:-1], value.to("meta"),
            flat[:1].expand(2**40) if flat.numel() else flat, value.to_sparse(), value.double(), value[..., None],
            torch.cat([flat, flat]), value.half(), value.to(torch.complex64),
        ]  # fmt: skip
        return spoilt if rng.random() < 0.3 else rng.choice(more)
    return rng.choice(
        [None, 1, "x", [], {}, other, [other] * 3, {"a": other}, "x" * 5000, {1: 2, "a": 3}, float("nan")]
    )


def damaged_bytes(content: bytes, rng: random.Random) -> bytes:
    """Bits flipped, bytes cut, moved, repeated or replaced."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5, 20])):
        if not data:
            break
        at = rng.randrange(len(data))
        length = min(len(data) - at, rng.choice([1, 2, 4, 8, 64, 1000]))
        match rng.randrange(7):
            case 0:
                del data[at:]
            case 1:
                del data[at : at + length]
            case 2:
                data[at:at] = data[at : at + length] * rng.choice([1, 2, 50])
            case 3:
                data[at : at + length] = rng.choice([b"\xff", b"\0", b"\x80", b"\x7f"]) * length
            case 4:
                data[at:at] = rng.randbytes(length)
            case _:
                data[at] ^= 1 << rng.randrange(8)
    return bytes(data)


def _damaged(content: bytes, rng: random.Random) -> bytes:
    """Mostly as it is: what was changed by its structure shall be read as such."""
    return damaged_bytes(content, rng) if rng.random() < 0.25 else content


def _changed(content: Any, rng: random.Random) -> Any:
    """The document with one to three places changed; a marker stands where something nasty belongs."""
    changed = copy.deepcopy(content)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        holder, key = rng.choice(list(_places(changed)))
        if holder is None:
            changed = changed if rng.random() < 0.9 else _MARK
            continue
        match rng.randrange(10):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[rng.choice(["more", "", "x" * 2000, "\x1b[31m\n", f"{key} "])] = holder[key]
            case 1:
                holder.insert(key, copy.deepcopy(holder[key]))
            case 2:
                other, there = rng.choice([one for one in _places(changed) if one[0] is not None])
                holder[key] = copy.deepcopy(other[there])
            case 3 if isinstance(holder, dict):
                holder[rng.choice(["x", "", "name", "\u202e"])] = holder.pop(key)
            case 3:
                rng.shuffle(holder)
            case 4:
                value = holder[key]
                holder[key] = [value] if rng.random() < 0.5 else {"a": value}
            case _:
                holder[key] = _MARK
    return changed


def _places(content: Any, holder: Any = None, key: Any = None) -> Any:
    """Every place of a document: the list or mapping that it is in, and its position or key."""
    yield holder, key
    if isinstance(content, dict):
        for name in list(content):
            yield from _places(content[name], content, name)
    elif isinstance(content, list):
        for number in range(len(content)):
            yield from _places(content[number], content, number)


def _filled(text: str, mark: str, snippets: Sequence[str], rng: random.Random) -> str:
    head, *rest = text.split(mark)
    return head + "".join(rng.choice(snippets) + part for part in rest)
