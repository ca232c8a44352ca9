"""Classes for declaring a stage of the loop, its inputs and its outputs.

A declaration does not import the stage's code, which is ``run`` in the module with the stage's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from importlib import import_module
from typing import Any, TypeVar

from evenshard.base.knobs import Knob, knob, knobs_of
from evenshard.base.outputs import File, Output
from evenshard.base.typed import section
from evenshard.measure.config import MeasureConfig

Use = TypeVar("Use")
# Artifact types of Kubeflow Pipelines.
DATASET, MODEL, ARTIFACT, HTML, MARKDOWN = "Dataset", "Model", "Artifact", "HTML", "Markdown"


class WhichRound(Enum):
    """The round in which an input was written."""

    SAME = auto()  # the round of the stage, or the last round for a stage after all rounds
    PREVIOUS = auto()
    SO_FAR = auto()  # all rounds up to that of the stage; the input is several files


@dataclass(frozen=True)
class Reads:
    """Declaration of an input path: another stage's output of the same name; ``of`` selects its round."""

    of: WhichRound = WhichRound.SAME
    role: str = ""  # role of a cost dataset in MLflow


@dataclass(frozen=True)
class Writes:
    """Declaration of an output path."""

    output: Output
    path: str = ""  # path in dvc.yaml; "" if the loop there does not write it
    artifact: str = ""  # artifact type in Kubeflow Pipelines; "" for an output that pods do not write
    uploaded: bool = True  # True if it is uploaded to MLflow
    roles: tuple[tuple[str, str], ...] = ()  # (file in the folder, or "" for the path itself; its role in MLflow)
    tables: tuple[str, ...] = ()  # CSV files in the folder that are logged to MLflow as tables


def reads(default: Any, help: str, of: WhichRound = WhichRound.SAME, role: str = "") -> Any:
    """Declare an input that is a file or folder; see ``knob`` and ``Reads``."""
    return knob(default, help, use=Reads(of, role))


def writes(default: Any, help: str, flag: str, output: Output | None = None, **use: Any) -> Any:
    """Declare an output, a file by default; see ``knob`` and ``Writes``."""
    written = Writes(output or File(), **use)
    return knob(default, help, flag=flag, output=written.output, use=written)


def uses_of(of: type, use: type[Use]) -> Mapping[str, Use]:
    """Return the declarations of a dataclass's fields that are of type ``use`` (Reads or Writes), by field name."""
    return {declared.name: declared.use for declared in knobs_of(of) if isinstance(declared.use, use)}


def flags(of: type) -> dict[str, str]:
    """Return the flags of a dataclass's fields, by name."""
    return {declared.name: declared.flag_name for declared in knobs_of(of) if declared.flag is not None}


def plain_inputs(of: type) -> Mapping[str, Knob]:
    """Return the inputs of a stage that are neither files nor folders, by name."""
    return {declared.name: declared for declared in knobs_of(of) if declared.use is None}


def read_inputs(params: Mapping[str, Any], inputs: type) -> dict[str, Any]:
    """Return the inputs of a stage that params.yaml sets explicitly, except for ``num_rounds``."""
    found = {}
    for name, declared in plain_inputs(inputs).items():
        of_section = params.get(declared.section) if declared.flag is not None and declared.section else None
        if isinstance(of_section, Mapping) and name in of_section:
            found[name] = of_section[name]
    return found


def loop_settings(inputs: type) -> tuple[str, ...]:
    """Return the names of a stage's inputs that only section ``loop`` of params.yaml sets."""
    return tuple(name for name, declared in plain_inputs(inputs).items() if declared.flag is None)


@dataclass(frozen=True)
class Outcome:
    """Metrics, curve and text that a stage returns, in addition to the files that it writes."""

    metrics: dict[str, float]
    curve: list[float] = field(default_factory=list)  # losses or costs of all updates, or measured costs, in order
    text: str = ""  # summary to print
    curve_name: str = ""  # name of the curve in MLflow; "" for ``Stage.curve``


@dataclass(frozen=True)
class Stage:
    """Declaration of a stage of the loop."""

    name: str  # name of its module, its section of params.yaml, its component and its runs in MLflow
    what: str  # purpose, in one sentence
    config: type  # dataclass of its section of params.yaml
    inputs: type
    outputs: type
    about: str = ""  # more about its purpose
    usage: str = ""  # purpose of its flags, for the help of the command
    metrics: str = ""  # meaning of its metrics
    tags: tuple[str, ...] = ()  # tags of its component in metadata.yaml
    measures: bool = False  # True if it also takes section ``measure``; under torchrun it measures on all devices
    takes_lineage: bool = False  # True if ``run`` takes a ``Lineage``
    curve: str = ""  # name of its outcome's curve in MLflow; "" for none
    learned_from: str = ""  # the input whose network records the training data of this stage
    # True if it ends the loop: its metrics are also logged to the loop's run, and its input networks are registered.
    concludes: bool = False
    needs_params: bool = True  # True if its command needs params.yaml
    # True if a run with these inputs and outputs is logged to MLflow
    tracked: Callable[[Any, Any], bool] = lambda inputs, outputs: True

    @property
    def run(self) -> Callable[..., Outcome]:
        """Import the stage's code, ``run(config[, measure], inputs, outputs[, lineage])``."""
        code: Callable[..., Outcome] = import_module(f"evenshard.loop.{self.name}").run
        return code

    @property
    def command(self) -> str:
        """Return the command of the stage, such as ``train-cost``."""
        return self.name.replace("_", "-")

    @property
    def per_round(self) -> bool:
        """Return True if the stage runs once per round."""
        return "round" in plain_inputs(self.inputs)

    @property
    def sections(self) -> tuple[str, ...]:
        """Return the names of the sections of params.yaml that the stage uses, its own section first."""
        return (self.name, "measure") if self.measures else (self.name,)

    def settings(self, params: dict[str, Any], overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the stage's sections of params.yaml as dataclasses, by name.

        Args:
            overrides: values by section and key; None keeps the value of ``params``.

        Raises:
            BadConfig: if a section is invalid.
        """
        kinds = {self.name: self.config, "measure": MeasureConfig}
        return {name: section(params, name, kinds[name], **overrides.get(name, {})) for name in self.sections}

    def run_name(self, inputs: Any) -> str:
        """Return the name of the stage's run in MLflow, such as ``benchmark_2_part_1``."""
        name = f"{self.name}_{inputs.round}" if self.per_round else self.name
        return f"{name}_part_{inputs.part}" if getattr(inputs, "num_parts", 1) > 1 else name
