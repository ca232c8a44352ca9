"""A checkpoint of two tables beside two placements, between which every kind of state is converted."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from evenshard.planner.file import save_answer
from support.explain_builders import answered, asked

A, B = "ebc.embedding_bags.a.weight", "ebc.embedding_bags.b.weight"


def write_checkpoint(folder: Path) -> None:
    """Table ``a`` in halves and ``b`` in replicas (``old.json``); the other way round in ``new.json``."""
    folder.mkdir()
    request = asked({"a": 5.0, "b": 3.0}, 2)  # 10 rows of 8 dims
    save_answer(answered(request, (0, 1, (0, 1)), {"a": (4,)}), folder / "old.json")
    save_answer(answered(request, ((0, 1), 0, 1), {"b": (4,)}), folder / "new.json")
    states: dict[str, Any] = {
        A: {"a.momentum1": torch.ones(20)},
        B: {"sum": torch.ones(10, 8)},
        "over": {"sum": torch.ones(4)},
    }
    content = {"model": {A: torch.ones(10, 8), B: torch.ones(10, 8)}, "optimizer": {"state": states}, "epoch": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # no process group
        dcp.save(content, checkpoint_id=folder / "checkpoint", no_dist=True)


def checkpoint_metadata(folder: Path) -> Any:
    """What ``.metadata`` of it holds."""
    return pickle.loads((folder / "checkpoint/.metadata").read_bytes())
