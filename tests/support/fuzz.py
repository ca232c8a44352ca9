"""Give spoilt inputs to everything that reads users' files: make fuzz.

A reader gives an answer or an error of one printable line, in seconds and with little memory. What fails stays in
work/fuzz; ``--readers NAME --seed SEED`` gives the same inputs again.
"""

from __future__ import annotations

import argparse
import faulthandler
import gzip
import io
import logging
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from evenshard.base.errors import EvenshardError
from support.fuzz_readers import READERS, good_files

SECONDS, MEMORY, MAX_MESSAGE = 60, 8 * 2**30, 1200
# What takes the place of a value in JSON, YAML and CSV: numbers, texts, nesting, and syntax of one of them alone.
NASTY = [
    "null", "true", "-1", "0", "2", "0.5", "-0.0", "1e308", "1e400", "4294967296", "-9223372036854775809", "9" * 5000,
    "NaN", "-Infinity", "1_000", "01", ".nan", "-.inf", "0x" + "f" * 5000, ":".join(["59"] * 400), "2024-13-45", "٣",
    '""', '"-5"', '"nan"', '"' + "x" * 5000 + '"', r'"\u001b[31m\n\u202e\u0000"', r'"\ud800"', '"http://user:secret@h/"',
    "\x1b[31m\u202e", "'x'", "tru", "\t", "@", "+-5", '"', '"a\nb"', "\0", "a,b", "[]", "{}", "[[]]", "[null]",
    '{"": 0}', '{"a": 1, "a": 2}', "[1, 2.5, null]", '["a", "a"]', "[" + "1," * 20_000 + "1]", "[" * 5000 + "]" * 5000,
    '{"a":' * 3000 + "1" + "}" * 3000, "&a [*a]", "*nothing", "<<: 3", "? [a, b]", "!!binary ====", "!!set {a, b}",
    "!!python/object:os.system {}", "&a [x], &b [*a, *a], &c [*b, *b]",
]  # fmt: skip
# Parts of a text: a scalar or a key; a list or mapping without others in it; a key with its value, or a line.
PARTS = (r'"(?:[^"\\]|\\.)*"|[^\s,:{}\[\]"]+', r"\{[^{}]*\}|\[[^\[\]]*\]", r'"[^"]*": [^\[\]{},]*,?|^.*\n')
CELLS = [0, -1, 2**62, float("nan"), 1e308, "", "x" * 5000, "\x1b[31m\u202e", None, [], [1] * 99, {"a": 1}, b"\xff"]


def spoil(name: str, seed: int, number: int) -> bytes:
    """Return the input of this number for a reader, which is always the same: its good file with some changes."""
    path, rng, out = good_files() / name, random.Random(f"{seed} {name} {number}"), io.BytesIO()
    content = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.compress(_damage(gzip.decompress(content), rng), mtime=0)
    if rng.random() < 0.25 or not path.suffix:
        return _damage(content, rng)
    if path.suffix == ".parquet":
        pq.write_table(_spoil_table(pq.read_table(io.BytesIO(content)), rng), out)
        return out.getvalue()
    if path.suffix == ".pt":
        torch.save(_spoil_tensors(torch.load(path, weights_only=True), rng), out)
        return out.getvalue()
    text = content.decode()
    for part in rng.choices(PARTS, (6, 2, 2), k=rng.choice([1, 1, 2, 3])):
        if spans := [found.span() for found in re.finditer(part, text, re.MULTILINE)]:
            (start, end), (other, other_end) = rng.choice(spans), rng.choice(spans)
            instead = rng.choice([rng.choice(NASTY)] * 7 + ["", text[other:other_end], text[start:end] * 2])
            text = text[:start] + instead + text[end:]
    return text.encode("utf-8", "surrogatepass")


