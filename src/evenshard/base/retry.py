"""Retries within the process after transient failures: S3 or MLflow is down, a kernel fails, or writes collide.

Kubeflow Pipelines retries a pod only if it was deleted: a stock installation sets Argo's ``retryPolicy: OnError``, and
its compiler cannot set another policy (kubeflow/pipelines#9950). Argo treats an evicted pod as a failure, like bad
input; the command that waits for the run retries it (``remote``).
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
# Errors that a retry may fix; bad input is none of them.
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
        pauses_s: seconds before each retry; None reads them from the variable ``PAUSES``.
        is_transient: tells errors that a retry may fix from all others, which are raised at once.
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
