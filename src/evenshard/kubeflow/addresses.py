"""Addresses of tables and models in a pipeline: those that a pod reads itself, and those that Kubeflow must bring.

===========================  ==========================================================================================
``s3://bucket/key``          the pod reads it with boto3: endpoint and keys are those of the namespace
``/path``                    the pod reads it: a file of its image, or of a volume
``minio://``, ``gs://``      Kubeflow's importer brings it: the pipeline has to be compiled with such an address
===========================  ==========================================================================================

Kubeflow's importer takes ``s3://`` too, but only Amazon's: it puts the bucket into the name of the host.
"""

from __future__ import annotations

from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief
from evenshard.utils.s3 import is_address

IMPORTED = ("minio://", "gs://")


def is_imported(address: str) -> bool:
    """Whether Kubeflow has to bring what is there."""
    return address.startswith(IMPORTED)


def require_known(address: str) -> None:
    """Raises BadConfig unless a pipeline can be compiled with this address."""
    if not is_imported(address):
        require_readable(address)


def require_readable(address: str) -> None:
    """Raises BadConfig unless a pod can read this address by itself."""
    if is_imported(address):
        raise BadConfig(
            f"{brief(address)}: Kubeflow has to import this address, and this pipeline was not compiled for that. "
            f"Compile it with this address (--set), or name one that begins with s3://."
        )
    if "://" in address and not is_address(address):
        raise BadConfig(
            f"{brief(address)}: pipelines read s3://, minio:// and gs:// addresses, and absolute paths of a pod. Put "
            f"the file there."
        )