def _damage(content: bytes, rng: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        at = rng.randrange(len(data) + 1)
        part = data[at : at + rng.choice([1, 2, 8, 64, 1000])]
        data[at : at + len(part)] = rng.choice([b"", part * 2, b"\xff" * len(part), rng.randbytes(len(part))])
    return bytes(data)


def _spoil_tensors(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict | list) and value and rng.random() < 0.95:
        key = rng.choice([*value] if isinstance(value, dict) else range(len(value)))
        changed: Any = value.copy()
        changed[key] = _spoil_tensors(value[key], rng)
        return changed
    if not isinstance(value, torch.Tensor) or not value.numel() or rng.random() < 0.2:
        return rng.choice([None, 1, "x" * 5000, [], {}, torch.tensor([2**62]), {1: 2, "a": 3}, float("nan")])
    flat, wrong = value.flatten(), value.clone()
    wrong.view(-1)[rng.randrange(len(flat))] = float("nan") if value.is_floating_point() else -1
    huge, others = flat[:1].expand(2**40), [value.double(), value.bool(), flat, value[None], flat[:0], flat[:-1]]
    return rng.choice(
        [wrong, wrong, -value, huge, value.to("meta"), value.to_sparse(), torch.cat([flat, flat]), *others]
    )


def _spoil_table(table: Any, rng: random.Random) -> Any:
    name, metadata = rng.choice(table.column_names), [b"\xff", b"[" * 100_000, b'{"a": NaN}', b"null"]
    changes = [
        table.drop_columns([name]),
        table.append_column(rng.choice([name, "more", "\x1b[31m"]), table[name]),
        table.slice(0, rng.choice([0, 1])),
        table.replace_schema_metadata({b"evenshard": rng.choice(metadata)}),
    ]
    nasty = pa.array([rng.choice(CELLS)] * len(table))
    return rng.choice([*changes, *[table.set_column(table.column_names.index(name), name, nasty)] * 5])


def find_problem(name: str, content: bytes, folder: Path, read: Callable[[Path], object] | None = None) -> str:
    """Return what a reader does wrong with an input, which stays in ``folder`` then; "" for nothing."""
    shutil.copytree(good_files() / "model", folder / "model", dirs_exist_ok=True)  # the other files of a model
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    try:
        with redirect_stdout(io.StringIO()):
            (read or READERS[name])(path)
    except EvenshardError as error:
        said = str(error)
        names_copy = tempfile.gettempdir() in said.replace(str(folder), "")
        if not said.isprintable() or len(said) > MAX_MESSAGE or names_copy:
            return f"no short line without temporary paths: {said[:300]!r}"
    except Exception as error:
        return f"{error!r:.300} {traceback.format_tb(error.__traceback__)[-1]}"
    shutil.rmtree(folder)
    return ""


def read_stretch(name: str, seed: int, numbers: range, out: Path) -> None:
    """Read inputs in this process, which ends with 1 if one fails, takes too long or too much memory."""
    warnings.simplefilter("ignore")
    logging.disable()
    good_files()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    failed = False
    for number in numbers:
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        folder = out / f"{name.replace('/', '-')}-{seed}-{number}"
        if problem := find_problem(name, spoil(name, seed, number), folder):
            failed = True
            print(f"{folder}: {problem}", flush=True)
    sys.exit(failed)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="inputs in all (default: 100000)")
    parser.add_argument("--readers", nargs="*", choices=READERS, default=list(READERS), metavar="NAME")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the inputs (default: the time)")
    parser.add_argument("--out", type=Path, default=Path("work/fuzz"), help="folder for what fails")
    args = parser.parse_args(words)
    each = range(-(-args.count // len(args.readers)))

    def read_apart(name: str, numbers: range) -> bool:
        process = get_context("spawn").Process(target=read_stretch, args=(name, args.seed, numbers, args.out))
        process.start()
        process.join()
        if process.exitcode not in (0, 1):
            print(f"{name}: the process ended with {process.exitcode}; see the newest of {args.out}/*-{args.seed}-*")
        # pyarrow 25 aborts where a damaged file's statistics contradict its schema.
        return bool(process.exitcode) and not (name.endswith(".parquet") and process.exitcode == -signal.SIGABRT)

    stretches = [(name, each[at : at + 500]) for at in each[::500] for name in args.readers]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = sum(pool.map(lambda stretch: read_apart(*stretch), stretches))
    print(f"{failed} of {len(stretches)} stretches of inputs failed (seed {args.seed})")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
