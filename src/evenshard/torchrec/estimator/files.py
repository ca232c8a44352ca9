"""``evenshard export-estimator``: an estimator for TorchRec's planner as a file, and back.

It is fitted to the costs of a device or a model. A .py file needs TorchRec alone, a .json file is read by evenshard.
"""

from __future__ import annotations

import ast
import json
import pprint
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenshard.measure.link import GPUS_OF_A_NODE
from evenshard.planner.file import read_json, validate_record
from evenshard.sharders.model import Model
from evenshard.sharders.torchrec.compat import require_torchrec
from evenshard.torchrec.estimator import formula
from evenshard.torchrec.estimator.examples import machine_to_fit
from evenshard.torchrec.estimator.fit import NODES, fit_estimator
from evenshard.torchrec.estimator.record import SCHEMA_VERSION, Estimator, EstimatorFile
from evenshard.utils.atomic import atomic_path
from evenshard.utils.errors import BadConfig, BadFile
from evenshard.utils.messages import printable
from evenshard.utils.params import check_ranges
from evenshard.version import __version__

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import ParameterConstraints, Topology

    from evenshard.torchrec.estimator.perf_config import FittedEstimator

_SUFFIXES = (".py", ".json")
_WHAT = "an estimator"
_REMEDY = "Write it again with `evenshard export-estimator ... -o estimator.json`."
# They name folders and files of the user, whatever characters those have.
_TEXTS = ("command", "fitted_to", "hardware")
# Modules of this package that a .py file holds, in this order.
_MODULES = ("formula", "perf_config")
_FACTORY = ("torchrec.distributed.planner.estimator.estimator", "EmbeddingPerfEstimatorFactory")
_USE = '''

@EmbeddingPerfEstimatorFactory.register(NAME)
class ExportedPerfConfig(FittedPerfConfig):
    """What ``EmbeddingPerfEstimatorFactory.create(NAME, topology=topology)`` makes an estimator of."""

    name = NAME
    fit = FIT


def estimator(topology, constraints=None):
    """The estimator, which also makes what goes with it: see its methods and the head of this file.

    Args:
        topology: of the planner.
        constraints: of the planner.
    """
    return fitted_estimator(FIT, topology, constraints)
'''
_HOW = """
    import estimator                                      # this file
    from torchrec.distributed.planner import EmbeddingShardingPlanner

    costs = estimator.estimator(topology, constraints)
    planner = EmbeddingShardingPlanner(
        topology, batch_size, costs.enumerator(batch_size), constraints=constraints,
        performance_model=costs.performance_model(),
    )
"""


def export_estimator(
    path: str | Path,
    hardware: str | None = None,
    *,
    model: str | Path | Model | None = None,
    devices_per_node: int = GPUS_OF_A_NODE,
    intra: str = "",
    inter: str = "infiniband_ndr",
    batch_size: int = 65_536,
    optimizer: str = "sgd",
    seed: int = 0,
    command: str = "",
) -> dict[str, Any]:
    """Fits an estimator for TorchRec's ``EmbeddingShardingPlanner``, and writes it. TorchRec is not needed.

    Args:
        path: a .py file, which needs no evenshard, or a .json file for ``load_estimator``.
        hardware: simulated:<profile>, whose device model prices placements; with a model, what it was trained on.
        model: a model as in ``evenshard.place``, whose predictions are fitted to in place of a device model.
        devices_per_node: devices of a host.
        intra: link within a host; that of the hardware where left out.
        inter: link between hosts.
        batch_size: samples of all devices together, of the placements that are fitted to.
        optimizer: one of those of ``evenshard.place``.
        seed: of the random placements.
        command: that the file names as its origin.

    Returns:
        what the file holds; ``error`` says how far off it is.

    Raises:
        BadInput: if something is unknown or cannot be written.
    """
    _check_path(path)
    check_ranges(devices_per_node=devices_per_node, batch_size=batch_size)
    machine = machine_to_fit(hardware, model, devices_per_node, intra, inter, batch_size, optimizer)
    hardware, loaded = machine.hardware, machine.model
    costs = f"the device model of {hardware}" if loaded is None else f"what the model {loaded.source} predicts"
    nodes = ", ".join(map(str, NODES))
    fit = {
        "fitted_to": f"{costs}: random placements of random tables on {nodes} nodes of {devices_per_node} "
        f"devices, batch {batch_size:,}, {optimizer}",
        **fit_estimator(machine, seed),
    }
    save_estimator(fit, path, command)
    return fit


def _check_path(path: str | Path) -> None:
    """Raises BadConfig if no estimator can be written under this name."""
    if Path(path).suffix not in _SUFFIXES:
        raise BadConfig(f"an estimator is a .py or a .json file, not {Path(path).name}. Name it estimator.py.")


