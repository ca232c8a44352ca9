"""Registry of functions that the core calls by name, because it must not import the packages that define them.

``evenshard/__init__.py`` registers the functions; each is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# "module:function" by name.
PROVIDERS: dict[str, str] = {}


def load_provider(name: str) -> Any:
    """Import and return the function that is registered in ``PROVIDERS`` as ``name``."""
    module, _, function = PROVIDERS[name].partition(":")
    return getattr(import_module(module), function)
