"""The prediction of a registered model, tables in and placement out: the code that MLflow stores beside the networks.

``mlflow.pyfunc.load_model("models:/evenshard-cost@champion").predict(tables, params={"num_devices": 4})`` runs it. The
columns are those of a table file. Each row of the answer says which rows and columns of a table live on which device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel

from evenshard.api import place
from evenshard.base.errors import BadConfig
from evenshard.base.knobs import check_ranges
from evenshard.base.units import gb_to_bytes
from evenshard.placement.memory import DEFAULT_OPTIMIZER
from evenshard.placement.parts import TablePart
from evenshard.planner.knobs import place_knob
from evenshard.planner.memory import own_memory_gb, reserve_of
from evenshard.planner.request import PlacementRequest, caps_of
from evenshard.price.hardware import DEFAULT_HARDWARE
from evenshard.sharders.learned import load_sharder
from evenshard.sharders.models import COST_MODEL, COST_NET, POLICY, load_model
from evenshard.tables.sources import tables_in_python
from evenshard.tracking.pyfunc import output_rows
from evenshard.tracking.serving import served_parameters


class ServedModel(PythonModel):
    """``evenshard-cost`` searches as ``evenshard place`` does; ``evenshard-policy`` rolls the policy out."""

    def load_context(self, context: Any) -> None:
        """Reads the networks."""
        folder = Path(context.artifacts["model"])
        self._model = load_model(folder) if (folder / COST_MODEL).is_dir() else None
        if self._model is None:
            self._policy = load_sharder(folder / COST_NET, folder / POLICY)

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """One row for each part of a table and each device that has it; see ``output_rows``.

        Raises:
            BadInput: if a table or a parameter makes no sense.
            InfeasibleTask: if the tables do not fit.
        """
        arguments = {**served_parameters(), **(params or {})}
        if self._model is not None:
            parts = place(model_input, model=self._model, **arguments).parts
        else:
            parts = self._rolled_out(model_input, **arguments)
        return pd.DataFrame(row for part in parts for row in output_rows(part))

    def _rolled_out(
        self,
        rows: pd.DataFrame,
        *,
        num_devices: int,
        memory_cap_gb: float | None,
        reserved_gb: float | None,
        dense_gb: float | None,
        training_pipeline: str,
        batch_size: int,
        optimizer: str | None,
        seed: int,  # the rollouts of a task are always the same
        **others: Any,
    ) -> tuple[TablePart, ...]:
        for name, value in others.items():
            if value != place_knob(name).default:
                raise BadConfig(f"evenshard-policy takes no {name}. Serve evenshard-cost, or leave {name} out.")
        if memory_cap_gb is None:  # a policy does not say what devices it is for
            memory_cap_gb = own_memory_gb(DEFAULT_HARDWARE)
        check_ranges(dense_gb=dense_gb)
        reserved_bytes, reserved_share = reserve_of(reserved_gb)
        known = tables_in_python(rows, batch_size)
        assert known is not None, "a data frame has records"
        request = PlacementRequest(
            known.tables,
            caps_of(memory_cap_gb, num_devices),
            batch_size,
            reserved_bytes,
            optimizer or DEFAULT_OPTIMIZER,
            reserved_share=reserved_share,
            dense_bytes=gb_to_bytes(dense_gb or 0.0),
            training_pipeline=training_pipeline,
        )
        return self._policy.place(request.task().as_whole).parts(known.tables)


set_model(ServedModel())
