"""Time of the dense part of a training step, and of the whole step.

A sample's dense part is a list of matrix products, plus attention and pointwise layers (``DenseLayers``). Users write
it with the words of TorchRec's DLRM (``DenseModel``).

A product of [m, k] and [k, n] is cut into tiles of the result, which the GPU's multiprocessors (SMs) take in waves;
part of the last wave is lost. Computing and moving bytes overlap, and there is a floor. Products that fit into the L2
are not modelled: an H100 moved their bytes at up to 1.43 times the rate of its memory. Pointwise layers are priced by
bytes. The host is assumed to launch ahead of the GPU.

Legend: P products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief
from evenshard.placement.nodes import Nodes
from evenshard.price.collectives import GRADIENT_BYTES, Links, all_reduce_bytes, transfer_ms
from evenshard.price.gpu_profile import GpuProfile, profile_of
from evenshard.price.hardware import HardwareName
from evenshard.price.link import link
from evenshard.price.step import PredictedDevice, step_shares_ms
from evenshard.price.step import dense_ms as update_ms
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table

# Bytes of a value of a product, and the rate at which tensor cores take values, relative to BF16: NVIDIA's data sheets,
# but TF32 as an H100 and an H200 took it (data/kernels; the data sheets say 0.5). FP32 runs on other cores.
BYTES = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4}
RATES = {"bf16": 1.0, "fp16": 1.0, "tf32": 0.42}
FP32_CORES, OLD_FP32_CORES = 128, 64  # of a multiprocessor; of the GPUs below
OLD_GPUS = ("v100", "rtx_2080_ti", "a100_80gb", "a100_40gb")
_TILES = ((128, 256), (128, 128))
# Memory passes over the outputs of a layer, forward and backward. A ReLU reads and writes once forward, and reads twice
# and writes once backward. A cross layer takes 13 in MLPerf's DLRM-DCNv2. A block of attention takes 225 over its
# queries (norms, activations, copies, residuals): 166 ms of a step of one model, AMD-AGI/Primus-DLRM,
# doc/perf_analysis.md, 8 x B200 with torch.compile. No other model confirms it.
ACTIVATION_PASSES, CROSS_PASSES, ATTENTION_PASSES, DOT_PASSES = 5, 13, 225, 3
# Operations of fused attention for each query, key and column, forward and backward, and the share of the tensor cores'
# rate that they reach (707 and 584 of 2,250 TFLOPS on B200, the same source).
ATTENTION_WORK, ATTENTION_SHARE = (4, 10), (0.31, 0.26)
FORWARD_SHARE = 0.4  # of pointwise passes: two of five
# 90th percentile of errors of products, %: of GPUs with a fit, and of GPUs by the mean fit.
FITTED_PERCENT, RULE_PERCENT = 22.0, 31.0
DENSE_OPTIMIZER = "adam"  # if unknown, as for the memory of the dense model
TFLOP = 1e9  # operations per ms of a rate of one TFLOPS


@dataclass(frozen=True)
class ProductFit:
    """Constants of matrix products that no data sheet states.

    Attributes:
        reached: share of ``tflops`` that a long product of full waves reaches.
        start_depth: fixed cost of each tile, as an addition to its depth (k).
        hbm_share: share of ``hbm_gb_s`` that is reached.
        floor_us: least time of a product.
        wave_share: share of the work that is taken in whole waves.
        sharpness: degree to which computing and memory overlap; 1 means that their times add up.
    """

    reached: float
    start_depth: float
    hbm_share: float
    floor_us: float
    wave_share: float
    sharpness: float


# By profile: ``python -m benchmarks.scripts.fit_dense_layers``, from products in ai-dynamo/aiconfigurator 095f58a51.
# The A100's constants are no physical shares: they only describe its times.
FITS = {
    "a100_80gb": ProductFit(0.9057, 84.36, 1.143, 4.112, 0.0288, 1.06),
    "h100": ProductFit(0.8205, 117.8, 0.8681, 2.695, 0.138, 3.354),
    "h200": ProductFit(0.8268, 122.8, 0.8889, 2.774, 0.1121, 2.944),
    "b200": ProductFit(0.7023, 73.2, 0.8288, 2.262, 0.1965, 2.539),
}


def mean_fit(fits: Mapping[str, ProductFit]) -> ProductFit:
    """Return the geometric mean of the constants: the rule for GPUs that were not measured.

    It is meant for GPUs like the fitted ones (SXM modules with HBM). PCIe cards with GDDR have far larger errors.
    """
    values = np.log([[getattr(fit, field.name) for field in fields(ProductFit)] for fit in fits.values()])
    return ProductFit(*np.exp(values.mean(axis=0)).tolist())


def product_ms(
    gpu: GpuProfile,
    fit: ProductFit,
    m: FloatArray,
    n: FloatArray,
    k: FloatArray,
    dtype: str = "bf16",
    fp32_cores: int = FP32_CORES,
) -> FloatArray:
    """Predict the times of products of [m, k] and [k, n], ms; all arrays have the same shape."""
    waves = [
        np.ceil(np.ceil(m / rows) * np.ceil(n / columns) / gpu.num_sms) * rows * columns for rows, columns in _TILES
    ]
    work = fit.wave_share * np.min(waves, axis=0) * gpu.num_sms + (1 - fit.wave_share) * m * n
    tflops = rate_tflops(gpu, dtype, fp32_cores)
    computed_us = 2 * work * (k + fit.start_depth) / (tflops * fit.reached) / 1e6
    moved_us = BYTES[dtype] * (m * k + k * n + m * n) / (gpu.hbm_gb_s * fit.hbm_share) / 1e3
    power = fit.sharpness
    return np.asarray((fit.floor_us + (computed_us**power + moved_us**power) ** (1 / power)) / 1e3)


def rate_tflops(gpu: GpuProfile, dtype: str, fp32_cores: int = FP32_CORES) -> float:
    """Return a GPU's peak rate for products of a data type, 10**12 operations per second."""
    if dtype in RATES:
        return RATES[dtype] * gpu.tflops
    return gpu.num_sms * fp32_cores * 2 * gpu.clock_ghz / 1e3


