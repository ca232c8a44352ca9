"""What MLflow knows: runs of loops and stages, and registered models. The only package that imports mlflow.

::

    client          how MLflow is reached: URIs, short timeouts
    deadline        calls that end, whatever the server does
    sqlite_file     the file that holds runs where there is no server, made whole or not at all
    parents         which loop a stage belongs to: one parent run per loop
    runs            what a stage tells: one child run per stage (tags: its origin; datasets: its cost datasets;
                    system_metrics: CPU, memory and GPU)
    sending         how MLflow gets it: operations that count once, however often they are sent
    outbox          what is kept while MLflow is away, and sent later
    registry        registered models: a folder becomes a version (pyfunc: that serves), and a version a folder
    versions        which version is meant: the newest, or the one with a folder's files
    search          loops and their stages, by name

Runs go to MLFLOW_TRACKING_URI, or to ``sqlite:///mlflow.db`` in the working directory.
"""

from evenshard.tracking.client import DEFAULT_URI, EXPERIMENT
from evenshard.tracking.outbox import Synced, sync
from evenshard.tracking.parents import LOOP_ID, LOOP_TAG, PARENT_FILE
from evenshard.tracking.registry import (
    CHAMPION,
    COST,
    POLICY,
    ModelVersion,
    champion,
    download_model,
    model_version,
    register_model,
    set_champion,
)
from evenshard.tracking.runs import StageRun, end_loop, log_to_parent, stage_run, study_run
from evenshard.tracking.search import FoundRun, find_run, find_runs, run_artifact
from evenshard.tracking.versions import version_of_files

__all__ = [
    "CHAMPION",
    "COST",
    "DEFAULT_URI",
    "EXPERIMENT",
    "LOOP_ID",
    "LOOP_TAG",
    "PARENT_FILE",
    "POLICY",
    "FoundRun",
    "ModelVersion",
    "StageRun",
    "Synced",
    "champion",
    "download_model",
    "end_loop",
    "find_run",
    "find_runs",
    "log_to_parent",
    "model_version",
    "register_model",
    "run_artifact",
    "set_champion",
    "stage_run",
    "study_run",
    "sync",
    "version_of_files",
]
