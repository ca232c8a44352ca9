"""Runs of a pipeline on this machine with kfp.local, each task a process or a container."""

from __future__ import annotations

import builtins
import contextlib
import os
import secrets
import shutil
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from evenshard.kubeflow.containers import container_runner, containers_as_here
from evenshard.kubeflow.local_log import LOG, TERMINAL_COLOURS, RunLog
from evenshard.tracking import BACKLOG, BACKLOG_NAME, LOCAL, LOOP_ID
from evenshard.utils.errors import BadFile, PipelineFailed
from evenshard.utils.s3 import is_address
from evenshard.utils.scratch import scratch_folder


def run_here(pipeline: Any, values: Mapping[str, Any], runner: str, out: Path, expected: str) -> Path:
    """Runs a pipeline and returns the folder of its artifacts, one folder for each task.

    Args:
        values: values of the pipeline's parameters. Files among them are absolute paths (``local_file``).
        runner: subprocess or container. The latter needs a Docker API, such as podman's, and the image.
        out: folder that gets a new folder for this run.
        expected: a file that the run must leave, such as ``evaluate/report/metrics.json``: files tell, not what a
            runner says about itself.

    Raises:
        BadConfig: if there is no Docker API, or it has no image.
        PipelineFailed: if a task fails, or the file is missing.
    """
    from kfp import local

    before = set(out.glob("*"))
    with (
        scratch_folder() as scratch,
        _redirect_log(scratch / LOG, lambda: _find_run_folder(out, before)) as run_log,
        _one_loop(),
        containers_as_here(shown=[Path(value) for value in values.values() if _is_file(value)]),
    ):
        chosen = local.SubprocessRunner(use_venv=False) if runner == "subprocess" else container_runner()
        # kfp removes the workspace after each run, so it is never a folder of the user's
        local.init(chosen, pipeline_root=str(out.resolve()), workspace_root=str(scratch / "workspace"))
        try:
            pipeline(**values)
        except Exception as error:  # kfp.local raises bare RuntimeErrors
            said = " ".join(TERMINAL_COLOURS.sub("", str(error)).split())
            print(run_log.last_lines(), file=sys.stderr)
            raise PipelineFailed(f"{said} {_where_it_says_why(_find_run_folder(out, before))}") from None
        made = _find_run_folder(out, before)
        if made is None or not any(made.glob(expected)):
            print(run_log.last_lines(), file=sys.stderr)
            lacks = f"{made or out} lacks {expected}: a task has failed."
            raise PipelineFailed(f"{lacks} {_where_it_says_why(made)}")
    return made


def _find_run_folder(out: Path, before: Collection[Path]) -> Path | None:
    """The folder of the run, once there is one."""
    made = sorted(set(out.glob("*")) - set(before))
    return made[-1] if made else None


def _where_it_says_why(made: Path | None) -> str:
    return "Its own output above says why." if made is None else f"Its own output above, or {made / LOG}, says why."


def local_file(address: str) -> str:
    """A file as a task on this machine takes it: an absolute path, or its address on S3.

    Raises:
        BadFile: if there is no such file.
    """
    if is_address(address):
        return address
    path = Path(address.removeprefix("file://"))
    if not path.exists():
        raise BadFile(path, "no such file", "Name a file or folder of this machine.")
    return str(path.resolve())


def _is_file(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("/") and Path(value).exists()


@contextlib.contextmanager
def _one_loop() -> Iterator[None]:
    """All tasks of the run find one parent run in MLflow, and one backlog of what MLflow has missed."""
    own = {LOOP_ID: f"{LOCAL}{secrets.token_hex(6)}", BACKLOG: str(Path("work", BACKLOG_NAME).resolve())}
    own = {name: value for name, value in own.items() if name not in os.environ}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            del os.environ[name]


@contextlib.contextmanager
def _redirect_log(path: Path, folder: Callable[[], Path | None]) -> Iterator[RunLog]:
    """Keeps kfp's log out of stdout, which belongs to results: it goes into a file, which ends in the run's folder.

    Its warnings are for its own authors. It replaces ``print`` by one that indents, and under ParallelFor, whose
    threads race, may leave that behind.
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
