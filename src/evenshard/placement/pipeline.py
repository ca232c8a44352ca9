"""Training pipelines, after TorchRec's ``TrainPipeline*``: batches on the way, and what runs beside the step before.

What follows for memory is counted in ``placement/memory.py``, what follows for times in ``measure/step_time.py``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingPipeline:
    """A training pipeline.

    Attributes:
        batches: those whose inputs the tables' devices hold.
        own_batches: those whose inputs a device holds for its own samples.
        leaving_batches: those whose inputs it holds once more, ordered to be sent, during all of a step.
        overlaps_inputs: whether the exchange of indices runs beside the step before.
    """

    batches: int
    own_batches: int
    leaving_batches: int
    overlaps_inputs: bool


PREFETCH, USUAL_PIPELINE = "prefetch", "sparse_dist"
PIPELINES = {
    "none": TrainingPipeline(1, 1, 0, overlaps_inputs=False),
    "base": TrainingPipeline(1, 2, 0, overlaps_inputs=False),
    USUAL_PIPELINE: TrainingPipeline(2, 3, 1, overlaps_inputs=True),
    PREFETCH: TrainingPipeline(3, 3, 1, overlaps_inputs=True),
}
