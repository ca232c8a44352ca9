"""The names that a stage's files and settings have as inputs, outputs and parameters of its component."""

from __future__ import annotations

from evenshard.stages.rounds import WRITERS
from evenshard.stages.stage import Flag, Reads, Stage, WhichRound, Writes, declarations_of

EARLIER, NUM_GPUS, METRICS = "earlier", "num_gpus", "metrics"


def accumulates(name: str) -> bool:
    """Whether an artifact is a folder with one file for each round so far: stages read it of all rounds."""
    every = [declarations_of(stage.inputs, Reads).get(name) for stage in WRITERS.values()]
    return any(one is not None and one.of is WhichRound.SO_FAR for one in every)


def input_name(stage: Stage, name: str) -> str:
    """What a component calls an input of its stage; that of the previous round, beside the same output, has its own."""
    if (option := declarations_of(stage.inputs, Flag).get(name)) is not None:
        return option.parameter
    return f"previous_{name}" if name in declarations_of(stage.outputs, Writes) else name


def own_file(stage: Stage) -> str:
    """The setting that a file of the user's may take the place of; "" if there is none."""
    return next(
        (name for name, one in declarations_of(stage.config, Flag).items() if one.kind is str and not one.choices), ""
    )
