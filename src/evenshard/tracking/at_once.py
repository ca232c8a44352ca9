"""Calls that several processes may make at the same time: loops of one team, pods of one pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def make_once(call: Callable[..., Any], *args: Any, **named: Any) -> None:
    """Makes what another process may be making too: whoever is second finds it made."""
    from mlflow.exceptions import MlflowException

    try:
        call(*args, **named)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def set_tag_together(call: Callable[..., Any], *args: Any, **named: Any) -> None:
    """Sets a tag that another process may be setting too.

    MLflow looks whether there is such a tag, and adds or changes it. Of two that add one at once the second is refused
    by the database, and changes it when it asks again.
    """
    from mlflow.exceptions import MlflowException

    try:
        call(*args, **named)
    except MlflowException as error:
        if error.error_code != "BAD_REQUEST":
            raise
        call(*args, **named)
