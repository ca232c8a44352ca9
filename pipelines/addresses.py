"""Inputs at an address, which a task reads itself or through Kubeflow's importer."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.component import is_imported


def read_address(name: str, address: Any, compiled_with: str) -> dict[str, Any]:
    """Return the argument of a task for an address: the address itself, or an artifact from Kubeflow's importer.

    Args:
        name: name of the task's input: tables, source, model, in_use or traces.
        address: a parameter of the pipeline.
        compiled_with: its value when the pipeline is compiled, which selects the reader; "" if not known yet.
    """
    if not is_imported(compiled_with):
        return {f"{name}_address": address}
    kind = {"model": dsl.Model, "in_use": dsl.Artifact}.get(name, dsl.Dataset)
    return {name: dsl.importer(artifact_uri=address, artifact_class=kind, reimport=True).output}
