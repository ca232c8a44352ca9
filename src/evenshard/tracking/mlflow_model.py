"""Code that MLflow stores with a registered model and runs to serve it: tables are the input, a placement the output.

``mlflow.pyfunc.load_model("models:/evenshard-cost@champion").predict(tables, params={"num_devices": 4})`` runs it.
``tables`` has the columns of a table file. Each row of the answer assigns rows and columns of a table to a device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel

from evenshard.api import place
from evenshard.base.errors import BadConfig
from evenshard.base.units import gb_to_bytes
from evenshard.placement.memory import DEFAULT_OPTIMIZER
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import TablePart
from evenshard.planner.hosts import MachineAndMemory
from evenshard.planner.knobs import Knobs, place_knob
from evenshard.planner.memory import default_memory_gb, reserve_of
from evenshard.planner.optimizers import TableOptimizers
from evenshard.planner.place import build_request
from evenshard.planner.request import caps_of
from evenshard.price.hardware import DEFAULT_HARDWARE
from evenshard.sharders.catalog import load_sharder
from evenshard.sharders.models import COST_MODEL, COST_NET, POLICY, load_model
from evenshard.tables.sources import tables_in_python
from evenshard.tracking.pyfunc import list_parameters, output_rows

# Knobs of a policy; its rollouts of a task are the same for every seed.
_OF_POLICY = {
    *("num_devices", "memory_cap_gb", "reserved_gb", "dense_gb"),
    *("training_pipeline", "batch_size", "optimizer", "seed"),
}


class ServedModel(PythonModel):
    """Served model: ``evenshard-cost`` searches like ``evenshard place``, ``evenshard-policy`` samples the policy."""

    def load_context(self, context: Any) -> None:
        """Read the networks."""
        folder = Path(context.artifacts["model"])
        self._model = load_model(folder) if (folder / COST_MODEL).is_dir() else None
        if self._model is None:
            self._policy = load_sharder(folder / COST_NET, folder / POLICY)

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return a row for each table part and device; see ``output_rows``.

        Raises:
            BadInput: if a table or a parameter is invalid.
            InfeasibleTask: if the tables do not fit.
        """
        arguments = {**list_parameters(), **(params or {})}
        if self._model is not None:
            parts = place(model_input, model=self._model, **arguments).parts
        else:
            parts = self._roll_out(model_input, arguments)
        return pd.DataFrame(row for part in parts for row in output_rows(part))

    def _roll_out(self, rows: pd.DataFrame, arguments: dict[str, Any]) -> tuple[TablePart, ...]:
        for name, value in arguments.items():
            if name not in _OF_POLICY and value != place_knob(name).default:
                raise BadConfig(f"evenshard-policy does not support {name}. Serve evenshard-cost, or omit {name}.")
        asked = Knobs.of(arguments)
        num_devices, cap_gb = arguments["num_devices"], asked.memory.memory_cap_gb
        # A policy does not record its devices.
        caps = caps_of(default_memory_gb(DEFAULT_HARDWARE) if cap_gb is None else cap_gb, num_devices)
        reserve = reserve_of(asked.memory.reserved_gb)
        devices = MachineAndMemory(Nodes.one_node(num_devices), caps, DEFAULT_HARDWARE, (), *reserve)
        known = tables_in_python(rows, asked.training.batch_size)
        assert known is not None, "a data frame has records"
        optimizers = TableOptimizers(asked.training.optimizer or DEFAULT_OPTIMIZER)
        request = build_request(asked, known, optimizers, devices, gb_to_bytes(asked.memory.dense_gb or 0.0))
        return self._policy.place(request.task().as_whole).parts(known.tables)


set_model(ServedModel())
