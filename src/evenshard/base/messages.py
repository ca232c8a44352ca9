"""Formatting of user-facing messages: one printable line without passwords; also plain-text tables.

Messages contain names, values and addresses from the user's files. ``one_line``, which every ``EvenshardError`` uses,
removes control characters and passwords and limits the length. Code that writes a message shortens values with
``brief``.
"""

from __future__ import annotations

import re
import reprlib
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

UNKNOWN = "unknown"  # shown instead of an unknown commit, hardware or version
MAX_VALUE = 80  # characters of one value
MAX_NAMES = 3  # names shown of a long list
MAX_MESSAGE = 1200  # characters of a whole message
_LEAST_WIDTH = 30  # characters, minimum width of a wrapped column of ``text_table``
_CREDENTIALS = re.compile(r"\b((?!s3:)[a-zA-Z][\w+.-]*://)\S*@")
_SECRET_SETTINGS = re.compile(
    r"(?i)([?&;][\w-]*(?:passw(?:or)?d|pwd|token|secret|signature|credential|sig|api[_-]?key)[\w-]*=)[^\s&;#'\"]+"
)


def brief(value: Any, most: int = MAX_VALUE) -> str:
    """Return the repr of a value, truncated to ``most`` characters and three levels of nesting."""
    short = reprlib.Repr()
    short.maxlevel = 3
    short.maxstring = short.maxlong = short.maxother = most
    try:
        text = short.repr(value)
    except ValueError:  # an integer with more digits than Python converts; log10(2) = 0.30103
        text = f"a whole number of about {int(value.bit_length() * 0.30103):,} digits"
    return cut(printable(text), most)


def cut(text: str, most: int = MAX_VALUE) -> str:
    """Shorten a text to ``most`` characters at a word boundary, with "..." at the end."""
    if len(text) <= most:
        return text
    beginning, gap, _ = text[: most - 2].rpartition(" ")
    return (beginning if gap and len(beginning) >= most // 2 else text[: most - 3]).rstrip() + "..."


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean X?" with the closest known word, to append to an error; "" if none is close."""
    close = get_close_matches(cut(word), list(known), n=1)
    return f" Did you mean {close[0]}?" if close else ""


def printable(text: str) -> str:
    """Replace control characters, including line breaks."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def names_text(names: Sequence[Any], most: int = MAX_NAMES, write: Callable[[Any], str] = printable) -> str:
    """List the first ``most`` names, each formatted by ``write``, and the number of further names."""
    shown = ", ".join(map(write, names[:most]))
    more = len(names) - most
    return f"{shown} and {more:,} more" if more > 0 else shown


def count_text(count: int, what: str) -> str:
    """Format a count with its noun, such as 1 table or 2 tables."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def tables_text(names: Sequence[str]) -> str:
    """List the first three tables and the total number."""
    return f"{names_text(names)} ({count_text(len(names), 'table')})"


def without_credentials(text: str) -> str:
    """Hide users, passwords and tokens in the addresses of a text: ``http://***@host``.

    Everything up to the last @ of an address is hidden, because a password may contain slashes and @. s3:// addresses
    are kept, because their keys may contain @. Secret query parameters become ``?password=***``.
    """
    return _SECRET_SETTINGS.sub(r"\1***", _CREDENTIALS.sub(r"\1***@", text))


def one_line(text: str) -> str:
    """Return a message on one line of limited length, without control characters and passwords."""
    return cut(printable(" ".join(without_credentials(text).split())), MAX_MESSAGE)


def reason_of(error: BaseException, most: int = 2 * MAX_VALUE) -> str:
    """Return the first line of a library's error, shortened to ``most`` characters; its type if it has no text."""
    lines = str(error).strip().splitlines()
    return cut(one_line(lines[0]) if lines else type(error).__name__, most).rstrip(".:")


def root_of(error: BaseException) -> BaseException:
    """Return the root cause of an exception chain."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return error


def text_table(rows: Sequence[Sequence[str]], sides: str, indent: str = "", width: int | None = None) -> str:
    """Format a table as lines; columns are as wide as their widest cell and two spaces apart.

    Args:
        rows: cells of each row, the headers first.
        sides: alignment of each column, "<" or ">"; the last character applies to all further columns.
        indent: prefix of each line.
        width: maximum length of a line, if given; the last column wraps.
    """
    if width is not None:
        others = sum(max(map(len, column)) + 2 for column in [*zip(*rows, strict=True)][:-1])
        left = max(width - len(indent) - others, _LEAST_WIDTH)
        rows = [line for row in rows for line in _wrap(row, left)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = sides + sides[-1] * (len(widths) - len(sides))
    return "\n".join(
        indent
        + "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, aligned, widths, strict=True)).rstrip()
        for row in rows
    )


def _wrap(row: Sequence[str], width: int) -> Iterator[Sequence[str]]:
    cells = list(row)
    for text in textwrap.wrap(cells[-1], width) or [""]:
        yield [*cells[:-1], text]
        cells = [""] * len(cells)
