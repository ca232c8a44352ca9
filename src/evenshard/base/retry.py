"""Retries in the same process, if S3 or MLflow do not answer, a kernel fails, or writes collide.

Kubeflow Pipelines itself retries a pod only if it was deleted: a stock installation sets Argo's ``retryPolicy:
OnError``, and its compiler cannot set another policy (kubeflow/pipelines#9950). For Argo, an evicted pod is a failure
like bad input; the command that waits for the run retries it (``remote``).
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
MAY_PASS = (MeasurementFailed, StorageFailed, TrackingFailed)
_AGAIN = "%s (trying again in %g s)"
log = logging.getLogger(__name__)
Given = ParamSpec("Given")
Made = TypeVar("Made")


def with_retries(
    call: Callable[Given, Made],
    pauses_s: Sequence[float] | None = None,
    may_pass: Callable[[Exception], bool] = lambda error: isinstance(error, MAY_PASS),
) -> Callable[Given, Made]:
    """Wrap a function with retries after transient failures.

    Args:
        pauses_s: seconds before each retry; None for the pod's settings.
    """

    @wraps(call)
    def patient(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        for pause_s in map(float, os.environ.get(PAUSES, "").split()) if pauses_s is None else pauses_s:
            try:
                return call(*args, **kwargs)
            except Exception as error:
                if not may_pass(error):
                    raise
                log.log(logging.WARNING if pauses_s is None else logging.DEBUG, _AGAIN, error, pause_s)
                time.sleep(pause_s)
        return call(*args, **kwargs)

    return patient
