"""Functions of the cog blocks in README.md and docs/*.md, which run the text above them: ``make docs-output``.

The blocks of a page run one after the other in a folder of the page's own, which has examples/.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections import defaultdict
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import cog  # there is one while cog runs

ROOT = Path(__file__).parents[1]
REPORTED = "evenshard place mlperf_dlrm_v2 --devices 8 --hardware simulated:h100 -v --report report.html"
NUMBER, BAR = r"\d[\d.,]*\d|\d", "[▏▎▍▌▋▊▉█]+"
FIGURE = r"(?<![\w./-])(?:\d+\.\d+|\d{1,3}(?:,\d{3})+|\d{3,})(?![\w.]*\d)"  # 1.5, 1,234 and 567; not H100
NAMES: dict[str, dict[str, Any]] = defaultdict(dict)  # by page: the names that its blocks of Python know


@functools.cache
def folder(page: str) -> Path:
    made = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, made)
    (made / "examples").symlink_to(ROOT / "examples")
    return made


def above() -> str:
    """Return the indented block or the paragraph above the cog block, without its indentation."""
    lines = Path(cog.inFile).read_text(encoding="utf-8").splitlines()[: cog.firstLineNum - 1]
    found = re.search(r"(?:(?:^ {4}.*\n|^\n)*^ {4}.*|(?:^.+\n)*^.+)\Z", "\n".join(lines).rstrip(), flags=re.MULTILINE)
    return textwrap.dedent(found[0].strip("\n")) if found else ""


def shell(text: str, cwd: Path, width: int = 116, fails: bool = False) -> str:
    """Return the standard output of commands, or the standard error of commands that have to fail."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": str(width), "ROOT": str(ROOT)}
    done = subprocess.run(["bash", "-ec", text], cwd=cwd, env=environment, capture_output=True, text=True)
    if bool(done.returncode) != fails:
        raise ValueError(f"exit code {done.returncode}: {text}\n{done.stderr}")
    lines = (done.stderr if fails else done.stdout).rstrip().splitlines()
    if fails:  # as a terminal breaks a long message
        lines = [part for line in lines for part in textwrap.wrap(line, width, break_on_hyphens=False)]
    return "\n".join(line.rstrip() for line in lines)


def save(name: str, text: str = "") -> None:
    """Write a text, or the block above, into a file of the page's folder."""
    (folder(cog.inFile) / name).write_text((text or above()) + "\n", encoding="utf-8")


def check(*commands: str) -> None:
    """Run commands, or the block above, and show nothing."""
    text = "\n".join(commands) or above()
    if not re.match(r"import |from |answer|print\(", text):
        shell(text, folder(cog.inFile))
        return
    with contextlib.chdir(folder(cog.inFile)), contextlib.redirect_stdout(io.StringIO()):
        exec(text, NAMES[cog.inFile])


def show(*commands: str, width: int = 116, fails: bool = False) -> None:
    """Run commands, or the block above, and write their output, or the part of it that the page shows.

    With ``fails`` the commands have to fail, and the page shows the error.
    """
    shown = cog.previous.strip().removeprefix("```text").removesuffix("```").strip("\n")
    now = excerpt(shown, shell("\n".join(commands) or above(), folder(cog.inFile), width, fails))
    cog.outl(f"\n```text\n{now}\n```\n")


def excerpt(shown: str, said: str) -> str:
    """Return the lines of an output that have the words of those shown, where "..." stands for others."""
    pieces, start = re.split(r"^\.\.\.$", shown, flags=re.MULTILINE), 0
    for number, piece in enumerate(pieces if len(pieces) > 1 else ()):
        if piece.strip():
            found = re.compile(rf"^[ \t]*{words(piece.strip())}[ \t]*$", flags=re.MULTILINE).search(said, start)
            if found is None:
                raise ValueError(f"the output has other words now than {piece.strip()!r}: show other lines")
            pieces[number], start = piece.replace(piece.strip("\n"), found[0].strip("\n")), found.end()
    return "...".join(pieces) if len(pieces) > 1 else said


def words(text: str) -> str:
    """Return a pattern of a text that matches other numbers, bars and line breaks, too."""
    fixed, *rest = re.split(rf"({NUMBER}|{BAR}|\s+)", text)
    kinds = (r"\s+" if kind.isspace() else NUMBER if kind[0].isdigit() else BAR for kind in rest[::2])
    return re.escape(fixed) + "".join(
        f"(?:{kind}){re.escape(part)}" for kind, part in zip(kinds, rest[1::2], strict=True)
    )


@functools.cache
def numbers(source: str) -> list[Decimal]:
    """Return the numbers in a file, or in the output of a command."""
    path = ROOT / source
    text = path.read_text(encoding="utf-8") if path.is_file() else shell(source, folder(source))
    return [Decimal(one.replace(",", "")) for one in re.findall(NUMBER, text) if one.count(".") < 2]


def quotes(*sources: str) -> None:
    """Check that the sources have the figures of the paragraph above, with as many decimals or more."""
    known = [number for source in sources for number in numbers(source)]
    for figure in re.findall(FIGURE, above()):
        value = Decimal(figure.replace(",", ""))
        if not any(one.quantize(value, ROUND_HALF_UP) == value for one in known):
            raise ValueError(f"{cog.inFile}: no source says {figure} any more: {', '.join(sources)}\n{above()}")
