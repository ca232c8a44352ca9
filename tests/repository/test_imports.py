"""Tests run the code of this checkout."""

from __future__ import annotations

import tomllib
from importlib import import_module

from support.repository import ROOT

PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]


def test_packages_are_those_of_this_checkout() -> None:
    found = {package: import_module(package).__file__ for package in PACKAGES}
    assert found == {package: str(ROOT / folder / "__init__.py") for package, folder in PACKAGES.items()}, (
        "tests run another checkout's code. Install this one: pip install --no-deps --editable ."
    )
