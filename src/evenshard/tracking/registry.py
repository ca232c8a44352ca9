"""Registered models: conversion of a model's folder to a version that MLflow can serve, and back.

There are two registered models: ``evenshard-cost`` has the whole folder, for ``evenshard place --model``;
``evenshard-policy`` has the policy and its cost network. The alias ``champion`` names the version to use.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenshard.base.errors import BadConfig, BadFile, BadInput
from evenshard.base.outputs import scratch_folder
from evenshard.sharders.model import digest_of
from evenshard.tracking.client import (
    DEFAULT_URI,
    ask_mlflow,
    connect,
    make_once,
    registry_uri,
    short_timeouts,
    tracking_uri,
)
from evenshard.tracking.descriptions import experiment_id, model_description, version_description
from evenshard.tracking.pyfunc import ServedCode, save_pyfunc
from evenshard.tracking.tags import COMMIT, SHA256, VERSION, WEIGHTS_SHA256, network_tags

if TYPE_CHECKING:  # torch takes a second to import
    from evenshard.sharders.models import PlacementModel

REGISTERED_COST, REGISTERED_POLICY = "evenshard-cost", "evenshard-policy"
# The required part of a model's folder, by registered model.
PARTS = {REGISTERED_COST: "cost_model", REGISTERED_POLICY: "policy"}
CHAMPION = "champion"
MODEL_ID_TAG = "evenshard.model_id"  # MLflow's answer lacks it
METRIC_TAG = "evenshard.metric."
_INSIDE = Path("artifacts", "model")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelVersion:
    """A version of a registered model."""

    name: str
    version: str
    run_id: str  # id of the run that created it; empty if there was none
    aliases: tuple[str, ...]
    tags: Mapping[str, str]  # lineage and headline metrics; see ``evenshard.tracking.tags``

    @property
    def model_id(self) -> str:
        """Return the id of the version's logged model, such as m-6f2...; empty if there is none."""
        return self.tags.get(MODEL_ID_TAG, "")

    @property
    def uri(self) -> str:
        """Return the address for ``evenshard place --model``."""
        return f"models:/{self.name}/{self.version}"

    @property
    def metrics(self) -> dict[str, float]:
        """Return the headline metrics of the version."""
        known = {key: value for key, value in self.tags.items() if key.startswith(METRIC_TAG)}
        return {key.removeprefix(METRIC_TAG): float(value) for key, value in known.items()}


def ensure_models(
    folder: Path,
    code: ServedCode,
    tags: Mapping[str, str],
    metrics: Mapping[str, float] | None = None,
    run_id: str = "",
    client: Any = None,
) -> tuple[ModelVersion, ...]:
    """Return the versions of a model's folder: evenshard-cost, and evenshard-policy if it has a policy.

    Existing versions with these weights are reused. Missing versions are created, all or none: their files are uploaded
    before the first is created, and the first is deleted if MLflow rejects the second.

    Args:
        folder: folder of a round of the loop; only the model's parts are used.
        tags: lineage of the versions.
        metrics: headline metrics, which become tags of the versions.
        run_id: id of the run that created the model; empty if there was none.

    Raises:
        BadFile: if the folder is not a model.
        Exception: any error of MLflow.
    """
    names = [name for name, part in PARTS.items() if (folder / part).is_dir()]
    with short_timeouts():
        client = client or connect()
        known = {name: _find_version(client, name, folder, run_id) for name in names}
        labels = {**tags, **{f"{METRIC_TAG}{key}": f"{value:.6g}" for key, value in (metrics or {}).items()}}
        ready = [
            _upload_model(client, name, folder, code, labels, run_id)
            for name in reversed(names)  # evenshard-cost comes last because other programs wait for it
            if known[name] is None
        ]
        made: dict[str, ModelVersion] = {}
        try:
            for logged in ready:
                made[logged.name] = _ensure_version(client, logged, run_id)
        except BaseException:
            for version in made.values():
                with suppress(Exception):  # the server that rejected the other version may also fail here
                    client.delete_model_version(version.name, version.version)
            raise
    return tuple(known[name] or made[name] for name in names)


def _find_version(client: Any, name: str, folder: Path, run_id: str) -> ModelVersion | None:
    """Find the version with the weights of a model's folder, and make it an output of the run."""
    known = _find_by_weights(client, name, folder, run_id)
    if known is None:
        return None
    if run_id and known.run_id == run_id:
        return known
    log.info("%s already has these weights; no new version is registered", known.uri)
    if run_id and known.model_id:
        log_output(client, run_id, known.model_id)
    return known


