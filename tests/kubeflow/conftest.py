"""Pipelines are built quickly in these tests."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial

import pytest


@pytest.fixture(autouse=True, scope="session")
def stacks_without_source() -> Iterator[None]:
    """kfp looks at its caller's name at each setting of a task, by ``inspect.stack``.

    That reads the source of every frame, and pytest has many: a second for each pipeline.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspect, "stack", partial(inspect.stack, 0))
        yield
