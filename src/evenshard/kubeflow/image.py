"""The image of every stage: EVENSHARD_IMAGE in the environment, when a pipeline is compiled.

Kubeflow's cache knows an image by its name. A name that may mean another image tomorrow would give yesterday's results
for tomorrow's code, so the name needs a version or a digest.
"""

from __future__ import annotations

import os
import re

from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief
from evenshard.version import __version__

_VARIABLE = "EVENSHARD_IMAGE"
DEFAULT_IMAGE = f"localhost/evenshard:{__version__}-cpu"
MOVING_TAGS = ("latest", "main", "master", "dev", "nightly", "stable", "edge")
_NAME = re.compile(
    r"(?P<name>[a-z0-9][a-zA-Z0-9._:/-]*?)(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


def image() -> str:
    """The image of EVENSHARD_IMAGE, or the one that ``make image`` builds of this version.

    Raises:
        BadConfig: if its name has neither a version nor a digest.
    """
    return checked_image(os.environ.get(_VARIABLE) or DEFAULT_IMAGE)


def checked_image(name: str) -> str:
    """The name, if it will always mean the same image.

    Raises:
        BadConfig: if it has no tag and no digest, or a tag that moves, such as latest.
    """
    remedy = f"Name a version or a digest in {_VARIABLE}, such as registry.example.com/evenshard:{__version__}-cpu."
    found = _NAME.fullmatch(name)
    if found is None:
        raise BadConfig(f"image {brief(name)} is not the name of an image. {remedy}")
    if found["digest"] is None:
        if found["tag"] is None:
            raise BadConfig(f"image {brief(name)} has no tag, which means latest. {remedy}")
        if found["tag"].lower() in MOVING_TAGS:
            raise BadConfig(f"image {brief(name)}: the tag {found['tag']} may mean another image tomorrow. {remedy}")
    return name
