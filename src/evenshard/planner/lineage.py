"""The lineage of a placement: the chain from placement.json to code and data, each link checked.

A link is ok where what it names was found and is the same, broken where it should be there and is not, and unchecked
where nothing here can tell. A link that names nothing to look up, such as the hardware, is only stated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenshard.measure.cost_rows import read_lineage
from evenshard.planner.answer import PlacementAnswer, model_lineage
from evenshard.planner.model import BUNDLED, REGISTERED, SIMULATED, model_of, named_model
from evenshard.sharders.model import digest_of
from evenshard.tracking import ModelVersion, find_run, model_version
from evenshard.tracking.tags import (
    COMMIT,
    COSTS_DVC_MD5,
    HARDWARE,
    LIBRARIES,
    PARAMS_HASH,
    SHA256,
    TABLES_SHA256,
    VERSIONS,
)
from evenshard.utils.errors import BadInput, TrackingFailed
from evenshard.utils.params import load_params
from evenshard.utils.provenance import UNKNOWN, knows_commit, params_hash, sha256_of

FOUND, BROKEN, UNCHECKED, STATED = "ok", "BROKEN", "unchecked", "stated"
DVC_CACHE = Path(".dvc/cache/files/md5")


@dataclass(frozen=True)
class LineageLink:
    """One link of the chain.

    Attributes:
        what: model, MLflow model, MLflow run, costs, tables, settings, commit, hardware, ...
        value: what the placement, or the link before, says.
        state: OK, BROKEN, UNCHECKED or STATED.
        note: where it was found, or why not.
    """

    what: str
    value: str
    state: str
    note: str = ""


def lineage_of(answer: PlacementAnswer, data: Path) -> list[LineageLink]:
    """The chain of a placement, from its model to the code.

    Args:
        data: folder of cost datasets; ``work`` is looked through, too.

    Raises:
        BadConfig: if the placement names no model.
    """
    named_model(answer)
    model = model_lineage(answer)
    trained_on = model.get("trained_on") or {}
    in_mlflow, tags = _in_mlflow(model)
    away = next((link.note for link in in_mlflow if link.state == UNCHECKED), "")
    links = [
        LineageLink("evenshard", str(answer.lineage.get("evenshard_version", UNKNOWN)), STATED, "that placed"),
        _model(model, away),
        *in_mlflow,
    ]
    files = _parquet_files(data, Path("work"))
    if not trained_on:
        return [*links, *_tables(answer, tags, data, files)]
    of_costs, origins = _costs(trained_on.get("costs_sha256") or (), tags, data, files)
    links += of_costs
    links += _tables(answer, tags, data, files)
    links.append(_settings(tags, origins))
    commits = {"model": trained_on.get("git_commit", UNKNOWN), "costs": _join_values(origins, "git_commit")}
    if COMMIT in tags:
        commits = {"evaluation": tags[COMMIT], **commits}
    links += [_commit(of, commit) for of, some in commits.items() for commit in str(some).split("; ") if commit]
    hardware = str(trained_on.get("hardware") or tags.get(HARDWARE) or UNKNOWN)
    versions = str(trained_on.get("versions") or tags.get(VERSIONS) or UNKNOWN)
    links.append(LineageLink("hardware", hardware, STATED, "that the model was trained on"))
    links.append(LineageLink("versions", versions, STATED, "of what timed its placements"))
    if LIBRARIES in tags:
        links.append(LineageLink("libraries", tags[LIBRARIES], STATED, "of the evaluation"))
    return links


def _model(model: Mapping[str, Any], away: str) -> LineageLink:
    """The link to the model of the placement: whether it is still there, with the same files.

    Args:
        away: why MLflow, which has been asked before, cannot be asked; empty where it can.
    """
    source, digest = str(model["source"]), str(model.get("sha256"))
    value = f"{source} (sha256 {digest[:12]})"
    if away and source.startswith(REGISTERED):
        return LineageLink("model", value, UNCHECKED, away)
    try:
        if source.startswith((BUNDLED, SIMULATED, REGISTERED)):
            found = model_of(source).digest
        else:
            found = digest_of(Path(source)) if Path(source).is_dir() else ""
    except (BadInput, TrackingFailed) as error:
        return LineageLink("model", value, BROKEN, str(error))
    if not found:
        return LineageLink("model", value, BROKEN, "there is no such folder any more")
    if found != digest:
        return LineageLink("model", value, BROKEN, f"is another model now (sha256 {found[:12]})")
    return LineageLink("model", value, FOUND, "its files are the same")


def _in_mlflow(model: Mapping[str, Any]) -> tuple[list[LineageLink], Mapping[str, str]]:
    """The version, its run and its policy's version, and the version's tags; nothing of a model from elsewhere.

    An MLflow that does not answer is asked once.
    """
    if "mlflow" not in model:
        return [], {}
    named = model["mlflow"]
    version, tags = _link_to_version("MLflow model", named, str(model.get("sha256")))
    links, away = [version], version.note if version.state == UNCHECKED else ""
    if run_id := named.get("run_id"):  # which may outlive the version
        links.append(LineageLink("MLflow run", run_id, UNCHECKED, away) if away else _run(run_id))
    if "policy" in named:
        links.append(_link_to_version("MLflow policy", named["policy"], None, away)[0])
    return links, tags


def _link_to_version(
    what: str, named: Mapping[str, str], digest: str | None, away: str = ""
) -> tuple[LineageLink, Mapping[str, str]]:
    """The version in MLflow, and its tags.

    Args:
        digest: digest that its files must have; None where nothing tells.
        away: see ``_model``.
    """
    uri = f"models:/{named['name']}/{named['version']}"
    value = f"{uri} ({named.get('model_id') or 'no model id'})"
    if away:
        return LineageLink(what, value, UNCHECKED, away), {}
    try:
        version: ModelVersion = model_version(uri)
    except (BadInput, TrackingFailed) as error:
        return LineageLink(what, value, _state(error), str(error)), {}
    recorded = version.tags.get(SHA256)
    if digest is not None and recorded not in (None, digest):
        state, note = BROKEN, f"MLflow says sha256 {str(recorded)[:12]}"
    elif version.model_id != named.get("model_id", ""):
        state, note = BROKEN, f"is model {version.model_id or 'without an id'} now"
    else:
        state, note = FOUND, f"aliases: {', '.join(version.aliases) or 'none'}"
    return LineageLink(what, value, state, note), version.tags


def _state(error: Exception) -> str:
    """An MLflow that is away tells nothing about what it holds."""
    return UNCHECKED if isinstance(error, TrackingFailed) else BROKEN


def _run(run_id: str) -> LineageLink:
    try:
        run = find_run(run_id)
    except (BadInput, TrackingFailed) as error:
        return LineageLink("MLflow run", run_id, _state(error), str(error))
    if run is None:
        return LineageLink("MLflow run", run_id, BROKEN, "MLflow has no such run")
    return LineageLink("MLflow run", run_id, FOUND, f"{run.name}, {run.status}")


def _costs(
    hashes: tuple[str, ...], tags: Mapping[str, str], data: Path, files: Mapping[str, Path]
) -> tuple[list[LineageLink], list[dict[str, Any]]]:
    """The cost datasets, and what those that were found say about their own origin."""
    if not hashes:
        note = "the model names none: its costs were made while it was trained"
        return [LineageLink("costs", "none", UNCHECKED, note)], []
    md5s = tags.get(COSTS_DVC_MD5, "").split(",")
    links, origins = [], []
    for number, sha256 in enumerate(hashes):
        md5 = md5s[number] if len(md5s) == len(hashes) else ""
        value = f"sha256 {sha256[:12]}" + (f", DVC {md5[:12]}" if md5 else "")
        cached = DVC_CACHE / md5[:2] / md5[2:]
        path = files.get(sha256) or (cached if md5 and cached.is_file() else None)
        if path is None:
            links.append(
                LineageLink("costs", value, BROKEN, f"no such file in {data}, work or DVC's cache. Try `dvc pull`")
            )
            continue
        origins.append(read_lineage(path))
        links.append(LineageLink("costs", value, FOUND, str(path)))
    return links, origins


def _parquet_files(*folders: Path) -> dict[str, Path]:
    """The Parquet files in some folders, by the SHA-256 of their content; of equal ones, the first."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.parquet")):
            if path.is_file():  # Spark writes folders of that name
                found.setdefault(sha256_of(path), path)
    return found


