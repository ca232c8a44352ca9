"""Reader of protobuf's text format without a schema, as in TorchEasyRec's pipeline configs and Merlin's schemas."""

import re
from typing import Any

# Every field has a list of values: numbers, booleans, strings (also names of enums), and messages.
Message = dict[str, list[Any]]
_TOKEN = re.compile(
    r"""(?P<name>[\w.]+|\[[\w./]+\])(?=\s*[:{<]) | (?P<word>[\w.+-]+)
    | (?P<skip>[\s:]+|\#.*|[\[\]]) | (?P<comma>[,;]) | (?P<open>[{<]) | (?P<close>[}>])
    | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*') | (?P<bad>.)""",
    re.VERBOSE,
)
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)")
_CONTROL = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def parse_text(text: str) -> Message:
    """Parse a message, or raise ValueError with one line; bytes that are not UTF-8 become lone surrogates."""
    levels: list[Message] = [{}]
    values = list[list[Any]]()  # of the current field, for each level
    before = ""
    for token in _TOKEN.finditer(text):
        kind, word, depth = str(token.lastgroup), token.group(), len(levels)
        if kind == "skip":
            continue
        if kind == "name":
            values[depth - 1 :] = [levels[-1].setdefault(word, [])]
        elif kind == "close" and depth > 1:
            levels.pop()
            del values[depth - 1 :]
        elif kind == "open" and len(values) == depth:
            levels.append({})
            values[-1].append(levels[-1])
        elif kind in ("word", "text") and len(values) == depth:
            number = int(word) if word.lstrip("-").isdecimal() else {"true": True, "false": False}.get(word, word)
            value = _unescape(word) if kind == "text" else number
            # Adjacent strings are one string.
            values[-1].append(values[-1].pop() + value if kind == before == "text" else value)
        elif kind != "comma":
            raise ValueError(f"line {text.count(chr(10), 0, token.start()) + 1:,} is not protobuf text")
        before = kind
    if len(levels) > 1:
        raise ValueError("the braces of its last message are not closed")
    return levels[0]


def first(message: Any, *path: str, default: Any = None) -> Any:
    """Return the first value of a field, through the first messages of a path; the default if one is missing."""
    for name in path:
        if not isinstance(message, dict) or not message.get(name):
            return default
        message = message[name][0]
    return message


def _unescape(quoted: str) -> str:
    def decode(found: re.Match[bytes]) -> bytes:
        return bytes([int(found[1], 8) & 0xFF]) if found[1].isdigit() else _CONTROL.get(found[1], found[1])

    return _ESCAPE.sub(decode, quoted[1:-1].encode()).decode(errors="surrogateescape")
