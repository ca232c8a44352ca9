"""Adding a cost dataset to data/: checked, compared with the version before, named, and there whole or not at all."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from evenshard.measure.costs import MeasuredPlacement, optimizer_of
from evenshard.placement.tasks import load_tasks
from evenshard.tables.files import load_tables
from evenshard.tracking.datasets.checks import (
    RepeatNoise,
    VersionChange,
    changes_since,
    noise_in,
    read_content,
    refuse_known_elsewhere,
)
from evenshard.tracking.datasets.partition import Partition
from evenshard.utils.atomic import atomic_path
from evenshard.utils.errors import BadConfig, DatasetRefused
from evenshard.utils.extras import require_package
from evenshard.utils.messages import reason_of
from evenshard.utils.outputs import DATASET_FOLDER
from evenshard.utils.provenance import sha256_of

ABOUT = "dataset.json"


@dataclass(frozen=True)
class AddRequest:
    """A dataset to add, and how strict to be.

    Attributes:
        costs: cost datasets, one per run.
        tables: the table file that their rows name.
        partition: folder of the dataset; an older version there is replaced.
        tasks: the tasks they were measured on, if they come along.
        max_noise_pct: refuse where repeats of a placement spread by more (standard deviation).
        max_drift_pct: refuse where shards that the older version measured, too, now take so much more or less time.
    """

    costs: tuple[Path, ...]
    tables: Path
    partition: Partition
    tasks: Path | None = None
    max_noise_pct: float = 15.0
    max_drift_pct: float = 10.0


@dataclass(frozen=True)
class AddedDataset:
    """A dataset that has been added.

    Attributes:
        drift: since the version before; None for the first.
        changed: False where these very files were there before.
    """

    partition: Partition
    num_measured: int
    noise: RepeatNoise
    drift: VersionChange | None
    changed: bool


def repository_root() -> Path:
    """The folder of .dvc/, from the working directory upwards.

    Raises:
        BadConfig: if there is none.
    """
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / ".dvc").is_dir():
            return folder
    raise BadConfig(
        "this is not a DVC repository: there is no .dvc folder here or above. Run it in the repository of the datasets."
    )


def add(request: AddRequest, root: Path) -> AddedDataset:
    """Checks a dataset and puts it into data/. What is refused or fails leaves data/ as it was.

    Args:
        root: root of the repository.

    Raises:
        BadInput: a file cannot be used, is of other hardware, or is in another collection already.
        DatasetRefused: it is too noisy, has drifted too far, or is of another optimizer than the version before.
    """
    partition = request.partition
    folder = root / partition.folder
    DATASET_FOLDER.require(folder)
    content = read_content(request.costs, request.tables)
    if request.tasks is not None:
        load_tasks(request.tasks, load_tables(request.tables))
    partition.require_hardware(one.provenance.hardware for one in content.all)
    noise = noise_in(content)
    if (noise.within_run_pct or 0.0) > request.max_noise_pct:
        raise DatasetRefused(
            f"refused: repeats of one placement spread by {noise.within_run_pct:.1f} %, more than "
            f"{request.max_noise_pct:g} %. Measure on a quieter machine, or raise --max-noise-pct."
        )
    _require_here(root, folder.parent)
    known = {path: _measured_in(path) for path in sorted(folder.parent.glob("collection=*"))}
    previous = known.pop(folder, None)
    refuse_known_elsewhere(content, known)

    files = _files(request)
    sha256 = {name: sha256_of(path) for name, path in files.items()}
    if previous is not None and sha256 == {one.name: sha256_of(one) for one in folder.iterdir() if one.name != ABOUT}:
        return AddedDataset(partition, len(content.all), noise, None, changed=False)
    optimizer = optimizer_of(content.all)
    if previous is not None and (before := optimizer_of(previous)) != optimizer:
        raise DatasetRefused(
            f"refused: the version before is of {before}, this one of {optimizer}. Add it as another collection."
        )
    drift = None if previous is None else changes_since(previous, content.all)
    if drift is not None and abs(drift.cost_pct or 0.0) > request.max_drift_pct:
        raise DatasetRefused(
            f"refused: {drift.num_shards} shards that the version before has, too, now take {drift.cost_pct:+.1f} "
            f"% time, beyond {request.max_drift_pct:g} %. Changed: {'; '.join(drift.changed) or 'nothing known'}. "
            f"Find out why, add it as another collection, or raise --max-drift-pct."
        )
    about = {
        "hardware": sorted({one.provenance.hardware for one in content.all}),
        "simulated": partition.is_simulated,
        "collection": partition.collection,
        "num_measured": len(content.all),
        "num_tables": len({table for one in content.all for table in one.task.tables}),
        "noise": asdict(noise),
        "lineage": [dict(one) for one in content.lineages],
        "sha256": sha256,
        "drift": None if drift is None else asdict(drift),
    }
    with atomic_path(folder, DATASET_FOLDER) as draft:
        draft.mkdir()
        for name, path in files.items():
            shutil.copyfile(path, draft / name)
        (draft / ABOUT).write_text(json.dumps(about, indent=1) + "\n")
    return AddedDataset(partition, len(content.all), noise, drift, changed=True)


def _files(request: AddRequest) -> dict[str, Path]:
    """The files of a dataset by the names they get."""
    costs = {"costs.parquet" if n == 1 else f"costs_{n}.parquet": path for n, path in enumerate(request.costs, 1)}
    tasks = {} if request.tasks is None else {"tasks.json": request.tasks}
    return {**costs, f"tables{request.tables.suffix}": request.tables, **tasks}


def _require_here(root: Path, of_hardware: Path) -> None:
    """Raises BadConfig where data.dvc names datasets of this hardware that are not here: they are compared with."""
    if not (root / "data.dvc").exists():
        return
    require_package("dvc")
    from dvc.api import DVCFileSystem

    where = of_hardware.relative_to(root).as_posix()
    try:
        named = DVCFileSystem(str(root)).find(where)
    except Exception as error:  # DVC hands on whatever the file systems of its remotes raise
        raise BadConfig(f"DVC cannot list {where} ({reason_of(error)}). Bring it first: dvc pull data.") from None
    if any(not (root / path).exists() for path in named):
        raise BadConfig(f"data.dvc names datasets in {where} that are not here. Bring them first: dvc pull {where}.")


def _measured_in(folder: Path) -> list[MeasuredPlacement]:
    return read_content(sorted(folder.glob("costs*.parquet")), next(folder.glob("tables.*"))).all
