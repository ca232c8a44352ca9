"""GitHub's workflows: valid, with actions pinned, on every Python that the package names; and the pinned base image."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest
import yaml

from support.repository import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PYTHON = "Programming Language :: Python :: 3."


@pytest.mark.slow
def test_they_are_valid_and_zizmor_finds_no_risk() -> None:
    for words in (
        ["check-jsonschema", "--builtin-schema", "vendor.github-workflows", *map(str, WORKFLOWS)],
        ["check-jsonschema", "--builtin-schema", "vendor.github-actions", str(ROOT / "action.yml")],
        ["zizmor", "--offline", "--no-progress", "--quiet", str(ROOT / ".github"), str(ROOT / "action.yml")],
    ):
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_action_is_pinned_by_its_commit() -> None:
    for file in WORKFLOWS:
        used = re.findall(r"uses: (.+)", file.read_text())
        assert used and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", one) for one in used), file


def test_every_python_of_the_package_is_tested() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = [f"3.{one.removeprefix(PYTHON)}" for one in classifiers if one.startswith(PYTHON)]
    tested = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    assert tested["jobs"]["test"]["strategy"]["matrix"]["python"] == named


def test_the_base_image_is_pinned_by_a_digest() -> None:
    base = (ROOT / "Dockerfile").read_text().partition("ARG BASE_IMAGE=")[2].split()[0]
    assert re.fullmatch(r"docker\.io/library/python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", base)
