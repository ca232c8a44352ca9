"""Every component is laid out alike, thin, compiles by itself, and runs in an image that cannot move."""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path

import pytest
import yaml
from kfp import compiler

from evenshard.base.errors import BadConfig
from evenshard.kubeflow.cluster import COMPONENTS
from evenshard.kubeflow.component import DEFAULT_IMAGE, image
from evenshard.loop.loop import STAGES
from evenshard_components.generate import component, component_names
from support.repository import ROOT

DIGEST = "sha256:" + "0123456789abcdef" * 4
NAMES, OF_STAGES = component_names(), {stage.name for stage in STAGES}


def test_there_is_one_for_each_stage_that_the_cluster_settings_know() -> None:
    assert set(NAMES) == set(COMPONENTS)


@pytest.mark.parametrize("name", NAMES)
def test_its_folder_has_metadata_a_test_and_a_thin_body(name: str) -> None:
    folder = ROOT / "components" / name
    assert yaml.safe_load((folder / "metadata.yaml").read_text())["name"] == name
    if name not in OF_STAGES:  # tests/loop/test_both_ways.py runs these
        assert (folder / "tests/test_component_unit.py").is_file()
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(component(name).python_func))).body
    assert isinstance(function, ast.FunctionDef)
    imports = [one for one in function.body if isinstance(one, ast.ImportFrom)]
    statements = [one for one in function.body[1:] if one not in imports]  # after the docstring
    assert statements and sum(len(ast.unparse(one).splitlines()) for one in statements) + len(imports) <= 15
    assert {str(one.module).partition(".")[0] for one in imports} <= {"pathlib", "evenshard"}


def test_it_compiles_by_itself_and_installs_nothing(tmp_path: Path) -> None:
    compiler.Compiler().compile(component("place"), str(tmp_path / "component.yaml"))
    spec = yaml.safe_load((tmp_path / "component.yaml").read_text())
    (executor,) = spec["deploymentSpec"]["executors"].values()
    assert executor["container"]["image"] == DEFAULT_IMAGE
    assert "pip install" not in (tmp_path / "component.yaml").read_text()


def test_only_a_version_or_a_digest_is_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("r.example.com:5000/team/evenshard:0.1.0", f"evenshard@{DIGEST}", f"e:latest@{DIGEST}"):
        monkeypatch.setenv("EVENSHARD_IMAGE", name)
        assert image() == name
    for name, why in (
        ("r.example.com:5000/evenshard", "has no tag"),
        ("evenshard:Main", "can move to another image"),
        ("evenshard@sha256:12", "is not a valid image name"),
    ):
        monkeypatch.setenv("EVENSHARD_IMAGE", name)
        with pytest.raises(BadConfig, match=why):
            image()
    monkeypatch.delenv("EVENSHARD_IMAGE")
    assert image() == DEFAULT_IMAGE
