"""Settings: from params.yaml to dataclasses; what makes no sense is named by section and key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evenshard.base.documents import load_params
from evenshard.base.errors import BadConfig, BadFile, require
from evenshard.base.typed import section


@dataclass(frozen=True)
class Config:
    num_updates: int
    learning_rate: float = 0.5
    dims: tuple[int, ...] = (4, 8)
    max_rows: int | None = None
    source: str = "dlrm_2021"


def test_a_section_becomes_its_dataclass_with_defaults_for_the_rest() -> None:
    params = {"train": {"num_updates": 3, "dims": [16, 32], "max_rows": None}, "other": {"num_updates": 9}}
    assert section(params, "train", Config) == Config(3, 0.5, (16, 32))


def test_whole_numbers_are_fine_as_floats_and_for_them() -> None:
    found = section({"train": {"num_updates": 3.0, "learning_rate": 1}}, "train", Config)
    assert repr(found) == repr(Config(3, 1.0))


def test_flags_win_over_the_file_unless_they_were_not_given() -> None:
    params = {"train": {"num_updates": 3, "learning_rate": 0.1}}
    assert section(params, "train", Config, num_updates=7, learning_rate=None) == Config(7, 0.1)
    assert section(params, "train", Config, learning_rate=0.0) == Config(3, 0.0)
    assert params == {"train": {"num_updates": 3, "learning_rate": 0.1}}


def test_flags_alone_are_enough_for_a_section_that_is_not_there() -> None:
    assert section({}, "train", Config, num_updates=2) == Config(2)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_updates": 3, "lerning_rate": 1.0}, "'lerning_rate' is unknown (did you mean learning_rate?)"),
        ({}, "num_updates is missing"),
        ({"num_updates": 2.5, "source": 5}, "num_updates is 2.5, not a whole number; source is 5, not a string"),
        ({"num_updates": 3, "dims": [4, "wide"]}, "dims[1] is 'wide', not a whole number"),
        ({"num_updates": 3, "learning_rate": float("nan")}, "learning_rate is nan, not a finite number"),
        ({"num_updates": 3, "learning_rate": float("inf")}, "learning_rate is inf, not a finite number"),
    ],
)
def test_a_senseless_value_is_named_by_section_and_key(values: dict[Any, Any], words: str) -> None:
    with pytest.raises(BadConfig) as caught:
        section({"train": values}, "train", Config)
    assert "params section train: " in str(caught.value) and words in str(caught.value)


@pytest.mark.parametrize("values", [None, [1, 2], "num_updates"])
def test_a_section_that_is_no_mapping_is_refused(values: Any) -> None:
    with pytest.raises(BadConfig, match="section train is not a mapping"):
        section({"train": values}, "train", Config)


def test_a_file_is_read_into_its_sections(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("loop:\n  num_rounds: 3  # a comment\ntrain: {learning_rate: 0.0005}\n")
    assert load_params(path) == {"loop": {"num_rounds": 3}, "train": {"learning_rate": 0.0005}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: [1, 2", "not readable as YAML"),
        (b"\xff\xfe\x00", "not readable as YAML"),
        (b"- 1\n- 2\n", "is not a mapping"),
        (b"", "is not a mapping"),
    ],
)
def test_a_file_of_something_else_is_refused_on_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(content)
    with pytest.raises(BadFile, match=words) as caught:
        load_params(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["1: 2\n", "loop: {num_rounds: 3, 7: x}\n", "extra: [{2024-01-01: x}]\n"])
def test_keys_are_texts(tmp_path: Path, text: str) -> None:
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(BadFile, match=r"key .* is not a string. Put it in quotes"):
        load_params(tmp_path / "params.yaml")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"no such file.*--params"):
        load_params(tmp_path / "params.yaml")


def test_require_speaks_only_when_the_condition_does_not_hold() -> None:
    require(True, "never said")
    with pytest.raises(BadConfig, match="Make it above 0"):
        require(False, "Make it above 0.")


def test_doubling_aliases_are_refused(tmp_path: Path) -> None:
    """Forty would be 2^40 values."""
    path = tmp_path / "params.yaml"
    doubled = "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    path.write_text("a0: &a0 [x]\n" + doubled)
    with pytest.raises(BadFile, match="of its aliases are inside anchored values"):
        load_params(path)
