"""``ParameterConstraints`` with which TorchRec's own planner comes near an answer; as a file, or in Python.

They leave it one way to shard each table: the type, the width of its parts, the kernel and the cache, with the pooling
factors that it needs to balance. Which rank gets what it still decides, and its shards of a table are equally wide.
"""

from __future__ import annotations

import json
import pprint
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenshard.placement.parts import COLUMN_STEP
from evenshard.placement.sharding import COLUMN_WISE, TABLE_COLUMN_WISE, TYPES, sharding_type
from evenshard.placement.storage import HOST
from evenshard.planner.answer import PlacementAnswer
from evenshard.sharders.torchrec.compat import require_torchrec
from evenshard.sharders.torchrec.planner import DENSE_KERNEL
from evenshard.torchrec.model.tables import bags_of
from evenshard.torchrec.plan.entries import prefetches
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import ParameterConstraints

_PYTHON = '''"""ParameterConstraints for TorchRec's EmbeddingShardingPlanner, written by `evenshard place`.

    from {module} import constraints

    planner = EmbeddingShardingPlanner(topology=topology, batch_size=batch_size, constraints=constraints)
"""

from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import CacheParams

TABLES = {tables}
constraints = {{}}
for name, fields in TABLES.items():
    cache = fields.pop("cache_params", None)
    cache_params = None if cache is None else CacheParams(algorithm=CacheAlgorithm.LRU, **cache)
    constraints[name] = ParameterConstraints(cache_params=cache_params, **fields)
'''


def torchrec_constraints(answer: PlacementAnswer) -> dict[str, ParameterConstraints]:
    """The constraints of an answer, by the names of its tables.

    Raises:
        BadConfig: if TorchRec has no such kernel.
        MissingPackage: if TorchRec is not installed.
    """
    require_torchrec()
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import CacheParams

    found = {}
    for name, fields in constraint_fields(answer).items():
        cache = fields.pop("cache_params", None)
        cache_params = None if cache is None else CacheParams(algorithm=CacheAlgorithm.LRU, **cache)
        found[name] = ParameterConstraints(cache_params=cache_params, **fields)
    return found


def constraints_text(answer: PlacementAnswer, path: str | Path) -> str:
    """The file of the constraints: Python that needs TorchRec alone where the path ends in .py, else JSON.

    Raises:
        BadConfig: if TorchRec has no such kernel.
    """
    fields = constraint_fields(answer)
    if Path(path).suffix == ".py":
        tables = pprint.pformat(fields, width=110, sort_dicts=False)
        return _PYTHON.format(module=Path(path).stem, tables=tables)
    return json.dumps({"schema_version": 1, "tables": fields}, indent=1) + "\n"


def constraint_fields(answer: PlacementAnswer) -> dict[str, dict[str, Any]]:
    """What the constraints of each table say, as plain values.

    Raises:
        BadConfig: if TorchRec has no such kernel.
    """
    machine = answer.request.nodes
    found = {}
    for table in answer.request.tables:
        parts = [part for part in answer.parts if part.table == table.name]
        way, storage = sharding_type(parts, table, machine), parts[0].storage
        if storage.kernel == HOST:
            raise BadConfig(f"table {brief(table.name)} is kept on its {HOST}, which TorchRec cannot do beside GPUs.")
        nodes = {machine.node_of(part.device) for part in parts if len(part.devices) == 1}
        if way == COLUMN_WISE and len(nodes) == 1 and machine.num_nodes > 1 and not table.is_sequence:
            way = TABLE_COLUMN_WISE
        lookups, bags = bags_of(table)
        fields: dict[str, Any] = {
            "sharding_types": [way],
            "compute_kernels": [DENSE_KERNEL if TYPES[way].is_replicated else storage.kernel],
            "pooling_factors": list(lookups),
            "is_weighted": table.is_weighted,
        }
        if set(bags) != {1.0}:
            fields["num_poolings"] = list(bags)
        if TYPES[way].cuts_columns:
            fields["min_partition"] = _width(table.embedding_dim, len({part.columns for part in parts}))
        if storage.is_cached:
            prefetched = prefetches(answer.request.training_pipeline)
            fields["cache_params"] = {"load_factor": storage.load_factor, "prefetch_pipeline": prefetched}
        found[table.name] = fields
    return found


def _width(columns: int, num_parts: int) -> int:
    """Columns of so many parts, all alike, or of a few less."""
    width = -(-columns // num_parts)
    return -(-width // COLUMN_STEP) * COLUMN_STEP