def save_estimator(fit: dict[str, Any], path: str | Path, command: str = "") -> None:
    """Writes an estimator as a whole or not at all. TorchRec is not needed.

    Args:
        fit: of ``fit_estimator``, with ``fitted_to``.
        path: a .py file, which needs no evenshard, or a .json file for ``load_estimator``.
        command: that made it, for the file to say.

    Raises:
        BadConfig: if the path ends in something else.
    """
    _check_path(path)
    said = {"schema_version": SCHEMA_VERSION, "evenshard": __version__, "command": command, **fit}
    said |= {name: printable(str(said[name])) for name in _TEXTS}
    estimator = Estimator.model_validate(said)
    record = estimator.model_dump()
    in_json = Path(path).suffix == ".json"
    text = json.dumps({**record, "sha256": estimator.digest()}, indent=1) + "\n" if in_json else python_source(record)
    with atomic_path(Path(path)) as draft:
        draft.write_text(text, encoding="utf-8")


def load_estimator(
    path: str | Path, topology: Topology, constraints: dict[str, ParameterConstraints] | None = None
) -> FittedEstimator:
    """The estimator of a JSON file, with its enumerator and performance model as methods.

    Args:
        path: file of ``evenshard export-estimator``.
        topology: of the planner.
        constraints: of the planner.

    Raises:
        BadFile: if the file is none.
        MissingPackage: if TorchRec is not installed.
    """
    require_torchrec()
    content = read_json(path, _WHAT, _REMEDY)
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        raise BadFile(path, f"is not an estimator file of schema_version {SCHEMA_VERSION}", _REMEDY)
    record = validate_record(EstimatorFile, content, path, _WHAT, _REMEDY)
    from evenshard.torchrec.estimator.perf_config import fitted_estimator

    return fitted_estimator(record.model_dump(exclude={"sha256"}), topology, constraints)


def python_source(record: dict[str, Any]) -> str:
    """The module that uses a record, on TorchRec and the standard library alone."""
    folder = Path(formula.__file__).parent
    modules = [(folder / f"{name}.py").read_text(encoding="utf-8") for name in _MODULES]
    body = "\n".join(_without_docstring(source) for source in modules)
    imports, body = _imports_apart(body)
    name = "evenshard_" + re.sub(r"\W+", "_", str(record["hardware"]))
    constants = f"NAME = {name!r}\nFIT = {pprint.pformat(record, width=110, sort_dicts=False)}\n"
    return f"{_docstring(record, name)}\n{imports}\n\n{constants}\n{body.strip()}\n{_USE}"


def _docstring(record: dict[str, Any], name: str) -> str:
    error = record["error"]
    lines = (
        f"Times of shards on {record['hardware']}, for the planner of TorchRec 1.8.",
        "",
        f"Fitted by evenshard {record['evenshard']} to {record['fitted_to']}.",
        f"Ratings of {error['placements']} random placements of {error['sets_of_tables']} other sets of tables:",
        f"{error['median_percent']} % off in the median, {error['p90_percent']} % at the 90th percentile, rank "
        f"correlation {error['mean_rank_correlation']} within a set.",
        f"Command: {record['command'] or '(from Python)'}",
    )
    # Names of hardware, folders and models stand in it: text of others, which must not end the literal it stands in.
    said = "\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return (
        f'"""{said}\n{_HOW}\nEmbeddingPerfEstimatorFactory knows it as {name!r}, too, with a fixed guess of how many '
        'tables share a\nkernel call.\n"""\n'
    )


def _without_docstring(source: str) -> str:
    return source.split('"""', 2)[2].lstrip("\n")


def _imports_apart(source: str) -> tuple[str, str]:
    """The imports of several modules as those of one, without evenshard's; and all the rest."""
    lines, names = source.splitlines(), defaultdict[str, set[str]](set)
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names[node.module] |= {one.name for one in node.names}
        elif isinstance(node, ast.Import):
            names |= {one.name: set() for one in node.names}
        else:
            continue
        for number in range(node.lineno - 1, node.end_lineno or node.lineno):
            lines[number] = ""
    names[_FACTORY[0]].add(_FACTORY[1])
    of_torch = sorted(module for module in names if module.startswith("torch"))
    others = sorted(module for module in names if not module.startswith(("torch", "evenshard")))
    groups = (_import_lines(module, names[module]) for module in (*others, "", *of_torch))
    return "\n".join(groups), re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines))


def _import_lines(module: str, names: Iterable[str]) -> str:
    """The import of a module, or of names of it, in at most 120 columns."""
    if not module:
        return ""
    if not names:
        return f"import {module}"
    line = f"from {module} import {', '.join(sorted(names))}"
    if len(line) <= 120:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in sorted(names)), ")"])