def _upload_model(client: Any, name: str, folder: Path, code: ServedCode, tags: Mapping[str, str], run_id: str) -> Any:
    """Upload a model's files as a logged model and return it; an unfinished upload of this run is completed."""
    from mlflow.entities import LoggedModelStatus

    with scratch_folder() as scratch:
        model, served = scratch / "model", scratch / "pyfunc"
        copy_parts(folder, model, name)
        hashes = {SHA256: digest_of(model), WEIGHTS_SHA256: digest_of(model, weights_only=True)}
        logged = _ensure_logged_model(client, name, run_id, {**tags, **hashes})
        save_pyfunc(model, code, served, name, logged, run_id)
        try:
            client.log_model_artifacts(logged.model_id, str(served))
        except BaseException:
            with suppress(Exception):  # the server that rejected the files may also fail here
                client.finalize_logged_model(logged.model_id, LoggedModelStatus.FAILED)
            raise
        client.finalize_logged_model(logged.model_id, LoggedModelStatus.READY)
    return logged


def _ensure_version(client: Any, logged: Any, run_id: str) -> ModelVersion:
    """Return the version of a logged model; create it unless an unanswered call already did."""
    name, tags = logged.name, {**logged.tags, MODEL_ID_TAG: logged.model_id}
    make_once(client.create_registered_model, name, description=model_description(name))
    found = list(client.search_model_versions(f"name = '{name}' AND tags.`{MODEL_ID_TAG}` = '{logged.model_id}'"))
    if not found:
        about = version_description(client, name, run_id, logged.model_id, tags)
        where = (name, logged.artifact_location, run_id or None, tags)
        more = {"description": about, "await_creation_for": 0, "model_id": logged.model_id}
        found = [client.create_model_version(*where, **more)]
    return _version(client.get_model_version(name, found[0].version))


def copy_parts(folder: Path, target: Path, name: str = REGISTERED_COST) -> None:
    """Copy only the parts of a registered model from a folder; raise BadFile if a part is missing."""
    from evenshard.sharders.models import COST_MODEL, COST_NET, POLICY

    parts = {REGISTERED_POLICY: (COST_NET, POLICY), REGISTERED_COST: (COST_MODEL,)}[name]
    for part in parts:
        if not (folder / part).is_dir():
            raise BadFile(folder, f"{part} is missing", "Name a model's folder, such as work/round_3.")
    if name == REGISTERED_COST and (folder / POLICY).is_dir():
        parts = (*parts, COST_NET, POLICY)
    for part in parts:
        shutil.copytree(folder / part, target / part)


def model_version(uri: str) -> ModelVersion:
    """Look up the version of ``models:/evenshard-cost@champion`` or ``models:/evenshard-cost/3``.

    Raises:
        BadConfig: if there is no such model, alias or version.
        TrackingFailed: if MLflow cannot be reached.
    """
    name, alias, version = _parse_uri(uri)
    with _ask_for_model(uri):
        client = connect()
        if alias:
            version = str(client.get_model_version_by_alias(name, alias).version)
        return _version(client.get_model_version(name, version))  # the version found by alias does not list its aliases


def champion(name: str = REGISTERED_COST) -> ModelVersion | None:
    """Return the version with the alias ``champion``, or None if there is none yet."""
    with _ask_for_model(f"models:/{name}@{CHAMPION}"):
        client = connect()
        known = [model for model in client.search_registered_models(f"name = '{name}'") if model.name == name]
        version = known[0].aliases.get(CHAMPION) if known else None
        return None if version is None else _version(client.get_model_version(name, str(version)))


def set_champion(name: str, version: str) -> None:
    """Move the alias ``champion`` to a version; raise BadConfig if there is no such version."""
    with _ask_for_model(f"models:/{name}/{version}"):
        client = connect()
        client.get_model_version(name, version)  # an alias may name a missing version
        client.set_registered_model_alias(name, CHAMPION, version)


def find_newest_version(name: str = REGISTERED_COST) -> ModelVersion | None:
    """Return the last registered version; None if there is none."""
    with _ask_for_model(name):
        return _find_last(connect(), f"name = '{name}'")


def find_by_weights(name: str, folder: Path, run_id: str = "") -> ModelVersion | None:
    """Return the last version with the weights in a model's folder; None if there is none, or the folder lacks files.

    Args:
        run_id: id of a run whose version takes precedence.
    """
    with _ask_for_model(name):
        return _find_by_weights(connect(), name, folder, run_id)


def _find_by_weights(client: Any, name: str, folder: Path, run_id: str = "") -> ModelVersion | None:
    with scratch_folder() as scratch:
        try:
            copy_parts(folder, scratch, name)
        except BadFile:
            return None
        weights = digest_of(scratch, weights_only=True)
    return _find_last(client, f"name = '{name}' AND tags.`{WEIGHTS_SHA256}` = '{weights}'", run_id)


def register_folder(folder: Path, code: ServedCode) -> tuple[ModelVersion, ModelVersion | None]:
    """Register a model's folder as in ``ensure_models``.

    Raises:
        BadFile: if the folder is not a model.
        TrackingFailed: if MLflow cannot be reached, or rejects it.
    """
    from evenshard.sharders.models import COST_MODEL, load_model

    seen = load_model(folder).trained_on
    tags = {COMMIT: seen.git_commit, VERSION: seen.evenshard_version, **network_tags(folder / COST_MODEL)}
    with ask_mlflow(registry_uri(), "rejected this model", "Name another folder.", str(folder)):
        version, *policy = ensure_models(folder, code, tags)
    return version, policy[0] if policy else None