# The layers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DenseLayers:
    """Work of a model's dense part for each sample.

    Attributes:
        products: rows, inputs and outputs of each product of activations, [rows, inputs], and weights.
        attention: queries times keys times columns, summed over all blocks of attention.
        moved_values: values that pointwise layers read or write, forward and backward.
        dtype: data type of products and activations: fp32, tf32, bf16 or fp16.
    """

    products: tuple[tuple[float, int, int], ...]
    attention: float = 0.0
    moved_values: float = 0.0
    dtype: str = "fp32"

    def __post_init__(self) -> None:
        if self.dtype not in BYTES:
            raise BadConfig(f"dtype of the dense layers is {brief(self.dtype)}. Choose from {', '.join(BYTES)}.")
        sizes = [size for product in self.products for size in product]
        if min([*sizes, 1]) <= 0 or not math.isfinite(sum(sizes) + self.attention + self.moved_values):
            raise BadConfig("a dense layer has a size of 0 or less. Correct its rows, inputs and outputs.")

    @property
    def num_weights(self) -> int:
        """Return the number of trained weights, which is that of their gradients."""
        return sum(inputs * outputs for _, inputs, outputs in self.products)

    def times_ms(self, gpu: GpuProfile, profile: str, batch_size: float) -> tuple[float, float]:
        """Return the forward and the backward time of a device's samples, ms."""
        fit, cores = FITS.get(profile) or mean_fit(FITS), OLD_FP32_CORES if profile in OLD_GPUS else FP32_CORES
        both = [0.0, 0.0]
        if self.products:
            rows_P, inputs_P, outputs_P = np.array(self.products, dtype=np.float64).T
            rows_P = rows_P * batch_size
            sizes = ((rows_P, outputs_P, inputs_P), (rows_P, inputs_P, outputs_P), (inputs_P, outputs_P, rows_P))
            forward, *backward = (float(product_ms(gpu, fit, *size, self.dtype, cores).sum()) for size in sizes)
            both = [forward, sum(backward)]
        moved_ms = self.moved_values * batch_size * BYTES[self.dtype] / (gpu.hbm_gb_s * fit.hbm_share) / 1e6
        peak = TFLOP * rate_tflops(gpu, self.dtype, cores)
        for way, share in enumerate((FORWARD_SHARE, 1 - FORWARD_SHARE)):
            both[way] += share * moved_ms
            both[way] += ATTENTION_WORK[way] * self.attention * batch_size / (peak * ATTENTION_SHARE[way])
        return both[0], both[1]


