"""A reader of the user's YAML: as data alone, with duplicate keys refused, of which YAML itself drops the first."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from evenshard.base.errors import BadFile
from evenshard.base.limits import MAX_TEXT_BYTES, read_text
from evenshard.base.messages import brief

# Deepest nesting: libyaml recurses for each level, and ends the process with its stack.
_MAX_LEVELS = 100
# Aliases inside of anchored collections: each may double the content.
_MAX_NESTED_ALIASES = 20


def read_yaml(path: Path, remedy: str, if_missing: str = "Check the path.") -> Any:
    """Return the content of a file.

    Args:
        remedy: advice where it is not YAML.
        if_missing: advice where there is no file.

    Raises:
        BadFile: if it is missing or cannot be read.
    """
    try:
        return load_yaml(read_text(path))
    except FileNotFoundError:
        raise BadFile(path, "no such file", if_missing) from None
    except (OSError, ValueError) as error:
        raise BadFile(path, f"not readable as YAML ({error})", remedy) from None


def load_yaml(text: str) -> Any:
    """Return the content of a document.

    Raises:
        ValueError: if it is not YAML, too large, or a mapping has a key twice; one line that names line and
            column.
    """
    return load_documents(text, most=1)[0]


def load_documents(text: str, most: int = 100) -> list[Any]:
    """Return the contents of a stream of documents; of an empty one, [None].

    Raises:
        ValueError: as ``load_yaml``, or if there are more than ``most`` documents.
    """
    import yaml

    if len(text) > MAX_TEXT_BYTES:
        raise ValueError(f"it has more than {MAX_TEXT_BYTES / 2**20:,.0f} MB")
    try:
        anchors: list[str | None] = []  # of each open collection
        num_nested = 0
        for event in yaml.parse(text, _loader()):
            if isinstance(event, yaml.CollectionStartEvent):
                anchors.append(event.anchor)
            elif isinstance(event, yaml.CollectionEndEvent):
                anchors.pop()
            elif isinstance(event, yaml.AliasEvent):
                num_nested += any(anchors)
                if event.anchor in anchors:
                    raise ValueError(f"the alias {brief(event.anchor)} stands in what it repeats")
            if len(anchors) > _MAX_LEVELS:
                raise ValueError("it is nested too deep")
            if num_nested > _MAX_NESTED_ALIASES:
                raise ValueError("too many of its aliases stand in what other aliases repeat")
        documents = list(yaml.load_all(text, _loader()))
    except MemoryError:
        raise
    except Exception as error:  # the loader lets its own slips through, on a date such as 2024-13-45
        raise ValueError(" ".join(str(error).split()).replace(' in "<unicode string>", line', ", line")) from None
    if len(documents) > most:
        raise ValueError(f"it holds more than {most} {'documents' if most > 1 else 'document'}")
    return documents or [None]


@cache
def _loader() -> Any:
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set[str]()
            for key, _ in node.value:  # as written: what "<<" brings may be replaced
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        raise yaml.constructor.ConstructorError(
                            "in a mapping", node.start_mark, f"{brief(key.value)} appears twice", key.start_mark
                        )
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    return Loader
