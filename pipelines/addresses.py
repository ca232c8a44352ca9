"""The tasks of a pipeline that read what is at an address, by themselves or through Kubeflow's importer."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.component import is_imported


def read_address(name: str, address: Any, compiled_with: str) -> dict[str, Any]:
    """The inputs of a task that reads an address: the address itself, or what Kubeflow's importer brings from there.

    Args:
        name: name of the task's input: tables, source, model, in_use or traces.
        address: a parameter of the pipeline.
        compiled_with: its value when the pipeline is compiled, which decides who reads; "" if there is none yet.
    """
    if not is_imported(compiled_with):
        return {f"{name}_address": address}
    kind = {"model": dsl.Model, "in_use": dsl.Artifact}.get(name, dsl.Dataset)
    return {name: dsl.importer(artifact_uri=address, artifact_class=kind, reimport=True).output}