@dataclass(frozen=True)
class Attention:
    """Equal blocks of attention over a sample's tokens, each with a feed-forward network if ``ffn`` is above 0."""

    width: int
    queries: float
    keys: float | None = None  # as many as queries by default
    ffn: int = 0
    blocks: int = 1


@dataclass(frozen=True)
class DenseModel:
    """The key ``dense`` of a request, by the names of TorchRec's DLRM; widths are those of outputs.

    Attributes:
        dtype: data type of products and activations.
        inputs: number of dense features.
        bottom: widths of the layers for dense features.
        interaction: of the bottom's output and all pooled embeddings: concat, dot or cross.
        cross_layers: number of cross layers.
        cross_rank: rank of their matrices; 0 for full matrices.
        top: widths of the layers after the interaction.
        attention: blocks of attention.
        layers: further layers as rows of a sample, inputs and outputs.
    """

    dtype: str = "fp32"
    inputs: int = 0
    bottom: tuple[int, ...] = ()
    interaction: str = "concat"
    cross_layers: int = 0
    cross_rank: int = 0
    top: tuple[int, ...] = ()
    attention: tuple[Attention, ...] = ()
    layers: tuple[tuple[float, int, int], ...] = ()

    def of_tables(self, tables: Sequence[Table]) -> DenseLayers:
        """Return the layers of a model with these tables; raise BadConfig if they contradict each other."""
        dims = [table.embedding_dim for table in tables if not table.is_sequence for _ in range(table.num_features)]
        last = self.bottom[-1] if self.bottom else self.inputs
        products, moved = [(1.0, *shape) for shape in _mlp(self.inputs, self.bottom)], float(sum(self.bottom))
        moved *= ACTIVATION_PASSES
        width = last + sum(dims)
        if self.interaction == "cross":
            rank = self.cross_rank
            shapes = ((width, rank), (rank, width)) if rank else ((width, width),)
            products += [(1.0, *shape) for shape in shapes] * self.cross_layers
            moved += CROSS_PASSES * self.cross_layers * width
        elif self.interaction == "dot":
            if {*dims, last} != {last}:
                raise BadConfig(
                    f"dense: interaction dot needs embeddings as wide as the last bottom layer, {last}, but tables "
                    f"have {', '.join(map(str, sorted({*dims} - {last})))} columns. Correct bottom."
                )
            moved += DOT_PASSES * (width + (1 + len(dims)) ** 2)
            width = last + len(dims) * (len(dims) + 1) // 2
        elif self.interaction != "concat":
            raise BadConfig(f"dense: interaction is {brief(self.interaction)}. Choose from concat, dot, cross.")
        if self.top and not width:
            raise BadConfig("dense: top has no inputs. Give bottom, or write its layers in layers.")
        products += [(1.0, *shape) for shape in _mlp(width, self.top)] + list(self.layers)
        moved += ACTIVATION_PASSES * (sum(self.top[:-1]) + sum(rows * outputs for rows, _, outputs in self.layers))
        pairs = 0.0
        for block in self.attention:
            keys, once = block.queries if block.keys is None else block.keys, []
            once += [(keys, block.width, 3 * block.width), (block.queries, block.width, block.width)]
            once += [(block.queries, *shape) for shape in _mlp(block.width, (block.ffn, block.width)) if block.ffn]
            products += once * block.blocks
            pairs += block.blocks * block.queries * keys * block.width
            moved += ATTENTION_PASSES * block.blocks * block.queries * block.width
        return DenseLayers(tuple(products), pairs, moved, self.dtype)


