"""Publishing of a cost dataset: checked, added to data.dvc, pushed, and only then named in git."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evenshard.measure.costs import MeasuredPlacement
from evenshard.placement.task import load_tasks
from evenshard.tables.files import load_tables
from evenshard.tracking.datasets.checks import (
    Content,
    Drift,
    Noise,
    drift_since,
    noise_in,
    read_content,
    refuse_published,
)
from evenshard.tracking.datasets.partition import DATA, Partition
from evenshard.tracking.datasets.pull import ABOUT, known, published_hashes, pull
from evenshard.tracking.datasets.repository import POINTER, DatasetFailed, Repository
from evenshard.utils.atomic import atomic_path
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import shown
from evenshard.utils.outputs import DATASET
from evenshard.utils.provenance import sha256_of

MAX_INSIDE_BYTES = 2 << 20
"""What may be added to a remote that travels with git."""
_SIZE = re.compile(r"^ +size: (\d+)$", re.MULTILINE)
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PublishRequest:
    """What to publish, and how strict to be.

    Attributes:
        costs: cost datasets, one per run.
        tables: the table file that their rows name.
        tasks: the tasks they were measured on, if they shall come along.
        partition: where it belongs; an older version there is replaced.
        remote: of DVC; None for the default one.
        max_noise_pct: refuse where repeats of a placement spread by more (standard deviation).
        max_drift_pct: refuse where shards that the older version measured, too, now take so much more or less time.
        commit: commit data.dvc and tag the version.
    """

    costs: tuple[Path, ...]
    tables: Path
    partition: Partition
    tasks: Path | None = None
    remote: str | None = None
    max_noise_pct: float = 15.0
    max_drift_pct: float = 10.0
    commit: bool = True


@dataclass(frozen=True)
class Published:
    """What has been published.

    Attributes:
        drift: since the version before; None for the first.
        tag: of git; None where nothing was committed.
        changed: False where this very content was published before.
        to_commit: what a fresh clone needs from git; committed already where there is a tag.
    """

    partition: Partition
    num_measured: int
    noise: Noise
    drift: Drift | None
    remote: str
    tag: str | None
    changed: bool
    to_commit: tuple[str, ...] = ()


def publish(request: PublishRequest, repository: Repository) -> Published:
    """Checks, adds, pushes, commits and tags. What fails on the way leaves data/, data.dvc and git as they were.

    Raises:
        BadInput: a file cannot be used, is of other hardware, or was published before in another collection.
        DatasetFailed: too noisy, drifted too far, or DVC or git fail.
    """
    partition = request.partition
    DATASET.require(repository.root / partition.folder)
    content = read_content(request.costs, request.tables)
    if request.tasks is not None:
        load_tasks(request.tasks, load_tables(request.tables))
    partition.require_hardware(one.provenance.hardware for one in content.all)
    noise = noise_in(content)
    if (noise.within_run_pct or 0.0) > request.max_noise_pct:
        raise DatasetFailed(
            f"refused: repeats of one placement spread by {noise.within_run_pct:.1f} %, more than "
            f"{request.max_noise_pct:g} %. Measure on a quieter machine, or raise --max-noise-pct."
        )
    remote = request.remote or repository.default_remote()
    if not remote:
        raise BadConfig("DVC has no default remote. Name one with --remote.")
    store = repository.store_inside(remote)
    files = _files(request)
    _require_small(files, store, remote)
    _require_clean(request, repository)

    before = _collections(repository, partition)
    previous = before.pop(partition, None)
    refuse_published(content, {one.folder: measured for one, measured in before.items()})
    about = _about(request, content, noise, files)
    if previous is not None and published_hashes(repository.root / partition.folder) == about["sha256"]:
        return Published(partition, len(content.all), noise, None, remote, None, changed=False)
    drift = None if previous is None else drift_since(previous, content.all)
    if drift is not None and abs(drift.cost_pct or 0.0) > request.max_drift_pct:
        raise DatasetFailed(
            f"refused: {drift.num_shards} shards that the version before has, too, now take {drift.cost_pct:+.1f} "
            f"% time, beyond {request.max_drift_pct:g} %. Changed: {'; '.join(drift.changed) or 'nothing known'}. "
            f"Find out why, publish it as another collection, or raise --max-drift-pct."
        )
    about["drift"] = None if drift is None else asdict(drift)

    default = repository.default_remote()
    inside = store or (repository.store_inside(default) if default else None)
    paths = (
        POINTER.as_posix(),
        *(() if inside is None else (inside.relative_to(repository.root.resolve()).as_posix(),)),
    )
    bytes_before = _size_of(repository.root / partition.folder)
    with _all_or_nothing(repository, partition, inside, paths if request.commit else ()):
        with atomic_path(repository.root / partition.folder, DATASET) as draft:
            draft.mkdir()
            for name, path in files.items():
                shutil.copyfile(path, draft / name)
            (draft / ABOUT).write_text(json.dumps(about, indent=1) + "\n")
        folder = partition.folder.as_posix()
        pointer_before = _pointer(repository)
        repository.dvc("add", folder if pointer_before else DATA.as_posix())
        _note_size(repository, pointer_before, _size_of(repository.root / partition.folder) - bytes_before)
        repository.dvc("push", "--remote", remote, folder)
        if store is None and inside is not None:
            _list_inside(repository, inside)
        tag = _commit(repository, partition, paths) if request.commit else None
    return Published(partition, len(content.all), noise, drift, remote, tag, changed=True, to_commit=paths)


def _files(request: PublishRequest) -> dict[str, Path]:
    """By the names they get."""
    costs = {"costs.parquet" if n == 1 else f"costs_{n}.parquet": path for n, path in enumerate(request.costs, 1)}
    tasks = {} if request.tasks is None else {"tasks.json": request.tasks}
    return {**costs, f"tables{request.tables.suffix}": request.tables, **tasks}


def _require_small(files: dict[str, Path], store: Path | None, remote: str) -> None:
    size = sum(path.stat().st_size for path in files.values())
    if store is not None and size > MAX_INSIDE_BYTES:
        raise BadConfig(
            f"remote {shown(remote)} is a folder that travels with git, and this is {size / 2**20:.1f} MiB (at most "
            f"{MAX_INSIDE_BYTES >> 20}). Name another remote, such as --remote s3."
        )


def _require_clean(request: PublishRequest, repository: Repository) -> None:
    """Before anything is done: no other change of data.dvc is published along, and git can commit."""
    if not request.commit:
        return
    if repository.git("status", "--porcelain", "--", POINTER.as_posix()).startswith((" M", "M", " D")):
        raise BadConfig(
            f"{POINTER} differs from what is committed, as after `dvc repro` with a changed {DATA}/ or a publish "
            f"that was killed. Commit it, or go back: git checkout {POINTER} && dvc checkout {POINTER}."
        )
    repository.git("var", "GIT_COMMITTER_IDENT")


def _collections(repository: Repository, partition: Partition) -> dict[Partition, list[MeasuredPlacement]]:
    """Everything measured on this hardware that is published, pulled if it is not here."""
    found = {}
    for one in known(repository):
        if one.partition.hardware != partition.hardware:
            continue
        pull(repository, one.partition.hardware, one.partition.collection)
        folder = repository.root / one.partition.folder
        tables = next(folder.glob("tables.*"))
        found[one.partition] = read_content(sorted(folder.glob("costs*.parquet")), tables).all
    return found


def _about(request: PublishRequest, content: Content, noise: Noise, files: dict[str, Path]) -> dict[str, Any]:
    measured = content.all
    return {
        "hardware": sorted({one.provenance.hardware for one in measured}),
        "simulated": request.partition.simulated,
        "collection": request.partition.collection,
        "num_measured": len(measured),
        "num_tables": len({table for one in measured for table in one.task.tables}),
        "noise": asdict(noise),
        "lineage": [dict(one) for one in content.lineages],
        "sha256": {name: sha256_of(path) for name, path in files.items()},
    }


def _pointer(repository: Repository) -> str:
    """What data.dvc says; "" where there is none yet."""
    pointer = repository.root / POINTER
    return pointer.read_text() if pointer.exists() else ""


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _note_size(repository: Repository, before: str, more_bytes: int) -> None:
    """DVC forgets the size where a folder in data/ is replaced, and `dvc exp run` would change data.dvc to note it."""
    now, known_before = _pointer(repository), re.search(_SIZE, before)
    if known_before is not None and re.search(_SIZE, now) is None:
        (repository.root / POINTER).write_text(f"{now.rstrip()}\n  size: {int(known_before[1]) + more_bytes}\n")


@contextmanager
def _all_or_nothing(
    repository: Repository, partition: Partition, inside: Path | None, staged: Sequence[str]
) -> Iterator[None]:
    """If the block fails, data.dvc, the dataset's folder, the remote that travels with git and git are what they were.

    Args:
        inside: the folder of that remote, if there is one.
        staged: paths that may have been added to git's index.
    """
    pointer, folder = repository.root / POINTER, repository.root / partition.folder
    before = pointer.read_bytes() if pointer.exists() else None
    was_here, stored = folder.exists(), _files_below(inside)
    try:
        yield
    except BaseException:
        if before is None:
            pointer.unlink(missing_ok=True)
        else:
            pointer.write_bytes(before)
        for path in _files_below(inside) - stored:
            path.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            if was_here:
                repository.dvc("checkout", partition.folder.as_posix())
        finally:
            if staged and repository.git("diff", "--cached", "--name-only", "--", *staged):
                repository.git("reset", "--quiet", "--", *staged)
        raise


def _files_below(folder: Path | None) -> set[Path]:
    return set() if folder is None else {path for path in folder.rglob("*") if path.is_file()}


def _list_inside(repository: Repository, inside: Path) -> None:
    """Puts DVC's list of all datasets beside those that travel with git, so that they can be pulled without network."""
    found = re.search(r"md5: ([0-9a-f]{32}\.dir)", _pointer(repository))
    if found is None:
        raise DatasetFailed(f"{POINTER} names no folder. Make it again: dvc add {DATA}.")
    place = Path("files/md5") / found[1][:2] / found[1][2:]
    cache = Path(repository.dvc("cache", "dir").strip())
    with atomic_path(inside / place) as draft:
        shutil.copyfile(cache / place, draft)


def _commit(repository: Repository, partition: Partition, paths: Sequence[str]) -> str:
    """One commit of data.dvc (and of the remote that travels with git), and a tag with the next number."""
    stem = f"dataset/{partition}/v"
    numbers = [int(name.removeprefix(stem)) for name in repository.git("tag", "--list", f"{stem}*").split()]
    tag = f"{stem}{max(numbers, default=0) + 1}"
    head = repository.git("rev-parse", "HEAD").strip()
    repository.git("add", "--", *paths)
    repository.git("commit", "--quiet", "--message", f"Dataset {tag.removeprefix('dataset/')}", "--", *paths)
    try:
        repository.git("tag", "--annotate", tag, "--message", f"{partition.folder}")
    except DatasetFailed:
        repository.git("reset", "--quiet", "--soft", head)
        raise
    return tag
