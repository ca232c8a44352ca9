"""What the commands of README.md and docs/*.md print, and what sentences quote of it: written by running the commands.

python -m docs.output                    runs all of them, and writes what they print today into the pages
python -m docs.output docs/place.md      those of these pages
python -m docs.output --check            exits 1, and prints the difference, where a page shows something else

docs/output.yaml says which files the commands of a page find, which are left alone and why, where figures of
sentences come from, and which pictures show an answer: those of a changed page are taken again.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import difflib
import functools
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from docs.excerpts import excerpt, shape
from docs.pictures import take
from docs.quotes import Quote
from evenshard.cli import main as evenshard_command

ROOT = Path(__file__).parents[1]
RULES: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
PAGES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
PYTHON = ("import ", "from ", "answer")  # the start of a block of Python that is run; names go from block to block
# Programs by which a line of a block is known as a command; of these the first two run here.
PROGRAMS = ("evenshard", "python", "dvc", "git", "make", "mlflow", "pip", "torchrun")
# Lines of the pages have up to 120 columns, of which 4 mark a block.
WIDTH = 116


@dataclass(frozen=True)
class Block:
    """An indented block of a page, whose first line is the page's line ``begin``, from 0."""

    begin: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


@dataclass(frozen=True)
class Step:
    """A command, or a block of Python, and the lines ``begin`` to ``end`` of the page, which show what it prints."""

    code: str
    begin: int
    end: int
    first_line: str = ""

    @property
    def is_python(self) -> bool:
        return self.code.startswith(PYTHON)

    @property
    def shows_output(self) -> bool:
        return self.begin < self.end

    @property
    def may_fail(self) -> bool:
        """Whether the page shows an error."""
        return self.first_line.startswith("evenshard ")


def blocks(text: str) -> Iterator[Block]:
    """The indented blocks of a page, without their indentation."""
    for found in re.finditer(r"^(?: {4}.*\n(?:[ \t]*\n)*)+", text, flags=re.MULTILINE):
        lines = textwrap.dedent(found[0]).rstrip().split("\n")
        yield Block(text.count("\n", 0, found.start()), tuple(line.rstrip() for line in lines))


def steps(text: str) -> Iterator[Step]:
    """What a page runs, in its order.

    A line that starts with "$ " is a command, and what follows is its output. In a block without such lines the
    commands are a paragraph of their own, and the paragraphs below it are the output of the last.
    """
    for block in blocks(text):
        if block.lines[0].startswith(PYTHON):
            yield Step(block.text, block.begin, block.begin)
            continue
        commands = list(_commands(block))
        starts = [first for first, _, _ in commands] + [len(block.lines)]
        for (_, begin, code), end in zip(commands, starts[1:], strict=True):
            while begin < end and not block.lines[begin]:
                begin += 1
            while begin < end and not block.lines[end - 1]:
                end -= 1
            first_line = block.lines[begin] if begin < end else ""
            yield Step(code, block.begin + begin, block.begin + max(begin, end), first_line)


def _commands(block: Block) -> Iterator[tuple[int, int, str]]:
    """The first line of each command, the line after its last, and the command in one line, without a comment."""
    prompts = any(line.startswith("$ ") for line in block.lines)
    number, may_begin = 0, True
    while number < len(block.lines):
        line, first = block.lines[number], number
        starts = line.startswith("$ ") if prompts else may_begin and line.partition(" ")[0] in PROGRAMS
        may_begin = starts or not line
        number += 1
        if not starts:
            continue
        while line.endswith("\\"):
            line = f"{line[:-1].rstrip()} {block.lines[number].strip()}"
            number += 1
        yield first, number, line.removeprefix("$ ").partition("  #")[0].rstrip()


