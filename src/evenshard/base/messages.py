"""Messages to the user: one printable line with long values cut and passwords hidden; and plain tables.

Names, values and addresses come from the user's files and environment; a message with them must not control the
terminal, flood it, or leak a password to a log. Every ``EvenshardError`` and every line of our log passes through this
module; values are shortened in each message with ``brief``.
"""

from __future__ import annotations

import re
import reprlib
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

UNKNOWN = "unknown"  # replaces a commit, hardware or version
MAX_VALUE = 80  # characters of one value
MAX_NAMES = 3  # of a long list of names
MAX_MESSAGE = 1200  # characters of a whole message; a longer one was not written for people
# Characters of a wrapped column.
_LEAST_WIDTH = 30
_CREDENTIALS = re.compile(r"\b((?!s3:)[a-zA-Z][\w+.-]*://)\S*@")
_SECRET_SETTINGS = re.compile(
    r"(?i)([?&;][\w-]*(?:passw(?:or)?d|pwd|token|secret|signature|credential|sig|api[_-]?key)[\w-]*=)[^\s&;#'\"]+"
)


def brief(value: Any, most: int = MAX_VALUE) -> str:
    """Return the repr of a value in at most ``most`` characters, without deep nesting."""
    short = reprlib.Repr()
    short.maxlevel = 3
    short.maxstring = short.maxlong = short.maxother = most
    try:
        text = short.repr(value)
    except ValueError:  # an integer with more digits than Python converts
        text = f"a whole number of about {int(value.bit_length() * 0.30103):,} digits"
    return cut(printable(text), most)


def cut(text: str, most: int = MAX_VALUE) -> str:
    """Shorten a text to ``most`` characters at a word boundary, with "..." at the end."""
    if len(text) <= most:
        return text
    beginning, gap, _ = text[: most - 2].rpartition(" ")
    return (beginning if gap and len(beginning) >= most // 2 else text[: most - 3]).rstrip() + "..."


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Ask for the closest known words, after a space, at the end of an error message; empty if none is close."""
    close = get_close_matches(cut(word), list(known), n=1)
    return f" Did you mean {close[0]}?" if close else ""


def printable(text: str) -> str:
    """Remove control characters, including line breaks, from a text."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def names_text(names: Sequence[Any], most: int = MAX_NAMES, write: Callable[[Any], str] = printable) -> str:
    """List the first ``most`` names and the number of further names.

    Args:
        write: formatter of a name, such as ``brief``.
    """
    shown = ", ".join(map(write, names[:most]))
    more = len(names) - most
    return f"{shown} and {more:,} more" if more > 0 else shown


def count_text(count: int, what: str) -> str:
    """Format a count with its noun: 1 table, 2 tables."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def tables_text(names: Sequence[str]) -> str:
    """List the first three tables and the total number."""
    return f"{names_text(names)} ({count_text(len(names), 'table')})"


def without_credentials(text: str) -> str:
    """Hide users, passwords and tokens in the addresses of a text: ``http://***@host``.

    A password may contain a slash or an @, so everything up to the last @ of an address is hidden; an s3:// address has
    no user, and its keys may contain an @, so it is kept. Query parameters are hidden by their names, such as
    ``?password=***``.
    """
    return _SECRET_SETTINGS.sub(r"\1***", _CREDENTIALS.sub(r"\1***@", text))


def one_line(text: str) -> str:
    """Make a message safe to print or log on one line; see the module."""
    return cut(printable(" ".join(without_credentials(text).split())), MAX_MESSAGE)


def reason_of(error: BaseException, most: int = 2 * MAX_VALUE) -> str:
    """Return the first line of a library's error, shortened to ``most`` characters; its type if it is empty."""
    lines = str(error).strip().splitlines()
    return cut(one_line(lines[0]) if lines else type(error).__name__, most).rstrip(".:")


def root_of(error: BaseException) -> BaseException:
    """Return the first error of a chain: that of the system or database below the errors of libraries."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return error


def text_table(rows: Sequence[Sequence[str]], sides: str, indent: str = "", width: int | None = None) -> str:
    """Format rows as lines; columns are as wide as their widest cell and two spaces apart.

    Args:
        rows: the heads first; all of the same length.
        sides: alignment of each column, "<" for left or ">" for right. The last one applies to all further columns.
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
