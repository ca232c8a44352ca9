"""The package can be installed: it carries its data, brings little, and places tables without the checkout.

What is real: the sdist holds every file that git tracks and builds the wheel, and tests run from it; the wheel holds
every file of its three packages as it is; every Python that it names compiles it, where that Python is installed; pip
installs it, with its dependencies resolved, into a clean environment, and must neither fetch a package beyond ``CORE``
nor, in an image that trains with TorchRec, touch what is there. What is not: the image's packages and those of
``CORE`` are links to the ones installed here, since to unpack them takes half a minute.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from zipfile import ZipFile

import jsonschema
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.repository import ROOT, git

MADE_HERE = {".git", ".hypothesis", ".venv", "build", "data", "dist", "work"}
CORE = ("jinja2", "numpy", "pydantic", "pyyaml", "rich")
TORCHREC = ("fbgemm-gpu-cpu", "scipy", "torch", "torchrec")
CORE_MB = 200
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
PACKAGES: dict[str, str] = PYPROJECT["tool"]["setuptools"]["package-dir"]
PYTHONS = [
    line.rpartition(" ")[2]
    for line in PROJECT["classifiers"]
    if line.startswith("Programming Language :: Python :: 3.")
]

PLANS_MODEL = """
import json, warnings
warnings.simplefilter("ignore")  # of FBGEMM, at import
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from evenshard.torchrec import EvenshardPlanner
from evenshard.tables.sources import load_catalog
configs = [
    EmbeddingBagConfig(one.num_rows, one.embedding_dim, one.name, feature_names=[one.name])
    for one in load_catalog("mlperf_dlrm_v2", 65536)
]
planner = EvenshardPlanner(world_size=8, compute_device="cuda", memory_cap_gb=64)
plan = planner.plan(EmbeddingBagCollection(configs, device="meta"), [EmbeddingBagCollectionSharder()])
print(json.dumps({name: entry.ranks for name, entry in plan.plan[""].items()}))
"""
RUNS_COMMANDS = """
import contextlib, io, json, os, sys
from evenshard.cli import main
os.environ["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:1"
for command in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        code = main(command)
    print(json.dumps([code, errors.getvalue()]))
"""
OPENS_HARDWARE = """
from evenshard.measure.config import MeasureConfig
from evenshard.measure.local_hardware import open_hardware
from evenshard.base.errors import BadInput
try:
    open_hardware(MeasureConfig("cpu"))
except BadInput as error:
    print(error)
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
    "describe costs.parquet": "pyarrow",
    "place tables.yaml --model work/round_3": "torch",
    "generate-tables --tables-out tables.parquet --tasks-out tasks.json": "torch",
    "place s3://bucket/tables.yaml": "boto3",
    "diff placement.json placement.json": "scipy",
    "pipeline compile --pipeline train --out loop.yaml": "kfp",
    "place many.yaml --devices 2 --memory-cap-gb 1.42 --batch-size 2 --sharding-types table_wise": "scipy",
}


def run(command: list[str], folder: Path, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command that must succeed, without a word about the checkout in its environment."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=folder, env=variables, input=typed, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done


@dataclass(frozen=True)
class Built:
    wheel: Path
    sdist: Path


def copy_checkout(folder: Path) -> Path:
    """A copy of the checkout, since building leaves files behind that a later build would pack."""
    patterns = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*_cache")

    def leave_out(folder: str, names: list[str]) -> set[str]:
        return patterns(folder, names) | (MADE_HERE if Path(folder) == ROOT else set())

    return Path(shutil.copytree(ROOT, folder / "evenshard", symlinks=True, ignore=leave_out))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """sdist and wheel of the checkout."""
    tree, out = copy_checkout(tmp_path_factory.mktemp("tree")), tmp_path_factory.mktemp("dist")
    done = run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)], tree)
    # setuptools says so where it packs data of folders that it does not list
    assert "absent from the `packages`" not in done.stdout + done.stderr
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return Built(wheel, sdist)


