"""A reader of the user's YAML: as data alone, within limits, with duplicate keys refused.

YAML itself drops the first of two equal keys. A few lines of aliases (``*a``) can stand for billions of values, and
libyaml recurses for each bracket until the process dies, so both are counted before anything is built.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from evenshard.utils.errors import BadFile
from evenshard.utils.limits import MAX_DIGITS, MAX_LEVELS, MAX_TEXT_BYTES, MAX_YAML_VALUES, read_text
from evenshard.utils.messages import brief


def read_yaml(path: Path, remedy: str, if_missing: str = "Check the path.") -> Any:
    """The content of a file.

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
    """The content of a document.

    Raises:
        ValueError: if it is not YAML, too large or too deep, or a mapping has a key twice; one line that names line and
            column.
    """
    return load_documents(text, most=1)[0]


def load_documents(text: str, most: int = 100) -> list[Any]:
    """The contents of a stream of documents; of an empty one, None.

    Raises:
        ValueError: as ``load_yaml``, or if there are more than ``most`` documents.
    """
    import yaml

    if len(text) > MAX_TEXT_BYTES:
        raise ValueError(f"it has more than {MAX_TEXT_BYTES / 2**20:,.0f} MB")
    try:
        _check_size(text)
        documents = []
        loader = _loader()(text)
        while loader.check_data():
            documents.append(loader.get_data())
            if len(documents) > most:
                raise ValueError(f"it holds more than {most} {'documents' if most > 1 else 'document'}")
    # The loader lets its own slips through, on a date such as 2024-13-45 or on "!!bool perhaps".
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ValueError(" ".join(str(error).split()).replace(' in "<unicode string>", line', ", line")) from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return documents or [None]


_TOO_DEEP = f"it is nested more than {MAX_LEVELS} levels deep"


def _check_size(text: str) -> None:
    """Raises ValueError if a text has too many values or levels, counting an alias as all that it stands for."""
    import yaml

    parser: Any = _loader()(text)
    open_at: list[tuple[str | None, int]] = []  # of each open collection: its anchor, and the values before it
    anchors: dict[str, tuple[int, int]] = {}  # values and levels of what an alias may stand for
    num_values = levels = 0
    deepest = [0]  # levels inside of each open collection
    while parser.check_event():
        event: Any = parser.get_event()
        if isinstance(event, yaml.ScalarEvent):
            num_values += 1
            if event.anchor is not None:
                anchors[event.anchor] = 1, 0
        elif isinstance(event, yaml.CollectionStartEvent):
            if event.anchor is not None:
                anchors.pop(event.anchor, None)  # an alias to it, inside of it, has no end
            open_at.append((event.anchor, num_values))
            num_values, levels = num_values + 1, levels + 1
            deepest.append(0)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, began = open_at.pop()
            levels, inside = levels - 1, deepest.pop() + 1
            deepest[-1] = max(deepest[-1], inside)
            if anchor is not None:
                anchors[anchor] = num_values - began, inside
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                problem = f"the alias *{event.anchor} stands for nothing before it"
                where: Any = event.start_mark
                raise yaml.composer.ComposerError(None, None, problem, where)
            values, inside = anchors[event.anchor]
            num_values, deepest[-1] = num_values + values, max(deepest[-1], inside)
        elif isinstance(event, yaml.DocumentStartEvent):
            anchors.clear()
        if num_values > MAX_YAML_VALUES:
            raise ValueError(f"it holds more than {MAX_YAML_VALUES:,} values, those that aliases stand for included")
        if levels + deepest[-1] > MAX_LEVELS:
            raise ValueError(_TOO_DEEP)


@cache
def _loader() -> Any:
    """The fast loader where libyaml is there."""
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

    def number(construct: Any) -> Any:
        """A whole number of a million digits takes minutes, and nothing can be done with it."""

        def construct_number(loader: Any, node: Any) -> Any:
            if isinstance(node, yaml.ScalarNode) and len(node.value) > MAX_DIGITS:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{brief(node.value)} is not a valid number", node.start_mark
                )
            return construct(loader, node)

        return construct_number

    Loader.add_constructor("tag:yaml.org,2002:int", number(base.construct_yaml_int))
    Loader.add_constructor("tag:yaml.org,2002:float", number(base.construct_yaml_float))
    return Loader
