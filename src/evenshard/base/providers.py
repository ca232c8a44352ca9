"""Functions that the core calls and packages above it provide, by name.

The core imports no package above it. ``evenshard/__init__.py`` names each function; it is imported when first called.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# "module:function" of each.
PROVIDERS: dict[str, str] = {}


def provided(name: str) -> Any:
    """Import and return the function that ``PROVIDERS`` names."""
    module, _, function = PROVIDERS[name].partition(":")
    return getattr(import_module(module), function)