def metadata_of(file: Path) -> Message:
    """What an index reads of a wheel or sdist."""
    if file.suffix == ".whl":
        with ZipFile(file) as wheel:
            (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
            return Parser().parsestr(wheel.read(name).decode())
    with tarfile.open(file) as sdist:
        content = sdist.extractfile(f"{file.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert content is not None
        return Parser().parsestr(content.read().decode())


def environment(home: Path, package: str, distributions: Iterable[str], flags: Sequence[str] = ()) -> Path:
    """Make an environment with evenshard and links to some distributions; return the folder of its programs.

    No link has a RECORD, so pip refuses to replace a distribution by another version.
    """
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    (site_packages,) = home.glob("lib/python*/site-packages")
    for one in with_requirements(distributions):
        for top in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            source, target = Path(str(one.locate_file(top))), site_packages / top
            if top.endswith(".dist-info"):
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("RECORD"))
            elif not target.exists():
                target.symlink_to(source)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    run([*pip, "install", "--quiet", "--no-index", *flags, package], home)
    return home / "bin"


def with_requirements(names: Iterable[str]) -> Iterator[Distribution]:
    """Installed distributions and all that they require, each once, as far as it is installed here."""
    waiting, seen = list(names), set[str]()
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:  # TorchRec names the CUDA build of FBGEMM; what evenshard names, pip asks for
            continue
        yield found
        requirements = map(Requirement, found.requires or ())
        waiting += [one.name for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]


@pytest.fixture(scope="module")
def core(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment with the core alone."""
    return environment(tmp_path_factory.mktemp("core") / "venv", str(built.wheel), CORE)


@pytest.fixture(scope="module")
def beside_torchrec(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment with the extra for TorchRec, in an image that has TorchRec."""
    home = tmp_path_factory.mktemp("torchrec") / "venv"
    return environment(home, f"{built.wheel}[torchrec]", (*CORE, *TORCHREC))


def source_files() -> dict[str, Path]:
    """The files of the packages, by their names in a wheel."""
    return {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}": path
        for package, folder in PACKAGES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_file_of_its_packages(built: Built) -> None:
    with ZipFile(built.wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    expected = {name: path.read_bytes() for name, path in source_files().items()}
    assert {name.partition("/")[0] for name in expected} == {"evenshard", "evenshard_components", "evenshard_pipelines"}
    assert sorted(packed) == sorted(expected)
    assert packed == expected
    for kind in (".json", ".yaml", ".j2", "py.typed"):
        assert any(name.endswith(kind) for name in packed), kind


def test_the_sdist_holds_every_file_of_its_packages(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {path.relative_to(ROOT).as_posix() for path in source_files().values()} <= packed


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["lenient", "strict"])
def test_an_editable_install_finds_its_packages_in_the_checkout(mode: str, tmp_path: Path) -> None:
    tree = copy_checkout(tmp_path / "cloned")  # python -c would take a folder evenshard beside it for the package
    flags = ("--no-build-isolation", f"--config-settings=editable_mode={mode}", "--editable")
    programs = environment(tmp_path / "venv", str(tree), (*CORE, "setuptools"), flags)
    files, components = json.loads(run([str(programs / "python"), "-c", FINDS_PACKAGES], tmp_path).stdout)
    assert files.keys() == PACKAGES.keys()
    for package, file in files.items():
        assert Path(file).resolve() == tree / PACKAGES[package] / "__init__.py"
    assert components == sorted(path.parent.name for path in ROOT.glob("components/*/component.py"))


@pytest.mark.slow
def test_the_sdist_holds_what_git_tracks_and_its_tests_run(built: Built, tmp_path: Path) -> None:
    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    if (ROOT / ".git").exists():
        tracked = git(ROOT, "-c", "core.quotepath=off", "ls-files").splitlines()
        files = {name for name in tracked if (ROOT / name).is_file()}  # not the links to folders
        assert not {name for name in files if not (tree / name).exists()}
    variables = {**os.environ, "PYTHONPATH": str(tree / "src")}
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/base/test_messages.py"]
    done = subprocess.run(words, cwd=tree, env=variables, capture_output=True, text=True)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_an_index_shows_all_of_the_metadata(built: Built) -> None:
    said = run([sys.executable, "-m", "twine", "check", "--strict", str(built.wheel), str(built.sdist)], ROOT).stdout
    assert said.count("PASSED") == 2
    for core_metadata in (metadata_of(built.wheel), metadata_of(built.sdist)):
        for field in ("Summary", "Keywords", "License-Expression", "License-File", "Classifier", "Project-URL"):
            assert core_metadata[field], field
        assert core_metadata["Description-Content-Type"] == "text/markdown"
        links = dict(line.split(", ") for line in core_metadata.get_all("Project-URL", []))
        assert set(links) == {"Repository", "Changelog", "Issues"}
        assert all(link.startswith(links["Repository"]) for link in links.values())


@pytest.mark.slow
@pytest.mark.parametrize("version", PYTHONS)
def test_every_python_that_it_names_compiles_the_wheel(version: str, built: Built, tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    with ZipFile(built.wheel) as archive:
        archive.extractall(tmp_path)
    run([python, "-W", "error", "-m", "compileall", "-q", "-j", "1", "-o", "0", "evenshard"], tmp_path)
    units = run([python, "-c", "import evenshard.base.units as units; print(units.BYTES_PER_GB)"], tmp_path).stdout
    assert int(units) == 1024**3


def interpreter(version: str) -> str | None:
    """A Python of this version on the path; pyenv's name for it there need not lead to it."""
    found = shutil.which(f"python{version}")
    if found is None or Path(found).parent.name != "shims":
        return found
    return next(map(str, Path(found).parents[1].glob(f"versions/{version}.*/bin/python")), None)


def test_the_wheel_asks_for_what_the_project_names(built: Built) -> None:
    core_metadata = metadata_of(built.wheel)
    needed = [line.replace(" ", "") for line in core_metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(needed) == sorted(PROJECT["dependencies"])
    assert core_metadata["Requires-Python"] == PROJECT["requires-python"]
    assert core_metadata["License-Expression"] == PROJECT["license"]


@pytest.mark.slow
def test_the_core_places_tables_outside_of_the_checkout(core: Path, tmp_path: Path) -> None:
    evenshard = str(core / "evenshard")
    run([evenshard, "place", "mlperf_dlrm_v2", "--devices", "8", "-o", "placement.json"], tmp_path)
    schema = json.loads(run([evenshard, "place", "--schema"], tmp_path).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    answer = json.loads((tmp_path / "placement.json").read_text())
    jsonschema.validate(answer, schema, jsonschema.Draft202012Validator)
    assert len(answer["predicted"]["devices"]) == answer["num_devices"] == 8
    assert len({shard["table"] for shard in answer["shards"]}) == 26
    (tmp_path / "tables.yaml").write_text(TABLES)
    run([evenshard, "place", "tables.yaml", "--devices", "2", "--report", "page.html", "-o", "own.json"], tmp_path)
    assert "planner needs torchrec: pip install" in (tmp_path / "page.html").read_text()
    assert "C21" in run([evenshard, "explain", "placement.json", "--table", "C21"], tmp_path).stdout


@pytest.mark.slow
def test_a_missing_package_is_one_line_with_a_command(built: Built, core: Path, tmp_path: Path) -> None:
    (tmp_path / "tables.yaml").write_text(TABLES)
    (tmp_path / "many.yaml").write_text(TOO_MANY)
    for name in ("tables.parquet", "costs.parquet"):
        (tmp_path / name).write_bytes(b"PAR1")
    run([str(core / "evenshard"), "place", "tables.yaml", "--devices", "2", "-o", "placement.json"], tmp_path)
    commands = json.dumps([command.split() for command in NEEDS])
    output = run([str(core / "python"), "-c", RUNS_COMMANDS], tmp_path, commands).stdout
    for (command, package), line in zip(NEEDS.items(), output.splitlines(), strict=True):
        code, message = json.loads(line)
        assert (code, message.count("\n")) == (2, 1), message
        assert f" needs {package}: pip install '{built.wheel}[" in message, command
    said = run([str(core / "python"), "-c", OPENS_HARDWARE], tmp_path).stdout
    assert said.startswith("A learned model, training or measuring needs torch: pip install ")
    # pip takes the command of the first one, and finds no pyarrow without an index.
    words = shlex.split(json.loads(output.splitlines()[0])[1].partition(": pip ")[2])
    pip = [sys.executable, "-m", "pip", "--python", str(core / "python"), *words, "--no-index", "--find-links", "none"]
    done = subprocess.run(pip, cwd=tmp_path, capture_output=True, text=True)
    assert "No matching distribution found for pyarrow>=" in done.stderr


@pytest.mark.slow
def test_beside_torchrec_it_plans_for_a_model(beside_torchrec: Path, tmp_path: Path) -> None:
    plan = json.loads(run([str(beside_torchrec / "python"), "-c", PLANS_MODEL], tmp_path).stdout)
    assert len(plan) == 26
    assert {rank for ranks in plan.values() for rank in ranks} == set(range(8))


@pytest.mark.slow
def test_the_core_is_small(core: Path) -> None:
    (site_packages,) = core.parent.glob("lib/python*/site-packages")
    own = {"pip", "setuptools", "pkg_resources", "_distutils_hack"}
    tops = [one for one in site_packages.iterdir() if not one.name.startswith(tuple(own))]
    files = {file.resolve() for top in tops for file in (top.resolve().rglob("*") if top.is_dir() else [top])}
    assert 50 < sum(file.stat().st_size for file in files if file.is_file()) / 1e6 < CORE_MB


@pytest.mark.slow
def test_python_finds_the_installed_package(core: Path, tmp_path: Path) -> None:
    question = "import evenshard, json, sys; json.dump([evenshard.__file__, evenshard.__version__], sys.stdout)"
    file, version = json.loads(run([str(core / "python"), "-c", question], tmp_path).stdout)
    assert Path(file).is_relative_to(core.parent)
    files, components = json.loads(run([str(core / "python"), "-c", FINDS_PACKAGES], tmp_path).stdout)
    assert all(Path(one).is_relative_to(core.parent) for one in files.values()) and "place" in components
    assert re.search(rf'^__version__ = "{re.escape(version)}"$', (ROOT / "src/evenshard/version.py").read_text(), re.M)
