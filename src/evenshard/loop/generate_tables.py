"""Stage 1: writes the table pool and the train and test tasks."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np

from evenshard.base.errors import BadConfig
from evenshard.base.knobs import copy_fields
from evenshard.base.messages import brief
from evenshard.base.outputs import check_distinct
from evenshard.base.s3 import local_copy
from evenshard.loop.loop import GenerateTablesConfig, GenerateTablesInputs, GenerateTablesOutputs
from evenshard.loop.stage import Outcome
from evenshard.placement.tasks import TaskSampling, sample_tasks, save_tasks
from evenshard.tables.files import load_tables, save_tables
from evenshard.tables.formats import TABLE_SUFFIXES
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.sources import BATCH_SUFFIXES, SourceKind, catalog_names, kind_of_source, load_catalog
from evenshard.tables.table import Table, check_dims, check_weight_bits
from evenshard.tables.traffic import tables_from_traffic

log = logging.getLogger(__name__)
GENERATOR = "dlrm_2021"


def run(config: GenerateTablesConfig, inputs: GenerateTablesInputs, outputs: GenerateTablesOutputs) -> Outcome:
    """Write tables and tasks.

    Raises:
        BadInput: if the source cannot be read or the settings are invalid.
    """
    check_dims(config.embedding_dims)
    check_weight_bits(config.weight_bits)
    check_distinct(
        {"tables": (outputs.tables,), "tasks": (outputs.tasks,)}, {"generate_tables.source": (Path(config.source),)}
    )
    pool = _load_pool(config)
    split = sample_tasks(pool, copy_fields(config, TaskSampling), config.seed)
    save_tables(pool, outputs.tables)
    save_tasks(split, outputs.tasks)
    log.info(
        "%d tables from %s, %d train and %d test tasks", len(pool), config.source, len(split.train), len(split.test)
    )
    return Outcome(
        {
            "num_tables": float(len(pool)),
            "mean_pooling_factor": sum(table.pooling_factor for table in pool) / len(pool),
            "total_gb": sum(table.size_bytes for table in pool) / 1024**3,
        }
    )


def _load_pool(config: GenerateTablesConfig) -> tuple[Table, ...]:
    if config.source == GENERATOR:
        return generate_tables(copy_fields(config, GeneratorConfig), config.batch_size, config.seed)
    kind = kind_of_source(config.source)
    if kind is SourceKind.CATALOG:
        return load_catalog(config.source, config.batch_size, config.catalog_embedding_dim)
    if kind is SourceKind.TABLE_FILE:
        with local_copy(config.source) as path:
            return load_tables(path, config.columns)
    if kind is SourceKind.BATCH_FILE:
        with local_copy(config.source) as path:
            recorded = tables_from_traffic(path, config.batch_size, embedding_dim=config.embedding_dims[0]).tables
        dims = np.random.default_rng(config.seed).choice(config.embedding_dims, size=len(recorded))
        return tuple(
            replace(table, embedding_dim=int(dim), weight_bits=config.weight_bits)
            for table, dim in zip(recorded, dims, strict=True)
        )
    raise BadConfig(
        f"generate_tables.source is {brief(config.source)}. Use {GENERATOR}, one of {', '.join(catalog_names())}, "
        f"a table file ({', '.join(TABLE_SUFFIXES)}) or a DLRM batch file ({', '.join(BATCH_SUFFIXES)})."
    )
