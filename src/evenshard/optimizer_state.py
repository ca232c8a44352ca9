"""How much memory does an optimizer keep beside the weights? As FBGEMM's fused optimizers do, in FP32."""

from __future__ import annotations

from evenshard.errors import BadConfig
from evenshard.tables import Table

STATE_BYTES = 4  # of one number; FBGEMM keeps states in FP32 whatever the weights' precision


def state_bytes(table: Table, optimizer: str) -> int:
    """Bytes of optimizer state of a table, or of a part of one: a part keeps a state of its own.

    ``sgd`` keeps nothing, ``rowwise_adagrad`` one number per row, ``adagrad`` one per weight, ``adam`` two per weight.

    Raises:
        BadConfig: if the optimizer is none of these.
    """
    numbers_of = {
        "sgd": 0,
        "rowwise_adagrad": table.num_rows,
        "adagrad": table.num_rows * table.embedding_dim,
        "adam": 2 * table.num_rows * table.embedding_dim,
    }
    if optimizer not in numbers_of:
        raise BadConfig(f"optimizer is {optimizer!r}. Choose one of {', '.join(numbers_of)}.")
    return numbers_of[optimizer] * STATE_BYTES


OPTIMIZERS = ("sgd", "rowwise_adagrad", "adagrad", "adam")
