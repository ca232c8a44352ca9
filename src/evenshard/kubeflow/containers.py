"""Tasks in containers on this machine, through a Docker API, Docker's own or podman's.

kfp.local starts containers that vanish as they end, and takes one that it no longer finds for a success: a failed
stage would seem fine (kubeflow/pipelines#13332), and podman's API fails on the way. Here a container stays until its
exit code has been read. And it sees the files that the user has named, which lie outside of kfp's folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from evenshard.kubeflow.image import image
from evenshard.utils.errors import BadConfig
from evenshard.utils.extras import require_package
from evenshard.utils.installation import checkout
from evenshard.utils.messages import reason_of


def container_runner() -> Any:
    """The runner of kfp, if there is a Docker API that has the image.

    Raises:
        BadConfig: if not.
    """
    from kfp import local

    require_package("docker")
    import docker

    try:
        with contextlib.closing(docker.from_env()) as api:
            api.ping()
            _require_image(api, image())
    except BadConfig:
        raise
    except Exception as error:  # docker wraps errors of requests, urllib3 and its own
        raise BadConfig(
            f"--runner container found no Docker API ({reason_of(error)}). Start Docker, or `podman system service` "
            f"and name its socket in DOCKER_HOST; or use --runner subprocess."
        ) from None
    # what containers write into the run's folder belongs to whoever started them, who has the keys to S3, too
    keys = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    return local.DockerRunner(user=f"{os.getuid()}:{os.getgid()}", environment=keys)


@contextlib.contextmanager
def containers_as_here(shown: Sequence[Path] = ()) -> Iterator[None]:
    """While it is open, kfp.local runs containers with ``run_container``.

    Args:
        shown: files and folders of this machine that containers find where they are here, but cannot write.
    """
    from kfp.local import docker_task_handler

    mounts = {str(path): {"bind": str(path), "mode": "ro"} for path in shown}
    theirs = docker_task_handler.run_docker_container
    docker_task_handler.run_docker_container = partial(run_container, mounts=mounts)
    try:
        yield
    finally:
        docker_task_handler.run_docker_container = theirs


def run_container(
    client: Any, image: str, command: list[str], volumes: dict[str, Any], mounts: dict[str, Any], **options: Any
) -> int:
    """Runs a container to its end, prints what it says, and returns its exit code.

    Args:
        volumes, mounts: files and folders of this machine in the container, by path: kfp's own, and more.
    """
    everything = {**mounts, **volumes}
    container = client.containers.run(image=image, command=command, detach=True, volumes=everything, **options)
    try:
        for line in container.logs(stream=True):
            print(line.decode(errors="replace"), end="")
        return int(container.wait()["StatusCode"])
    finally:
        container.remove(force=True)


def _require_image(api: Any, name: str) -> None:
    import docker.errors

    try:
        api.images.get(name)
    except docker.errors.ImageNotFound:
        try:
            api.images.pull(name)
        except docker.errors.APIError as error:
            remedy = "Name" if checkout() is None else "Build it with `make image`, or name"
            raise BadConfig(
                f"image {name} is neither on this machine nor can it be pulled ({reason_of(error)}). "
                f"{remedy} another one in EVENSHARD_IMAGE."
            ) from None
