"""How a run ended, on Kubeflow Pipelines."""

from kfp import dsl

from evenshard.kubeflow.component import image


@dsl.component(base_image=image(), install_kfp_package=False)
def record_outcome(
    status: dsl.PipelineTaskFinalStatus,
    outcome: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
    run_id: str,
) -> None:
    """Says how a run ended, whatever happened: the exit handler of the pipelines.

    Kubeflow Pipelines gives an exit handler no message, and tells it the same state of a success, of a run that was
    stopped and of one that has lost a pod. So it asks the API how its run stands and which tasks have failed; their
    logs say why. Where the API cannot be asked, the outcome says so, and what the handler is told decides.

    Args:
        status: status of everything before, filled in by Kubeflow Pipelines.
        outcome: JSON: state, what Kubeflow Pipelines said, its API too, name and page of the run, when it ended.
        summary: the same in one line.
        run_id: id of the run: ``dsl.PIPELINE_JOB_ID_PLACEHOLDER``.
    """
    from pathlib import Path

    from evenshard.kubeflow.run_outcome import find_run_page, query_run, write_outcome

    page, run = find_run_page(run_id), status.pipeline_job_resource_name
    write_outcome(status.state, run, page, query_run(run_id), Path(outcome.path), Path(summary.path))