class Page:
    """A page, and the outputs of its commands: they run one after the other, in a folder of their own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = (ROOT / name).read_text(encoding="utf-8")
        self.left = RULES["left"].get(name, {})
        self.folder = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, self.folder)
        for start in self.left if isinstance(self.left, dict) else ():
            if not any(step.code.startswith(start) for step in steps(self.text)):
                raise LookupError(f"{name} has no command that starts with {start!r}: correct docs/output.yaml")

    @property
    def steps(self) -> list[Step]:
        """What runs here. Commands of other programs do not; whose output is shown, docs/output.yaml has to name."""
        if isinstance(self.left, str):
            return []
        kept = [step for step in steps(self.text) if not step.code.startswith(tuple(self.left))]
        for step in kept:
            if step.shows_output and not step.code.startswith(("evenshard ", "python ")):
                raise LookupError(
                    f"{self.name} shows what {step.code!r} prints: say in docs/output.yaml why it is left"
                )
        return [step for step in kept if step.is_python or step.code.startswith(("evenshard ", "python "))]

    @functools.cached_property
    def said(self) -> dict[str, list[str]]:
        """The lines that each step prints."""
        width = RULES["width"].get(self.name, WIDTH)
        folder = self.folder
        (folder / "examples").symlink_to(ROOT / "examples")
        given = RULES["given"].get(self.name, {})
        for name, source in given.get("files", {}).items():
            (folder / name).write_text(self._file(source), encoding="utf-8")
        names: dict[str, Any] = {}
        for code in given.get("commands", ()):
            run_command(code, folder)
        return {step.code: run_command(step.code, folder, width, step.may_fail, names) for step in self.steps}

    def _file(self, source: dict[str, str]) -> str:
        """The text of a file: it stands in the rules, elsewhere in the repository, or as a block of a page."""
        if "text" in source:
            return source["text"]
        if "copy" in source:
            return (ROOT / source["copy"]).read_text(encoding="utf-8")
        for block in blocks((ROOT / source.get("page", self.name)).read_text(encoding="utf-8")):
            if block.text.startswith(source["block"]):
                return block.text.partition("\n\n")[0].rstrip() + "\n"
        raise LookupError(f"{self.name} has no block that starts with {source['block']!r}: correct docs/output.yaml")

    def with_outputs(self, in_shape: bool = False) -> str:
        """The page with what its commands print.

        Args:
            in_shape: an output that depends on the machine's speed stays where only its numbers differ.
        """
        lines, said = self.text.split("\n"), self.said
        for step in reversed([step for step in self.steps if step.shows_output]):
            shown = [line.removeprefix("    ") for line in lines[step.begin : step.end]]
            try:
                now = excerpt(shown, said[step.code])
            except LookupError as error:
                raise LookupError(f"{self.name}: {step.code}: {error}. Show other lines.") from None
            timed = in_shape and step.code.startswith(tuple(RULES["timed"]))
            if not timed or shape("\n".join(now)) != shape("\n".join(shown)):
                lines[step.begin : step.end] = [f"    {line}".rstrip() for line in now]
        return "\n".join(lines)


def run_command(
    code: str, folder: Path, width: int = WIDTH, may_fail: bool = False, names: dict[str, Any] | None = None
) -> list[str]:
    """What a command, or a block of Python, prints on standard output, or where it fails on standard error.

    Args:
        names: what the blocks of Python of a page know of each other.
    """
    out, err = io.StringIO(), io.StringIO()
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(width)
    try:
        with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = _run(code, out, {} if names is None else names)
    finally:
        os.environ.pop("COLUMNS") if columns is None else os.environ.update(COLUMNS=columns)
    if status and not may_fail:
        raise LookupError(f"fails: {code}\n{err.getvalue()}")
    lines = (err if status else out).getvalue().rstrip().split("\n")
    if status:  # a terminal breaks a long message, and an output breaks its own lines
        lines = [part for line in lines for part in textwrap.wrap(line, width, break_on_hyphens=False)]
    return [line.rstrip() for line in lines]


def _run(code: str, out: io.StringIO, names: dict[str, Any]) -> int:
    """The exit code of a command, which runs in this process, as a block of Python does; a script has its own."""
    if code.startswith(PYTHON):
        try:
            exec(code, names)
        except Exception as error:
            raise LookupError(f"fails: {code}\n{error!r}") from error
        return 0
    program, *words = shlex.split(code)
    if program == "evenshard":
        try:
            return evenshard_command(words)
        except SystemExit as error:  # of the parser of flags
            return int(error.code or 0)
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    out.write(done.stdout)
    print(done.stderr, file=sys.stderr)
    return done.returncode


@functools.cache
def page(name: str) -> Page:
    return Page(name)


@functools.cache
def _printed_alone(code: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        return run_command(code, Path(folder))


def with_figures(name: str, text: str) -> str:
    """Return a page's text with the figures that its sentences quote."""
    quotes = [
        (Quote(name, says, where), rule["of"])
        for rule in RULES["quotes"]
        for on, says, where in rule["figures"]
        if on == name
    ]
    for quote, source in quotes:
        text = quote.of(text, _source(source))
    for quote, source in quotes:
        if quote.of(text, _source(source)) != text:
            raise LookupError(f"{name}: the sources of {quote.says!r} say different things: write another sentence")
    return text


def _source(source: dict[str, str]) -> str:
    """The text of a file, as it is or as it was committed, or what a command prints: on its own, or among a page's."""
    if "committed" in source:  # a run of the loop overwrites reports/
        words = ["git", "show", f"HEAD:{source['committed']}"]
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if "file" in source:
        return (ROOT / source["file"]).read_text(encoding="utf-8")
    if "page" not in source:
        return "\n".join(_printed_alone(source["command"]))
    said = page(source["page"]).said
    found = [code for code in said if code.startswith(source["command"])]
    if len(found) != 1:
        raise LookupError(f"{source['page']} runs {len(found)} commands that start with {source['command']!r}")
    return "\n".join(said[found[0]])


def renew(name: str, in_shape: bool = False) -> str:
    """A page with what its commands print today, and with the figures that its sentences quote."""
    return with_figures(name, page(name).with_outputs(in_shape))


def main() -> int:
    """Writes or checks the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", default=PAGES)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--pictures", action="store_true", help="take them again even where a page has not changed")
    args = parser.parse_args()
    differs, changed = False, set(args.pages if args.pictures else ())
    for name in args.pages:
        begin, old = time.monotonic(), page(name).text
        try:
            new = renew(name, in_shape=args.check)
        except LookupError as error:
            print(error, file=sys.stderr)
            differs = True
            continue
        print(f"{name}: {'as it was' if new == old else 'changed'}, {time.monotonic() - begin:.0f} s", file=sys.stderr)
        differs |= args.check and new != old
        if args.check:
            sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), name, "as printed"))
        elif new != old:
            (ROOT / name).write_text(new, encoding="utf-8")
            changed.add(name)
    for picture, rule in RULES["pictures"].items():
        if rule["page"] in changed and not args.check:
            take(ROOT / picture, page(rule["page"]).folder / rule["file"], rule.get("part"))
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
