"""Stages of the loop, and the declarations of their inputs and outputs.

Declarations import little: the code of a stage, ``run`` in the module of its name, is imported on its run.
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
# Kinds of artifacts in the terms of Kubeflow Pipelines.
DATASET, MODEL, ARTIFACT, HTML, MARKDOWN = "Dataset", "Model", "Artifact", "HTML", "Markdown"


class WhichRound(Enum):
    """Round of an input: that of the stage, or the last one for a stage that runs after all rounds."""

    SAME = auto()
    PREVIOUS = auto()
    SO_FAR = auto()


@dataclass(frozen=True)
class Reads:
    """Use of a path that a stage reads: the output of the same name, written in round ``of``.

    ``role`` is the role of a cost dataset in MLflow.
    """

    of: WhichRound = WhichRound.SAME
    role: str = ""


@dataclass(frozen=True)
class Writes:
    """Use of a path that a stage writes.

    Attributes:
        path: path in the loop of dvc.yaml; "" if it has none.
        artifact: kind in Kubeflow Pipelines; "" for an output that pods do not write.
        uploaded: True if it is uploaded to MLflow.
        roles: roles of cost datasets in MLflow, by their names inside the folder, or "" for the file itself.
        tables: CSV files inside that are logged to MLflow as tables.
    """

    output: Output
    path: str = ""
    artifact: str = ""
    uploaded: bool = True
    roles: tuple[tuple[str, str], ...] = ()
    tables: tuple[str, ...] = ()


def reads(default: Any, help: str, of: WhichRound = WhichRound.SAME, role: str = "") -> Any:
    """Declare an input that is a file or folder; see ``knob`` and ``Reads``."""
    return knob(default, help, use=Reads(of, role))


def writes(default: Any, help: str, flag: str, output: Output | None = None, **use: Any) -> Any:
    """Declare an output, a file by default; see ``knob`` and ``Writes``."""
    written = Writes(output or File(), **use)
    return knob(default, help, flag=flag, output=written.output, use=written)


def uses_of(of: type, use: type[Use]) -> Mapping[str, Use]:
    """Return the fields of a dataclass that have this use (read or written), by name."""
    return {one.name: one.use for one in knobs_of(of) if isinstance(one.use, use)}


def flags(of: type) -> dict[str, str]:
    """Return the flags of a dataclass's fields, by name."""
    return {one.name: one.flag_name for one in knobs_of(of) if one.flag is not None}


def plain_inputs(of: type) -> Mapping[str, Knob]:
    """Return the inputs of a stage that are not files, by name."""
    return {one.name: one for one in knobs_of(of) if one.use is None}


def set_by(params: Mapping[str, Any], inputs: type) -> dict[str, Any]:
    """Return the inputs of a stage that params.yaml sets, without defaults and ``num_rounds``."""
    found = {}
    for name, one in plain_inputs(inputs).items():
        of_section = params.get(one.section) if one.flag is not None and one.section else None
        if isinstance(of_section, Mapping) and name in of_section:
            found[name] = of_section[name]
    return found


def loop_settings(inputs: type) -> tuple[str, ...]:
    """Return the inputs of a stage that only section ``loop`` sets."""
    return tuple(name for name, one in plain_inputs(inputs).items() if one.flag is None)


@dataclass(frozen=True)
class Outcome:
    """Report of a stage about its own work.

    Attributes:
        curve: losses or predicted costs of all updates, or measured costs of all placements, in order.
        text: summary for people.
        curve_name: name of the curve in MLflow; "" for that of the stage.
    """

    metrics: dict[str, float]
    curve: list[float] = field(default_factory=list)
    text: str = ""
    curve_name: str = ""


def _always(inputs: Any, outputs: Any) -> bool:
    return True


@dataclass(frozen=True)
class Stage:
    """One stage of the loop.

    Attributes:
        name: name of its module, its section of params.yaml, its component and its runs in MLflow.
        what, about, usage: its purpose in a sentence, more about it, and the purpose of its flags.
        config, inputs, outputs: dataclasses of its section and of its files.
        metrics: meaning of its metrics.
        measures: True if it also takes section ``measure``. Under torchrun it measures on all devices at once.
        takes_lineage: True if ``run`` takes a ``Lineage``.
        curve: name of its outcome's curve in MLflow; "" for none.
        learned_from: the input whose network records the training data of this stage.
        concludes: True if it ends the loop: its metrics are also logged to the loop's run, and the networks that it has
            read become versions of the registered models.
        needs_params: True if its command needs params.yaml.
        tracked: returns True if a run with these inputs and outputs is logged to MLflow.
    """

    name: str
    what: str
    config: type
    inputs: type
    outputs: type
    about: str = ""
    usage: str = ""
    metrics: str = ""
    tags: tuple[str, ...] = ()
    measures: bool = False
    takes_lineage: bool = False
    curve: str = ""
    learned_from: str = ""
    concludes: bool = False
    needs_params: bool = True
    tracked: Callable[[Any, Any], bool] = _always

    @property
    def run(self) -> Callable[..., Outcome]:
        """Return its code, ``run(config[, measure], inputs, outputs[, lineage])``."""
        code: Callable[..., Outcome] = import_module(f"evenshard.loop.{self.name}").run
        return code

    @property
    def command(self) -> str:
        """Return the command of ``evenshard``."""
        return self.name.replace("_", "-")

    @property
    def per_round(self) -> bool:
        """Return True if it runs once per round."""
        return "round" in plain_inputs(self.inputs)

    @property
    def sections(self) -> tuple[str, ...]:
        """Return the sections of params.yaml that it takes, its own first."""
        return (self.name, "measure") if self.measures else (self.name,)

    def settings(self, params: dict[str, Any], overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return its sections as dataclasses.

        Args:
            overrides: values by section and key; None means not given.

        Raises:
            BadConfig: if a section is invalid.
        """
        kinds = {self.name: self.config, "measure": MeasureConfig}
        return {name: section(params, name, kinds[name], **overrides.get(name, {})) for name in self.sections}

    def run_name(self, inputs: Any) -> str:
        """Return the name of its run in MLflow, such as ``benchmark_2_part_1``."""
        name = f"{self.name}_{inputs.round}" if self.per_round else self.name
        return f"{name}_part_{inputs.part}" if getattr(inputs, "num_parts", 1) > 1 else name
