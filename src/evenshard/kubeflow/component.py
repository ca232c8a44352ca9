"""A stage's component: its inputs, outputs and parameters by the names that they have on Kubeflow Pipelines."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields

from evenshard.stages.rounds import WRITERS
from evenshard.stages.stage import DATASET, Flag, LoopSetting, Reads, Stage, WhichRound, Writes, declared

EARLIER, NUM_GPUS, DATA_HASH, METRICS = "earlier", "num_gpus", "data_hash", "metrics"


@dataclass(frozen=True)
class Parameter:
    """One argument of a component.

    Attributes:
        kind: Input, Output or "" for a value.
        type: kind of artifact, such as Dataset, or a Python type.
        default: default as Python source; None for a required one.
    """

    name: str
    kind: str
    type: str
    help: str
    default: str | None = None


def _about(name: str, help: str) -> str:
    """What an artifact is, with the files inside where it is a folder here and a file elsewhere."""
    files = "round_001.parquet`` and so on" if accumulates(name) else "tables.parquet``" if name == "tables" else ""
    return f"{help.partition(' (')[0]}: a folder with ``{files}" if files else help


def accumulates(name: str) -> bool:
    """Whether an artifact is a folder with one file for each round so far: stages read it of all rounds."""
    every = [declared(stage.inputs, Reads).get(name) for stage in WRITERS.values()]
    return any(one is not None and one.of is WhichRound.SO_FAR for one in every)


def input_name(stage: Stage, name: str) -> str:
    """What a component calls an input of its stage; that of the previous round, beside the same output, has its own."""
    if (option := declared(stage.inputs, Flag).get(name)) is not None:
        return option.parameter
    return f"previous_{name}" if name in declared(stage.outputs, Writes) else name


def own_file(stage: Stage) -> str:
    """The setting that a file of the user's may take the place of; "" if there is none."""
    return next((name for name, one in declared(stage.config, Flag).items() if one.kind is str and not one.choices), "")


def parameters(stage: Stage) -> list[Parameter]:
    """All arguments of a stage's component: artifacts and required values first, as Python wants it."""
    default_of = {one.name: one.default for one in fields(stage.inputs)}
    found = []
    for name, read in declared(stage.inputs, Reads).items():
        kind = declared(WRITERS[name].outputs, Writes)[name].artifact
        default = None if default_of[name] is MISSING else "None"
        found.append(Parameter(input_name(stage, name), "Input", kind, _about(name, read.help), default))
    for name, written in declared(stage.outputs, Writes).items():
        if written.artifact:
            found.append(Parameter(name, "Output", written.artifact, _about(name, written.help)))
            if accumulates(name):
                found.append(
                    Parameter(EARLIER, "Input", DATASET, f"{name} of the rounds before, which go along", "None")
                )
    found.append(Parameter(METRICS, "Output", "Metrics", stage.metrics))
    for number, section in enumerate(stage.sections):
        found.append(
            Parameter("measure" if number else "config", "", "dict[str, Any]", f"section ``{section}`` of params.yaml")
        )
    for name, option in declared(stage.inputs, Flag).items():
        if option.parameter:
            default = None if name == "round" else repr(default_of[name])
            about = option.help.partition(" (default")[0]
            found.append(Parameter(option.parameter, "", option.kind.__name__, about, default))
    for name, setting in declared(stage.inputs, LoopSetting).items():
        found.append(Parameter(name, "", "int", setting.help))
    if stage.measures:
        text = "GPUs of this pod. 2 or more must be the devices of the tasks; torchrun then measures on all at once"
        found.append(Parameter(NUM_GPUS, "", "int", text, "0"))
    if own := own_file(stage):
        found += [
            Parameter(own, "Input", DATASET, f'your own file, in place of ``config["{own}"]``', "None"),
            Parameter(
                f"{own}_address",
                "",
                "str",
                f"address of that file, such as ``s3://bucket/tables.parquet``, in place of ``{own}``: the task "
                "reads it itself, with the endpoint and the keys in its environment",
                '""',
            ),
            Parameter(
                DATA_HASH,
                "",
                "str",
                "hash of that file. Nothing reads it: it keeps the cache from giving the result of a file that has "
                "changed since under the same name",
                '""',
            ),
        ]
    return sorted(found, key=lambda one: one.default is not None)
