"""The package can be installed: it carries its data, brings little, and places tables without the checkout.

pip installs the wheel, with its dependencies resolved, into a clean environment, and must not fetch a package beyond
``CORE``, whose packages are links to the ones installed here, since to unpack them takes half a minute.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
from collections.abc import Iterable, Iterator
from email.message import Message
from email.parser import Parser
from importlib.metadata import Distribution, distribution
from pathlib import Path
from zipfile import ZipFile

import jsonschema
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.repository import ROOT, git

pytestmark = pytest.mark.slow
MADE_HERE = {".git", ".hypothesis", ".venv", "build", "data", "dist", "work"}
CORE = ("jinja2", "numpy", "pydantic", "pyyaml", "rich")
CORE_MB = 200
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
PACKAGES: dict[str, str] = PYPROJECT["tool"]["setuptools"]["package-dir"]
RUNS_COMMANDS = """
import contextlib, io, json, sys
from evenshard.cli import main
for command in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        code = main(command)
    print(json.dumps([code, errors.getvalue()]))
"""
FINDS_PACKAGES = """
import json, pathlib, evenshard, evenshard_components, evenshard_pipelines
from evenshard_pipelines.build import default_cluster
default_cluster(small=True)
packages = (evenshard, evenshard_components, evenshard_pipelines)
components = pathlib.Path(evenshard_components.__file__).parent.glob("*/metadata.yaml")
print(json.dumps([{one.__name__: one.__file__ for one in packages}, sorted(path.parent.name for path in components)]))
"""
TABLES = """
- {name: users, num_rows: 1000000, embedding_dim: 64, pooling_factor: 1.0}
- {name: clicks, num_rows: 200000, embedding_dim: 32, pooling_factor: 20.0}
"""
# Three tables, each of more than half a device, for two devices.
TOO_MANY = "".join(f"- {{name: t{n}, num_rows: 200000, embedding_dim: 1024, pooling_factor: 1.0}}\n" for n in range(3))
NEEDS = {
    "place tables.parquet": "pyarrow",
    "place tables.yaml --model work/round_3": "torch",
    "place s3://bucket/tables.yaml": "boto3",
    "diff placement.json placement.json": "scipy",
    "pipeline compile --pipeline train --out loop.yaml": "kfp",
    "place many.yaml --devices 2 --memory-cap-gb 1.42 --batch-size 2 --sharding-types table_wise": "scipy",
}


def run(command: list[str], folder: Path, typed: str = "") -> str:
    """Run a command that must succeed, without a word about the checkout in its environment."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=folder, env=variables, input=typed, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def copy_checkout(folder: Path) -> Path:
    """Copy the checkout, since building leaves files behind that a later build would pack."""
    patterns = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*_cache")

    def leave_out(folder: str, names: list[str]) -> set[str]:
        return patterns(folder, names) | (MADE_HERE if Path(folder) == ROOT else set())

    return Path(shutil.copytree(ROOT, folder / "evenshard", symlinks=True, ignore=leave_out))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist of the checkout."""
    tree, out = copy_checkout(tmp_path_factory.mktemp("tree")), tmp_path_factory.mktemp("dist")
    said = run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)], tree)
    # setuptools says so where it packs data of folders that it does not list
    assert "absent from the `packages`" not in said
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def metadata_of(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def with_requirements(names: Iterable[str]) -> Iterator[Distribution]:
    """Installed distributions and all that they require, each once."""
    waiting, seen = list(names), set[str]()
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in seen:
            seen.add(name)
            found = distribution(name)
            yield found
            requirements = map(Requirement, found.requires or ())
            waiting += [one.name for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]


@pytest.fixture(scope="module")
def core(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment with the core alone."""
    home = tmp_path_factory.mktemp("core") / "venv"
    venv.create(home, symlinks=True)
    (site_packages,) = home.glob("lib/python*/site-packages")
    for one in with_requirements(CORE):
        for top in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            source, target = Path(str(one.locate_file(top))), site_packages / top
            if top.endswith(".dist-info"):  # without a RECORD, pip refuses to replace a distribution
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("RECORD"))
            elif not target.exists():
                target.symlink_to(source)
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin/python"), "--disable-pip-version-check"]
    run([*pip, "install", "--quiet", "--no-index", str(built[0])], home)
    return home / "bin"


