"""Retries within the process after transient failures: S3 or MLflow is down, a kernel fails, or writes conflict.

They are needed because Kubeflow Pipelines retries only pods that were deleted: its compiler cannot set another policy
than Argo's ``retryPolicy: OnError`` (kubeflow/pipelines#9950). The command that waits for a run retries its evicted
pods (``remote``).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

from evenshard.base.errors import MeasurementFailed, StorageFailed, TrackingFailed

# Variable of a pod: seconds before each retry, such as "60 120"; unset means no retries.
PAUSES = "EVENSHARD_RETRY_PAUSES"
# Errors that a retry may fix.
TRANSIENT_ERRORS = (MeasurementFailed, StorageFailed, TrackingFailed)
log = logging.getLogger(__name__)
Given = ParamSpec("Given")
Made = TypeVar("Made")


def with_retries(
    call: Callable[Given, Made],
    pauses_s: Sequence[float] | None = None,
    is_transient: Callable[[Exception], bool] = lambda error: isinstance(error, TRANSIENT_ERRORS),
) -> Callable[Given, Made]:
    """Wrap a function with retries after transient failures.

    Args:
        pauses_s: seconds before each retry; None reads them from an environment variable (``PAUSES``).
        is_transient: function that returns True for errors to retry; other errors are raised at once.
    """

    @wraps(call)
    def call_with_retries(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        for pause_s in map(float, os.environ.get(PAUSES, "").split()) if pauses_s is None else pauses_s:
            try:
                return call(*args, **kwargs)
            except Exception as error:
                if not is_transient(error):
                    raise
                log.log(logging.WARNING if pauses_s is None else logging.DEBUG, "%s (retrying in %g s)", error, pause_s)
                time.sleep(pause_s)
        return call(*args, **kwargs)

    return call_with_retries
