"""``.metadata`` that torch would not have written: one line, and nothing is written outside of ``--out``."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorStorageMetadata

from evenshard.cli import main
from evenshard.placement.parts import Span
from evenshard.torchrec.running.checkpoint import convert_checkpoint
from evenshard.torchrec.running.checkpoint_files import CheckpointFiles
from evenshard.torchrec.running.checkpoint_metadata import read_metadata
from evenshard.utils.errors import BadConfig, BadFile
from support.checkpoint_builders import A, B, checkpoint_metadata, write_checkpoint
from support.repository import ROOT

SPOILT = ROOT.parent / "shared/repro/spoilt"
CONVERT = ["convert-checkpoint", "checkpoint", "--from", "old.json", "--to", "new.json", "--out", "out"]
WEIGHTS = f"model.{A}"
STATE = f"optimizer.state.{A}.a.momentum1"


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a checkpoint and two plans, which is the current one."""
    write_checkpoint(tmp_path / "saved")
    monkeypatch.chdir(tmp_path / "saved")
    return tmp_path / "saved"


def rewrite(saved: Path, change: Callable[[Any], object]) -> None:
    metadata = checkpoint_metadata(saved)
    change(metadata)
    (saved / "checkpoint/.metadata").write_bytes(pickle.dumps(metadata))


def info_of(metadata: Any, name: str = WEIGHTS) -> Any:
    return next(info for index, info in metadata.storage_data.items() if index.fqn == name)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_was_saved_is_read_as_torch_reads_it(saved: Path) -> None:
    ours, torchs = read_metadata(saved / "checkpoint"), checkpoint_metadata(saved)
    assert ours.storage_meta is not None
    assert ours.storage_meta.checkpoint_id == str(torchs.storage_meta.checkpoint_id)
    ours.storage_meta.checkpoint_id = torchs.storage_meta.checkpoint_id
    assert ours == torchs
    convert_checkpoint("checkpoint", "old.json", "new.json", "out")


@pytest.mark.parametrize(
    "name",
    [
        "../victim.distcp",
        "../victim.txt",
        "/etc/hostname",
        ".metadata",
        "evenshard.json",
        "\0",
        "\ud800.distcp",
        "",
        ".",
    ],
)
def test_a_file_outside_of_the_checkpoint_is_neither_read_nor_overwritten(saved: Path, name: str) -> None:
    """Names of the copy's own files are among them: they would be written through a hard link to the original."""
    (saved / "victim.distcp").write_text("precious")
    (saved / "victim.txt").write_text("precious")
    (saved / "checkpoint/evenshard.json").write_text("of an earlier conversion")
    rewrite(saved, lambda metadata: vars(info_of(metadata)).update(relative_path=name, offset=0, length=1))
    before = contents(saved)
    assert main(CONVERT) == 2
    with pytest.raises(BadFile, match=r"names the file .*, which is not a \.distcp file of its folder"):
        convert_checkpoint("checkpoint", "old.json", "new.json", "out")
    assert contents(saved) == before


def _larger(metadata: Any) -> None:
    metadata.state_dict_metadata[WEIGHTS].size = torch.Size([2**40] * 3)


def _chunk(metadata: Any) -> Any:
    return metadata.state_dict_metadata[WEIGHTS].chunks[0]


WRONG: dict[str, tuple[Callable[[Any], object], str]] = {
    "nothing": (lambda one: one.planner_data.clear(), "does not say where values stood"),
    "one place of two values": (
        lambda one: one.planner_data.update(dict.fromkeys(one.planner_data, ("model",))),
        "does not say where values stood",
    ),
    "a place that is not a path": (lambda one: one.planner_data.update({WEIGHTS: "x"}), "where values stood"),
    "an unknown value": (lambda one: one.planner_data.update(x=("x",)), "does not say what and where 'x' is"),
    "no chunk": (
        lambda one: vars(_chunk(one)).update(offsets=torch.Size([1, 0]), sizes=torch.Size([9, 8])),
        "chunk of",
    ),
    "a chunk beside the tensor": (
        lambda one: vars(_chunk(one)).update(offsets=torch.Size([1, 0])),
        "not of its tensor",
    ),
    "a negative chunk": (lambda one: vars(_chunk(one)).update(sizes=torch.Size([-1, 8])), "not of its tensor"),
    "a chunk of other dims": (lambda one: vars(_chunk(one)).update(sizes=torch.Size([10])), "not of its tensor"),
    "a tensor beyond all memory": (_larger, r"a tensor of the size \(1099511627776"),
    "properties": (lambda one: vars(one.state_dict_metadata[WEIGHTS]).update(properties=None), "properties is None"),
    "a length": (lambda one: vars(info_of(one)).pop("length"), "_StorageInfo whose length is None"),
    "a length beyond the file": (lambda one: vars(info_of(one)).update(length=10**9), "1000000000 of them"),
    "an offset before the file": (lambda one: vars(info_of(one)).update(offset=-1), "bytes from -1"),
    "a true number": (lambda one: vars(info_of(one)).update(offset=True), "offset is True"),
    "a field of tomorrow": (lambda one: vars(info_of(one)).update(more=1), "of a newer torch"),
    "an encoding": (lambda one: vars(info_of(one)).update(transform_descriptors=[1]), "the encoding"),
    "a version": (lambda one: vars(one).update(version=[]), r"version is \[\]"),
    "modules": (lambda one: vars(one.storage_meta).update(modules=[1]), "the modules"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_torch_would_not_write_is_refused_in_one_line(saved: Path, what: str) -> None:
    change, problem = WRONG[what]
    rewrite(saved, change)
    with pytest.raises(BadFile, match=problem):
        convert_checkpoint("checkpoint", "old.json", "new.json", "out")
    assert not (saved / "out").exists()


def test_the_pickle_of_something_else_is_refused(saved: Path) -> None:
    (saved / "checkpoint/.metadata").write_bytes(pickle.dumps([1]))
    with pytest.raises(BadFile, match=r"holds \[1\] in place of a Metadata"):
        read_metadata(saved / "checkpoint")


def _pickled_change_of(module: str, name: str) -> bytes:
    """``module.name`` gets an attribute, as the opcode BUILD gives it."""
    return f"c{module}\n{name}\n".encode() + b"(N}X\x04\x00\x00\x00evilK\x01stb."


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch.distributed.checkpoint.metadata", "Metadata"),
        ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
        ("torch.serialization", "_get_layout"),
        ("pathlib", "PosixPath"),
    ],
)
def test_a_pickle_cannot_change_a_class(saved: Path, module: str, name: str) -> None:
    content = _pickled_change_of(module, name)
    (saved / "checkpoint/.metadata").write_bytes(content)
    with pytest.raises(BadFile):
        read_metadata(saved / "checkpoint")
    of_class = getattr(__import__(module, fromlist=[name]), name)
    assert not hasattr(of_class, "evil")
    pickle.loads(content)  # what a plain reader would let it do
    assert of_class.evil == 1
    del of_class.evil


