"""The list of the team's cost datasets, and fetching them with DVC."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenshard.measure.hardware import folder_name
from evenshard.tracking.datasets.partition import Partition
from evenshard.tracking.datasets.repository import POINTER, DatasetFailed, Repository
from evenshard.utils.errors import BadConfig, BadFile
from evenshard.utils.json_files import load_json
from evenshard.utils.messages import reason_of
from evenshard.utils.provenance import sha256_of
from evenshard.utils.records import as_type

ABOUT = "dataset.json"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Known:
    """A dataset that data.dvc names.

    Attributes:
        files: their names in its folder.
        here: whether all of them are in data/.
    """

    partition: Partition
    files: tuple[str, ...]
    here: bool


def known(repository: Repository) -> list[Known]:
    """All datasets of the checked-out version."""
    files: dict[Partition, list[str]] = {}
    for path in repository.files():
        partition = Partition.of_path(path)
        if partition is not None:
            files.setdefault(partition, []).append(path.rpartition("/")[2])
    return [
        Known(one, tuple(sorted(names)), all((repository.root / one.folder / name).exists() for name in names))
        for one, names in sorted(files.items())
    ]


def pull(
    repository: Repository, hardware: str | None = None, collection: str | None = None, remote: str | None = None
) -> list[Known]:
    """Brings datasets to data/ and checks them.

    Args:
        hardware, collection: which; None for any.
        remote: of DVC; None asks the default one, then the others.

    Raises:
        BadConfig: there is no such dataset or remote.
        DatasetFailed: no remote has it, or DVC fails.
        BadFile: what came is not what was published.
    """
    there = known(repository)
    wanted = [
        one
        for one in there
        if hardware in (None, one.partition.hardware) or folder_name(str(hardware)) == one.partition.hardware
        if collection is None or collection.lower() == one.partition.collection
    ]
    if not wanted:
        asked = f"{hardware or 'any hardware'}, {collection or 'any collection'}"
        raise BadConfig(
            f"{POINTER} has no dataset of {asked}. It has {', '.join(str(one.partition) for one in there) or 'none'}."
        )
    folders = [one.partition.folder.as_posix() for one in wanted]
    if remote is not None:
        repository.remote_url(remote)
    remotes = repository.remotes() if remote is None else [remote]
    failures = []
    for name in remotes:
        try:
            repository.dvc("pull", "--remote", name, *folders)
            break
        except DatasetFailed as error:
            if "unsaved files" in str(error):  # DVC overwrites nothing that it could not bring back
                raise DatasetFailed(
                    f"files in {' or '.join(folders)} are not what was published, and exist nowhere else. Move them "
                    f"away, or drop them: dvc checkout --force {' '.join(folders)}."
                ) from None
            failures.append(f"{name}: {error}")
            log.info("remote %s does not give %s", name, ", ".join(folders))
    else:
        raise DatasetFailed(f"no remote has {', '.join(folders)}. {'; '.join(failures) or 'There is none.'}")
    for one in wanted:
        _check(repository, one.partition)
    return [Known(one.partition, one.files, True) for one in wanted]


def _check(repository: Repository, partition: Partition) -> None:
    folder = repository.root / partition.folder
    published = published_hashes(folder)
    for name, digest in published.items():
        path = folder / name
        if not path.is_file() or sha256_of(path) != digest:
            raise BadFile(path, "is not what was published", f"Remove {folder} and pull again.")


def published_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of a published dataset, as the dataset itself says.

    Raises:
        BadFile: if it does not say so.
    """
    try:
        about = as_type(load_json((folder / ABOUT).read_bytes()), dict[str, Any], "it")
        hashes: dict[str, str] = as_type(about.get("sha256"), dict[str, str], "sha256")
    except (OSError, ValueError) as error:
        raise BadFile(folder / ABOUT, f"not readable ({reason_of(error)})", "Publish the dataset again.") from None
    return hashes
