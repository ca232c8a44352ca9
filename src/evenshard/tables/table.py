"""Embedding tables, with the properties that affect their placement.

A *pool* is a tuple of tables with distinct names. Pools come from ``files.py`` (the user's own file), ``sources.py``
(public table sets), ``generator.py`` (the DLRM 2021 statistics), ``dlrm_batch.py`` (a recorded batch of lookups) and
``traffic/`` (a sample of many batches).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from evenshard.base.errors import BadConfig
from evenshard.base.knobs import MAX_TABLE_BYTES, RANGES
from evenshard.base.messages import brief
from evenshard.tables.reuse import NUM_REUSE_BINS

# Data types of weights and their bits; the default for each number of bits comes first.
DATA_TYPES = {"fp32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8, "int4": 4}
WEIGHT_BITS = tuple(sorted(set(DATA_TYPES.values())))
# Data type that is assumed if only the number of bits is known.
USUAL_DATA_TYPES = {bits: name for name, bits in reversed(DATA_TYPES.items())}
SUM, MEAN, SEQUENCE = "sum", "mean", "none"
# Poolings in lower case (TorchRec: PoolingType). Without pooling, every lookup's embedding is an output.
POOLINGS = (SUM, MEAN, SEQUENCE)
# Shares of a table's rows in a cache at which ``miss_ratios`` are counted.
LOAD_FACTORS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
MAX_FEATURES = 10_000  # of a table; a table with more is rejected
MAX_ROW_SHARES = 4_096  # values of ``row_shares``; a table with more is rejected


@dataclass(frozen=True)
class Table:
    """An embedding table and its lookups in a training batch.

    Attributes:
        name: unique within a pool.
        num_rows: number of embeddings (TorchRec: ``num_embeddings``).
        pooling_factor: mean lookups per sample, a float (0.3 and 12.7 are common in real traffic).
        reuse_bins: 17 shares, adding up to 1, of the UNIQUE indices of a batch that are looked up (0,1], (1,2], (2,4],
            ... (16384,32768], >32768 times, for the batch size of the table's task; None if not counted.
        weight_bits: 4, 8, 16 or 32 bits per weight.
        data_type: one of ``DATA_TYPES``; "" for the default of this number of bits.
        pooling: one of ``POOLINGS``.
        is_weighted: True if every lookup has its own weight.
        feature_names: the features that look the table up; empty for a single feature with the table's name.
        feature_pooling_factors: mean lookups per sample of each feature, adding up to ``pooling_factor``; empty for a
            single feature. Each feature has its own bag and output.
        is_deduplicated: True if a device sends each distinct index of its samples once (TorchRec: ``use_index_dedup``).
        module: path of its collection in a model; tables of different modules share no kernel call.
        row_shares: shares of the lookups, adding up to 1, of equal, successive ranges of rows, counted in traffic; None
            if not counted, which assumes even lookups over the rows.
        miss_ratios: one for each of ``LOAD_FACTORS``, the share of the table's rows in an LRU cache: the share of a
            batch's distinct rows that miss this cache. Counted in traffic for the batch size of the table's task; None
            if not counted, then the bound of ``locality`` applies.
    """

    name: str
    num_rows: int
    embedding_dim: int
    pooling_factor: float
    reuse_bins: tuple[float, ...] | None = None
    weight_bits: int = 32
    data_type: str = ""
    pooling: str = SUM
    is_weighted: bool = False
    feature_names: tuple[str, ...] = ()
    feature_pooling_factors: tuple[float, ...] = ()
    is_deduplicated: bool = False
    module: str = ""
    row_shares: tuple[float, ...] | None = None
    miss_ratios: tuple[float, ...] | None = None

    def __repr__(self) -> str:
        """Return a stable text that identifies the table in measurements; newer fields appear only if set."""
        shown = {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name not in LATER_FIELDS or getattr(self, each.name) != LATER_FIELDS[each.name]
        }
        return f"Table({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def dtype(self) -> str:
        """Return the data type, one of ``DATA_TYPES``."""
        return self.data_type or USUAL_DATA_TYPES[self.weight_bits]

    @property
    def is_sequence(self) -> bool:
        """Return True if every lookup's embedding is an output, as in TorchRec's ``EmbeddingCollection``."""
        return self.pooling == SEQUENCE

    @property
    def collection(self) -> tuple[str, bool, bool]:
        """Return the key of the table's TorchRec collection: (module path, is sequence, is weighted)."""
        return self.module, self.is_sequence, self.is_weighted

    @property
    def feature_lookups(self) -> tuple[float, ...]:
        """Return the mean lookups per sample of each feature."""
        return self.feature_pooling_factors or (self.pooling_factor,)

    @property
    def num_features(self) -> int:
        """Return the number of features that look the table up."""
        return len(self.feature_lookups)

    @property
    def outputs_per_sample(self) -> float:
        """Return the output embeddings per sample: one per feature, or one per lookup of a sequence."""
        return self.pooling_factor if self.is_sequence else float(self.num_features)

    @property
    def size_bytes(self) -> int:
        """Return the memory of the weights."""
        return self.num_rows * self.embedding_dim * self.weight_bits // 8

    def with_fields(self, **values: object) -> Table:
        """Return a copy with some fields replaced, faster than ``dataclasses.replace``."""
        found = object.__new__(Table)
        vars(found).update(vars(self), **values)
        return found

    def problem(self) -> str | None:
        """Return the first reason that this table is invalid, or None."""
        return next(self.problems(), None)

    def problems(self) -> Iterator[str]:
        """Yield each reason that this table is invalid, such as "name is empty"."""
        if not isinstance(self.name, str) or not self.name:
            yield "name is empty"
        elif any("\ud800" <= character <= "\udfff" for character in self.name):
            yield "name contains half of a character (a lone surrogate)"
        wrong = set()
        for column in ("num_rows", "embedding_dim", "pooling_factor"):
            if problem := RANGES[column].problem(getattr(self, column)):
                wrong.add(column)
                yield f"{column} {problem}"
        if self.weight_bits not in WEIGHT_BITS:
            wrong.add("weight_bits")
            yield f"weight_bits is {brief(self.weight_bits)}, not one of {WEIGHT_BITS}"
        if self.data_type and self.data_type not in DATA_TYPES:
            yield f"data_type is {brief(self.data_type)}, not one of {', '.join(DATA_TYPES)}"
        elif self.data_type and DATA_TYPES[self.data_type] != self.weight_bits:
            bits = DATA_TYPES[self.data_type]
            yield f"data_type is {self.data_type}, which has {bits} bits, but weight_bits is {self.weight_bits}"
        if self.pooling not in POOLINGS:
            yield f"pooling is {brief(self.pooling)}, not one of {', '.join(POOLINGS)}"
        if not wrong & {"num_rows", "embedding_dim", "weight_bits"} and self.size_bytes > MAX_TABLE_BYTES:
            yield f"num_rows x embedding_dim weights take {self.size_bytes:,} bytes, more than {MAX_TABLE_BYTES:,}"
        if self.reuse_bins is not None:
            if len(self.reuse_bins) != NUM_REUSE_BINS:
                yield f"reuse_bins has {len(self.reuse_bins)} values, not {NUM_REUSE_BINS}"
            elif not all(math.isfinite(share) and share >= 0 for share in self.reuse_bins):
                yield "reuse_bins contains a negative or non-finite share"
            elif abs(sum(self.reuse_bins) - 1) > 1e-3:
                yield f"reuse_bins add up to {sum(self.reuse_bins):.4f}, not 1"
        by_column = {"pooling_factor": self._feature_problem, "num_rows": self._row_share_problem}
        checks = [check for column, check in by_column.items() if column not in wrong]
        for check in (*checks, self._miss_ratio_problem):
            if problem := check():
                yield problem

    def _feature_problem(self) -> str | None:
        own, names = self.feature_pooling_factors, self.feature_names
        if names and len(names) != len(self.feature_lookups):
            return f"feature_names has {len(names):,} values, but feature_pooling_factors has {len(own):,}"
        if len(set(names)) < len(names) or not all(isinstance(name, str) and name for name in names):
            return "feature_names has an empty or duplicate name"
        if len(own) > MAX_FEATURES:
            return f"feature_pooling_factors has {len(own):,} values, more than {MAX_FEATURES:,}"
        for factor in own:
            if problem := RANGES["pooling_factor"].problem(factor):
                return f"feature_pooling_factors contains a number that {problem}"
        if own and abs(sum(own) - self.pooling_factor) > 1e-6 * max(self.pooling_factor, 1.0):
            return f"feature_pooling_factors add up to {sum(own):g}, but pooling_factor is {self.pooling_factor:g}"
        return None

    def _row_share_problem(self) -> str | None:
        shares = self.row_shares
        if shares is None:
            return None
        if not 1 <= len(shares) <= min(MAX_ROW_SHARES, self.num_rows):
            return f"row_shares has {len(shares):,} values, not 1 to {min(MAX_ROW_SHARES, self.num_rows):,}"
        if not all(math.isfinite(share) and share >= 0 for share in shares) or abs(sum(shares) - 1) > 1e-3:
            return "row_shares are not non-negative numbers that add up to 1"
        return None

    def _miss_ratio_problem(self) -> str | None:
        ratios = self.miss_ratios
        if ratios is None:
            return None
        if len(ratios) != len(LOAD_FACTORS):
            return f"miss_ratios has {len(ratios):,} values, not {len(LOAD_FACTORS)}"
        if not all(0 <= ratio <= 1 for ratio in ratios):
            return "miss_ratios contains a number that is not from 0 to 1"
        if any(larger > smaller for smaller, larger in pairwise(ratios)):
            return "miss_ratios increase, but a larger cache cannot miss more"
        if ratios[-1] != 0:
            return f"miss_ratios end with {ratios[-1]:g}, not 0, but a cache of all rows misses none"
        return None


def check_weight_bits(weight_bits: int) -> None:
    """Raise BadConfig for a number of bits that no data type has."""
    if weight_bits not in WEIGHT_BITS:
        raise BadConfig(f"weight_bits is {weight_bits}. Choose one of {WEIGHT_BITS}.")


def check_dims(embedding_dims: Sequence[int]) -> None:
    """Raise BadConfig if there is no dim, or a dim below 1."""
    if not embedding_dims or min(embedding_dims) < 1:
        raise BadConfig(f"embedding_dims is {list(embedding_dims)}. List at least one dim, each at least 1.")


# Default values of later fields, which ``repr`` and files omit at their default, by name.
LATER_FIELDS = {each.name: each.default for each in fields(Table)[6:]}


def duplicate_name(tables: Sequence[Table]) -> str | None:
    """Return the first name that two tables of a pool share, or None."""
    counts = Counter(table.name for table in tables)
    return next((name for name, count in counts.items() if count > 1), None)
