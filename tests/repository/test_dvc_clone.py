"""What DVC and git bring to a fresh clone of what is committed: the reference loop with its metrics and plots."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from evenshard.base.provenance import RESULT
from support.dataset_builders import dvc, git
from support.repository import ROOT

sys.path.insert(0, str(ROOT / "pipelines"))

from dvc_rounds import paths

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    folder = tmp_path_factory.mktemp("clones") / "main"
    git(ROOT, "clone", "--quiet", "--depth", "1", f"file://{ROOT}", str(folder))
    return folder


def test_a_clone_shows_metrics_and_plots_and_pulls_the_loop_of_these_settings(fresh: Path) -> None:
    (of_file,) = json.loads(dvc(fresh, "metrics", "show", "--json"))[""]["data"].values()
    assert of_file["data"] == json.loads((fresh / "reports/summary.json").read_text())
    plots = json.loads(dvc(fresh, "plots", "show", "--json"))
    content = yaml.safe_load((fresh / "dvc.yaml").read_text())
    assert set(plots["data"]) == set(paths(content["plots"])) and not plots.get("errors")
    for path in RESULT:  # no folder of the machine that measured
        assert not re.search(r"(^|[\s\"'])(/|~|[A-Z]:\\)", (fresh / path).read_text(), flags=re.MULTILINE), path
    dvc(fresh, "pull")
    stages = content["stages"]
    assert yaml.safe_load((fresh / "dvc.lock").read_text())["stages"].keys() == stages.keys()
    for stage in stages.values():
        assert all((fresh / path).exists() for path in paths([*stage["outs"], *stage.get("metrics", [])]))
    # Where settings or commands have changed, make another reference: docs/dvc.md.
    assert json.loads(dvc(fresh, "status", "--json")) == {"hardware": ["always changed"]}
    assert git(fresh, "status", "--porcelain") == ""
