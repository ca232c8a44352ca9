"""The optimizers, and the memory that each keeps beside the weights, as FBGEMM's fused ones do, in FP32."""

from __future__ import annotations

from evenshard.tables.table import Table
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief

STATE_BYTES = 4  # bytes of one number; FBGEMM keeps states in FP32 whatever the weights' precision
SGD = "sgd"
# Recommenders train tables with it; taken for tables that come without a model, which would say it.
DEFAULT_OPTIMIZER = "rowwise_adagrad"
# Numbers that an optimizer keeps for each row, and for each weight. The more it keeps, the slower its update.
NUMBERS = {
    SGD: (0, 0),
    "rowwise_adagrad": (1, 0),
    "adagrad": (0, 1),
    "lars_sgd": (0, 1),
    "partial_rowwise_adam": (1, 1),
    "partial_rowwise_lamb": (1, 1),
    "adam": (0, 2),
    "lamb": (0, 2),
}


def optimizer_problem(optimizer: str) -> str | None:
    """Says in one clause that it is none of ``NUMBERS``, or None."""
    return None if optimizer in NUMBERS else f"optimizer is {brief(optimizer)}, which is none of {', '.join(NUMBERS)}"


def state_bytes(table: Table, optimizer: str) -> int:
    """Bytes of optimizer state of a table, or of a part of one: a part keeps a state of its own.

    Raises:
        BadConfig: if the optimizer is none of ``NUMBERS``.
    """
    if problem := optimizer_problem(optimizer):
        raise BadConfig(f"{problem}. Choose one of these.")
    per_row, per_weight = NUMBERS[optimizer]
    return table.num_rows * (per_row + per_weight * table.embedding_dim) * STATE_BYTES
