"""The optimizers of a model's tables, as its parameters and its sharders name them, and what a plan makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torchrec
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

import evenshard
from evenshard.base.errors import BadConfig, InfeasibleTask
from evenshard.placement.sharding import DATA_PARALLEL, SHARDING_TYPES
from evenshard.tables.table import Table
from evenshard.torchrec import EvenshardPlanner, load_plan, save_plan, sharding_plan
from evenshard.torchrec.model.fused_optimizers import OPTIMIZER_OF, find_optimizers
from support.torchrec_builders import META, config

# Of what TorchRec's function imports, and of its name: torch's own is private.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.interface. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This API is deprecated:DeprecationWarning"),
]

OURS = {
    torch.optim.SGD: "sgd",
    torch.optim.Adagrad: "adagrad",
    torch.optim.Adam: "adam",
    torchrec.optim.SGD: "sgd",
    torchrec.optim.LarsSGD: "lars_sgd",
    torchrec.optim.LAMB: "lamb",
    torchrec.optim.PartialRowWiseLAMB: "partial_rowwise_lamb",
    torchrec.optim.Adam: "adam",
    torchrec.optim.PartialRowWiseAdam: "partial_rowwise_adam",
    torchrec.optim.Adagrad: "adagrad",
    torchrec.optim.RowWiseAdagrad: "rowwise_adagrad",
}


def bags(count: int, rows: int = 1000, dim: int = 16) -> nn.Module:
    """A model of pooled tables t0, t1, ..."""
    model = nn.Module()
    model.ebc = EmbeddingBagCollection([config(f"t{one}", rows, dim) for one in range(count)], device=META)
    return model


def trained(model: nn.Module, kind: Any = torch.optim.SGD, **settings: Any) -> nn.Module:
    """The model with this optimizer of all tables in the backward pass."""
    apply_optimizer_in_backward(kind, model.parameters(), {"lr": 0.1, **settings})
    return model


def mixed() -> nn.Module:
    """Of three large tables, one with Adam, one with SGD, and one with none."""
    model = bags(3, rows=1_000_000, dim=64)
    for name, kind in (("t0", torch.optim.Adam), ("t1", torch.optim.SGD)):
        apply_optimizer_in_backward(kind, model.ebc.embedding_bags[name].parameters(), {"lr": 0.1})
    return model


def planner(**more: Any) -> EvenshardPlanner:
    return EvenshardPlanner(**{"world_size": 2, "compute_device": "cuda", **more})


def types_of(made: EvenshardPlanner) -> set[str]:
    assert made.answer is not None
    return set(made.answer.type_of_table.values())


# Read off a model -----------------------------------------------------------------------------------------------------


def test_every_class_that_torchrec_has_kernels_for_is_known() -> None:
    from torchrec.distributed.utils import _OPTIMIZER_CLASS_TO_EMB_OPT_TYPE

    for kind, word in OURS.items():
        assert find_optimizers(trained(bags(2), kind)).of_tables == dict.fromkeys(("t0", "t1"), word)
    assert set(OURS) == set(_OPTIMIZER_CLASS_TO_EMB_OPT_TYPE)
    assert {*OPTIMIZER_OF} | {"SHAMPOO", "SHAMPOO_V2", "MADGRAD"} == {one.name for one in EmbOptimType}


def test_a_sharder_names_one_for_its_modules_and_a_parameter_has_its_own() -> None:
    """A learning rate alone is FBGEMM's SGD, which the sharder sets."""
    model = bags(2)
    model.ec = EmbeddingCollection(
        tables=[EmbeddingConfig(name="s", feature_names=["s"], num_embeddings=10, embedding_dim=8)], device=META
    )
    sharders = [
        EmbeddingBagCollectionSharder({"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD}),
        EmbeddingCollectionSharder({"learning_rate": 0.2}),
    ]
    apply_optimizer_in_backward(torch.optim.Adam, model.ebc.embedding_bags["t1"].parameters(), {"lr": 0.1})
    found = find_optimizers(model, sharders=sharders)
    assert found.of_tables == {"t0": "rowwise_adagrad", "t1": "adam", "s": "sgd"}
    assert find_optimizers(model).of_tables == {"t1": "adam"}


def test_what_no_model_names_is_assumed_and_what_is_unknown_counted_as_the_largest() -> None:
    found = find_optimizers(bags(2))
    assert (found.optimizer, found.of_tables) == ("sgd", {})
    assert [(one.table, one.column) for one in found.assumptions] == [("t0", "optimizer"), ("t1", "optimizer")]
    assert find_optimizers(bags(2), "adam").assumptions == ()
    unknown = find_optimizers(trained(bags(1), torch.optim.Adadelta))
    assert unknown.of_tables == {"t0": "adam"}
    assert [one.text for one in unknown.assumptions] == ["Adadelta is unknown: its state is counted as that of adam"]
    assert find_optimizers(trained(bags(1), torch.optim.Adadelta), "sgd").of_tables == {"t0": "sgd"}


def test_an_optimizer_that_contradicts_the_model_is_refused() -> None:
    problem = r"trains table 't0' with adam \(Adam, by apply_optimizer_in_backward\), but optimizer is sgd. Leave"
    model = trained(bags(2), torch.optim.Adam)
    with pytest.raises(PlannerError, match=problem):
        planner(optimizer="sgd").plan(model)
    with pytest.raises(BadConfig, match=problem):
        evenshard.place(model, 2, 32, optimizer="sgd")
    twice = trained(trained(bags(1)), torch.optim.Adam)
    with pytest.raises(BadConfig, match="'t0' has several optimizers"):
        find_optimizers(twice)


# Memory ---------------------------------------------------------------------------------------------------------------


def test_tables_that_fit_without_their_state_alone_are_refused_as_by_torchrec() -> None:
    """Eight tables of 4.8 GB with Adam: 115 GB on two ranks of 32. As plain weights they fit."""
    model = trained(bags(8, rows=10_000_000, dim=128), torch.optim.Adam)
    topology = Topology(world_size=2, compute_device="cuda", ddr_cap=0)
    kept: dict[str, Any] = {"storage_reservation": FixedPercentageStorageReservation(0.15)}
    for one in (EvenshardPlanner(topology, **kept), EmbeddingShardingPlanner(topology, **kept)):
        with pytest.raises(PlannerError) as error:
            one.plan(model, get_default_sharders())
        assert error.value.error_type == PlannerErrorType.INSUFFICIENT_STORAGE
    with pytest.raises(InfeasibleTask, match=r"need at least 11\d\.\d\d GB"):
        evenshard.place(model, 2, 32.0)


def planned(model: nn.Module, **more: Any) -> EvenshardPlanner:
    made = planner(**{**({} if more.get("compute_device") == "cpu" else {"host_memory_gb": 0}), **more})
    made.plan(model)
    return made


def test_a_mixture_counts_table_by_table_in_the_search_and_in_the_answer() -> None:
    """State of t0 alone: twice its weights. Where all three have Adam, nothing fits."""
    weights = 1_000_000 * 64 * 4
    alone: dict[str, Any] = {"reserved_gb": 0.0, "dense_gb": 0.0, "training_pipeline": ""}
    cap_gb = 2.5 * weights / 2**30
    for answer in (
        planned(mixed(), memory_cap_gb=cap_gb, **alone).answer,
        evenshard.place(mixed(), 2, cap_gb, **alone),
    ):
        assert answer is not None
        sizes = dict.fromkeys(["t0", "t1", "t2"], 0)
        for part, memory in zip(answer.parts, answer.part_memory, strict=True):
            sizes[part.table] += memory.optimizer_state * len(part.devices)
        assert sizes == {"t0": 2 * weights, "t1": 0, "t2": 0}
        assert sum(one.optimizer_state for one in answer.memory) == 2 * weights
        assert "sgd (2 tables) + adam (1 table)" in " ".join(answer.summary(verbose=True).split())
    with pytest.raises(InfeasibleTask):
        evenshard.place(trained(bags(3, rows=1_000_000, dim=64), torch.optim.Adam), 2, cap_gb, **alone)


# Replicas -------------------------------------------------------------------------------------------------------------


def test_small_tables_with_a_fused_optimizer_are_not_replicated() -> None:
    """As facebookresearch/dlrm has them: replicas would be the fastest, and are where no optimizer is named."""
    made = planned(trained(bags(4)))
    assert DATA_PARALLEL not in types_of(made)
    assert any(note.startswith("Replicas (data_parallel) of 4 tables (t0, t1, ") for note in made.notes)
    assert made.answer is not None and set(made.notes) <= set(made.answer.notes)
    assert DATA_PARALLEL not in evenshard.place(trained(bags(4)), 2, 32).type_of_table.values()
    assert types_of(planned(bags(4))) == {DATA_PARALLEL}


REPLICATED = [
    {"dense_optimizer": "sgd"},
    {"table_types": {f"t{one}": SHARDING_TYPES for one in range(4)}},
]


@pytest.mark.parametrize("more", REPLICATED)
def test_they_are_where_the_dense_optimizer_is_the_same_or_who_asks_for_it(more: dict[str, Any]) -> None:
    made, note = planned(trained(bags(4)), **more), "updates 4 data_parallel tables (t0, t1, t2, t3)"
    assert types_of(made) == {DATA_PARALLEL}
    answer = evenshard.place(trained(bags(4)), 2, 32, **more)
    assert set(answer.type_of_table.values()) == {DATA_PARALLEL}
    for notes in (made.answer.notes if made.answer else (), answer.notes):
        assert any(note in one for one in notes)


def test_constraints_name_the_tables_that_may() -> None:
    constraints = {
        "t1": ParameterConstraints(sharding_types=["data_parallel"]),
        "t2": ParameterConstraints(compute_kernels=["dense"]),
        "t3": ParameterConstraints(compute_kernels=["fused"]),
    }
    made = planned(trained(bags(5)), constraints=constraints)
    assert made.answer is not None
    found = made.answer.type_of_table
    assert [name for name, way in found.items() if way == DATA_PARALLEL] == ["t1", "t2"]
    assert any(note.startswith("Replicas (data_parallel) of 2 tables (t0, t4)") for note in made.notes)


# Plans ----------------------------------------------------------------------------------------------------------------

TABLES = [Table(f"t{one}", 1000, 16, 1.0) for one in range(2)]
UNSAID = "table 't0' is data_parallel.* in place of its fused optimizer, sgd .apply_opt.* --dense-optimizer sgd"


def test_an_answer_for_tables_becomes_no_plan_that_leaves_the_models_optimizer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless it names replicas, or the dense optimizer; a plan file keeps what was said."""
    model, path = trained(bags(2)), tmp_path / "plan.json"
    unsaid = evenshard.place(TABLES, 2, 32)
    assert set(unsaid.type_of_table.values()) == {DATA_PARALLEL}
    save_plan(unsaid, path)
    for write in (lambda: sharding_plan(unsaid, model), lambda: load_plan(path, model)):
        with pytest.raises(BadConfig, match=UNSAID):
            write()
    assert load_plan(path, bags(2)) == sharding_plan(unsaid, bags(2))
    for more in ({"optimizer": "sgd", "dense_optimizer": "sgd"}, {"sharding_types": ["data_parallel"]}):
        answer = evenshard.place(TABLES, 2, 32, **more)
        save_plan(answer, path)
        plan = load_plan(path, model)
        assert plan == sharding_plan(answer, model)
        assert {one.sharding_type for one in plan.plan["ebc"].values()} == {DATA_PARALLEL}
    other = evenshard.place(TABLES, 2, 32, optimizer="adam", dense_optimizer="adam")
    with pytest.raises(BadConfig, match=UNSAID):
        sharding_plan(other, model)
    sharding_plan(other.parts, TABLES, model, 2)
    assert "Your dense optimizer updates 2 data_parallel tables (t0, ...)" in caplog.text
