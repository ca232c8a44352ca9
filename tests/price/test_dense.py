"""Dense layers by hand, and whole steps beside published ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import evenshard
from evenshard.base.errors import BadConfig, BadInput
from evenshard.placement.nodes import Nodes
from evenshard.price.collectives import GRADIENT_BYTES
from evenshard.price.dense import (
    ACTIVATION_PASSES,
    ATTENTION_PASSES,
    CROSS_PASSES,
    DOT_PASSES,
    FITTED_PERCENT,
    Attention,
    DenseLayers,
    DenseModel,
    EmbeddingTimes,
    StepTime,
    all_reduce_ms,
    given_step,
    predict_step,
)
from evenshard.price.gpu_profile import gpu_profile
from evenshard.price.step import PredictedDevice, dense_ms
from evenshard.tables.table import SEQUENCE, Table

TABLES = (Table("a", 100, 8, 3.0), Table("b", 100, 8, 2.0, feature_pooling_factors=(1.0, 1.0)))
SEQUENCES = (Table("s", 100, 8, 50.0, pooling=SEQUENCE),)


@pytest.mark.parametrize(
    ("model", "products", "moved"),
    [
        (  # 2 embeddings of b, one of a, and the bottom's output: 32 columns
            DenseModel(inputs=5, bottom=(16, 8), top=(4, 1)),
            [(5, 16), (16, 8), (32, 4), (4, 1)],
            ACTIVATION_PASSES * (16 + 8 + 4),
        ),
        (  # 4 vectors have 6 products, beside the bottom's output
            DenseModel(inputs=5, bottom=(8,), interaction="dot", top=(1,)),
            [(5, 8), (14, 1)],
            ACTIVATION_PASSES * 8 + DOT_PASSES * (32 + 16),
        ),
        (
            DenseModel(inputs=8, interaction="cross", cross_layers=2, cross_rank=3),
            [(32, 3), (3, 32)] * 2,
            CROSS_PASSES * 2 * 32,
        ),
        (DenseModel(inputs=8, interaction="cross", cross_layers=1), [(32, 32)], CROSS_PASSES * 32),
    ],
)
def test_layers_have_the_widths_of_the_tables(model: DenseModel, products: list[tuple[int, int]], moved: float) -> None:
    layers = model.of_tables(TABLES + SEQUENCES)
    assert layers == DenseLayers(tuple((1.0, *shape) for shape in products), 0.0, moved)
    assert layers.num_weights == sum(inputs * outputs for inputs, outputs in products)


def test_attention_has_a_product_for_each_token_and_a_score_for_each_pair() -> None:
    block = Attention(width=8, queries=10, keys=50, ffn=16, blocks=2)
    layers = DenseModel("bf16", attention=(block,), layers=((50.0, 4, 8),)).of_tables(SEQUENCES)
    once = [(50, 8, 24), (10, 8, 8), (10, 8, 16), (10, 16, 8)]
    assert layers.products == ((50.0, 4, 8), *once, *once) and layers.attention == 2 * 10 * 50 * 8
    assert layers.moved_values == ACTIVATION_PASSES * 50 * 8 + ATTENTION_PASSES * 2 * 10 * 8


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (DenseModel(interaction="dots"), "interaction is 'dots'. Choose from concat, dot, cross"),
        (
            DenseModel(inputs=4, bottom=(16,), interaction="dot"),
            "as wide as the last bottom layer, 16, but tables have 8",
        ),
        (DenseModel("int8", inputs=4, bottom=(16,)), "dtype of the dense layers is 'int8'"),
        (DenseModel(inputs=4, bottom=(0,)), "a size of 0 or less"),
    ],
)
def test_layers_that_contradict_the_tables_are_one_line(model: DenseModel, said: str) -> None:
    with pytest.raises(BadConfig, match=said):
        model.of_tables(TABLES)


def test_time_grows_with_samples_and_bits_and_most_of_it_is_backward() -> None:
    gpu, products = gpu_profile("h100"), ((1.0, 4096, 4096),)
    times = {
        dtype: [sum(DenseLayers(products, dtype=dtype).times_ms(gpu, "h100", batch)) for batch in (1024, 8192)]
        for dtype in ("bf16", "fp16", "tf32", "fp32")
    }
    assert times["bf16"] == times["fp16"] and times["bf16"][1] < times["tf32"][1] < times["fp32"][1]
    assert all(4 < long / short <= 8 for short, long in times.values())
    # 2 * 8192 * 4096**2 operations forward, twice as many backward, at 132 * 128 * 2 * 1.98 GHz
    peak_ms = 3 * 2 * 8192 * 4096**2 / (132 * 128 * 2 * 1.98e6)
    assert peak_ms < times["fp32"][1] < 1.4 * peak_ms
    forward, backward = DenseLayers(products, 1e6, 1e6).times_ms(gpu, "h100", 8192)
    assert backward > 1.4 * forward


def predicted(compute: float = 2.0, communication: float = 1.0) -> EmbeddingTimes:
    device = PredictedDevice(compute / 2, communication / 2, communication / 2, compute / 2)
    total = compute + communication
    return EmbeddingTimes((device, device), "sparse_dist", total, 0.9 * total, 1.2 * total, 0)


def test_a_given_dense_part_hides_everything_or_nothing() -> None:
    step = given_step(predicted(), 10.0)
    assert (step.total_ms, step.embeddings_ms, step.exposed_ms) == (13.0, 2.0, 1.0)
    assert (step.low_ms, step.high_ms) == (10.0, pytest.approx(3.6 + 10))
    assert given_step(predicted(), 1.0).low_ms == pytest.approx(2.7), "the embeddings take longer than the dense part"


def whole(layers: DenseLayers, machine: Nodes, found: EmbeddingTimes | None = None, batch: int = 8192) -> StepTime:
    step = predict_step(found or predicted(), layers, ["simulated:h100"], machine, "nvlink_h100", batch)
    assert step is not None
    return step


def test_the_gradients_of_dense_layers_are_reduced_behind_the_backward_pass() -> None:
    machine = Nodes(8, 8, 1, "nvlink_h100")
    small, large = DenseLayers(((1.0, 64, 64),)), DenseLayers(((1.0, 2**15, 2**16),))
    hidden = whole(small, machine)
    reduced_ms = all_reduce_ms(machine, GRADIENT_BYTES * 64 * 64, "")[1]
    assert hidden.hidden_ms == pytest.approx(reduced_ms) and hidden.exposed_ms == pytest.approx(1.0)
    assert hidden.total_ms == pytest.approx(2.0 + 1.0 + hidden.dense_ms)
    update_ms = dense_ms(64 * 64, gpu_profile("h100").hbm_bytes_per_ns, "adam")
    assert hidden.dense_ms == pytest.approx(sum(small.times_ms(gpu_profile("h100"), "h100", 1024)) + update_ms)
    off = math.exp(FITTED_PERCENT / 100)
    assert hidden.low_ms == pytest.approx(2.7 + hidden.dense_ms / off)
    assert hidden.high_ms == pytest.approx(3.6 + hidden.dense_ms * off + reduced_ms)
    exposed = whole(large, machine, batch=8)
    all_ms = all_reduce_ms(machine, GRADIENT_BYTES * large.num_weights, "")[1]
    assert exposed.exposed_ms + exposed.hidden_ms == pytest.approx(1.0 + all_ms) and exposed.exposed_ms > 1.0
    assert exposed.low_ms < exposed.total_ms < exposed.high_ms
    assert whole(small, Nodes.one_node(1)).hidden_ms == 0.0


def test_gradients_of_replicas_are_reduced_behind_the_tables_alone() -> None:
    """Kernels of tables take 1 ms backward; 1 ms of communication includes the all-reduce of replicas."""
    machine, layers = Nodes(8, 8, 1, "nvlink_h100"), DenseLayers(((1.0, 2**12, 2**12),))

    def of(values: int) -> tuple[StepTime, float]:
        found = EmbeddingTimes(predicted().devices, "sparse_dist", 3.0, 2.7, 3.6, values)
        return whole(layers, machine, found), all_reduce_ms(machine, GRADIENT_BYTES * values, "")[1]

    step, alone_ms = of(1000)
    assert alone_ms < 1.0 and step.exposed_ms == pytest.approx(1.0 - alone_ms)
    step, alone_ms = of(2**27)
    assert alone_ms > 1.0 and step.exposed_ms == pytest.approx(alone_ms - 1.0)


def test_the_slowest_hardware_counts_and_old_gpus_have_half_of_the_fp32_cores() -> None:
    layers, machine = DenseLayers(((1.0, 4096, 4096),)), Nodes(8, 8, 1, "nvlink_h100")
    mixed, old = (
        predict_step(predicted(), layers, names, machine, "", 2**16)
        for names in (["simulated:h100", "simulated:a100_80gb"], ["simulated:a100_80gb"])
    )
    assert mixed is not None and old is not None and mixed.dense_ms == old.dense_ms
    assert old.dense_ms > 3 * 2 * 2**13 * 4096**2 / (108 * 64 * 2 * 1.41e6)


def test_hardware_without_a_model_of_dense_layers_has_no_step() -> None:
    layers = DenseLayers(((1.0, 64, 64),))
    assert predict_step(predicted(), layers, ["cpu"], Nodes.one_node(2), "100gb_s", 8) is None


# Placing --------------------------------------------------------------------------------------------------------------


def place(**knobs: Any) -> evenshard.PlacementAnswer:
    return evenshard.place(TABLES, 2, hardware="h100", batch_size=64, effort="quick", **knobs)


def test_the_first_line_is_the_whole_step_where_the_dense_part_is_known(tmp_path: Path) -> None:
    layers = {"inputs": 5, "bottom": [16, 8], "top": [4, 1]}
    answer = place(dense=layers)
    assert answer.request.dense == DenseModel(inputs=5, bottom=(16, 8), top=(4, 1)).of_tables(TABLES)
    assert answer.step is not None and answer.step.total_ms > answer.predicted_ms
    first, *_ = answer.summary().splitlines()
    assert "per step, predicted (90 %:" in first and "of embedding work per step" in answer.summary()
    path = tmp_path / "dense.yaml"
    path.write_text("inputs: 5\nbottom: [16, 8]\ntop: [4, 1]\n", encoding="utf-8")
    assert place(dense=path) == answer and place(dense_ms=2.0).step == given_step(
        EmbeddingTimes(answer.devices, "sparse_dist", answer.predicted_ms, answer.low_ms, answer.high_ms, 0), 2.0
    )
    assert place().step is None and "of embedding work" in place().summary().splitlines()[0]
    evenshard.save_answer(answer, tmp_path / "placement.json")
    assert evenshard.load_answer(tmp_path / "placement.json").step == answer.step


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"dense": {"botom": [4]}}, "botom"),
        ({"dense": {"bottom": 4}}, "bottom"),
        ({"dense": {"inputs": 1}, "dense_ms": 2.0}, "dense and dense_ms are both given. Give one of the two."),
        ({"dense_ms": -1.0}, "dense_ms is -1"),
    ],
)
def test_dense_layers_that_are_written_wrongly_are_one_line(knobs: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said) as raised:
        place(**knobs)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize(("hardware", "measured_ms"), [("h100", 3.315), ("b200", 2.150)])
def test_the_step_of_mlperf_is_the_published_one(hardware: str, measured_ms: float) -> None:
    """On 8 GPUs, HugeCTR: ``benchmarks.scripts.steps`` has the sources and all other steps."""
    knobs = {"optimizer": "rowwise_adagrad", "dense_optimizer": "rowwise_adagrad", "communication": ["fp16"]}
    answer = evenshard.place("mlperf_dlrm_v2", 8, hardware=hardware, batch_size=55_296, weight_bits=16, **knobs)
    assert answer.step is not None and abs(math.log(answer.step.total_ms / measured_ms)) < 0.15
