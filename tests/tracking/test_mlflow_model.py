"""A version as MLflow serves it: it places what evenshard places, and says what it needs."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import evenshard
from evenshard import tracking
from evenshard.base.errors import BadConfig
from evenshard.tables.files import save_tables
from evenshard.tracking.pyfunc import build_serving_code
from support.builders import some_tables
from support.tracking_builders import new_registry, register_model, write_model

pytestmark = pytest.mark.slow

TABLES = some_tables(6)
PARAMS = {"num_devices": 2, "memory_cap_gb": 1.0, "batch_size": 64}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow with a version of each model, and the folder ``model`` that they were registered from."""
    with new_registry(tmp_path_factory) as folder:
        model = write_model(folder / "model", hardware="simulated: h100")
        (model / "costs.parquet").write_text("is not of the model")
        for name in (tracking.REGISTERED_COST, tracking.REGISTERED_POLICY):
            register_model(model, build_serving_code(), {}, name=name)
    return folder


def rows() -> pd.DataFrame:
    save_tables(TABLES, "tables.parquet")
    return pd.read_parquet("tables.parquet")


def served(name: str, tables: pd.DataFrame, **params: Any) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's about its own modules
        import mlflow.pyfunc

        model = mlflow.pyfunc.load_model(f"models:/{name}/1")
        answer: pd.DataFrame = model.predict(tables, params={**PARAMS, **params})
    return answer


def test_mlflow_serves_what_evenshard_places(registry: Path) -> None:
    answer = evenshard.place(TABLES, 2, 1.0, batch_size=64, model=registry / "model", hardware="auto")
    spans = [(one, (one.rows.start, one.rows.stop, one.columns.start, one.columns.stop)) for one in answer.parts]
    expected = [(part.table, device, *span) for part, span in spans for device in part.devices]
    found = served("evenshard-cost", rows())
    assert list(found.columns) == ["table", "device", "row_start", "row_stop", "column_start", "column_stop"]
    assert list(found.itertuples(index=False, name=None)) == expected
    assert list(dict.fromkeys(found["table"])) == [table.name for table in TABLES]


def test_the_policy_places_by_itself(registry: Path) -> None:
    answer = served("evenshard-policy", rows())
    assert list(answer["table"]) == [table.name for table in TABLES]
    assert list(answer["column_stop"]) == [table.embedding_dim for table in TABLES]
    assert set(answer["device"]) <= {0, 1}
    with pytest.raises(BadConfig, match="does not support allow_column_split"):
        served("evenshard-policy", rows(), allow_column_split=True)


def test_the_columns_may_be_as_few_as_a_table_file_needs(registry: Path) -> None:
    few = rows()[["name", "num_rows", "embedding_dim", "pooling_factor"]]
    found = [served("evenshard-cost", one) for one in (few, rows())]
    # devices are alike, and their names are nothing
    pd.testing.assert_frame_equal(*(one.assign(device=pd.factorize(one["device"])[0]) for one in found))
    with pytest.raises(Exception, match="pooling_factor"):
        served("evenshard-cost", few.drop(columns="pooling_factor"))


def test_a_version_holds_code_as_text_and_what_it_needs(registry: Path) -> None:
    from mlflow.models import get_model_info

    info = get_model_info("models:/evenshard-cost/1")
    assert info.signature.inputs.input_names()[:4] == ["name", "num_rows", "embedding_dim", "pooling_factor"]
    assert {one.name: one.default for one in info.signature.params} == build_serving_code().parameters
    with tracking.download_model("models:/evenshard-cost/1") as model:
        folder = model.parents[1]
        assert not list(folder.rglob("*.pkl")) and not list(folder.rglob("*.parquet"))
        own = Path(evenshard.__file__).parent / "tracking" / "mlflow_model.py"
        assert (folder / "mlflow_model.py").read_text() == own.read_text()
        needed = (folder / "requirements.txt").read_text().split()
    assert f"evenshard=={evenshard.__version__}" in needed and any(one.startswith("torch==") for one in needed)