def _tables(
    answer: PlacementAnswer, tags: Mapping[str, str], data: Path, files: Mapping[str, Path]
) -> Iterator[LineageLink]:
    """The lineage of tables: those placed are in the file, those that the model learned from are a file of the loop."""
    count = f"{len(answer.request.tables)} placed, from {answer.lineage.get('tables') or 'Python'}"
    yield LineageLink("tables", count, FOUND, "they stand in the placement's file")
    if sha256 := tags.get(TABLES_SHA256):
        path = files.get(sha256)
        where = f"no such file in {data} or work" if path is None else str(path)
        yield LineageLink(
            "tables", f"of the training, sha256 {sha256[:12]}", UNCHECKED if path is None else FOUND, where
        )


def _settings(tags: Mapping[str, str], origins: list[dict[str, Any]]) -> LineageLink:
    """The hash of params.yaml, beside the one here."""
    recorded = tags.get(PARAMS_HASH) or _join_values(origins, "params_hash") or UNKNOWN
    value = "; ".join(f"sha256 {one[:12]}" if one != UNKNOWN else one for one in recorded.split("; "))
    if recorded == UNKNOWN:
        return LineageLink("settings", value, UNCHECKED, "nothing here names them")
    path = Path("params.yaml")
    try:
        here = params_hash(load_params(path)) if path.exists() else ""
    except BadInput:
        here = ""
    if recorded == here:
        return LineageLink("settings", value, FOUND, "params.yaml here says the same")
    note = "params.yaml here says something else" if here else "there is no params.yaml here"
    return LineageLink("settings", value, UNCHECKED, note)


def _commit(of: str, commit: str) -> LineageLink:
    """Whether git knows the commit."""
    what, bare = f"commit of {of}", commit.removesuffix("-dirty")
    dirty = "tracked files had been changed, and no commit holds them" if commit != bare else ""
    if commit == UNKNOWN:
        return LineageLink(what, commit, UNCHECKED, "it was made outside of git")
    known = knows_commit(bare)
    if known is None:
        return LineageLink(what, commit, UNCHECKED, "no git repository here" + (f"; {dirty}" if dirty else ""))
    if known and dirty:  # what ran is not what git has
        return LineageLink(what, commit, UNCHECKED, f"git knows it, but {dirty}")
    if known:
        return LineageLink(what, commit, FOUND, "git knows it")
    return LineageLink(what, commit, BROKEN, "git does not know it. Try `git fetch`")


def _join_values(origins: list[dict[str, Any]], name: str) -> str:
    return "; ".join(sorted({str(one[name]) for one in origins if one.get(name)}))
