"""An estimator for TorchRec's planner: exported as documented, used without evenshard, and true to the costs."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from evenshard.cli import main
from evenshard.sharders.torchrec.planner import machine_bandwidths
from evenshard.sharders.torchrec.rival import TorchRecPlanner
from evenshard.tables.catalog import load_catalog
from evenshard.torchrec.estimator import export_estimator, load_estimator
from evenshard.torchrec.estimator.examples import FittedMachine, random_parts
from evenshard.torchrec.estimator.files import save_estimator
from evenshard.utils.errors import BadConfig, BadFile
from support.documented import command, snippet
from support.learned import LEARNED

PAGE = "docs/torchrec_estimator.md"
USE = """
import sys

sys.modules["evenshard"] = None  # not to be imported
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

batch_size = 512
topology = Topology(world_size=4, compute_device="cuda", local_world_size=2)
constraints = {"t0": ParameterConstraints(pooling_factors=[40.0])}
{snippet}
tables = [
    EmbeddingBagConfig(name=f"t{number}", feature_names=[f"f{number}"], num_embeddings=rows, embedding_dim=64)
    for number, rows in enumerate((2_000_000, 500_000, 3_000, 20))
]
model = EmbeddingBagCollection(tables=tables, device="meta")
plan = planner.plan(model, [EmbeddingBagCollectionSharder()])
print("types", {name: one.sharding_type for name, one in plan.plan[""].items()})
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documented command's file."""
    folder = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(command(PAGE, "evenshard export-estimator --hardware")) == 0
    return folder / "estimator.py"


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_file_works_in_torchrecs_planner_without_evenshard(exported: Path) -> None:
    code = USE.replace("{snippet}", snippet(PAGE, "import estimator\n"))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=exported.parent, capture_output=True, text=True, env={"PATH": ""}, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "types {'t0': " in done.stdout


@pytest.mark.slow
def test_the_file_says_what_it_is(exported: Path) -> None:
    module = module_of(exported)
    assert module.__doc__ is not None
    assert "device model of simulated:h100" in module.__doc__
    assert "evenshard export-estimator --hardware=simulated:h100" in module.__doc__
    assert f"{module.FIT['error']['median_percent']} %" in module.__doc__
    assert module.FIT["error"]["mean_rank_correlation"] > 0.95
    assert all(
        value > 0
        for of_type in module.FIT["compute"].values()
        for of_pass in of_type.values()
        for value in of_pass.values()
    )


@pytest.mark.slow
def test_ratings_keep_the_order_of_true_costs(exported: Path) -> None:
    """On tables that it was not fitted to, with real memory; TorchRec's own estimator is farther off."""
    module = module_of(exported)
    machine = FittedMachine("simulated:h100")
    request = machine.request(load_catalog("nvidia_tiny", 65_536)[:40], 2, 80 * 2**30)
    task, times_of = request.task(), machine.times(request)
    bandwidths = machine_bandwidths("simulated:h100", task.machine, machine.links())
    ours = TorchRecPlanner(task, bandwidths, estimator_of=module.estimator, rates=module.FittedPerfModel)
    theirs = TorchRecPlanner(task, bandwidths)
    rng = np.random.default_rng(1)
    placements = [random_parts(task, rng) for _ in range(30)]
    true = [times_of(parts).sum(axis=1).max() for parts in placements]
    correlation, default = (
        spearmanr(true, [planner.rating_ms(parts) for parts in placements]).statistic for planner in (ours, theirs)
    )
    assert correlation >= 0.95
    assert correlation > default


@pytest.mark.slow
def test_json_gives_the_same_estimates(exported: Path, tmp_path: Path) -> None:
    module, path = module_of(exported), tmp_path / "estimator.json"
    save_estimator(module.FIT, path)
    task = FittedMachine("simulated:h100").request(load_catalog("mlperf_dlrm_v2", 65_536)[:5], 1).task()
    bandwidths = machine_bandwidths("simulated:h100", task.machine, FittedMachine("simulated:h100").links())
    parts = random_parts(task, np.random.default_rng(0))
    scope: dict[str, Any] = {}

    def read(topology: Any, constraints: Any) -> Any:
        scope.update(topology=topology, constraints=constraints)
        code = snippet(PAGE, "import load_estimator").replace('"estimator.json"', repr(str(path)))
        exec(code, scope)
        return scope["costs"]

    ratings = {
        TorchRecPlanner(task, bandwidths, estimator_of=estimator_of).rating_ms(parts)
        for estimator_of in (read, module.estimator)
    }
    assert len(ratings) == 1


@pytest.mark.slow
def test_the_factory_knows_the_file(exported: Path) -> None:
    module_of(exported)
    from torchrec.distributed.planner.estimator.estimator import EmbeddingPerfEstimatorFactory
    from torchrec.distributed.planner.types import Topology

    created = EmbeddingPerfEstimatorFactory.create("evenshard_simulated_h100", topology=Topology(2, "cuda"))
    assert created.config.fit["hardware"] == "simulated:h100"


@pytest.mark.slow
def test_the_predictions_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As documented, of a round's folder; a learned model stands for it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(LEARNED, "work/round_3")
    assert main(command(PAGE, "evenshard export-estimator --model")) == 0
    from torchrec.distributed.planner.types import Topology

    estimator = load_estimator("estimator.json", Topology(4, "cuda"))
    assert "what the model work/round_3 predicts" in estimator.config.fit["fitted_to"]
    assert estimator.config.fit["inter"]["own_ns"] == 1 / 3.125
    assert estimator.config.fit["error"]["mean_rank_correlation"] > 0.9


@pytest.mark.parametrize(
    ("name", "more", "problem"),
    [
        ("estimator.txt", {"hardware": "simulated:h100"}, r"\.py or a \.json file, not estimator\.txt"),
        ("estimator.py", {}, "neither --hardware nor --model"),
        ("estimator.py", {"hardware": "cpu"}, "only a model knows its costs"),
        ("estimator.py", {"hardware": "simulated:h100", "inter": "string"}, "link is .string."),
    ],
)
def test_bad_input(tmp_path: Path, name: str, more: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadConfig, match=problem):
        export_estimator(tmp_path / name, **more)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("content", ["[]", "{", '{"schema_version": 1}', '{"schema_version": 2}'])
def test_bad_files(tmp_path: Path, content: str) -> None:
    path = tmp_path / "estimator.json"
    path.write_text(content)
    with pytest.raises(BadFile, match="export-estimator"):
        load_estimator(path, topology=None)  # type: ignore[arg-type]
