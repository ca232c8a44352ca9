"""MLflow tracking of the training loop: a run for each loop and each of its stages, and registered models.

::

    runs            run of a stage: the metrics, files, datasets and models that it logs
    records         records of runs as JSON-serializable values
    tags            origin of runs and models: commit, settings, libraries, hardware, cost datasets
    descriptions    descriptions of experiment, runs and models on MLflow's pages, with links
    registry        registered models: uploads a model's folder as a version, downloads a version
    pyfunc          registered models as MLflow serves them
    run_files       a file for each run, kept until it is logged to MLflow
    client          MLflow's client: addresses, time limits of requests, errors, the SQLite file without a server

Runs go to MLFLOW_TRACKING_URI, or to ``sqlite:///mlflow.db`` in the working directory.
"""

from evenshard.tracking.client import RETRIES
from evenshard.tracking.records import LOCAL, LOOP_ID
from evenshard.tracking.registry import (
    REGISTERED_COST,
    REGISTERED_POLICY,
    ModelVersion,
    champion,
    download_model,
    find_by_weights,
    model_version,
    set_champion,
)
from evenshard.tracking.run_files import BACKLOG, BACKLOG_NAME, log_backlog
from evenshard.tracking.runs import MUST_REGISTER, StageRun, end_loop, stage_run

__all__ = [
    "BACKLOG", "BACKLOG_NAME", "LOCAL", "LOOP_ID", "MUST_REGISTER", "REGISTERED_COST", "REGISTERED_POLICY",
    "RETRIES", "ModelVersion", "StageRun", "champion", "download_model", "end_loop", "find_by_weights",
    "log_backlog", "model_version", "set_champion", "stage_run",
]  # fmt: skip