@pytest.mark.skipif(not SPOILT.is_dir(), reason="no folder of spoilt inputs beside the checkout")
@pytest.mark.parametrize("path", sorted(SPOILT.glob("checkpoint_metadata_*")), ids=lambda path: path.name)
def test_spoilt_metadata_is_refused(saved: Path, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (saved / "checkpoint/.metadata").write_bytes(path.read_bytes())
    assert main(CONVERT) == 2
    assert "checkpoint/.metadata: " in capsys.readouterr().err


def test_rows_that_chunks_hold_twice_do_not_stand_for_others(saved: Path) -> None:
    files = CheckpointFiles(saved / "checkpoint")
    key = files.metadata.planner_data[STATE]
    state = files.metadata.state_dict_metadata[STATE]
    assert isinstance(state, TensorStorageMetadata)
    assert files.rows(key, Span(0, 20)).equal(torch.ones(20))
    state.size = torch.Size([40])
    state.chunks.append(state.chunks[0])
    with pytest.raises(BadFile, match="is not whole"):
        files.rows(key, Span(0, 40))


def test_tensors_are_those_that_are_named(saved: Path) -> None:
    files = CheckpointFiles(saved / "checkpoint")
    state = files.metadata.state_dict_metadata[STATE]
    assert isinstance(state, TensorStorageMetadata)
    assert isinstance(files.metadata, Metadata)
    key = files.metadata.planner_data[STATE]
    state.properties.dtype = torch.float64
    with pytest.raises(BadFile, match=r"__0_0\.distcp: does not hold .* as \.metadata says"):
        files.rows(key, Span(0, 20))
    state.properties.dtype, state.chunks = torch.float32, [ChunkStorageMetadata(torch.Size([0]), torch.Size([4]))]
    with pytest.raises(BadFile, match="does not hold"):
        files.rows(key, Span(0, 4))
    info_of(files.metadata, STATE).transform_descriptors = ["zstd"]
    with pytest.raises(BadFile, match="is compressed or encoded"):
        files.rows(key, Span(0, 4))
    with pytest.raises(BadFile, match="'epoch' is not a tensor"):
        files.size(("epoch",))


def test_states_of_another_optimizer_are_refused(saved: Path) -> None:
    """They were a KeyError, or states of a size that the job could not load."""
    with pytest.raises(BadFile, match="has the states momentum1, which are not those of adam"):
        convert_checkpoint("checkpoint", "old.json", "new.json", "out", "adam")
    with pytest.raises(BadFile, match="which are not those of sgd"):
        convert_checkpoint("checkpoint", "old.json", "new.json", "out", "sgd")
    with pytest.raises(BadConfig, match="optimizer"):
        convert_checkpoint("checkpoint", "old.json", "new.json", "out", "none")
    convert_checkpoint("checkpoint", "old.json", "new.json", "out")
    sums = f"optimizer.state.{B}.sum"

    def narrow(metadata: Any) -> None:
        metadata.state_dict_metadata[sums].size = metadata.state_dict_metadata[sums].chunks[0].sizes = torch.Size(
            [10, 4]
        )

    rewrite(saved, narrow)
    with pytest.raises(BadFile, match="the state sum of table 'b' has the size 10 x 4, and the table 10 x 8 weights"):
        convert_checkpoint("checkpoint", "old.json", "new.json", "other")
