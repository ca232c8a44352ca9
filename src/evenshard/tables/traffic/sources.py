"""Finds the traffic files that a path names, and their kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from evenshard.tables.traffic.sample import Sample
from evenshard.tables.traffic.torch_batches import TorchSample
from evenshard.utils.errors import BadFile
from evenshard.utils.extras import require_package
from evenshard.utils.packed_files import unpack_file

_KINDS = "Give a folder of .parquet files or of .pt files, or one .parquet, .pt or .pt.gz file."


@contextmanager
def opened_sample(source: Path) -> Iterator[Sample]:
    """The files of a folder in the order of their names, or a single file.

    Names that start with a dot or an underscore (Spark's ``_SUCCESS``) do not count. A gzipped file is unpacked into
    the temporary folder and removed from there at the end.

    Raises:
        BadFile: nothing there, or anything but Parquet files alone or ``.pt`` files alone.
    """
    if source.is_file() and source.name.endswith(".pt.gz"):
        with unpack_file(source) as file:
            yield TorchSample([source], file)
        return
    if source.is_file():
        paths = [source]
    elif source.is_dir():
        paths = sorted(path for path in source.iterdir() if not path.name.startswith((".", "_")))
    else:
        raise BadFile(source, "no such file or folder", "Check the path.")
    if not paths:
        raise BadFile(source, "holds no file", _KINDS)
    odd = next((path for path in paths if path.suffix not in (".parquet", ".pt") or not path.is_file()), None)
    if odd is not None:
        raise BadFile(odd, "is neither a .parquet nor a .pt file", _KINDS)
    other = next((path for path in paths if path.suffix != paths[0].suffix), None)
    if other is not None:
        raise BadFile(source, f"holds both {paths[0].name} and {other.name}", _KINDS)
    yield _parquet_sample(paths) if paths[0].suffix == ".parquet" else TorchSample(paths)


def _parquet_sample(paths: Sequence[Path]) -> Sample:
    require_package("pyarrow")
    from evenshard.tables.traffic.parquet import ParquetSample

    return ParquetSample(paths)
