"""Registry of functions that the core calls by name and higher packages provide.

The core imports no higher package. ``evenshard/__init__.py`` names each function; it is imported when first called.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# "module:function" by name.
PROVIDERS: dict[str, str] = {}


def provided(name: str) -> Any:
    """Import and return the function that ``PROVIDERS`` names."""
    module, _, function = PROVIDERS[name].partition(":")
    return getattr(import_module(module), function)
