"""How a run ended, on Kubeflow Pipelines."""

from kfp import dsl

from evenshard.kubeflow.image import image


@dsl.component(base_image=image(), install_kfp_package=False)
def record_outcome(
    status: dsl.PipelineTaskFinalStatus,
    outcome: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
) -> None:
    """Says how a run ended, whatever happened: the exit handler of the pipelines.

    Args:
        status: of everything before, as Kubeflow Pipelines fills it in.
        outcome: JSON: state, failed task and message, name of the run, when it ended.
        summary: the same in one line.
    """
    from pathlib import Path

    from evenshard.kubeflow.in_pod import end_loop
    from evenshard.stages import record_outcome as stage

    ended = stage.RecordOutcomeInputs(
        status.state, status.pipeline_job_resource_name, status.pipeline_task_name, status.error_message or ""
    )
    stage.run(ended, stage.RecordOutcomeOutputs(Path(outcome.path), Path(summary.path)))
    end_loop(ended.state, ended.message)
