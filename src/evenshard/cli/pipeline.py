"""Commands that run pipelines on this machine or on a cluster with Kubeflow Pipelines."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenshard.base.documents import load_yaml
from evenshard.base.errors import BadConfig, PipelineFailed
from evenshard.base.installation import require_package
from evenshard.base.messages import brief
from evenshard.base.outputs import FilesInside, scratch_folder
from evenshard.cli.arguments import OUTPUT, PATH, Commands, Source, add_flags, at_least, flag_values, output_flag
from evenshard.kubeflow.component import image
from evenshard.kubeflow.remote import ENDPOINT, Endpoint, Remote
from evenshard.kubeflow.run_status import RunStatus, explain_failure, list_notes, summarize_progress

if TYPE_CHECKING:
    from evenshard.kubeflow.cluster import Cluster

log = logging.getLogger(__name__)
_PIPELINES = ("train", "retrain", "place", "watch")  # repeated from pipelines/build.py, which is imported late
_RUNNERS = ("subprocess", "container")
# Required parameters of each pipeline, with their meanings.
REQUIRED_PARAMETERS = {
    "retrain": {"tables": "a table file"},
    "place": {"tables": "a table file"},
    "watch": {"traces": "traces", "in_use": "the current placement.json of the training job"},
}
WITHOUT_PARAMS = ("place", "watch")  # pipelines that need no params.yaml
# Files to print after a run, relative to its folder.
PRINTED_FILES = ("drift/summary", "watch/summary", "place/difference", "evaluate/report/table.txt")
# A file that every successful run of the pipeline writes, relative to its folder.
RESULT_FILES = {
    "train": "evaluate/report/metrics.json",
    "retrain": "drift/summary",
    "place": "place/placement/placement.json",
    "watch": "watch/placement/placement.json",
}


def _compile(args: argparse.Namespace) -> None:
    from evenshard.kubeflow.package import compile_to

    pipeline, values = _build_pipeline(args, _cluster(args))
    compile_to(pipeline, args.out, values)
    print(f"saved: {args.out}")


def _run(args: argparse.Namespace) -> None:
    from evenshard.kubeflow.local import local_file, run_locally

    pipeline, values = _build_pipeline(args, _cluster(args), local=True)
    for name in ("tables", "model", "source", "model_uri", "in_use", "traces"):
        if values.get(name) and not str(values[name]).startswith(("models:", "simulated:")):
            values[name] = local_file(values[name])
    for name, what in REQUIRED_PARAMETERS.get(args.pipeline, {}).items():
        if not values.get(name):
            raise BadConfig(f"pipeline {args.pipeline} needs {what}. Name it with --set {name}=FILE.")
    folder = run_locally(pipeline, values, args.runner, args.out, RESULT_FILES[args.pipeline])
    for text in (folder / name for name in PRINTED_FILES):  # without in_use, the difference is only a placeholder
        if text.exists() and (text.name != "difference" or values.get("in_use")):
            print(text.read_text().removeprefix("```text\n").removesuffix("```\n"))  # Markdown is for Kubeflow's UI
    for path in sorted(folder.glob(RESULT_FILES[args.pipeline])):
        print(f"saved: {path}")


def _submit(args: argparse.Namespace) -> None:
    remote, cluster = _remote(args), _cluster(args)
    with _package(args, cluster) as (package, values):
        name = args.run_name or f"evenshard-{args.pipeline}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        status = remote.submit(package, values, args.experiment, name, _service_account(args, cluster))
    print(f"run: {status.run_id}\n{status.url}", flush=True)
    if args.wait:
        patience_s = None if args.patience_minutes is None else 60 * args.patience_minutes
        retries = max(stage.retries for stage in cluster.stages.values())  # an eviction can hit the pod of any stage
        _report(remote.wait(status.run_id, args.poll_seconds, patience_s, _ProgressLog(), retries))


class _ProgressLog:
    def __init__(self) -> None:
        self._logged: set[str] = set()

    def __call__(self, status: RunStatus) -> None:
        for line in (summarize_progress(status), *list_notes(status)):
            what = re.sub(r"\d+ minutes", "", line)  # a note is logged once, not once per minute
            if line and what not in self._logged:
                self._logged.add(what)
                log.info("%s", line)


def _schedule(args: argparse.Namespace) -> None:
    remote, cluster = _remote(args), _cluster(args)
    with _package(args, cluster) as (package, values):
        name = args.run_name or f"evenshard-{args.pipeline}"
        account = _service_account(args, cluster)
        number = remote.schedule(package, values, args.experiment, name, args.cron, account)
    print(f"recurring run: {number}\n{args.endpoint.rstrip('/')}/#/recurringrun/details/{number}")


def _unschedule(args: argparse.Namespace) -> None:
    number = _remote(args).unschedule(args.name, args.experiment, args.force)
    print(f"deleted: recurring run {number}. Its finished runs are kept.")


def _pause(args: argparse.Namespace) -> None:
    resumes = args.pipeline_command == "resume"
    number = _remote(args).pause(args.name, args.experiment, resumes)
    print(f"{'resumed' if resumes else 'paused'}: recurring run {number}")


def _stop(args: argparse.Namespace) -> None:
    before = _remote(args).stop(args.run_id)
    done = f"had already ended: {before.state}" if before.is_finished else f"is stopping; it was {before.state}"
    print(f"run {args.run_id} {done}\n{before.url}")


def _status(args: argparse.Namespace) -> None:
    status = _remote(args).status(args.run_id)
    if args.json:
        print(json.dumps(asdict(status), indent=1, default=datetime.isoformat))  # JSON has no type for times
    _report(status, silent=args.json)


def _report(status: RunStatus, silent: bool = False) -> None:
    if status.is_finished and status.state != "SUCCEEDED":
        raise PipelineFailed(explain_failure(status))
    if not silent:
        lines = (f"{status.state}: {status.name}", summarize_progress(status), *list_notes(status), status.url)
        print(*filter(None, lines), sep="\n")


def _cluster(args: argparse.Namespace) -> Cluster:
    from evenshard.kubeflow.cluster import load_cluster
    from evenshard_pipelines.build import default_cluster

    small = str(args.cluster) == "small"
    cluster = load_cluster(args.cluster) if args.cluster and not small else default_cluster(small)
    return cluster.with_measure_settings(cache=True) if args.cache_measurements else cluster


def _build_pipeline(args: argparse.Namespace, cluster: Cluster, local: bool = False) -> tuple[Any, dict[str, Any]]:
    from evenshard_pipelines.build import build

    params = args.params
    if params is None and (args.pipeline not in WITHOUT_PARAMS or Path("params.yaml").exists()):
        params = Path("params.yaml")
    if local:
        cluster = cluster.for_one_machine()
    if args.num_parts is not None:
        cluster = replace(cluster, num_parts=args.num_parts)
    if args.gpus is not None:
        cluster = cluster.with_measure_settings(gpus=args.gpus)
    runs_now = args.pipeline_command == "submit"  # files on S3 may change before a compiled pipeline runs
    pipeline, values = build(args.pipeline, params, cluster, dict(args.set), runs_now=runs_now)
    if not local and image().startswith("localhost/"):
        log.warning("%s: a cluster cannot pull this image. Push it, and set EVENSHARD_IMAGE to its address.", image())
    return pipeline, values


@contextmanager
def _package(args: argparse.Namespace, cluster: Cluster) -> Iterator[tuple[Path, dict[str, Any]]]:
    from evenshard.kubeflow.package import compile_to, require_fits

    if args.package is not None:
        values = dict(args.set)
        require_fits(args.package, values)
        yield args.package, values
        return
    pipeline, values = _build_pipeline(args, cluster)
    with scratch_folder() as folder:
        package = folder / "pipeline.yaml"
        compile_to(pipeline, package, {})  # without defaults, because the run gets the values
        yield package, values


def _remote(args: argparse.Namespace) -> Remote:
    args.endpoint = args.endpoint or os.environ.get(ENDPOINT)
    if not args.endpoint:
        raise BadConfig(f"no endpoint. Set the address of Kubeflow Pipelines' API with --endpoint or {ENDPOINT}.")
    require_package("kfp.kubernetes")
    return Remote(Endpoint(**flag_values(args, Endpoint)))


def _service_account(args: argparse.Namespace, cluster: Cluster) -> str:
    return cluster.service_account if args.service_account is None else str(args.service_account)


class _Setting(Source):
    def __call__(self, text: str) -> tuple[str, Any]:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise argparse.ArgumentTypeError(f"{brief(text)} is not NAME=VALUE")
        try:
            return name, load_yaml(value) if value[:1] in "{[" and value else value  # a mapping or list is YAML
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{brief(value)} is not valid YAML: {error}") from None

    def paths(self, value: Any) -> tuple[Path, ...]:
        return super().paths(value[1]) if isinstance(value[1], str) else ()


def add_commands(commands: Commands) -> None:
    """Declare pipeline, with a subcommand for each action."""
    top = commands.add(
        "pipeline",
        None,
        "Run pipelines on Kubeflow Pipelines.",
        "train runs the loop of params.yaml; retrain runs it only if the champion no longer covers today's tables; "
        "place places the tables of a file; watch decides if a job should move to another placement. Exit code 0: "
        "done; 1: a run failed, or the server does not answer; 2: bad input.",
    )
    nested = Commands(top, dest="pipeline_command")

    sub = nested.add(
        "compile", _compile, "Compile a pipeline to a file.", "Writes pipeline and platform spec to one file."
    )
    _pipeline_flags(sub)
    sub.add_argument("-o", "--out", **OUTPUT, required=True, help="file to write (.yaml)")

    sub = nested.add(
        "run",
        _run,
        "Run a pipeline on this machine.",
        "Runs the same tasks as on a cluster, each as a process or in a container of EVENSHARD_IMAGE.",
    )
    _pipeline_flags(sub)
    sub.add_argument("--runner", choices=_RUNNERS, default="subprocess", help="how tasks run (default: subprocess)")
    sub.add_argument("--out", **output_flag(FilesInside()), default=Path("work/kubeflow"),
                     help="parent of the folders of runs (default: work/kubeflow)")  # fmt: skip

    sub = nested.add(
        "submit",
        _submit,
        "Start a run on a cluster, and print its address.",
        "Compiles the pipeline with the current settings, unless --package names a compiled file.",
    )
    _submit_flags(sub)
    sub.add_argument("--wait", action="store_true", help="wait for the end of the run, and retry it if pods were "
                     "evicted; exit code 1 if it failed")  # fmt: skip
    sub.add_argument("--poll-seconds", type=at_least(0.01, float), default=15.0, metavar="S",
                     help="pause between status requests while waiting (default: 15)")  # fmt: skip
    sub.add_argument("--patience-minutes", type=at_least(0, float), metavar="M", help="stop waiting after M minutes")

    sub = nested.add(
        "schedule", _schedule, "Create a recurring run on a cluster.", "Runs never overlap; missed runs are skipped."
    )
    _submit_flags(sub)
    sub.add_argument(
        "--cron", required=True, help="schedule in UTC, such as '0 3 * * 0'; with six fields, the first is seconds"
    )

    for name, do, what, more in (
        ("pause", _pause, "Pause a recurring run on a cluster.", "A run in progress continues."),
        ("resume", _pause, "Resume a paused recurring run on a cluster.", "Missed runs are skipped."),
        ("unschedule", _unschedule, "Delete a recurring run on a cluster.", "Pauses it first, and deletes it unless "
         "one of its runs is in progress, because Kubernetes would kill that run."),
    ):  # fmt: skip
        sub = nested.add(name, do, what, more)
        sub.add_argument("name", metavar="NAME", help="name (--run-name of schedule) or id of the recurring run")
        sub.add_argument("--experiment", default="evenshard", help="its experiment (default: evenshard)")
        add_flags(sub, Endpoint)
    sub.add_argument("--force", action="store_true", help="delete it even if that kills a run in progress")

    sub = nested.add(
        "stop",
        _stop,
        "Stop a run on a cluster.",
        "Its pods end; results of finished tasks are kept. A finished run is not changed.",
    )
    sub.add_argument("run_id", metavar="RUN_ID", help="id of the run, as printed by submit")
    add_flags(sub, Endpoint)

    sub = nested.add("status", _status, "Show the status of a run.", "Exit code 1 if it has failed.")
    sub.add_argument("run_id", metavar="RUN_ID", help="id of the run, as printed by submit")
    sub.add_argument("--json", action="store_true", help="print JSON")
    add_flags(sub, Endpoint)


def _pipeline_flags(sub: argparse.ArgumentParser) -> None:
    add = sub.add_argument
    add("--pipeline", choices=_PIPELINES, default="train", help="pipeline (default: train)")
    add("--params", **PATH, help="settings (default: params.yaml; optional for place and watch)")
    add("--cluster", **PATH, help="cluster file with the resources of each stage, or `small` for "
        "pipelines/cluster_small.yaml, which fits 4 CPUs and 8 GB (default: pipelines/cluster.yaml)")  # fmt: skip
    add("--num-parts", type=at_least(1), metavar="N", help="pods that measure a round in parallel (default: num_parts "
        "of the cluster file; with `run`: 1 process)")  # fmt: skip
    add("--gpus", type=at_least(0), metavar="N", help="GPUs of each pod that measures (default: gpus of the cluster "
        "file). If 2 or more, as many as a task has devices; they measure concurrently under torchrun")  # fmt: skip
    add("--set", type=_Setting(), action="append", default=[], metavar="NAME=VALUE",
        help="parameter of the pipeline, such as tables=s3://bucket/tables.parquet; repeatable")  # fmt: skip
    add("--cache-measurements", action="store_true", help="reuse earlier measurements of the same inputs")


def _submit_flags(sub: argparse.ArgumentParser) -> None:
    _pipeline_flags(sub)
    add_flags(sub, Endpoint)
    add = sub.add_argument
    add("--package", **PATH, help="compiled pipeline file (default: compile with the current settings)")
    add("--experiment", default="evenshard", help="experiment of the run, created if missing (default: evenshard)")
    add("--run-name", help="name of the run (default: the pipeline's name and the time)")
    add("--service-account", help="service account of the pods (default: service_account of the cluster file)")