def load_registered(uri: str, hardware: str | None = None) -> PlacementModel:
    """Load a registered model by a URI as in ``model_version``; ``registered`` of the result names its versions.

    Raises:
        BadInput: if there is no such model, or it is for other hardware.
        TrackingFailed: if MLflow cannot be reached.
    """
    from evenshard.sharders.models import load_model

    version = model_version(uri)  # the alias may move
    registered: dict[str, Any] = {**_names(version), "run_id": version.run_id, "asked_for": uri}
    with download_model(version.uri) as folder:
        try:
            model = load_model(folder, hardware)
        except BadInput as error:  # the user does not know the download's folder
            raise BadConfig(str(error).replace(str(folder), version.uri)) from None
        policy = None if model.policy is None else find_by_weights(REGISTERED_POLICY, folder, version.run_id)
        registered |= {} if policy is None else {"policy": _names(policy)}
    return replace(model, source=version.uri, registered=registered)


def _names(version: ModelVersion) -> dict[str, str]:
    return {"name": version.name, "version": version.version, "model_id": version.model_id}


@contextmanager
def download_model(uri: str) -> Iterator[Path]:
    """Download a registered model (URI as in ``model_version``) and yield its folder; remove it after the block."""
    of_version = model_version(uri).uri  # reports a problem at once, where a download would retry for minutes
    with scratch_folder() as folder:
        with _ask_for_model(uri):
            from mlflow.artifacts import download_artifacts

            where = {"tracking_uri": tracking_uri(), "registry_uri": registry_uri(), "dst_path": str(folder)}
            got = Path(download_artifacts(of_version, **where))
        yield got / _INSIDE if (got / _INSIDE).is_dir() else got  # a version may also be a plain folder


def _find_last(client: Any, wanted: str, run_id: str = "") -> ModelVersion | None:
    """Return the last version that a search finds, preferably of this run, with its aliases."""
    known = list(client.search_model_versions(wanted))
    if not known:
        return None
    of_run = [version for version in known if run_id and version.run_id == run_id] or known
    last = max(of_run, key=lambda version: int(version.version))
    return _version(client.get_model_version(last.name, str(last.version)))


@contextmanager
def _ask_for_model(what: str) -> Iterator[None]:
    if registry_uri() == DEFAULT_URI and not Path(DEFAULT_URI.removeprefix("sqlite:///")).exists():
        raise BadConfig(  # the client would create an empty database
            f"{what}: there is no mlflow.db in this folder. Set MLFLOW_TRACKING_URI, or change to the folder of a "
            "loop, or name a model's folder."
        )
    remedy = "Name a registered model, alias or version, or a model's folder."
    if what.endswith(f"@{CHAMPION}"):
        remedy = (
            "`evenshard promote` makes the newest version the champion; `evenshard promote --candidate FOLDER` "
            "registers a model first. You can also name a version, or a model's folder."
        )
    with ask_mlflow(registry_uri(), "did not return this model", remedy, what):
        yield


def _parse_uri(uri: str) -> tuple[str, str, str]:
    """Split a URI into name, alias and version; one of the last two is empty."""
    rest = uri.removeprefix("models:/")
    name, at, alias = rest.partition("@")
    version = ""
    if not at:
        name, _, version = rest.partition("/")
    if rest == uri or not name or not (alias or version):
        raise BadConfig(f"{uri} is not a valid model URI. Use models:/evenshard-cost@champion or models:/NAME/VERSION.")
    return name, alias, version


def _ensure_logged_model(client: Any, name: str, run_id: str, tags: Mapping[str, str]) -> Any:
    """Return a logged model for an upload, and make it an output of the run, if there is one.

    An unfinished logged model of this run with these weights is reused.
    """
    experiment = str(client.get_run(run_id).info.experiment_id) if run_id else experiment_id(client)
    wanted = f"name = '{name}' AND tags.`{WEIGHTS_SHA256}` = '{tags[WEIGHTS_SHA256]}'"
    known = client.search_logged_models([experiment], wanted) if run_id else ()
    logged = next((model for model in known if model.source_run_id == run_id), None) or client.create_logged_model(
        experiment, name, run_id or None, dict(tags), model_type="evenshard"
    )
    if run_id:
        log_output(client, run_id, logged.model_id)
    return logged


def log_output(client: Any, run_id: str, model_id: str) -> None:
    """Make a logged model an output of a run; unlike MLflow itself, accept an existing output."""
    from mlflow.entities import LoggedModelOutput

    outputs = client.get_run(run_id).outputs
    if model_id not in {output.model_id for output in (outputs.model_outputs if outputs else ())}:
        client.log_outputs(run_id, [LoggedModelOutput(model_id, step=0)])


def _version(own: Any) -> ModelVersion:
    return ModelVersion(own.name, str(own.version), own.run_id or "", tuple(own.aliases or ()), dict(own.tags))
