"""The dense layers of a TorchRec model, found by the shapes of its parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from evenshard.price.dense import ACTIVATION_PASSES, ATTENTION_PASSES, CROSS_PASSES, DOT_PASSES, DenseLayers
from evenshard.tables.table import Table
from evenshard.torchrec.model.modules import find_collections, find_other_modules

if TYPE_CHECKING:
    from torch import nn


def find_dense_layers(
    model: nn.Module, tables: Sequence[Table], sharders: Sequence[Any] | None = None
) -> DenseLayers | None:
    """Return the dense layers of an unsharded model; None if it has none.

    Each matrix of parameters outside of tables is a product for each sample. In attention and transformer layers it is
    a product for each token: the most lookups of a feature in a collection of sequences. The data type is that of the
    parameters, or TF32 if torch allows it for FP32.
    """
    import torch
    from torch import nn

    sharded = {*find_collections(model, sharders).values(), *find_other_modules(model, sharders).values()}
    features = [lookups for table in tables if table.is_sequence for lookups in table.feature_lookups]
    tokens, dim = max([*features, 1.0]), max(table.embedding_dim for table in tables)
    products: list[tuple[float, int, int]] = []
    pairs = moved = 0.0
    seen: set[nn.Module] = set()
    dtypes: set[torch.dtype] = set()

    def visit(module: nn.Module, rows: float, passes: int) -> None:
        nonlocal pairs, moved
        if module in seen or module in sharded or isinstance(module, nn.Embedding | nn.EmbeddingBag):
            return
        seen.add(module)
        if isinstance(module, nn.MultiheadAttention | nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            rows, passes = tokens, 0
        kind, own = type(module).__name__, vars(module)
        if isinstance(module, nn.MultiheadAttention):
            pairs += rows * rows * module.embed_dim
            moved += ATTENTION_PASSES * rows * module.embed_dim
        elif "CrossNet" in kind:
            moved += CROSS_PASSES * sum(
                bias.numel() for name, bias in module.named_parameters() if name.startswith("bias")
            )
            passes = 0
        elif kind == "InteractionArch" and isinstance(own.get("F"), int):  # dot products of TorchRec's DLRM
            moved += DOT_PASSES * ((own["F"] + 1) * dim + (own["F"] + 1) ** 2)
        for weight in module.parameters(recurse=False):
            if weight.ndim > 1 and min(weight.shape[-2:]) > 1:
                *several, outputs, inputs = weight.shape
                dtypes.add(weight.dtype)
                products.append((rows * math.prod(several), inputs, outputs))
                moved += passes * rows * math.prod(several) * outputs
        for child in module.children():
            visit(child, rows, passes)

    visit(model, 1.0, ACTIVATION_PASSES)
    if not products:
        return None
    half = next((name for kind, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")) if dtypes == {kind}), "")
    return DenseLayers(
        tuple(products), pairs, moved, half or ("tf32" if torch.backends.cuda.matmul.allow_tf32 else "fp32")
    )
