"""What a message tells the user to type works from where evenshard was installed: an index, a wheel, a folder, git."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenshard.base import installation
from evenshard.base.errors import BadInput, MissingPackage
from evenshard.base.installation import (
    EXTRAS,
    checkout,
    how_to_train,
    install_command,
    name_missing_package,
    pip_words,
    require_package,
)
from support.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIRES = """\
Requires-Dist: torch>=2.6
Requires-Dist: pyarrow>=17; extra == "parquet"
Requires-Dist: scipy>=1.11; extra == "near"
Requires-Dist: evenshard[near,parquet]; extra == "loop"
Requires-Dist: matplotlib>=3.8; extra == "loop"
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The metadata of an evenshard that was installed as a copy, without an origin: from an index."""
    monkeypatch.setattr(installation, "__file__", str(tmp_path / "lib/evenshard/base/installation.py"))
    folder = tmp_path / "evenshard-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: evenshard\nVersion: 0.1.0\n{REQUIRES}")
    monkeypatch.setattr(installation, "distribution", lambda name: importlib.metadata.PathDistribution(folder))
    return folder


def test_in_a_checkout_its_folder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert checkout() == ROOT and how_to_train() == "`make run`"
    monkeypatch.chdir(tmp_path)
    assert shlex.split(pip_words("mlops")) == ["--editable", f"{ROOT}[mlops]"]
    monkeypatch.chdir(ROOT)
    assert pip_words("mlops") == "--editable '.[mlops]'"


@pytest.mark.parametrize(
    ("origin", "extra", "words"),
    [
        ({"url": "file:///FOLDER/my%20wheels/x.whl"}, "loop", ["/FOLDER/my wheels/x.whl[loop]"]),
        ({}, "mlops", ["evenshard[mlops]"]),
        ({"url": "file:///gone.whl"}, "loop", ["matplotlib>=3.8", "pyarrow>=17", "scipy>=1.11"]),
        ({"url": "https://h/x.whl"}, "near", ["evenshard[near] @ https://h/x.whl"]),
        (
            {"url": "https://h/x.git", "vcs_info": {"vcs": "git", "commit_id": "0a"}},
            "near",
            ["evenshard[near] @ git+https://h/x.git@0a"],
        ),
    ],
)
def test_the_origin_is_named_again(installed: Path, origin: dict[str, object], extra: str, words: list[str]) -> None:
    assert checkout() is None and how_to_train() == "`evenshard pipeline run`"
    folder = str(installed.parent).lstrip("/")
    (installed.parent / "my wheels").mkdir()
    (installed.parent / "my wheels/x.whl").touch()
    (installed / "direct_url.json").write_text(json.dumps(origin).replace("FOLDER", folder))
    assert shlex.split(pip_words(extra)) == [word.replace("FOLDER", folder) for word in words]


def test_an_image_has_no_pip_to_advise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(installation.IMAGE_MARK, "1")
    monkeypatch.setitem(sys.modules, "kfp", None)
    with pytest.raises(MissingPackage) as caught:
        require_package("kfp")
    assert str(caught.value).startswith("A Kubeflow pipeline needs kfp: this image lacks it. Add the extra mlops ")
    assert f"{installation.IMAGE_MARK}=1" in (ROOT / "Dockerfile").read_text()


# Packages of extras ---------------------------------------------------------------------------------------------------


@pytest.fixture
def from_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "pip_words", lambda extra: f"'evenshard[{extra}]'")


def packages_of(extra: str) -> Iterator[str]:
    """Distributions of an extra and of those it names, without versions."""
    for requirement in PROJECT["optional-dependencies"][extra]:
        if others := re.fullmatch(r"evenshard\[(.*)\]", requirement):
            for other in others[1].split(","):
                yield from packages_of(other)
        else:
            yield re.split(r"[>=\[]", requirement)[0]


def test_a_missing_package_is_one_line_with_a_command(monkeypatch: pytest.MonkeyPatch, from_an_index: None) -> None:
    for package in EXTRAS:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(MissingPackage, match=rf" needs {package}: pip install 'evenshard\[[\w,]+\]'") as caught:
                require_package(package)
        assert isinstance(caught.value, BadInput) and "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "kfp.kubernetes", None)
    with pytest.raises(MissingPackage, match=r"needs kfp, which cannot be imported \(.*kubernetes.*\): pip"):
        require_package("kfp.kubernetes")
    with pytest.raises(MissingPackage, match="An exact solver needs scipy: pip"), name_missing_package():
        raise ModuleNotFoundError(name="scipy.optimize")
    with pytest.raises(ModuleNotFoundError), name_missing_package():
        raise ModuleNotFoundError(name="unknown")


def test_the_named_extra_has_the_package_and_all_has_everything_but_a_build_of_fbgemm_and_tools() -> None:
    for package in EXTRAS.keys() - {"torchrec"}:
        found = [name.replace("-", "_").removesuffix("_cpu") for name in packages_of(EXTRAS[package][0])]
        assert package in found
    everything = {name for extra in PROJECT["optional-dependencies"] for name in packages_of(extra)}
    tools = {*packages_of("dev"), *packages_of("docs"), "fbgemm-gpu"}
    assert everything - tools == set(packages_of("all"))


@pytest.mark.parametrize(
    ("torch", "cuda", "measuring", "with_torchrec"),
    [
        ("2.12.1+cu126", "12.4", "[cuda,loop]' torch==2.12.1 'fbgemm-gpu==1.7.*'", "torch==2.12.1"),
        ("2.11.0", "12.4", "[cuda,loop]' torch==2.11.0 'fbgemm-gpu==1.6.*'", "'torch==2.12.*'"),
        ("2.6.0", None, "[benchmark]' 'torch==2.13.*' 'fbgemm-gpu-cpu==1.8.*'", "'torch==2.12.*'"),
    ],
)
def test_commands_keep_the_torch_unless_it_is_too_old(
    monkeypatch: pytest.MonkeyPatch,
    from_an_index: None,
    torch: str,
    cuda: str | None,
    measuring: str,
    with_torchrec: str,
) -> None:
    monkeypatch.setattr("torch.version.cuda", cuda)
    monkeypatch.setattr("torch.__version__", torch)
    assert install_command("fbgemm_gpu") == f"pip install 'evenshard{measuring}"
    build = "fbgemm-gpu-cpu" if cuda is None else "fbgemm-gpu"
    assert install_command("torchrec") == (
        f"pip install 'evenshard[torchrec]' {with_torchrec} && pip install --no-deps 'torchrec==1.7.*' '{build}==1.7.*'"
    )
