"""A reader of JSON from other programs: only values that JSON itself knows, with duplicate keys refused.

Python's reader takes NaN and 1e400 (as infinity) and keeps the last of two equal keys. Here each of them is an error in
one line; the content that comes back has finite numbers and can be written again as UTF-8.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NoReturn

from evenshard.base.limits import MAX_TEXT_BYTES
from evenshard.base.messages import brief, reason_of

# Most digits of a whole number, so that it still is a float.
_MAX_DIGITS = 300


def load_json(source: str | bytes, max_bytes: int = MAX_TEXT_BYTES) -> Any:
    """Return the content of a document.

    Args:
        source: the document; bytes must be UTF-8.
        max_bytes: largest size of the text.

    Raises:
        ValueError: if it is not JSON or too large, or holds a number that is not finite, or a key twice; one line.
    """
    if len(source) > max_bytes:
        raise ValueError(f"it has more than {max_bytes / 1024**2:,.0f} MB")
    try:
        text = source if isinstance(source, str) else source.decode("utf-8-sig")
        content = json.loads(
            text, object_pairs_hook=_object, parse_constant=_refuse, parse_float=_float, parse_int=_int
        )
        if "\\u" in text:  # an escape may name half a character, which neither files nor terminals take
            json.dumps(content, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 (byte {error.start + 1:,})") from None
    except UnicodeEncodeError:
        raise ValueError("it holds half of a character (a lone surrogate)") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
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


def finite(value: Any) -> Any:
    """What JSON can write of a value: the same with None for infinite numbers and NaN, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(one) for key, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, list | tuple) else value
