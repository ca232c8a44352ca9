"""Generator of the components of the loop's stages, and of every component's README.md (``make generate``).

The other components (drift, merge_costs, place, record_outcome, watch) are written by hand, except for their README.md.
"""

from __future__ import annotations

import importlib
import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docstring_parser import parse

from evenshard.base.knobs import REQUIRED, knobs_of
from evenshard.kubeflow.component import (
    EARLIER,
    METRICS,
    NUM_GPUS,
    find_file_setting,
    input_name,
    is_accumulated,
)
from evenshard.loop.loop import STAGES
from evenshard.loop.rounds import WRITERS
from evenshard.loop.stage import DATASET, Reads, Stage, Writes, plain_inputs, uses_of

HERE = Path(__file__).parent
MARK = "Written by `make generate` from src/evenshard/loop/loop.py; do not edit by hand."
BODY = '''\
# {mark}
"""Stage ``{name}`` of the loop on Kubeflow Pipelines."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.component import image


@dsl.component(base_image=image(), install_kfp_package=False)
def {name}(
{signature}
) -> None:
    """{docstring}
    """
    from evenshard.kubeflow.pod import run_in_pod

    run_in_pod(
        "{name}",
{arguments}
    )
'''
METADATA = """\
# {mark}
name: {name}
stability: beta
dependencies:
  kubeflow:
    - name: Pipelines
      version: ">=2.17"
  external_services:
    - name: MLflow
      version: ">=3.10"
tags:
{tags}
lastVerified: 2026-11-21T00:00:00Z
"""


@dataclass(frozen=True)
class Parameter:
    """One argument of a component."""

    name: str
    kind: str  # Input, Output or "" for a value
    type: str  # artifact type such as Dataset, or a Python type
    help: str
    default: str | None = None  # default as Python source; None if required


def written_files() -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of each file; write each before the next, because README.md reads component.py."""
    for stage in STAGES:
        yield HERE / stage.name / "__init__.py", ""
        yield HERE / stage.name / "component.py", component_of(stage)
        yield HERE / stage.name / "metadata.yaml", metadata_of(stage)
    for name in component_names():
        yield HERE / name / "README.md", readme_of(name)


def component_names() -> list[str]:
    """List the names of all components, sorted."""
    return sorted(path.parent.name for path in HERE.glob("*/component.py"))


def component(name: str) -> Any:
    """Import a component."""
    return getattr(importlib.import_module(f"evenshard_components.{name}.component"), name)


def component_of(stage: Stage) -> str:
    """Return the text of a stage's component.py."""
    found = parameters(stage)
    about = [_fill(stage.about, 4)] if stage.about else []
    arguments = ["    Args:", *(_fill(f"{one.name}: {_end_sentence(one.help)}", 8, 12) for one in found)]
    docstring = "\n\n".join([stage.what, *about, "\n".join(arguments)])
    return BODY.format(
        mark=MARK,
        name=stage.name,
        signature="\n".join(f"    {_argument(one)}," for one in found),
        docstring=docstring,
        arguments="\n".join(f"        {one.name}={one.name}," for one in found),
    )


