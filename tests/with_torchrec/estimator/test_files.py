"""Estimators as files: names of others are data in the Python that is written, and nothing spoilt is read for good."""

from __future__ import annotations

import copy
import json
import random
import runpy
from pathlib import Path
from typing import Any

import pytest
from torchrec.distributed.planner.types import Topology

from evenshard.torchrec.estimator import load_estimator
from evenshard.torchrec.estimator.files import save_estimator
from evenshard.utils.errors import BadFile
from support.estimator_builders import FIT
from support.mutations import mutated_json

RAN = "import os; os.mkdir('ran')"
NAMES = [
    "round_3", "it's", 'a "name"', '"""', f'"""\n{RAN}\n"""', f'""" + {RAN} + """', "C:\\new\\x", "\\", 'ends in "',
    "\\N{DASH}",
    "two\nlines", f"# \n{RAN}", "\r", "\u2028", "\0", "\udc80", "\x1b[31m", "{hardware}", "%s",
    f"\\\"\\\"\\\"\n{RAN}\n",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("field", ["fitted_to", "hardware", "command"])
def test_names_are_data_in_the_python_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, field: str
) -> None:
    monkeypatch.chdir(tmp_path)
    save_estimator({**FIT, "command": "", field: f"models/{name}"}, "estimator.py")
    module = runpy.run_path("estimator.py")
    assert not Path("ran").exists()
    shown = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in f"models/{name}")
    assert module["FIT"][field] == shown
    assert shown in module["__doc__"]
    assert module["FIT"]["compute"] == FIT["compute"]


def saved(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    path = tmp_path / "estimator.json"
    save_estimator(FIT, path)
    return path, json.loads(path.read_text())


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path, content = saved(tmp_path)
    path.write_text(json.dumps(dict(reversed(content.items()))))
    estimator = load_estimator(path, Topology(4, "cuda"))
    assert {name: estimator.config.fit[name] for name in FIT} == FIT


WRONG: dict[str, tuple[list[str], Any, str]] = {
    "text": (["host_gb_s"], "50", "host_gb_s: .* valid number"),
    "true": (["new_share"], True, "new_share: .* valid number"),
    "zero": (["host_gb_s"], 0, "greater than 0"),
    "below zero": (["exchange", "latency_us"], -1, "greater than or equal to 0"),
    "above one": (["distinct_share"], 1.5, "less than or equal to 1"),
    "far too much": (["compute", "row_wise", "forward", "call"], 1e9, "less than or equal to 1000000"),
    "an unknown coefficient": (["compute", "row_wise", "forward", ""], 1.0, "coefficient '' is unknown"),
    "one of the host's": (["kernels", "fused_uvm", "forward", "call"], 1.0, "coefficient 'call' is unknown"),
    "no coefficient": (["compute", "row_wise", "forward"], {}, "at least 1 item"),
    "an unknown type": (["compute", "grid_shard"], {}, "the field is unknown"),
    "half a byte": (["exchange", "index_bytes"], 4.5, "valid integer"),
    "another coefficient": (["compute", "row_wise", "forward", "call"], 0.5, "its sha256 is not that of its content"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_each_value_is_checked(tmp_path: Path, what: str) -> None:
    path, content = saved(tmp_path)
    keys, value, problem = WRONG[what]
    holder = content
    for key in keys[:-1]:
        holder = holder[key]
    holder[keys[-1]] = value
    path.write_text(json.dumps(content))
    with pytest.raises(BadFile, match=problem):
        load_estimator(path, Topology(4, "cuda"))


def test_a_spoilt_file_is_read_only_where_it_says_the_same(tmp_path: Path) -> None:
    path, content = saved(tmp_path)
    accepted = []
    for number in range(150):
        path.write_bytes(mutated_json(copy.deepcopy(content), random.Random(number)))
        try:
            load_estimator(path, Topology(4, "cuda"))
        except BadFile:
            continue
        accepted.append(number)
        assert json.loads(path.read_text()) == content
    assert len(accepted) <= 3, accepted
