"""Stage 1 on Kubeflow Pipelines."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.image import image


@dsl.component(base_image=image(), install_kfp_package=False)
def generate_tables(
    tables: dsl.Output[dsl.Dataset],
    tasks: dsl.Output[dsl.Dataset],
    metrics: dsl.Output[dsl.Metrics],
    config: dict[str, Any],
    data_hash: str = "",
    source: dsl.Input[dsl.Dataset] = None,
    source_address: str = "",
) -> None:
    """Writes a table pool and placement tasks: train and test tasks from disjoint halves of the pool.

    Args:
        tables: folder with ``tables.parquet``, the pool.
        tasks: the tasks, JSON.
        metrics: number of tables, their mean pooling factor and their size.
        config: section ``generate_tables`` of params.yaml.
        data_hash: hash of your own table file. Nothing reads it: it keeps the cache from giving the tables of a file
            that has changed since under the same name.
        source: your own table file or DLRM batch file, in place of ``config["source"]``.
        source_address: of that file, such as ``s3://bucket/tables.parquet``, in place of ``source``: the task reads it
            itself, with the endpoint and the keys in its environment.
    """
    from pathlib import Path

    from evenshard.kubeflow.pod import TABLES, given, record, stage_run
    from evenshard.kubeflow.retry import with_retries
    from evenshard.stages import generate_tables as stage
    from evenshard.utils.params import section

    own = given(source, source_address)
    settings = section({"generate_tables": config}, "generate_tables", stage.GenerateTablesConfig, source=own)
    with stage_run("generate_tables", settings) as run:
        outputs = stage.GenerateTablesOutputs(Path(tables.path, TABLES), Path(tasks.path))
        found = with_retries(stage.run)(settings, stage.GenerateTablesInputs(), outputs)
        record(run, metrics, found, outputs.tasks)