def parameters(stage: Stage) -> list[Parameter]:
    """List the arguments of a stage's component, required ones first, as Python demands."""
    found = []
    for one in knobs_of(stage.inputs):
        if isinstance(one.use, Reads):
            kind = uses_of(WRITERS[one.name].outputs, Writes)[one.name].artifact
            default = None if one.default is REQUIRED else "None"
            found.append(Parameter(input_name(stage, one.name), "Input", kind, _about(one.name, one.help), default))
    for one in knobs_of(stage.outputs):
        if one.use.artifact:
            found.append(Parameter(one.name, "Output", one.use.artifact, _about(one.name, one.help)))
            if is_accumulated(one.name):
                found.append(
                    Parameter(EARLIER, "Input", DATASET, f"{one.name} of earlier rounds, copied to the output", "None")
                )
    found.append(Parameter(METRICS, "Output", "Metrics", stage.metrics))
    for number, section in enumerate(stage.sections):
        found.append(
            Parameter("measure" if number else "config", "", "dict[str, Any]", f"section ``{section}`` of params.yaml")
        )
    for name, one in plain_inputs(stage.inputs).items():
        if one.parameter:
            default = None if name == "round" or one.flag is None else _source(one.default)
            about = one.help.partition(" (default")[0]
            found.append(Parameter(one.parameter, "", one.kind.__name__, about, default))
    if stage.measures:
        text = "GPUs of this pod. If 2 or more, as many as the devices of a task; they measure concurrently (torchrun)"
        found.append(Parameter(NUM_GPUS, "", "int", text, "0"))
    if own := find_file_setting(stage):
        found += [
            Parameter(own, "Input", DATASET, f'your own file, instead of ``config["{own}"]``', "None"),
            Parameter(
                f"{own}_address",
                "",
                "str",
                f"address of your file, such as ``s3://bucket/tables.parquet``, instead of ``{own}``; the pod reads it "
                "with the S3 endpoint and keys of its environment",
                '""',
            ),
            Parameter(
                "data_hash",
                "",
                "str",
                "hash of your file; it only prevents Kubeflow from reusing the cached result of an earlier file with "
                "the same name",
                '""',
            ),
        ]
    return sorted(found, key=lambda one: one.default is not None)


def _about(name: str, help: str) -> str:
    files = "round_001.parquet`` and so on" if is_accumulated(name) else "tables.parquet``" if name == "tables" else ""
    return f"{help.partition(' (')[0]}: a folder with ``{files}" if files else help


def metadata_of(stage: Stage) -> str:
    """Return the text of a stage's metadata.yaml."""
    tags = "\n".join(f"  - {tag}" for tag in ("recommender", "embedding-tables", *stage.tags))
    return METADATA.format(mark=MARK, name=stage.name, tags=tags)


def readme_of(name: str) -> str:
    """Return the text of a component's README.md."""
    of = component(name)
    docstring = parse(of.python_func.__doc__)
    about = {one.arg_name: " ".join((one.description or "").split()) for one in docstring.params}
    if docstring.returns is not None:
        about["Output"] = docstring.returns.description or ""  # KFP's name of a return value
    paragraphs = [docstring.short_description, docstring.long_description]
    inputs = [
        f"| `{key}` | `{_kind(one)}` | {'no' if one.optional else 'yes'} | {_sentence(about[key])} |"
        for key, one in of.component_spec.inputs.items()
    ]
    outputs = [
        f"| `{key}` | `{_kind(one)}` | {_sentence(about[key])} |" for key, one in of.component_spec.outputs.items()
    ]
    return "\n".join(
        [
            "<!-- Written by `make generate` from component.py; do not edit by hand. -->",
            f"# {name}",
            "",
            "\n\n".join(_wrap(_plain(one)) for one in paragraphs if one),
            "",
            "## Inputs",
            "",
            "| name | type | required | description |",
            "|---|---|---|---|",
            *(inputs or ["| none | | | |"]),
            "",
            "## Outputs",
            "",
            "| name | type | description |",
            "|---|---|---|",
            *outputs,
            "",
        ]
    )


def _source(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _argument(one: Parameter) -> str:
    kind = f"dsl.{one.kind}[dsl.{one.type}]" if one.kind else one.type
    return f"{one.name}: {kind}" + ("" if one.default is None else f" = {one.default}")


def _fill(text: str, indent: int, then: int | None = None) -> str:
    return textwrap.fill(
        text, 119, initial_indent=" " * indent, subsequent_indent=" " * (indent if then is None else then)
    )


def _wrap(paragraph: str) -> str:
    return textwrap.fill(paragraph, 120, break_long_words=False, break_on_hyphens=False)


def _end_sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _kind(spec: Any) -> str:
    name = str(spec.type).removeprefix("system.").partition("@")[0]
    return f"List[{name}]" if spec.is_artifact_list else name


def _plain(text: str) -> str:
    return re.sub("``(.+?)``", r"`\1`", " ".join(text.split()))


def _sentence(text: str) -> str:
    return _plain(text[:1].upper() + text[1:])
