"""Reader of protobuf's text format without a schema, as in TorchEasyRec's pipeline configs and Merlin's schemas."""

import re
from collections.abc import Iterator
from typing import Any

# Every field has a list of values: numbers, booleans, strings (also names of enums), and messages.
Message = dict[str, list[Any]]
_TOKEN = re.compile(
    r"""(?P<name>[\w.]+|\[[\w./]+\])(?=\s*[:{<]) | (?P<word>[\w.+-]+)
    | (?P<skip>[\s:]+|\#.*|[\[\]]) | (?P<comma>[,;]) | (?P<open>[{<]) | (?P<close>[}>])
    | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*') | (?P<bad>.)""",
    re.VERBOSE,
)


def parse_text(text: str) -> Message:
    """Parse a message, or raise ValueError with one line; bytes that are not UTF-8 become lone surrogates."""
    return _parse((token for token in _TOKEN.finditer(text) if token.lastgroup != "skip"), is_inner=False)


def _parse(tokens: Iterator[re.Match[str]], is_inner: bool) -> Message:
    message: Message = {}
    values: list[Any] | None = None  # of the current field
    before = ""
    for token in tokens:
        kind, word = str(token.lastgroup), token.group()
        if kind == "name":
            values = message.setdefault(word, [])
        elif kind == "close" and is_inner:
            return message
        elif kind == "open" and values is not None:
            values.append(_parse(tokens, is_inner=True))
        elif kind in ("word", "text") and values is not None:
            value: Any = int(word) if word.lstrip("-").isdecimal() else {"true": True, "false": False}.get(word, word)
            if kind == "text":
                unescaped = word[1:-1].encode().decode("unicode_escape").encode("latin-1", "replace")
                value = unescaped.decode(errors="surrogateescape")
            # Adjacent strings are one string.
            values.append(values.pop() + value if kind == before == "text" else value)
        elif kind != "comma":
            raise ValueError(f"line {token.string.count(chr(10), 0, token.start()) + 1:,} is not protobuf text")
        before = kind
    if is_inner:
        raise ValueError("the braces of its last message are not closed")
    return message


def first(message: Any, *path: str, default: Any = None) -> Any:
    """Return the first value of a field, through the first messages of a path; the default if one is missing."""
    for name in path:
        if not isinstance(message, dict) or not message.get(name):
            return default
        message = message[name][0]
    return message
