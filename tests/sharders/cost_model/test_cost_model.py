"""The cost model: its shape, and its files; what it says of placements is tested beside (``test_price.py``)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from evenshard.base.errors import BadFile, TrainingFailed
from evenshard.placement.placement import Placement
from evenshard.sharders.cost_model.cost_model import INPUTS, JUMPS, Calibration, CostModel, ExchangeTime
from evenshard.sharders.cost_model.network import NUM_JUMP_SUMS, QUANTITIES, additive_work_TA, jump_sums_TJ
from evenshard.tables.reuse import NUM_REUSE_BINS
from evenshard.tables.table import Table
from support.builders import BATCH_SIZE, table, task
from support.convex_builders import EXCHANGE, TABLES, bound_ms, predicted, random_model


def random_sums(model: CostModel, count: int, seed: int) -> torch.Tensor:
    """[N, H] sums of random weights of the tables' representations."""
    weights = torch.rand(count, len(TABLES), generator=torch.Generator().manual_seed(seed)) ** 4 * 2
    return weights @ model.represent(TABLES, BATCH_SIZE)


def member_compute_ms(model: CostModel, sums: torch.Tensor) -> torch.Tensor:
    """[N, K] the same by each of them."""
    with torch.no_grad():
        return model.net.member_ms(sums[:, INPUTS], sums[:, JUMPS]).sum(dim=-1)


