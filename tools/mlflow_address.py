"""Print the MLflow address of the loop that ran last in this folder, at the end of `make run`."""

from __future__ import annotations

from evenshard.base.errors import TrackingFailed
from evenshard.tracking import client
from evenshard.tracking.records import current_parent
from evenshard.tracking.run_files import find_runs

PORT = 5000  # of `mlflow ui`


def lines() -> list[str]:
    """Return the address of the loop's run, preceded by the command that serves it if MLflow's runs are in a file.

    Raises:
        TrackingFailed: if MLflow does not answer.
    """
    parent = current_parent()
    if parent is None:
        return ["No stage of the loop has run in this folder, so MLflow has no run to show."]
    at = client.address()
    with client.ask_mlflow(client.tracking_uri(), "did not answer", "Set MLFLOW_TRACKING_URI."):
        mlflow = client.connect()
        found = mlflow.get_experiment_by_name(client.experiment_name())
        experiment = "" if found is None else found.experiment_id
        runs = find_runs(mlflow, experiment, parent.tag, parent.key) if experiment else []
        run = experiment and (parent.run_id or next((one.info.run_id for one in runs), ""))
    if not run:
        return [f"MLflow has no run of this loop, because {at} did not answer its stages."]
    page = f"#/experiments/{experiment}/runs/{run}"
    if at.startswith("http"):
        return ["The run in MLflow:", f"    {at.rstrip('/')}/{page}"]
    return [
        "The run in MLflow, while its server runs:",
        f"    .venv/bin/mlflow ui --port {PORT} --backend-store-uri {at}",
        f"    http://127.0.0.1:{PORT}/{page}",
    ]


if __name__ == "__main__":
    try:
        print(*lines(), sep="\n")
    except TrackingFailed as error:  # no failure of `make run`: the loop itself has finished
        print(error)