def test_wheel_and_sdist_hold_every_file_of_their_packages(built: tuple[Path, Path], tmp_path: Path) -> None:
    files = {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}": path
        for package, folder in PACKAGES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with ZipFile(built[0]) as archive:
        packed = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == {name: path.read_bytes() for name, path in files.items()}
    assert {"evenshard/py.typed", "evenshard/cli/__init__.py", "evenshard_components/place/metadata.yaml"} <= set(
        packed
    )
    with tarfile.open(built[1]) as archive_of_source:
        archive_of_source.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    if (ROOT / ".git").exists():
        tracked = git(ROOT, "-c", "core.quotepath=off", "ls-files").splitlines()
        assert not {name for name in tracked if (ROOT / name).is_file() and not (tree / name).exists()}
    variables = {**os.environ, "PYTHONPATH": str(tree / "src")}
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/base/test_messages.py"]
    done = subprocess.run(words, cwd=tree, env=variables, capture_output=True, text=True)
    assert done.returncode == 0 and "100%" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]


def test_an_index_shows_all_of_the_metadata(built: tuple[Path, Path]) -> None:
    assert run([sys.executable, "-m", "twine", "check", "--strict", *map(str, built)], ROOT).count("PASSED") == 2
    shown = metadata_of(built[0])
    needed = [line.replace(" ", "") for line in shown.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(needed) == sorted(PROJECT["dependencies"])
    assert (shown["Requires-Python"], shown["License-Expression"]) == (PROJECT["requires-python"], PROJECT["license"])
    links = dict(line.split(", ") for line in shown.get_all("Project-URL", []))
    assert links == PROJECT["urls"] and all(link.startswith(links["Repository"]) for link in links.values())


def test_the_core_is_small_and_places_tables_outside_of_the_checkout(core: Path, tmp_path: Path) -> None:
    files, components = json.loads(run([str(core / "python"), "-c", FINDS_PACKAGES], tmp_path))
    assert all(Path(one).is_relative_to(core.parent) for one in files.values()) and "place" in components
    evenshard = str(core / "evenshard")
    run([evenshard, "place", "mlperf_dlrm_v2", "--devices", "8", "--effort", "quick", "-o", "placement.json"], tmp_path)
    schema = json.loads(run([evenshard, "place", "--schema"], tmp_path))
    answer = json.loads((tmp_path / "placement.json").read_text())
    jsonschema.validate(answer, schema, jsonschema.Draft202012Validator)
    assert len(answer["predicted"]["devices"]) == 8 and len({shard["table"] for shard in answer["shards"]}) == 26
    assert "C21" in run([evenshard, "explain", "placement.json", "--table", "C21"], tmp_path)
    (site_packages,) = core.parent.glob("lib/python*/site-packages")
    own = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
    tops = [one for one in site_packages.iterdir() if not one.name.startswith(own)]
    found = {file.resolve() for top in tops for file in (top.resolve().rglob("*") if top.is_dir() else [top])}
    assert 50 < sum(file.stat().st_size for file in found if file.is_file()) / 1e6 < CORE_MB


def test_a_missing_package_is_one_line_with_a_command(built: tuple[Path, Path], core: Path, tmp_path: Path) -> None:
    (tmp_path / "tables.yaml").write_text(TABLES)
    (tmp_path / "many.yaml").write_text(TOO_MANY)
    (tmp_path / "tables.parquet").write_bytes(b"PAR1")
    commands = ["place tables.yaml --devices 2 -o placement.json --report page.html", *NEEDS]
    typed = json.dumps([command.split() for command in commands])
    _, *lines = run([str(core / "python"), "-c", RUNS_COMMANDS], tmp_path, typed).splitlines()[-len(commands) :]
    for (command, package), line in zip(NEEDS.items(), lines, strict=True):
        code, message = json.loads(line)
        assert (code, message.count("\n")) == (2, 1), message
        assert f" needs {package}: pip install '{built[0]}[" in message, command
    assert "planner needs torchrec: pip install" in (tmp_path / "page.html").read_text()
    # pip takes the command of the first one, and finds no pyarrow without an index.
    words = shlex.split(json.loads(lines[0])[1].partition(": pip ")[2])
    pip = [sys.executable, "-m", "pip", "--python", str(core / "python"), *words, "--no-index", "--find-links", "none"]
    done = subprocess.run(pip, cwd=tmp_path, capture_output=True, text=True)
    assert "No matching distribution found for pyarrow>=" in done.stderr
