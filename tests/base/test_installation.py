"""What a message tells the user to type works from where evenshard was installed: an index, a wheel, a folder, git."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import sys
from pathlib import Path

import pytest

from evenshard.base import installation
from evenshard.base.errors import MissingPackage
from evenshard.base.installation import checkout, how_to_train, pip_words, require_package
from support.repository import ROOT

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


def came_from(installed: Path, url: str, **more: object) -> None:
    (installed / "direct_url.json").write_text(json.dumps({"url": url, **more}))


def test_in_a_checkout_its_folder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert checkout() == ROOT and how_to_train() == "`make run`"
    monkeypatch.chdir(tmp_path)
    assert shlex.split(pip_words("mlops")) == ["--editable", f"{ROOT}[mlops]"]
    monkeypatch.chdir(ROOT)
    assert pip_words("mlops") == "--editable '.[mlops]'"


def test_from_an_index_the_name_is_enough(installed: Path) -> None:
    assert pip_words("mlops") == "'evenshard[mlops]'"
    assert checkout() is None and how_to_train() == "`evenshard pipeline run`"


def test_a_wheel_is_named_again_with_the_extra(installed: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "my wheels" / "evenshard-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    came_from(installed, wheel.as_uri(), archive_info={})
    assert shlex.split(pip_words("loop")) == [f"{wheel}[loop]"]


def test_where_the_wheel_is_gone_the_packages_are_named(installed: Path, tmp_path: Path) -> None:
    came_from(installed, (tmp_path / "gone.whl").as_uri(), archive_info={})
    assert pip_words("parquet") == "'pyarrow>=17'"
    assert shlex.split(pip_words("loop")) == ["matplotlib>=3.8", "pyarrow>=17", "scipy>=1.11"]


def test_an_address_and_a_commit_are_named_again(installed: Path) -> None:
    came_from(installed, "https://example.com/evenshard-0.1.0-py3-none-any.whl", archive_info={})
    assert pip_words("near") == "'evenshard[near] @ https://example.com/evenshard-0.1.0-py3-none-any.whl'"
    came_from(installed, "https://example.com/evenshard.git", vcs_info={"vcs": "git", "commit_id": "0" * 40})
    assert pip_words("near") == f"'evenshard[near] @ git+https://example.com/evenshard.git@{'0' * 40}'"


def test_an_image_has_no_pip_to_advise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(installation.IMAGE_MARK, "1")
    monkeypatch.setitem(sys.modules, "kfp", None)
    with pytest.raises(MissingPackage) as caught:
        require_package("kfp")
    assert str(caught.value).startswith("A Kubeflow pipeline needs kfp: this image lacks it. Add the extra mlops ")
    assert f"{installation.IMAGE_MARK}=1" in (ROOT / "Dockerfile").read_text()
