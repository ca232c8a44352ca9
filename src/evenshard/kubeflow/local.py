"""Runs of a pipeline on this machine with kfp.local, each task as a process or a container.

kfp.local treats a missing container as a success, and a failed container may be missing (kubeflow/pipelines#13332).
Therefore the outcome of a run is read from its files.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import re
import secrets
import shutil
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from evenshard.base.errors import BadConfig, BadFile, PipelineFailed
from evenshard.base.installation import checkout, require_package
from evenshard.base.messages import reason_of
from evenshard.base.outputs import scratch_folder
from evenshard.base.process import environment
from evenshard.base.s3 import is_address
from evenshard.kubeflow.component import image
from evenshard.tracking import BACKLOG, BACKLOG_NAME, LOCAL, LOOP_ID

TERMINAL_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
LOG = "log.txt"  # kfp's log, in the folder of a run
LAST_LINES = 20  # of a failed run's log, in its error message
_KFP = re.compile(r"(\d\d:\d\d:\d\d)\.\d+ - (?:INFO - (?=Executing task |.* finished with status )|(?!INFO)\w+ - )(.*)")
_TASK_LINE = re.compile(r"\s+\d\d:\d\d:\d\d \S")
_JSON_LINE = re.compile(r"\s*([{}\[\]\"]|$)|-+$")


def run_locally(pipeline: Any, values: Mapping[str, Any], runner: str, out: Path, expected: str) -> Path:
    """Run a pipeline and return the folder of its artifacts, one folder for each task.

    Args:
        values: values of the pipeline's parameters; files are absolute paths (``local_file``).
        runner: subprocess or container. The latter needs a Docker API, such as podman's, and the image.
        out: parent of the folder of this run.
        expected: a file that a successful run writes, such as ``evaluate/report/metrics.json``.
    """
    from kfp import local

    before = set(out.glob("*"))
    # All tasks share a parent run in MLflow, and a folder for runs not yet logged.
    own = {LOOP_ID: f"{LOCAL}{secrets.token_hex(6)}", BACKLOG: str(Path("work", BACKLOG_NAME).resolve())}
    with (
        scratch_folder() as scratch,
        _redirect_log(scratch / LOG, lambda: _find_run_folder(out, before)) as run_log,
        environment({name: value for name, value in own.items() if name not in os.environ}),
    ):
        files = [one for one in values.values() if isinstance(one, str) and one.startswith("/") and Path(one).exists()]
        chosen = local.SubprocessRunner(use_venv=False) if runner == "subprocess" else make_container_runner(files)
        # kfp removes the workspace after each run, so it must not be a user's folder
        local.init(chosen, pipeline_root=str(out.resolve()), workspace_root=str(scratch / "workspace"))
        problem = ""
        try:
            pipeline(**values)
        except Exception as error:  # kfp.local raises bare RuntimeErrors
            problem = " ".join(TERMINAL_COLOURS.sub("", str(error)).split())
        made = _find_run_folder(out, before)
        if made is None or problem or not any(made.glob(expected)):
            problem = problem or f"{made or out} lacks {expected}: a task failed."
            print(run_log.last_lines(), file=sys.stderr)
            raise PipelineFailed(f"{problem} See its output above{f' or in {made / LOG}' if made else ''}.")
    return made


def make_container_runner(shown: Sequence[str] = ()) -> Any:
    """Return kfp's runner; raise BadConfig without a Docker API that has the image.

    Args:
        shown: files and folders of this machine to mount read-only at the same paths.
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
            f"--runner container found no Docker API ({reason_of(error)}). Start Docker, or start `podman system "
            f"service` and set DOCKER_HOST to its socket, or use --runner subprocess."
        ) from None
    # containers run as this user, so that their files belong to the user, and receive the user's S3 keys
    keys = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    mounts = [docker.types.Mount(path, path, type="bind", read_only=True) for path in shown]
    return local.DockerRunner(user=f"{os.getuid()}:{os.getgid()}", environment=keys, mounts=mounts)


def _require_image(api: Any, name: str) -> None:
    import docker.errors

    with contextlib.suppress(docker.errors.ImageNotFound):
        api.images.get(name)
        return
    try:
        api.images.pull(name)
    except docker.errors.APIError as error:
        remedy = "Set" if checkout() is None else "Build it with `make image`, or set"
        raise BadConfig(
            f"image {name} is not on this machine and cannot be pulled ({reason_of(error)}). "
            f"{remedy} EVENSHARD_IMAGE to another image."
        ) from None


def _find_run_folder(out: Path, before: Collection[Path]) -> Path | None:
    made = sorted(set(out.glob("*")) - set(before))
    return made[-1] if made else None


def local_file(address: str) -> str:
    """Return the absolute path of a local file; return an S3 address unchanged."""
    if is_address(address):
        return address
    path = Path(address.removeprefix("file://"))
    if not path.exists():
        raise BadFile(path, "no such file", "Name a file or folder of this machine.")
    return str(path.resolve())


@contextlib.contextmanager
def _redirect_log(path: Path, folder: Callable[[], Path | None]) -> Iterator[RunLog]:
    """Redirect kfp's log from stdout, which is for results, to a file that is copied to the run's folder.

    kfp replaces ``print`` by an indenting version, which racing threads of ParallelFor may leave in place, so the
    original is restored.
    """
    own_print = builtins.print
    try:
        with path.open("w") as file, warnings.catch_warnings():
            run_log = RunLog(file, sys.stderr)
            warnings.simplefilter("ignore")
            with contextlib.redirect_stdout(run_log):
                yield run_log
    finally:
        builtins.print = own_print
        if (made := folder()) is not None:
            shutil.copyfile(path, made / LOG)


class RunLog(io.TextIOBase):
    """Replacement for stdout while a pipeline runs; tasks may print from several threads.

    Args:
        file: receives every line, without colours.
        shown: receives starts and ends of tasks, their log lines, and warnings, but not the inputs and outputs that
            Kubeflow's executor prints as JSON.
    """

    def __init__(self, file: TextIO, shown: TextIO) -> None:
        super().__init__()
        self._file, self._shown = file, shown
        self._rest, self._last, self._lock = "", deque[str](maxlen=LAST_LINES), threading.Lock()

    def write(self, text: str) -> int:
        """Write text; see ``io``."""
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                self._write_line(TERMINAL_COLOURS.sub("", line))
        return len(text)

    def last_lines(self) -> str:
        """Return the last lines that are not JSON."""
        return "\n".join(self._last)

    def _write_line(self, line: str) -> None:
        self._file.write(f"{line}\n")
        if found := _KFP.match(line):
            self._shown.write(f"{found[1]} {found[2]}\n")
        elif _TASK_LINE.match(line):
            self._shown.write(f"{line}\n")
        if not _JSON_LINE.match(line):
            self._last.append(line)
