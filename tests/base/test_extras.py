"""A package that is not installed is one line with the command that installs it."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version

import pytest

from evenshard.base.errors import BadInput, MissingPackage
from evenshard.base.installation import EXTRAS, install_command, require_package
from support.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(autouse=True)
def from_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where evenshard came from is of test_installation.py."""
    monkeypatch.setattr("evenshard.base.installation.pip_words", lambda extra: f"'evenshard[{extra}]'")


def packages_of(extra: str) -> Iterator[str]:
    """Distributions of an extra and of those it names, without versions."""
    for requirement in PROJECT["optional-dependencies"][extra]:
        if others := re.fullmatch(r"evenshard\[(.*)\]", requirement):
            for other in others[1].split(","):
                yield from packages_of(other)
        else:
            yield re.split(r"[>=\[]", requirement)[0]


@pytest.mark.parametrize("package", EXTRAS)
def test_a_missing_package_is_one_line_with_a_command(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage, match=rf" needs {package}: pip install 'evenshard\[[\w,]+\]'") as caught:
        require_package(package)
    assert isinstance(caught.value, BadInput)
    assert "\n" not in str(caught.value)


def test_a_package_that_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kfp.kubernetes", None)
    with pytest.raises(MissingPackage, match=r"needs kfp, which cannot be imported \(.*kubernetes.*\): pip"):
        require_package("kfp.kubernetes")


@pytest.mark.parametrize("package", sorted(EXTRAS.keys() - {"torchrec"}))
def test_the_named_extra_has_the_package(package: str) -> None:
    found = [name.replace("-", "_").removesuffix("_cpu") for name in packages_of(EXTRAS[package][0])]
    assert package in found


def test_releases_are_those_that_go_with_the_installed_torch() -> None:
    for package, distribution in (("fbgemm_gpu", "fbgemm-gpu-cpu"), ("torchrec", "torchrec")):
        release = ".".join(version(distribution).split(".")[:2])
        assert f"'{distribution}=={release}.*'" in install_command(package)
    assert f" torch=={version('torch').partition('+')[0]} " in install_command("torchrec")


def test_on_a_gpu_the_command_installs_the_cuda_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.cuda", "12.4")
    monkeypatch.setattr("torch.__version__", "2.12.1+cu126")
    assert install_command("fbgemm_gpu") == "pip install 'evenshard[cuda,loop]' torch==2.12.1 'fbgemm-gpu==1.7.*'"
    assert install_command("torchrec").endswith("&& pip install --no-deps 'torchrec==1.7.*' 'fbgemm-gpu==1.7.*'")
    assert {*packages_of("cuda"), *packages_of("loop")} >= {"fbgemm-gpu", "pyarrow"}


def test_a_torch_too_old_for_measuring_or_for_torchrec_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.cuda", None)
    monkeypatch.setattr("torch.__version__", "2.6.0")
    command = "pip install 'evenshard[benchmark]' 'torch==2.13.*' 'fbgemm-gpu-cpu==1.8.*'"
    assert install_command("fbgemm_gpu") == command
    assert install_command("torchrec") == (
        "pip install 'evenshard[torchrec]' 'torch==2.12.*' && "
        "pip install --no-deps 'torchrec==1.7.*' 'fbgemm-gpu-cpu==1.7.*'"
    )


def test_all_has_everything_but_one_build_of_fbgemm_and_the_developers_tools() -> None:
    everything = {name for extra in PROJECT["optional-dependencies"] for name in packages_of(extra)}
    tools = {*packages_of("dev"), *packages_of("docs"), "fbgemm-gpu"}
    assert everything - tools == set(packages_of("all"))
