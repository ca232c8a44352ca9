"""How is a user's YAML read? As data alone, and a key that stands twice is an error: YAML itself drops the first."""

from __future__ import annotations

from functools import cache
from typing import Any


def load_yaml(text: str) -> Any:
    """The content of a document.

    Raises:
        ValueError: if it is no YAML, or a mapping has a key twice; one line that names line and column.
    """
    import yaml

    try:
        return yaml.load(text, Loader=_loader())
    # The loader lets its own slips through, on a date such as 2024-13-45 or on "!!bool perhaps".
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from None


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
                            "in a mapping", node.start_mark, f"{key.value!r} stands there twice", key.start_mark
                        )
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    return Loader
