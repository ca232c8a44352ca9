"""What a stage of the loop is, and the words in which its settings, files and flags are declared.

A field of a stage's dataclasses says in its annotation what it is: ``costs: Annotated[Path, Writes(...)]``.
Declarations are light: the code of a stage, ``run`` of the module of its name, is imported when the stage runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, auto
from importlib import import_module
from typing import Any, TypeVar, get_type_hints

from evenshard.utils.outputs import File, Output
from evenshard.utils.params import section

Declaration = TypeVar("Declaration")
# Kinds of artifacts, as Kubeflow Pipelines calls them.
DATASET, MODEL, ARTIFACT, HTML, MARKDOWN = "Dataset", "Model", "Artifact", "HTML", "Markdown"


class WhichRound(Enum):
    """The round of an input: that of the stage, or the last one for a stage that runs after all rounds."""

    SAME = auto()
    PREVIOUS = auto()
    SO_FAR = auto()


@dataclass(frozen=True)
class Reads:
    """An input that is a file or folder: the output of the same name, of the stage that has one.

    Attributes:
        help: its meaning, for users.
        of: round of the stage that wrote it.
        role: role in MLflow, for a cost dataset.
    """

    help: str
    of: WhichRound = WhichRound.SAME
    role: str = ""


@dataclass(frozen=True)
class Writes:
    """A file or folder that the stage writes.

    Attributes:
        help: its meaning, for users.
        flag: name of its flag on the command line.
        output: rule of what it may replace.
        path: path in the loop of dvc.yaml; "" if it has none.
        artifact: its kind in Kubeflow Pipelines; "" for one that pods do not write.
        uploaded: whether MLflow gets it.
        roles: roles of cost datasets in MLflow, by their names inside the folder, or "" for the file itself.
        tables: CSV files inside that MLflow gets as tables.
    """

    help: str
    flag: str
    output: Output = field(default_factory=File)
    path: str = ""
    artifact: str = ""
    uploaded: bool = True
    roles: tuple[tuple[str, str], ...] = ()
    tables: tuple[str, ...] = ()


@dataclass(frozen=True)
class Flag:
    """A flag of the command: for an input that is not a file, or for a setting that it overrides.

    Attributes:
        help: its meaning, for users.
        flag: its name; "" for that of the field.
        kind: int, float, or str for a name, path or address of something to read. The last, where it overrides a
            setting, comes to a component as an artifact, or as an address.
        least: smallest allowed number.
        metavar: placeholder of its value in the help, as in ``argparse``.
        parameter: name of the component's parameter; "" for none.
        choices: the values that it may have; empty for all.
        section: section of params.yaml that sets it, under the name of the field, where the flag is not given; "" for
            its own default.
    """

    help: str
    flag: str = ""
    kind: type = int
    least: float | None = None
    metavar: str | None = None
    parameter: str = ""
    choices: tuple[str, ...] = ()
    section: str = ""


@dataclass(frozen=True)
class LoopSetting:
    """An input that section ``loop`` of params.yaml sets, under the name of the field, and a parameter of a component.

    Attributes:
        help: its meaning, for users.
    """

    help: str


def declarations_of(of: type, kind: type[Declaration]) -> Mapping[str, Declaration]:
    """The fields of a dataclass that are declared as ``kind``, by name; as ``object``, all that are declared."""
    hints = get_type_hints(of, include_extras=True)
    return {
        one.name: declaration
        for one in fields(of)
        for declaration in getattr(hints[one.name], "__metadata__", ())
        if isinstance(declaration, kind)
    }


def flags(of: type) -> dict[str, str]:
    """The flags of a dataclass's fields, by the names of the fields."""
    return {
        name: getattr(one, "flag", "") or f"--{name.replace('_', '-')}"
        for name, one in declarations_of(of, object).items()
        if not isinstance(one, LoopSetting)
    }


def set_by(params: Mapping[str, Any], inputs: type) -> dict[str, Any]:
    """The inputs of a stage that sections of params.yaml set beside its own, by name; a default is left out."""
    found = {}
    for name, one in declarations_of(inputs, Flag).items():
        of_section = params.get(one.section) if one.section else None
        if isinstance(of_section, Mapping) and name in of_section:
            found[name] = of_section[name]
    return found


@dataclass(frozen=True)
class Outcome:
    """A stage's report about its own work.

    Attributes:
        metrics: metrics by name.
        curve: the loss of every update, the predicted cost of every update, or the measured cost of every placement,
            in order; empty where there is none.
        text: summary for people.
        curve_name: the curve's name in MLflow; "" for that of the stage.
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
        what: its purpose, in a sentence.
        config: dataclass of its section; a field may be overridden by a flag.
        inputs, outputs: dataclasses whose fields are declared.
        about: more than ``what``.
        usage: purpose of its flags.
        metrics: meaning of its metrics.
        tags: tags of its component.
        measures: whether it takes section ``measure``, too. Under torchrun it measures on all devices at once.
        takes_lineage: whether ``run`` takes a ``Lineage``, for what it writes.
        curve: the name in MLflow of its outcome's curve; "" for none.
        learned_from: the input whose network names the data that this stage has learned from.
        concludes: whether it ends the loop: its metrics go to the loop's own run as well, and the networks that it has
            read become versions of the registered models.
        needs_params: whether its command needs params.yaml.
        tracked: whether MLflow gets a run with these inputs and outputs.
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
        """Its code: ``run(config[, measure], inputs, outputs[, lineage])``."""
        code: Callable[..., Outcome] = import_module(f"evenshard.stages.{self.name}").run
        return code

    @property
    def command(self) -> str:
        """The command of ``evenshard``."""
        return self.name.replace("_", "-")

    @property
    def per_round(self) -> bool:
        """Whether it runs once per round."""
        return "round" in declarations_of(self.inputs, Flag)

    @property
    def sections(self) -> tuple[str, ...]:
        """The sections of params.yaml that it takes, its own first."""
        return (self.name, "measure") if self.measures else (self.name,)

    def settings(self, params: dict[str, Any], overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Its sections as dataclasses.

        Args:
            overrides: overrides by section and key; those that are None count as not given.

        Raises:
            BadConfig: if a section makes no sense.
        """
        from evenshard.measure.config import MeasureConfig

        kinds = {self.name: self.config, "measure": MeasureConfig}
        return {name: section(params, name, kinds[name], **overrides.get(name, {})) for name in self.sections}

    def run_name(self, inputs: Any) -> str:
        """The name of its run in MLflow, such as ``benchmark_2_part_1``."""
        name = f"{self.name}_{inputs.round}" if self.per_round else self.name
        return f"{name}_part_{inputs.part}" if getattr(inputs, "num_parts", 1) > 1 else name