def _mlp(inputs: int, widths: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip((inputs, *widths), widths, strict=False)


# The step -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepTime:
    """Predicted time of a whole training step, ms.

    The interval has the 90 % errors of all times. Its lower end counts full overlap where overlap is unknown, and its
    upper end counts none.
    """

    embeddings_ms: float  # kernels of tables
    dense_ms: float  # dense layers with their optimizer
    exposed_ms: float  # communication that overlaps no kernels
    hidden_ms: float  # all-reduces of gradients that overlap the backward pass
    low_ms: float
    high_ms: float

    @property
    def total_ms(self) -> float:
        """Return the step time."""
        return self.embeddings_ms + self.dense_ms + self.exposed_ms


@dataclass(frozen=True)
class EmbeddingTimes:
    """Predicted embedding work of a step: its devices, its time with 90 % interval, and the weights of replicas."""

    devices: Sequence[PredictedDevice]
    pipeline: str
    predicted_ms: float
    low_ms: float
    high_ms: float
    replicated_values: int


def given_step(found: EmbeddingTimes, dense_ms: float) -> StepTime:
    """Return the step with a dense part of known time, which may hide nothing or, at best, all embedding work."""
    kernels_ms, exposed_ms = step_shares_ms(found.devices, found.pipeline)
    low_ms = max(found.low_ms, dense_ms)
    return StepTime(kernels_ms, dense_ms, exposed_ms, 0.0, low_ms, found.high_ms + dense_ms)


def predict_step(
    found: EmbeddingTimes,
    layers: DenseLayers,
    hardware: Sequence[str],
    machine: Nodes,
    own_link: str,
    batch_size: float,
    optimizer: str = "",
) -> StepTime | None:
    """Predict a step with dense layers on the slowest of some hardware; None if the hardware has no device model.

    ``DistributedDataParallel`` reduces gradients while the backward pass goes on: those of dense layers behind the
    backward pass of dense layers and tables, and those of replicas behind the backward pass of tables.

    Args:
        hardware: names of the devices' hardware.
        own_link: link within a domain if the machine names none.
        batch_size: global batch.
        optimizer: optimizer of the dense layers; Adam by default.
    """
    names = [HardwareName.parse(name) for name in dict.fromkeys(hardware)]
    times = []
    for name in names:
        gpu = profile_of(name)
        if gpu is None or not gpu.tflops:
            return None
        forward_ms, backward_ms = layers.times_ms(gpu, name.device, batch_size / machine.num_devices)
        update = update_ms(layers.num_weights, gpu.hbm_bytes_per_ns, optimizer or DENSE_OPTIMIZER)
        times.append((forward_ms + backward_ms + update, backward_ms))
    dense_ms, backward_ms = max(times)
    kernels_ms, communication_ms = step_shares_ms(found.devices, found.pipeline)
    replicas_ms, reduced_ms = (
        all_reduce_ms(machine, GRADIENT_BYTES * values, own_link)[1] if values else 0.0
        for values in (found.replicated_values, layers.num_weights)
    )
    tables_ms = max(device.predicted_bwd_compute_ms for device in found.devices)
    both_ms = replicas_ms + reduced_ms
    left_ms = max(replicas_ms - tables_ms, both_ms - tables_ms - backward_ms, 0.0)
    percent = FITTED_PERCENT if all(name.device in FITS for name in names) else RULE_PERCENT
    factor = math.exp(percent / 100)
    exposed_ms = max(communication_ms - replicas_ms, 0.0)
    without = (kernels_ms + exposed_ms) / found.predicted_ms
    return StepTime(
        kernels_ms,
        dense_ms,
        exposed_ms + left_ms,
        both_ms - left_ms,
        without * found.low_ms + dense_ms / factor,
        without * found.high_ms + dense_ms * factor + both_ms,
    )


def all_reduce_ms(machine: Nodes, held: float, own_link: str, collectives: int = 1) -> tuple[int, float]:
    """Return the most bytes that a device sends in an all-reduce of ``held`` bytes on each device, and its time, ms.

    Args:
        own_link: link within a domain if the machine names none.
        collectives: number of collectives that share the bytes; each has its latency.
    """
    if machine.num_devices == 1:
        return 0, 0.0
    links = Links(link(machine.intra or own_link), link(machine.inter) if machine.num_domains > 1 else None)
    moved = all_reduce_bytes(machine, np.full(machine.num_devices, float(held)))
    latency_ms = links.widest.latency_ms(machine.num_devices, moved.collective)
    once_ms = collectives * latency_ms + float(transfer_ms(machine, moved, links).max())
    return round(float((moved.intra + moved.inter).max())), once_ms