def test_additive_work_by_hand_and_at_its_edges() -> None:
    """Dim 5 of 16 bits: rows of 10 bytes are one sector of 32, gradients of 20 bytes too. Pooling 2, batch 64."""
    twice_each = (0.0, 1.0) + (0.0,) * (NUM_REUSE_BINS - 2)
    (work,) = additive_work_TA([Table("t", 100, 5, 2.0, twice_each, 16)], 64).tolist()
    assert dict(zip(QUANTITIES, work, strict=True)) == {
        "tables": 1.0,
        "dims": 5.0,
        "lookups": 128.0,
        "values": 640.0,
        "row_bytes": 128.0 * 32,
        "grad_bytes": 128.0 * 32,
        "unique_rows": 64.0,
        "unique_bytes": 64.0 * 32,
    }
    (few_rows,) = additive_work_TA([table(rows=10, pooling=2.0)], 64).tolist()
    assert few_rows[QUANTITIES.index("unique_rows")] == 10
    (never_read,) = additive_work_TA([table(dim=4, pooling=0.0)], 64).tolist()
    assert never_read == [1.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_representations_are_never_negative_and_begin_with_dims_and_rows() -> None:
    represented = random_model().represent(TABLES, BATCH_SIZE)
    assert represented.dtype == torch.float32
    assert (represented >= 0).all()
    assert represented[:, 0].tolist() == [one.embedding_dim for one in TABLES]
    assert represented[:, 1].tolist() == [one.num_rows for one in TABLES]


@pytest.mark.parametrize("stepped", [False, True], ids=["new", "after a step of learning"])
def test_the_cost_is_convex_with_the_same_jumps_and_never_falls(stepped: bool) -> None:
    model = random_model(1)
    if stepped:
        with torch.no_grad():
            for parameter in model.net.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
        assert not model.net.is_convex()
        model.net.project()
        assert (model.net.overhead > 0).all()
    assert model.net.is_convex()
    one, other = random_sums(model, 300, 10), random_sums(model, 300, 20)
    assert (member_compute_ms(model, one + other) >= member_compute_ms(model, one)).all()
    one[:, JUMPS] = other[:, JUMPS] = 300.0
    between, low, high = (member_compute_ms(model, sums) for sums in ((one + other) / 2, one, other))
    assert (between <= (low + high) / 2 * (1 + 1e-5)).all()
    assert (between < (low + high) / 2 * 0.99).any()


def test_from_each_eight_bits_of_rows_on_every_lookup_costs_another_pass() -> None:
    """Weights of 1, 2, 3 and 4 for both outputs of all members, times of 2 and 5 ms, and 3 mean devices' lookups."""
    model = random_model()
    with torch.no_grad():
        model.net.pass_weight.copy_(torch.tensor([[1.0], [2.0], [3.0], [4.0]]).expand_as(model.net.pass_weight))
    inputs = torch.zeros(8, model.net.own_pieces.shape[0])
    inputs[:, QUANTITIES.index("lookups")] = 3.0
    jump_sums = torch.zeros(8, NUM_JUMP_SUMS)
    jump_sums[:, 0] = torch.tensor([0, 255, 256, 2**16 - 1, 2**16, 2**24 - 1, 2**24, 2.0**32])
    times = model.net.member_ms(inputs, jump_sums)
    passes = torch.tensor([0.0, 0.0, 1.0, 1.0, 3.0, 3.0, 6.0, 10.0])
    for member in range(3):
        for direction, scale in enumerate((2.0, 5.0)):
            torch.testing.assert_close(times[:, member, direction] - times[0, member, direction], 3 * scale * passes)


def test_the_widest_table_decides_what_all_bags_rows_and_gradients_take() -> None:
    """Weights of 1, 10, ... for the limits, alike for all work: tables, lookups and rows of 1, 2 and 3 mean devices."""
    model = random_model()
    weights = torch.tensor([1.0, 10.0, 100.0, 1000.0, 10_000.0]).repeat_interleave(3)
    with torch.no_grad():
        model.net.lane_weight.copy_(weights[:, None].expand_as(model.net.lane_weight))
    inputs = torch.zeros(5, model.net.own_pieces.shape[0])
    for name, work in (("tables", 1.0), ("lookups", 2.0), ("unique_rows", 3.0)):
        inputs[:, QUANTITIES.index(name)] = work
    widest = [(4,), (32, 32), (32, 36), (128, 8), (516, 516)]
    jump_sums = torch.stack([jump_sums_TJ([table(rows=1, dim=dim) for dim in dims]).sum(dim=0) for dims in widest])
    times = model.net.member_ms(inputs, jump_sums)
    lanes = 6 * torch.tensor([0.0, 0.0, 1.0, 11.0, 11_111.0])
    for direction, scale in enumerate((2.0, 5.0)):
        torch.testing.assert_close(times[:, 1, direction] - times[0, 1, direction], scale * lanes)


def test_members_know_nothing_of_each_other() -> None:
    """Everything of the second of three members changes: 8 table units, 16 factors, 8 units of 4 pieces."""
    model, changed = random_model(), random_model()
    with torch.no_grad():
        changed.net.table_bias[8:16] += 1.0
        changed.net.factor_bias[16:32] += 1.0
        weight_of_piece_member_unit = changed.net.piece_weight.view(-1, 4, 3, 8)
        weight_of_piece_member_unit[:, :, 1] *= 1.5
    before, after = (
        member_compute_ms(one, one.represent(TABLES[:4], BATCH_SIZE).cumsum(0)) for one in (model, changed)
    )
    torch.testing.assert_close(before[:, [0, 2]], after[:, [0, 2]])
    assert (before[:, 1] < after[:, 1]).all()


def test_a_saved_model_predicts_the_same(tmp_path: Path) -> None:
    model, of_task = random_model(), task(TABLES, devices=2)
    model.calibration = Calibration(2.5, 0.02)
    model.save(tmp_path / "model")
    loaded = CostModel.load(tmp_path / "model")
    placement = Placement((0, 1) * 6, 2)
    assert predicted(loaded, of_task, placement) == predicted(model, of_task, placement)
    assert bound_ms(loaded, of_task) == bound_ms(model, of_task)
    assert (loaded.exchange, loaded.calibration, loaded.net.sizes) == (EXCHANGE, model.calibration, model.net.sizes)


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("sizes.num_members", "3", "num_members is '3', not a whole number"),
        ("sizes.num_members", 0, "an ensemble of 0 members"),
        ("sizes.num_members", 4, "not readable as a saved cost model"),
        ("exchange.ms_per_byte", -1.0, "all-to-all constants are"),
        ("calibration.factor", -1.0, "its calibration is invalid: factor -1"),
        ("kind", "dreamshard_policy", "contains a dreamshard_policy"),
        ("more", 1, "'more' is unknown"),
    ],
)
def test_a_config_of_other_types_is_refused(tmp_path: Path, path: str, value: Any, why: str) -> None:
    random_model().save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    *steps, last = path.split(".")
    record = config
    for step in steps:
        record = record[step]
    record[last] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadFile, match=why):
        CostModel.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("net.table_weight", math.nan, "net.table_weight: a number is not finite"),
        ("net.time_scale_ms", 0.0, "net.time_scale_ms: a scale is not positive"),
        ("net.piece_weight", -1.0, "its weights do not give a convex function"),
        ("net.output_weight", 1.0, "its weights do not give a convex function"),  # across members
        ("net.overhead", -1e-6, "its weights do not give a convex function"),
        ("net.lane_weight", None, r"lacks net\.lane_weight\)\. Fit the cost model again"),
    ],
)
def test_weights_that_no_training_leaves_are_refused(tmp_path: Path, name: str, value: float | None, why: str) -> None:
    random_model().save(tmp_path)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    if value is None:
        del state[name]
    else:
        state[name].fill_(value)
    torch.save(state, tmp_path / "state.pt")
    with pytest.raises(BadFile, match=why):
        CostModel.load(tmp_path)


def test_a_model_that_diverged_is_not_saved_and_the_older_one_stays(tmp_path: Path) -> None:
    random_model().save(tmp_path / "model")
    before = (tmp_path / "model/state.pt").read_bytes()
    broken = random_model(seed=1)
    with torch.no_grad():
        broken.net.factor_bias[0] = math.inf
    unsure, endless = random_model(), random_model(exchange=ExchangeTime(math.nan, 0.0))
    unsure.calibration = Calibration(factor=math.nan)
    for model in (broken, unsure, endless):
        with pytest.raises(TrainingFailed, match=r"the training diverged: .* nothing was saved"):
            model.save(tmp_path / "model")
    assert (tmp_path / "model/state.pt").read_bytes() == before
