# Written by `make generate` from src/evenshard/loop/loop.py; do not edit by hand.
"""Stage ``generate_tables`` of the loop on Kubeflow Pipelines."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.component import image


@dsl.component(base_image=image(), install_kfp_package=False)
def generate_tables(
    tables: dsl.Output[dsl.Dataset],
    tasks: dsl.Output[dsl.Dataset],
    metrics: dsl.Output[dsl.Metrics],
    config: dict[str, Any],
    source: dsl.Input[dsl.Dataset] = None,
    source_address: str = "",
    data_hash: str = "",
) -> None:
    """Write a table pool and placement tasks.

    Tables come from the seeded DLRM 2021 generator, a public catalogue, your own table file or a recorded DLRM batch
    (generate_tables.source); train and test tasks share no table.

    Args:
        tables: table pool to write: a folder with ``tables.parquet``.
        tasks: tasks to write (.json).
        metrics: number of tables, their mean pooling factor and total size.
        config: section ``generate_tables`` of params.yaml.
        source: your own file, instead of ``config["source"]``.
        source_address: address of your file, such as ``s3://bucket/tables.parquet``, instead of ``source``; the pod
            reads it with the S3 endpoint and keys of its environment.
        data_hash: hash of your file; it only prevents Kubeflow from reusing the cached result of an earlier file with
            the same name.
    """
    from evenshard.kubeflow.pod import run_in_pod

    run_in_pod(
        "generate_tables",
        tables=tables,
        tasks=tasks,
        metrics=metrics,
        config=config,
        source=source,
        source_address=source_address,
        data_hash=data_hash,
    )
