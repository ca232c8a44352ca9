"""Registered model as an MLflow pyfunc: its folder, parameters, requirements and signature."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from evenshard.base.knobs import Knob
from evenshard.placement.parts import TablePart
from evenshard.planner.hosts import DEFAULT_DEVICES
from evenshard.planner.knobs import place_knobs
from evenshard.tables.records import COLUMN_TYPES, REQUIRED_COLUMNS
from evenshard.tracking.client import quiet
from evenshard.version import __version__

# Packages that placing tables needs, besides evenshard itself.
REQUIRED = ("torch", "numpy", "pandas", "pydantic", "scipy", "PyYAML", "mlflow")

EXAMPLE = [
    {"name": "users", "num_rows": 1_000_000, "embedding_dim": 64, "pooling_factor": 1.0},
    {"name": "clicks", "num_rows": 200_000, "embedding_dim": 32, "pooling_factor": 20.0},
]


@dataclass(frozen=True)
class ServedCode:
    """Code that serves a registered model."""

    script: Path  # sets MLflow's model; stored with the networks
    parameters: Mapping[str, bool | int | float | str | None]  # besides the tables, with defaults
    kinds: Mapping[str, type]  # of the parameters: bool, int, float or str


# The hardware is the model's; a server has no files and no device to measure on.
NOT_SERVED = {
    *("hardware", "default_pooling_factor", "num_measured"),
    *("model", "traffic", "hosts", "embedding_dim", "near", "max_move_gb"),
}


def build_serving_code() -> ServedCode:
    """Return the script ``mlflow_model.py``, and its parameters."""
    kinds = {knob.name: knob.scalar or str for knob in _list_knobs()}
    return ServedCode(Path(__file__).with_name("mlflow_model.py"), list_parameters(), kinds)


def list_parameters() -> dict[str, Any]:
    """Return the knobs of a registered model with their defaults: plain values, or None."""
    defaults = {knob.name: knob.default for knob in _list_knobs()}
    return {**defaults, "num_devices": DEFAULT_DEVICES}


def _list_knobs() -> tuple[Knob, ...]:
    return tuple(knob for knob in place_knobs() if knob.scalar is not None and knob.name not in NOT_SERVED)


def save_pyfunc(model: Path, code: ServedCode, target: Path, name: str, logged: Any, run_id: str) -> None:
    """Write the folder that MLflow serves: files of a model's folder, the serving code, and its requirements."""
    with warnings.catch_warnings(), quiet("mlflow.pyfunc"):  # which reports that it tries the example
        warnings.simplefilter("ignore")  # about its own modules, and type hints in our code
        import mlflow.pyfunc
        from mlflow.models import Model

        mlflow.pyfunc.save_model(
            str(target),
            python_model=str(code.script),
            artifacts={"model": str(model)},
            signature=signature(code),
            input_example=(EXAMPLE, {"num_devices": 2}),
            pip_requirements=pip_requirements(),
            mlflow_model=Model(
                artifact_path=logged.artifact_location,
                model_uuid=logged.model_id,
                model_id=logged.model_id,
                run_id=run_id or None,
                metadata={"evenshard": name},
            ),
        )


def pip_requirements() -> list[str]:
    """Return the packages that serving a model needs; without evenshard on a package index, install its wheel first."""
    known = [f"evenshard=={__version__}"]
    for package in REQUIRED:
        try:
            known.append(f"{package}=={version(package)}")
        except PackageNotFoundError:
            known.append(package)
    return known


def output_rows(part: TablePart) -> Iterator[dict[str, str | int]]:
    """Yield the output rows of a table part, one per device; ends of rows and columns are exclusive."""
    for device in part.devices:
        yield {
            "table": part.table,
            "device": device,
            "row_start": part.rows.start,
            "row_stop": part.rows.stop,
            "column_start": part.columns.start,
            "column_stop": part.columns.stop,
        }


def signature(code: ServedCode) -> Any:
    """Return the model's signature: input columns (a table file's), output columns (``output_rows``) and parameters."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array, DataType

    text, whole, number, flag = DataType.string, DataType.long, DataType.double, DataType.boolean
    kinds: dict[str, Any] = {"str": text, "bool": flag, "int": whole, "float": number}
    kinds |= {"tuple[str, ...]": Array(text), "tuple[float, ...]": Array(number)}
    tables: list[Any] = [ColSpec(kinds[kind], name, name in REQUIRED_COLUMNS) for name, kind in COLUMN_TYPES.items()]
    spans = ("row_start", "row_stop", "column_start", "column_stop")
    placement: list[Any] = [ColSpec(text, "table"), *(ColSpec(whole, name) for name in ("device", *spans))]
    types = {bool: flag, int: whole, float: number, str: text}
    params = [ParamSpec(param, types[code.kinds[param]], default) for param, default in code.parameters.items()]
    return ModelSignature(Schema(tables), Schema(placement), ParamSchema(params))
