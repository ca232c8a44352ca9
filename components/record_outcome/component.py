"""Exit handler of all pipelines."""

from kfp import dsl

from evenshard.kubeflow.component import image


@dsl.component(base_image=image(), install_kfp_package=False)
def record_outcome(
    status: dsl.PipelineTaskFinalStatus,
    outcome: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
    run_id: str,
) -> None:
    """Record the outcome of a run, as the exit handler of the pipelines.

    Kubeflow Pipelines passes no error message to an exit handler, and passes the same state for a successful run, a
    stopped run and a run that lost a pod. Therefore the handler asks the API for the state of the run and its failed
    tasks. If the API does not answer, the outcome contains the error and the state that Kubeflow Pipelines passed.

    Args:
        status: status of all earlier tasks, passed by Kubeflow Pipelines.
        outcome: JSON with the state of the run, the answers of Kubeflow Pipelines and its API, the run's name, page and
            end time.
        summary: the outcome in one line.
        run_id: id of the run: ``dsl.PIPELINE_JOB_ID_PLACEHOLDER``.
    """
    from pathlib import Path

    from evenshard.kubeflow.run_outcome import find_run_page, query_run, write_outcome

    page, run = find_run_page(run_id), status.pipeline_job_resource_name
    write_outcome(status.state, run, page, query_run(run_id), Path(outcome.path), Path(summary.path))
