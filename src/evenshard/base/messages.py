"""Messages to the user: printable text on one line, long values cut, passwords in addresses hidden; and plain tables.

Names, values and addresses come from the user's files and environment; a message that repeats them must not steer the
terminal it is printed on, fill it, or give a password away to a log. Every ``EvenshardError`` and every line of our log
passes through here; values are cut where the message is written, with ``brief``.
"""

from __future__ import annotations

import re
import reprlib
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

UNKNOWN = "unknown"  # in place of a commit, hardware or version
MAX_VALUE = 80  # characters of one value
MAX_NAMES = 3  # names of many
MAX_MESSAGE = 1200  # characters of a whole message; what is longer was not written for a person
# Characters of a column that wraps.
_LEAST_WIDTH = 30
_CREDENTIALS = re.compile(r"\b((?!s3:)[a-zA-Z][\w+.-]*://)\S*@")
_SECRET_SETTINGS = re.compile(
    r"(?i)([?&;][\w-]*(?:passw(?:or)?d|pwd|token|secret|signature|credential|sig|api[_-]?key)[\w-]*=)[^\s&;#'\"]+"
)


def brief(value: Any, most: int = MAX_VALUE) -> str:
    """A value as Python writes it, in at most ``most`` characters; deeply nested ones are not unfolded."""
    short = reprlib.Repr()
    short.maxlevel = 3
    short.maxstring = short.maxlong = short.maxother = most
    try:
        text = short.repr(value)
    except ValueError:  # a whole number of more digits than Python writes
        text = f"a whole number of about {int(value.bit_length() * 0.30103):,} digits"
    return cut(printable(text), most)


def cut(text: str, most: int = MAX_VALUE) -> str:
    """The beginning of a text of more than ``most`` characters, with "..." behind it; never in the middle of a word."""
    if len(text) <= most:
        return text
    beginning, gap, _ = text[: most - 2].rpartition(" ")
    return (beginning if gap and len(beginning) >= most // 2 else text[: most - 3]).rstrip() + "..."


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The question that ends a message about an unknown word, with a space before it; empty where nothing is close."""
    close = get_close_matches(cut(word), list(known), n=1)
    return f" Did you mean {close[0]}?" if close else ""


def printable(text: str) -> str:
    """The text without characters that steer a terminal, line breaks among them."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def names_text(names: Sequence[Any], most: int = MAX_NAMES, write: Callable[[Any], str] = printable) -> str:
    """The first of many names, three where nothing is said, and how many more there are.

    Args:
        write: how each name is written, such as ``brief``.
    """
    shown = ", ".join(map(write, names[:most]))
    more = len(names) - most
    return f"{shown} and {more:,} more" if more > 0 else shown


def count_text(count: int, what: str) -> str:
    """A number of things: 1 table, 2 tables."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def tables_text(names: Sequence[str]) -> str:
    """The first three of some tables, and how many they are."""
    return f"{names_text(names)} ({count_text(len(names), 'table')})"


def without_credentials(text: str) -> str:
    """A text whose addresses name no user, password or token: ``http://***@host``.

    A password may hold a slash or an @, so everything up to the last @ of an address goes; of an s3:// address, which
    has no user and whose keys may hold an @, nothing does. Settings behind a "?" go by their names, such as
    ``?password=***``.
    """
    return _SECRET_SETTINGS.sub(r"\1***", _CREDENTIALS.sub(r"\1***@", text))


def one_line(text: str) -> str:
    """A message as it may be printed or logged; see the module."""
    return cut(printable(" ".join(without_credentials(text).split())), MAX_MESSAGE)


def reason_of(error: BaseException, most: int = 2 * MAX_VALUE) -> str:
    """Return the first line of a library's error as a clause of at most so many characters; its kind if it is empty."""
    lines = str(error).strip().splitlines()
    return cut(one_line(lines[0]) if lines else type(error).__name__, most).rstrip(".:")


def root_of(error: BaseException) -> BaseException:
    """The first of a chain of errors: what the system or a database said, below what libraries made of it."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return error


def text_table(rows: Sequence[Sequence[str]], sides: str, indent: str = "", width: int | None = None) -> str:
    """One line per row; columns are as wide as their widest cell and stand two spaces apart.

    Args:
        rows: the heads first; all of one length.
        sides: where the cells of each column stand, "<" for left or ">" for right. The last one counts for all
            columns that follow.
        indent: in front of each line.
        width: where given, the last column wraps, so that no line is longer.
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
