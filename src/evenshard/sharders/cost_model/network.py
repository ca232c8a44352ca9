"""Network of the cost model: an ensemble that predicts device times, computed as one wide network.

Each member of the ensemble represents a table by its work, eight non-negative quantities that add up over the tables of
a device (``additive_work_TA``), and by the same work times non-negative factors that a small network computes from the
table's features. The member's head predicts a device's times from the sum over its tables. The head's weights are
non-negative, and each of its hidden units is the maximum of 0 and several linear functions, so that times are convex
and non-decreasing. Plain ReLU units (input-convex networks, Amos et al. 2017) cannot learn the maximum of two limits.

Two properties of kernels are not convex, and are added to the head as jumps with learned non-negative weights:

- FBGEMM's backward pass sorts the indices of a shard by 8 bits of the row number per pass, so that the number of passes
  depends on the rows of the shard.
- The widest table of a shard determines the lanes of a warp that all its bags, rows and gradients use.

Every layer is a block-diagonal matrix with one block per member. ``project`` clips the weights after each training
step; this converged faster than squares, softplus or exponentials of unconstrained weights.

Legend: T tables, F = 21 features (A more with ``across_batches``, one more with ``sees_hot_rows``), A = 8 quantities of
work, K members of the ensemble, L products of work and learned factors, I = A + L inputs of the heads, U units of the
heads, O = 2K outputs (forward and backward time of each member), J sums that determine the jumps: rows, and for each of
``WIDTHS`` the number of wider tables. L and U count all members. In ``additive_work_TA``, K are the 17 reuse bins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from torch import nn

from evenshard.price.device_model import LANE_LIMITS
from evenshard.price.shard_work import REQUEST_VALUES
from evenshard.sharders.features import NUM_FEATURES, FeatureNormalizer, raw_features_TF
from evenshard.tables.locality import contiguous_share
from evenshard.tables.reuse import NUM_REUSE_BINS, FloatArray, mean_counts
from evenshard.tables.table import Table

QUANTITIES = ("tables", "dims", "lookups", "values", "row_bytes", "grad_bytes", "unique_rows", "unique_bytes")
LEAST_READ_BYTES = 32  # a sector, the smallest unit of memory reads: a row of 8 bytes costs as much as a row of 32
GRAD_BYTES_PER_VALUE = 4  # gradients are FP32


def additive_work_TA(tables: Sequence[Table], batch_size: int) -> FloatArray:
    """Compute each table's work in one training step, the eight ``QUANTITIES``, [T, A].

    ``values`` are lookups times dim, and ``row_bytes`` the bytes that lookups read. ``unique_rows`` are the distinct
    rows of a batch. Bytes of a row are rounded up to memory sectors.
    """
    rows_T = np.array([table.num_rows for table in tables], dtype=np.float64)
    dims_T = np.array([table.embedding_dim for table in tables], dtype=np.float64)
    bits_T = np.array([table.weight_bits for table in tables], dtype=np.float64)
    lookups_T = np.array([table.pooling_factor for table in tables], dtype=np.float64) * batch_size
    bins_TK = raw_features_TF(tables, batch_size)[:, -NUM_REUSE_BINS:]
    bins_TK = bins_TK / bins_TK.sum(axis=1, keepdims=True)  # histograms in files may add up to 0.999
    uniques_T = np.minimum(lookups_T / mean_counts(bins_TK, lookups_T), rows_T)
    row_bytes_T = _whole_sectors(dims_T * bits_T / 8)
    columns = {
        "tables": np.ones_like(rows_T),
        "dims": dims_T,
        "lookups": lookups_T,
        "values": lookups_T * dims_T,
        "row_bytes": lookups_T * row_bytes_T,
        "grad_bytes": lookups_T * _whole_sectors(dims_T * GRAD_BYTES_PER_VALUE),
        "unique_rows": uniques_T,
        "unique_bytes": uniques_T * row_bytes_T,
    }
    return np.stack([columns[name] for name in QUANTITIES], axis=1)


def _whole_sectors(num_bytes_T: FloatArray) -> FloatArray:
    return np.asarray(np.ceil(num_bytes_T / LEAST_READ_BYTES) * LEAST_READ_BYTES)


NUM_QUANTITIES = len(QUANTITIES)
LOOKUPS = QUANTITIES.index("lookups")
PER_SAMPLE = [QUANTITIES.index("tables"), QUANTITIES.index("dims")]
UNKNOWN_HOT_ROWS = 0.5  # assumed share of contiguous hot rows of a table without row_shares
LEAST_WORK, LOG_SCALE = 1e-5, 4.0  # lower limit of work before its logarithm; scale of the logarithm
# Numbers of rows at which the radix sort of a shard's indices takes one more pass.
PASS_ROWS = (2.0**8, 2.0**16, 2.0**24, 2.0**32)
# Dims above which a table makes all lookups of its shard use more lanes, or another warp.
WIDTHS = (*LANE_LIMITS, 2 * REQUEST_VALUES, 4 * REQUEST_VALUES)
NUM_JUMP_SUMS = 1 + len(WIDTHS)
LANE_WORK = [QUANTITIES.index(name) for name in ("tables", "lookups", "unique_rows")]
MAX_UNITS = 8192  # of the widest layer, over all members; the matrices between layers grow with the square
LEAST_OVERHEAD = 1e-4  # in units of the mean time; keeps the logarithm of predictions finite


@dataclass(frozen=True)
class EnsembleSizes:
    """Sizes of the ensemble.

    Raises:
        ValueError: if a size is below 1, or the ensemble is too wide.
    """

    num_members: int = 5  # K
    table_hidden: int = 16  # hidden units of a member's table network
    factors_per_quantity: int = 1  # learned factors of each quantity of work, per member
    head_hidden: int = 4  # hidden units of a member's head
    pieces: int = 8  # linear functions of each head unit, which returns the largest
    # True if batch sizes differ. Then tables and dims are multiplied by the batch size, and the learned factors also
    # depend on the work, because cache hit rates change with the batch.
    across_batches: bool = False
    # True if the learned factors depend on the share of contiguous hot rows (``locality.py``).
    sees_hot_rows: bool = False

    def __post_init__(self) -> None:
        counts = (self.table_hidden, self.factors_per_quantity, self.head_hidden, self.pieces)
        units = self.num_members * max(
            self.table_hidden, NUM_QUANTITIES * self.factors_per_quantity, self.head_hidden * self.pieces
        )
        if min(self.num_members, *counts) < 1 or units > MAX_UNITS:
            raise ValueError(f"an ensemble of {self.num_members} members with {counts} units is too small or too large")


class ConvexNet(nn.Module):
    """Network that predicts the compute times of devices, once per member of the ensemble."""

    work_scale_A: torch.Tensor  # mean work per device, the unit of the heads' inputs
    time_scale_ms: torch.Tensor  # mean forward and backward time per device, the unit of the heads' outputs
    own_factors: torch.Tensor
    own_pieces: torch.Tensor
    own_linear: torch.Tensor
    own_outputs: torch.Tensor

    def __init__(
        self, sizes: EnsembleSizes, normalizer: FeatureNormalizer, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.sizes, self.normalizer = sizes, normalizer
        self.register_buffer("work_scale_A", torch.ones(NUM_QUANTITIES))
        self.register_buffer("time_scale_ms", torch.ones(2))

        members = torch.arange(sizes.num_members)
        learned = sizes.factors_per_quantity * NUM_QUANTITIES
        member_of_table_unit = members.repeat_interleave(sizes.table_hidden)
        member_of_factor = members.repeat_interleave(learned)
        everybodys = torch.full((NUM_QUANTITIES,), -1)
        member_of_input = torch.cat([everybodys, member_of_factor])
        member_of_unit = members.repeat_interleave(sizes.head_hidden)
        member_of_output = members.repeat_interleave(2)
        for name, sources, sinks in (
            ("own_factors", member_of_table_unit, member_of_factor),
            ("own_pieces", member_of_input, member_of_unit.repeat(sizes.pieces)),
            ("own_linear", member_of_input, member_of_output),
            ("own_outputs", member_of_unit, member_of_output),
        ):
            own = (sources[:, None] == sinks) | (sources[:, None] == -1)
            self.register_buffer(name, own.float(), persistent=False)

        def normal(shape: tuple[int, int], fan_in: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator) * math.sqrt(2 / fan_in))

        def uniform(shape: torch.Size, mean: float) -> nn.Parameter:
            return nn.Parameter(torch.rand(shape, generator=generator) * 2 * mean)

        table_units, factors = self.own_factors.shape
        seen = NUM_FEATURES + (NUM_QUANTITIES if sizes.across_batches else 0) + sizes.sees_hot_rows
        own_inputs = NUM_QUANTITIES + learned
        self.table_weight = normal((seen, table_units), seen)
        self.table_bias = nn.Parameter(torch.zeros(table_units))
        self.factor_weight = normal((table_units, factors), 4 * sizes.table_hidden)
        self.factor_bias = nn.Parameter(torch.full((factors,), 0.5))
        # Squares of uniform numbers give each linear function a few large weights, so that the functions differ.
        shares = torch.rand(self.own_pieces.shape, generator=generator) ** 2
        self.piece_weight = nn.Parameter(shares * 3 / own_inputs)
        # On average, inputs are 1; units become active between an empty device and a device with twice the mean load.
        self.piece_bias = nn.Parameter(torch.rand(len(shares.T), generator=generator) * -2)
        self.output_weight = uniform(self.own_outputs.shape, 0.3 / sizes.head_hidden)
        self.linear_weight = uniform(self.own_linear.shape, 0.5 / own_inputs)
        self.overhead = nn.Parameter(torch.full((len(member_of_output),), 0.05))
        self.pass_weight = nn.Parameter(torch.full((len(PASS_ROWS), len(member_of_output)), 0.02))
        jumps = len(WIDTHS) * len(LANE_WORK)
        self.lane_weight = nn.Parameter(torch.full((jumps, len(member_of_output)), 0.01))
        self.project()

    @torch.no_grad()
    def project(self) -> None:
        """Clip the weights, so that times never decrease and are convex except for steps; keep members separate."""
        self.factor_weight.mul_(self.own_factors)
        self.piece_weight.mul_(self.own_pieces).clamp_(min=0)
        self.output_weight.mul_(self.own_outputs).clamp_(min=0)
        self.linear_weight.mul_(self.own_linear).clamp_(min=0)
        self.overhead.clamp_(min=LEAST_OVERHEAD)
        self.pass_weight.clamp_(min=0)
        self.lane_weight.clamp_(min=0)

    def is_convex(self) -> bool:
        """Return True if ``project`` would change no weight; for the overhead, only the sign is checked."""
        owned = (
            (self.factor_weight, self.own_factors),
            (self.piece_weight, self.own_pieces),
            (self.output_weight, self.own_outputs),
            (self.linear_weight, self.own_linear),
        )
        rising = (self.piece_weight, self.output_weight, self.linear_weight, self.overhead)
        jumps = (self.pass_weight, self.lane_weight)
        return all(weight.equal(weight * own) for weight, own in owned) and all(
            bool((weight >= 0).all()) for weight in (*rising, *jumps)
        )

    def table_inputs(self, tables: Sequence[Table], batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs of ``encode``: normalised features [T, F] and scaled additive work [T, A].

        With ``across_batches``, the logarithms of the scaled work are appended to the features; with ``sees_hot_rows``,
        the shares of contiguous hot rows.
        """
        features_TF, work_TA = self.normalizer(tables, batch_size), self.unscaled_work_TA(tables, batch_size)
        work_TA = work_TA / self.work_scale_A
        if self.sizes.across_batches:
            logs_TA = work_TA.clamp(min=LEAST_WORK).log() / LOG_SCALE
            features_TF = torch.cat([features_TF, logs_TA.float()], dim=1)
        if self.sizes.sees_hot_rows:
            shares = [contiguous_share(table, batch_size) for table in tables]
            shares_T = torch.tensor([UNKNOWN_HOT_ROWS if share is None else share for share in shares])
            features_TF = torch.cat([features_TF, shares_T[:, None]], dim=1)
        return features_TF, work_TA.float()

    def unscaled_work_TA(self, tables: Sequence[Table], batch_size: int) -> torch.Tensor:
        """Return the work of tables, [T, A]; with ``across_batches``, per-sample work times the batch size."""
        work_TA = torch.from_numpy(additive_work_TA(tables, batch_size))
        if self.sizes.across_batches:
            work_TA[:, PER_SAMPLE] *= batch_size
        return work_TA

    def encode(self, features_TF: torch.Tensor, work_TA: torch.Tensor) -> torch.Tensor:
        """Return representations, [T, I]: the work, and the work times the learned factors of each member."""
        hidden = torch.relu(torch.addmm(self.table_bias, features_TF, self.table_weight))
        factors_TL = nn.functional.softplus(torch.addmm(self.factor_bias, hidden, self.factor_weight))
        repeats = factors_TL.shape[1] // NUM_QUANTITIES
        return torch.cat([work_TA, factors_TL * work_TA.repeat(1, repeats)], dim=1)

    def member_ms(self, inputs: torch.Tensor, jump_sums: torch.Tensor) -> torch.Tensor:
        """Return each member's forward and backward time, [..., K, 2] ms, from sums over the tables of devices."""
        each_OO = torch.diag(self.time_scale_ms.repeat(self.sizes.num_members))
        both = self.mix_ms(inputs, jump_sums, each_OO)
        return both.reshape(*both.shape[:-1], self.sizes.num_members, 2)

    def mix_ms(self, inputs: torch.Tensor, jump_sums: torch.Tensor, mix_OX: torch.Tensor) -> torch.Tensor:
        """Compute linear combinations of all members' forward and backward times, with weights ``mix_OX``, [..., X]."""
        pieces = nn.functional.linear(inputs, self.piece_weight.T, self.piece_bias).chunk(self.sizes.pieces, dim=-1)
        hidden = torch.relu(reduce(torch.maximum, pieces))
        linear = nn.functional.linear(inputs, (self.linear_weight @ mix_OX).T, self.overhead @ mix_OX)
        smooth = linear + hidden @ (self.output_weight @ mix_OX)
        passes = inputs[..., LOOKUPS, None] * self.pass_ms(jump_sums[..., 0], mix_OX)
        return smooth + passes + self.lane_ms(inputs[..., LANE_WORK], jump_sums, mix_OX)

    def lane_ms(self, lane_work: torch.Tensor, jump_sums: torch.Tensor, mix_OX: torch.Tensor) -> torch.Tensor:
        """Compute the time of warp lanes, which depends on a device's widest table, [..., X]."""
        is_wider = (jump_sums[..., 1:] > 0.5).float()  # numbers of tables
        return (is_wider[..., None] * lane_work[..., None, :]).flatten(-2) @ (self.lane_weight @ mix_OX)

    def pass_ms(self, num_rows: torch.Tensor, mix_OX: torch.Tensor) -> torch.Tensor:
        """Compute the radix-sort time of devices with ``num_rows`` rows [...] and average lookups, [..., X]."""
        passes = (num_rows[..., None] >= num_rows.new_tensor(PASS_ROWS)).float()
        return passes @ (self.pass_weight @ mix_OX)


def jump_sums_TJ(tables: Sequence[Table]) -> torch.Tensor:
    """Return values whose sums determine sort passes and warp lanes, [T, J]: rows, and 1 per exceeded ``WIDTHS``."""
    return torch.tensor(
        [[float(one.num_rows), *(float(one.embedding_dim > width) for width in WIDTHS)] for one in tables]
    ).reshape(-1, NUM_JUMP_SUMS)
