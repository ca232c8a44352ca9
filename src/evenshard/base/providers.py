"""Registry of functions that are called by name, because the calling package must not import their packages.

``evenshard/__init__.py`` registers the functions. A function is imported when it is first called.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

PROVIDERS: dict[str, str] = {}  # "module:function" by name


def load_provider(name: str) -> Any:
    """Import and return the function that is registered in ``PROVIDERS`` as ``name``."""
    module, _, function = PROVIDERS[name].partition(":")
    return getattr(import_module(module), function)
