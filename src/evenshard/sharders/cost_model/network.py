"""Convex, non-decreasing network of the cost model: an ensemble computed as one wide network.

A table is represented by its additive work (``additive_work_TA``), which a device sums over its tables on any hardware,
and, for each member of the ensemble, by the same work times learned factors of the 21 features: never negative. A head
reads the sum over a device's tables. Its weights are never negative, and a unit is the largest of several linear pieces
and 0, so that it is convex and non-decreasing. ReLU units with non-negative weights (input-convex networks, Amos et al.
2017) bend only where everything grows, and cannot learn the maximum of two limits.

Two properties of kernels are not convex. FBGEMM's backward pass sorts the indices of a shard, eight bits of the row
number at a time, so that every 8 more bits of rows add a pass per lookup. And the widest table determines the lanes of
a warp for all bags, rows and gradients of a shard. These jumps are added to the head, with a learned weight each; times
still never decrease. The number of tables wider than a limit is additive, and shows if a shard has any.

Every layer is a block-diagonal matrix with a block per member: one product serves all members. Weights are kept legal
by projection after each training step (``project``), which converged faster than squares, softplus or exponentials of
free numbers.

Legend: T tables, F = 21 features (A more across batches, one more with hot rows), A = 8 additive quantities,
K members (in ``additive_work_TA`` 17 reuse bins), L = learned columns of all members, I = A + L inputs of the heads, U
= head units of all members, O = 2K outputs (member by member: forward, backward), J = 6 sums that determine jumps:
rows, and for each limit the number of wider tables.
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
LEAST_READ_BYTES = 32  # smallest unit of memory reads: a row of 8 bytes costs as much as a row of 32
GRAD_BYTES_PER_VALUE = 4  # gradients are FP32


def additive_work_TA(tables: Sequence[Table], batch_size: int) -> FloatArray:
    """Compute each table's additive work in one training step, [T, A], all non-negative.

    Tables (1 each), embedding dims, lookups, values to add up (lookups times dim), bytes of the rows looked up, bytes
    of their gradients, distinct rows, and bytes of those. Bytes of rows come in whole sectors.
    """
    rows_T = np.array([table.num_rows for table in tables], dtype=np.float64)
    dims_T = np.array([table.embedding_dim for table in tables], dtype=np.float64)
    bits_T = np.array([table.weight_bits for table in tables], dtype=np.float64)
    lookups_T = np.array([table.pooling_factor for table in tables], dtype=np.float64) * batch_size
    bins_TK = raw_features_TF(tables, batch_size)[:, -NUM_REUSE_BINS:]
    # a histogram from another source may add up to 0.999
    bins_TK = bins_TK / bins_TK.sum(axis=1, keepdims=True)
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
LEAST_WORK, LOG_SCALE = 1e-5, 4.0  # least work that factors distinguish; makes logarithms about 1
# Rows of a shard from which the radix sort of its indices takes one more pass.
PASS_ROWS = (2.0**8, 2.0**16, 2.0**24, 2.0**32)
# Columns of a table beyond which all lookups of its shard take more lanes, or another warp.
WIDTHS = (*LANE_LIMITS, 2 * REQUEST_VALUES, 4 * REQUEST_VALUES)
NUM_JUMP_SUMS = 1 + len(WIDTHS)
LANE_WORK = [QUANTITIES.index(name) for name in ("tables", "lookups", "unique_rows")]
MAX_UNITS = 8192  # widest layer of all members: the matrices between two layers grow with the square
LEAST_OVERHEAD = 1e-4  # in units of the mean time: keeps predictions above 0 and their logarithm finite


@dataclass(frozen=True)
class EnsembleSizes:
    """Sizes of the ensemble.

    Raises:
        ValueError: if a size is below 1, or the ensemble is too wide.
    """

    num_members: int = 5  # K
    table_hidden: int = 16  # hidden units of a member's table network
    factors_per_quantity: int = 1  # learned columns of each additive quantity, per member
    head_hidden: int = 4  # hidden units of a member's head
    pieces: int = 8  # linear pieces of a unit
    # True if batch sizes differ. Per-table-and-sample quantities then count by the sample, and the learned factors also
    # depend on the work, because the share of it that caches catch changes with the batch.
    across_batches: bool = False
    # True if the learned factors depend on the share of contiguous hot rows (``locality.py``).
    sees_hot_rows: bool = False

    def __post_init__(self) -> None:
        counts = (self.table_hidden, self.factors_per_quantity, self.head_hidden, self.pieces)
        units = self.num_members * max(
            self.table_hidden, NUM_QUANTITIES * self.factors_per_quantity, self.head_hidden * self.pieces
        )
        if min(self.num_members, *counts) < 1 or units > MAX_UNITS:
            raise ValueError(f"an ensemble of {self.num_members} members of {counts} units is impossible")


class ConvexNet(nn.Module):
    """Network of device compute times, one prediction per member of the ensemble."""

    work_scale_A: torch.Tensor  # additive work of a mean device, the unit of the heads' inputs
    time_scale_ms: torch.Tensor  # forward and backward time of a mean device, the unit of the heads' outputs
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
        # Pieces differ most if each has a few inputs of its own: squares of uniform numbers, three times a small mean.
        shares = torch.rand(self.own_pieces.shape, generator=generator) ** 2
        self.piece_weight = nn.Parameter(shares * 3 / own_inputs)
        # A mean device has inputs of 1: units become active between an empty device and twice the mean.
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
        """Project the weights: times do not decrease and are convex except for jumps, and members stay separate."""
        self.factor_weight.mul_(self.own_factors)
        self.piece_weight.mul_(self.own_pieces).clamp_(min=0)
        self.output_weight.mul_(self.own_outputs).clamp_(min=0)
        self.linear_weight.mul_(self.own_linear).clamp_(min=0)
        self.overhead.clamp_(min=LEAST_OVERHEAD)
        self.pass_weight.clamp_(min=0)
        self.lane_weight.clamp_(min=0)

    def is_convex(self) -> bool:
        """Return True if the weights already satisfy ``project``, ignoring the minimum overhead."""
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

        Across batches, the features are followed by the logarithms of the scaled work and, if they are inputs, the
        shares of contiguous hot rows.
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
        """Return additive work [T, A] in float64; across batches, tables and dims count once per sample."""
        work_TA = torch.from_numpy(additive_work_TA(tables, batch_size))
        if self.sizes.across_batches:
            work_TA[:, PER_SAMPLE] *= batch_size
        return work_TA

    def encode(self, features_TF: torch.Tensor, work_TA: torch.Tensor) -> torch.Tensor:
        """Return non-negative representations, [T, I]: the work, and the work times each member's learned factors."""
        hidden = torch.relu(torch.addmm(self.table_bias, features_TF, self.table_weight))
        factors_TL = nn.functional.softplus(torch.addmm(self.factor_bias, hidden, self.factor_weight))
        repeats = factors_TL.shape[1] // NUM_QUANTITIES
        return torch.cat([work_TA, factors_TL * work_TA.repeat(1, repeats)], dim=1)

    def member_ms(self, inputs: torch.Tensor, jump_sums: torch.Tensor) -> torch.Tensor:
        """Return each member's forward and backward time, [..., K, 2] ms, from sums [..., I] and jump sums [..., J]."""
        each_OO = torch.diag(self.time_scale_ms.repeat(self.sizes.num_members))
        both = self.mix_ms(inputs, jump_sums, each_OO)
        return both.reshape(*both.shape[:-1], self.sizes.num_members, 2)

    def mix_ms(self, inputs: torch.Tensor, jump_sums: torch.Tensor, mix_OX: torch.Tensor) -> torch.Tensor:
        """Compute linear combinations of the outputs, [..., X], with ``mix_OX`` folded into the weights."""
        pieces = nn.functional.linear(inputs, self.piece_weight.T, self.piece_bias).chunk(self.sizes.pieces, dim=-1)
        hidden = torch.relu(reduce(torch.maximum, pieces))
        linear = nn.functional.linear(inputs, (self.linear_weight @ mix_OX).T, self.overhead @ mix_OX)
        smooth = linear + hidden @ (self.output_weight @ mix_OX)
        passes = inputs[..., LOOKUPS, None] * self.pass_ms(jump_sums[..., 0], mix_OX)
        return smooth + passes + self.lane_ms(inputs[..., LANE_WORK], jump_sums, mix_OX)

    def lane_ms(self, lane_work: torch.Tensor, jump_sums: torch.Tensor, mix_OX: torch.Tensor) -> torch.Tensor:
        """Compute the warp-lane term of a device's time, set by its widest table, [..., X]."""
        is_wider = (jump_sums[..., 1:] > 0.5).float()  # numbers of tables
        return (is_wider[..., None] * lane_work[..., None, :]).flatten(-2) @ (self.lane_weight @ mix_OX)

    def pass_ms(self, num_rows: torch.Tensor, mix_OX: torch.Tensor) -> torch.Tensor:
        """Compute the radix-sort pass time for ``num_rows`` [...] and a mean device's lookups, [..., X]."""
        passes = (num_rows[..., None] >= num_rows.new_tensor(PASS_ROWS)).float()
        return passes @ (self.pass_weight @ mix_OX)


def jump_sums_TJ(tables: Sequence[Table]) -> torch.Tensor:
    """Return values whose sums determine the jumps, [T, J]: rows, and 1 for each width limit that a table exceeds."""
    return torch.tensor(
        [[float(one.num_rows), *(float(one.embedding_dim > width) for width in WIDTHS)] for one in tables]
    ).reshape(-1, NUM_JUMP_SUMS)
