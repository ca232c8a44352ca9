"""The package can be installed: it carries its data, and places tables without the checkout.

What is proven: the sdist of this tree builds the wheel; the wheel holds every file of ``src/evenshard`` as it is, and
asks for the dependencies that ``pyproject.toml`` names; in a clean virtual environment, where pip installed nothing but
the wheel, the command and the Python API answer in another folder. What is not: that pip finds the dependencies, which
would take minutes to install again. The clean environment borrows them from this one through a ``.pth`` file. It does
not borrow evenshard: the editable install of the checkout is a ``.pth`` file itself, and those are not read from a
borrowed folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import jsonschema
import pytest

from support.repository import ROOT

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src")


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command that must succeed, without a word about the checkout in its environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done


@dataclass(frozen=True)
class Built:
    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """sdist and wheel of a copy of the tree: building leaves files behind that a later build would pack."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    leave_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=leave_out)
        else:
            shutil.copy(ROOT / name, tree / name)
    done = run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)], tree)
    # setuptools says so where it packs data of folders that it does not list
    assert "absent from the `packages`" not in done.stdout + done.stderr
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return Built(wheel, sdist)


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs of a clean environment with the wheel are."""
    home = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(built.wheel)], home)
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site_packages = Path(run([str(python), "-c", asked], home).stdout.strip())
    borrowed = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (site_packages / "borrowed.pth").write_text("".join(f"{folder}\n" for folder in borrowed))
    return home / "bin"


def source_files() -> dict[str, bytes]:
    files = (path for path in (ROOT / "src" / "evenshard").rglob("*") if path.is_file())
    return {
        path.relative_to(ROOT / "src").as_posix(): path.read_bytes()
        for path in files
        if "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_file_of_the_package(built: Built) -> None:
    with ZipFile(built.wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist() if name.startswith("evenshard/")}
    expected = source_files()
    assert sorted(packed) == sorted(expected)
    assert packed == expected
    for kind in (".json", ".yaml", ".pt", ".j2", "py.typed"):
        assert any(name.endswith(kind) for name in packed), kind


def test_the_sdist_holds_every_file_of_the_package(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        packed = {name.partition("/src/")[2] for name in archive.getnames() if "/src/evenshard/" in name}
    assert set(source_files()) <= packed


def test_the_wheel_asks_for_what_the_project_names(built: Built) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with ZipFile(built.wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        told = Parser().parsestr(archive.read(metadata).decode())
    needed = [line.replace(" ", "") for line in told.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(needed) == sorted(project["dependencies"])
    assert told["Requires-Python"] == project["requires-python"]
    assert told["License-Expression"] == project["license"]


def test_it_places_tables_outside_of_the_checkout(installed: Path, tmp_path: Path) -> None:
    evenshard = str(installed / "evenshard")
    run([evenshard, "place", "mlperf_dlrm_v2", "--devices", "8", "-o", "placement.json"], tmp_path)
    schema = json.loads(run([evenshard, "place", "--schema"], tmp_path).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    answer = json.loads((tmp_path / "placement.json").read_text())
    jsonschema.validate(answer, schema, jsonschema.Draft202012Validator)
    assert len(answer["predicted"]["devices"]) == answer["num_devices"] == 8
    assert len({shard["table"] for shard in answer["shards"]}) == 26


def test_python_finds_the_installed_package(installed: Path, tmp_path: Path) -> None:
    question = "import evenshard, json, sys; json.dump([evenshard.__file__, evenshard.__version__], sys.stdout)"
    file, version = json.loads(run([str(installed / "python"), "-c", question], tmp_path).stdout)
    assert Path(file).is_relative_to(installed.parent)
    assert re.search(rf'^__version__ = "{re.escape(version)}"$', (ROOT / "src/evenshard/version.py").read_text(), re.M)
