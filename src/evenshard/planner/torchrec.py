"""The former name of ``evenshard.torchrec``, which it hands out with a warning."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    found = getattr(import_module("evenshard.torchrec"), name)
    warnings.warn(
        f"import {name} from evenshard.torchrec: evenshard.planner.torchrec is its former name.", DeprecationWarning, 2
    )
    return found
