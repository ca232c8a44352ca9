"""Conventions of components: image, addresses that a pod can read, and names of inputs, outputs and parameters.

A pod reads ``s3://bucket/key`` with boto3, and ``/path`` in its image or on a volume. Kubeflow's importer loads
``minio://`` and ``gs://`` if the pipeline was compiled with an address of this kind. The importer also accepts
``s3://``, but only on Amazon S3, because it puts the bucket into the host name.
"""

from __future__ import annotations

import os
import re

from evenshard.base.errors import BadConfig
from evenshard.base.knobs import knobs_of
from evenshard.base.messages import brief
from evenshard.base.s3 import is_address
from evenshard.loop.rounds import WRITERS
from evenshard.loop.stage import Reads, Stage, WhichRound, Writes, plain_inputs, uses_of
from evenshard.version import __version__

EARLIER, NUM_GPUS, METRICS = "earlier", "num_gpus", "metrics"
IMPORTED = ("minio://", "gs://")
_VARIABLE = "EVENSHARD_IMAGE"
DEFAULT_IMAGE = f"localhost/evenshard:{__version__}-cpu"
# Tags that registries reuse for new images.
MOVING_TAGS = ("latest", "main", "master", "dev", "nightly", "stable", "edge")
_NAME = re.compile(
    r"(?P<name>[a-z0-9][a-zA-Z0-9._:/-]*?)(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


def image() -> str:
    """Return the image named in EVENSHARD_IMAGE, or the image that ``make image`` builds for this version.

    Kubeflow's cache identifies an image by name, so a moving tag would return old results for new code.

    Raises:
        BadConfig: if the image's name has neither a version nor a digest.
    """
    name = os.environ.get(_VARIABLE) or DEFAULT_IMAGE
    remedy = f"Name a version or a digest in {_VARIABLE}, such as registry.example.com/evenshard:{__version__}-cpu."
    found = _NAME.fullmatch(name)
    if found is None:
        raise BadConfig(f"image {brief(name)} is not a valid image name. {remedy}")
    if found["digest"] is None:
        if found["tag"] is None:
            raise BadConfig(f"image {brief(name)} has no tag, which means latest. {remedy}")
        if found["tag"].lower() in MOVING_TAGS:
            raise BadConfig(f"image {brief(name)}: the tag {found['tag']} can move to another image. {remedy}")
    return name


def is_imported(address: str) -> bool:
    """Return True for an address that Kubeflow's importer must read."""
    return address.startswith(IMPORTED)


def require_readable(address: str) -> None:
    """Raise BadConfig unless a pod can read this address by itself."""
    if is_imported(address):
        raise BadConfig(
            f"{brief(address)}: this pipeline was not compiled to import {' or '.join(IMPORTED)} addresses. Compile it "
            f"with this address (--set), or use an s3:// address."
        )
    if "://" in address and not is_address(address):
        raise BadConfig(
            f"{brief(address)}: pipelines read s3://, minio:// and gs:// addresses, and absolute paths in a pod. Copy "
            f"the file to one of these."
        )


def is_accumulated(name: str) -> bool:
    """Return True if an artifact is a folder with one file for each round so far, read as a whole by later stages."""
    every = [uses_of(stage.inputs, Reads).get(name) for stage in WRITERS.values()]
    return any(use is not None and use.of is WhichRound.SO_FAR for use in every)


def input_name(stage: Stage, name: str) -> str:
    """Return a component's name for an input of its stage, with a prefix if an output has the same name."""
    if (option := plain_inputs(stage.inputs).get(name)) is not None:
        return option.parameter
    return f"previous_{name}" if name in uses_of(stage.outputs, Writes) else name


def find_file_setting(stage: Stage) -> str:
    """Return the setting of a stage whose value may be a user's file; "" if it has none."""
    return next((one.name for one in knobs_of(stage.config) if one.flag and one.kind is str and not one.choices), "")
