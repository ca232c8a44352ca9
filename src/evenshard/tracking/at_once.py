"""Calls that several processes may make at the same time: loops of one team, pods of one pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ATTEMPTS = 5
"""Each is refused only if another process has written something new meanwhile."""


def make_once(call: Callable[..., Any], *args: Any, **named: Any) -> None:
    """Makes what another process may be making too: whoever is second finds it made."""
    from mlflow.exceptions import MlflowException

    try:
        call(*args, **named)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def write_together(call: Callable[..., Any], *args: Any, **named: Any) -> None:
    """Writes a tag or parameters that other processes may be writing too.

    MLflow looks whether they are there, and adds those that are not. Of two that add one at once the second is refused
    by the database, and finds it there when it asks again.
    """
    from mlflow.exceptions import MlflowException

    for attempt in range(_ATTEMPTS):
        try:
            call(*args, **named)
        except MlflowException as error:
            if error.error_code != "BAD_REQUEST" or attempt == _ATTEMPTS - 1:
                raise
        else:
            return
