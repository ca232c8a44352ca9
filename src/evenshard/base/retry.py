"""Retries in the same pod: of S3 or MLflow that do not answer, and of a kernel that fails.

Kubeflow Pipelines itself retries a pod only if it was deleted: a stock installation sets Argo's
``retryPolicy: OnError``, and its compiler has no word for another policy (kubeflow/pipelines#9950). To Argo, an
evicted pod has failed, like one with bad input; the command that waits for the run retries it (``remote``).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from evenshard.base.errors import MeasurementFailed, StorageFailed, TrackingFailed

# Variable of a pod: seconds before each further try, such as "60 120"; without it there is none.
PAUSES = "EVENSHARD_RETRY_PAUSES"
MAY_PASS = (MeasurementFailed, StorageFailed, TrackingFailed)
log = logging.getLogger(__name__)
Given = ParamSpec("Given")
Made = TypeVar("Made")


def with_retries(stage: Callable[Given, Made]) -> Callable[Given, Made]:
    """Return the stage with retries after failures that may pass, as many as the pod's settings say."""

    @wraps(stage)
    def patient(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        for pause_s in map(float, os.environ.get(PAUSES, "").split()):
            try:
                return stage(*args, **kwargs)
            except MAY_PASS as error:
                log.warning("%s (trying again in %g s)", error, pause_s)
                time.sleep(pause_s)
        return stage(*args, **kwargs)

    return patient
