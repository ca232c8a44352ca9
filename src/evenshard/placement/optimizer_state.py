"""Memory that an optimizer keeps beside the weights, as FBGEMM's fused optimizers do, in FP32."""

from __future__ import annotations

from evenshard.tables.table import Table
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief

STATE_BYTES = 4  # of one number; FBGEMM keeps states in FP32 whatever the weights' precision
NUMBERS = {"sgd": (0, 0), "rowwise_adagrad": (1, 0), "adagrad": (0, 1), "adam": (0, 2)}
"""What an optimizer keeps: numbers for each row, and for each weight."""


def state_bytes(table: Table, optimizer: str) -> int:
    """Bytes of optimizer state of a table, or of a part of one: a part keeps a state of its own.

    Raises:
        BadConfig: if the optimizer is none of ``NUMBERS``.
    """
    if optimizer not in NUMBERS:
        raise BadConfig(f"optimizer is {brief(optimizer)}. Choose one of {', '.join(NUMBERS)}.")
    per_row, per_weight = NUMBERS[optimizer]
    return table.num_rows * (per_row + per_weight * table.embedding_dim) * STATE_BYTES


def state_bytes_of_rows(table: Table, optimizer: str) -> int:
    """What of ``state_bytes`` every part of a table has, however few columns it holds."""
    return table.num_rows * NUMBERS[optimizer][0] * STATE_BYTES
