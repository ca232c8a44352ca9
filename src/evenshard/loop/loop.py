"""Declarations of the loop's stages: settings, inputs, outputs and metrics.

Commands (``cli/stages.py``), components (``components/``), dvc.yaml and the pipelines are generated from them. Module
``evenshard.loop.NAME`` implements stage NAME.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenshard.base.knobs import COUNT, COUNT_OR_NONE, NOT_NEGATIVE, POSITIVE, REQUIRED, SHARE, knob
from evenshard.base.outputs import MODEL_FOLDER, NETWORK_FOLDER, REPORT, REPORTS
from evenshard.loop.stage import ARTIFACT, DATASET, HTML, MARKDOWN, MODEL, Stage, WhichRound, reads, writes
from evenshard.sharders.catalog import DREAMSHARD, LEARNED

WORK, OF_ROUND = "work", "work/round_{round}"
# Descriptions of inputs that several stages read.
POOL = "table pool written by generate-tables"
TASKS = "train and test tasks written by generate-tables"
NUM_ROUNDS = "number of rounds; the learning rate decays over them"
JOURNAL = (
    "journal to append each measurement to; run again with the same file to resume (default: a temporary file beside "
    "--out)"
)


def _round() -> Any:
    return knob(1, "round of the loop, from 1", range=COUNT, parameter="round_number")


@dataclass(frozen=True)
class LoopConfig:
    """Section ``loop`` of params.yaml."""

    num_rounds: int = knob(REQUIRED, "rounds to unroll in dvc.yaml; run `make generate` after a change", range=COUNT)


@dataclass(frozen=True)
class GenerateTablesConfig:
    """Section ``generate_tables`` of params.yaml."""

    source: str = knob(
        REQUIRED,
        "dlrm_2021 (seeded generator), a catalogue name, a table file (.yaml, .json, .csv, .parquet) or a DLRM batch "
        "file (.pt, .pt.gz), local or on S3",
        flag="--source",
    )
    num_train_tasks: int = knob(REQUIRED, "tasks to train the networks on", range=COUNT)
    num_test_tasks: int = knob(REQUIRED, "held-out tasks; they share no table with train tasks", range=COUNT)
    tables_per_task: int = knob(REQUIRED, "tables in each task, drawn without replacement", range=COUNT)
    num_devices: int = knob(REQUIRED, "devices per task")
    memory_cap_gb: float = knob(REQUIRED, "memory per device for weights, GB")
    batch_size: int = knob(REQUIRED, "global batch size, samples")
    num_tables: int = knob(856, "tables to generate (dlrm_2021 only)", range=COUNT)
    embedding_dims: tuple[int, ...] = knob(
        (4, 8, 16, 32, 64, 128), "embedding dims to sample from (dlrm_2021 and DLRM batch files)"
    )
    catalog_embedding_dim: int | None = knob(
        None,
        "replaces a catalogue's embedding dim (Criteo Kaggle and Avazu publish none; 16 is assumed); null keeps it. "
        "Not allowed for catalogues with several dims",
    )
    max_rows: int | None = knob(None, "maximum rows of a generated table; null keeps the published sizes")
    max_table_gb: float | None = knob(None, "maximum GB of a generated table, kept by reducing rows; null: no limit")
    weight_bits: int = knob(32, "bits per weight, 16 or 32 (dlrm_2021 and DLRM batch files)")
    hot_rows_together: float | None = knob(
        None,
        "share of generated tables whose hot rows are adjacent, as with indices ordered by frequency; in the other "
        "tables they are scattered, as with hashed indices. null: scattered in all tables, without row_shares",
    )
    columns: Mapping[str, str] | None = knob(
        None, "renamed columns of a table file, theirs: evenshard's, such as {hash_size: num_rows}"
    )
    seed: int = knob(0, "seed of tables and tasks", flag="--seed")


@dataclass(frozen=True)
class GenerateTablesInputs:
    """No inputs; the setting ``source`` names the generator, catalogue or file."""


@dataclass(frozen=True)
class GenerateTablesOutputs:
    """The table pool, and train and test tasks sampled from disjoint halves of it."""

    tables: Path = writes(
        REQUIRED,
        "table pool to write (.parquet, .json, .csv, .yaml)",
        "--tables-out",
        path=f"{WORK}/tables.parquet",
        artifact=DATASET,
    )
    tasks: Path = writes(REQUIRED, "tasks to write (.json)", "--tasks-out", path=f"{WORK}/tasks.json", artifact=DATASET)


GENERATE_TABLES = Stage(
    "generate_tables",
    "Write a table pool and placement tasks.",
    GenerateTablesConfig,
    GenerateTablesInputs,
    GenerateTablesOutputs,
    about="Tables come from the seeded DLRM 2021 generator, a public catalogue, your own table file or a recorded DLRM "
    "batch (generate_tables.source); train and test tasks share no table.",
    metrics="number of tables, their mean pooling factor and total size",
    tags=("data",),
)


@dataclass(frozen=True)
class BenchmarkConfig:
    """Section ``benchmark`` of params.yaml."""

    placements_per_round: int = knob(
        REQUIRED, "placements of train tasks to measure per round", flag="--placements", range=COUNT_OR_NONE
    )
    shards_per_round: int = knob(
        0,
        "random shards of 1 to 64 tables to measure, one shard at a time. They train evenshard's cost model and "
        "calibrate simulated devices; DreamShard's cost network learns from whole placements only",
        flag="--shards",
        range=COUNT_OR_NONE,
    )
    searched_share: float = knob(
        0.2,
        "share of placements that a search with the previous round's cost model proposes instead of the policy. The "
        "search exposes errors of the model (docs/decisions/0016)",
        range=SHARE,
    )
    sharded_per_round: int = knob(
        0,
        "random placements with sharded and replicated tables to measure, with real communication: one process per "
        "device, under torchrun",
        flag="--sharded",
        range=COUNT_OR_NONE,
    )
    sharding_types: tuple[str, ...] = knob((), "TorchRec sharding types for sharded_per_round; empty: all")
    ranks_per_node: int = knob(
        0,
        "devices per node for sharded_per_round; 0: torchrun's local world size",
        flag="--devices-per-node",
        range=COUNT_OR_NONE,
    )
    seed: int = knob(0, "seed of tasks, placements and shards")


@dataclass(frozen=True)
class BenchmarkInputs:
    """Tables and tasks to measure, and the networks of the previous round (None in round 1)."""

    tables: Path = reads(REQUIRED, POOL)
    tasks: Path = reads(REQUIRED, TASKS)
    round: int = _round()
    cost_net: Path | None = reads(None, "cost network of the previous round", WhichRound.PREVIOUS)
    policy: Path | None = reads(None, "policy of the previous round", WhichRound.PREVIOUS)
    cost_model: Path | None = reads(None, "evenshard's cost model of the previous round", WhichRound.PREVIOUS)
    journal: Path | None = writes(None, JOURNAL, "--journal")
    budget_minutes: float | None = knob(
        None,
        "start no measurement after M minutes; 0 only converts the journal to a cost dataset",
        range=NOT_NEGATIVE,
        metavar="M",
    )
    part: int = knob(
        1,
        "measure only part I of the N parts of the round; merge the parts with `evenshard merge-costs`",
        range=COUNT,
        metavar="I",
        parameter="part",
    )
    num_parts: int = knob(
        1,
        "number N of parts of the round, which several machines measure in parallel; each part includes all controls",
        range=COUNT,
        parameter="num_parts",
    )


@dataclass(frozen=True)
class BenchmarkOutputs:
    """The costs of the round; with ``plan``, only the list of placements to measure."""

    costs: Path = writes(
        REQUIRED,
        "cost dataset to write (.parquet)",
        "--out",
        path=f"{OF_ROUND}/costs.parquet",
        artifact=DATASET,
        roles=(("", "benchmark"),),
    )
    plan: Path | None = writes(
        None,
        "measure nothing, but write the list of measurements for `python -m evenshard.measure`, which needs only torch "
        "and FBGEMM",
        "--plan-out",
    )


BENCHMARK = Stage(
    "benchmark",
    "Measure placements of train tasks and random shards.",
    BenchmarkConfig,
    BenchmarkInputs,
    BenchmarkOutputs,
    about="Round 1 measures random placements. Later rounds measure placements proposed by the previous round's policy "
    "and, for the share benchmark.searched_share, by a search with that round's cost model.",
    usage="Under `torchrun --nproc-per-node N -m evenshard benchmark`, N devices measure concurrently, with real "
    "communication.",
    metrics="number of placements, their mean cost, measurement noise, and the share of time spent in kernels",
    tags=("measurement", "gpu"),
    measures=True,
    takes_lineage=True,
    curve="measured_ms_per_placement",
    tracked=lambda inputs, outputs: outputs.plan is None and inputs.budget_minutes != 0,  # other runs measure nothing
)


@dataclass(frozen=True)
class TrainCostConfig:
    """Section ``train_cost`` of params.yaml."""

    num_updates: int = knob(300, "gradient steps per round for the learned sharder's cost network", range=COUNT)
    minibatch_size: int = knob(64, "measured placements per step", range=COUNT)
    learning_rate: float = knob(5e-4, "Adam's learning rate in round 1, decayed linearly over rounds", range=POSITIVE)
    convex_updates: int = knob(
        1000, "gradient steps for evenshard's cost model, which is refitted from scratch every round", range=COUNT
    )
    seed: int = knob(0, "seed of initial weights, minibatches and the held-out split")


@dataclass(frozen=True)
class TrainCostInputs:
    """The costs of all rounds so far, and the networks of the previous round (None in round 1)."""

    tables: Path = reads(REQUIRED, POOL)
    costs: tuple[Path, ...] = reads(REQUIRED, "cost datasets of all rounds so far", WhichRound.SO_FAR, role="training")
    tasks: Path | None = reads(None, f"{TASKS}; only the cost network needs them")
    round: int = _round()
    num_rounds: int = knob(1, NUM_ROUNDS, flag=None, section="loop", parameter="num_rounds")
    cost_net: Path | None = reads(None, "cost network of the previous round, to continue from", WhichRound.PREVIOUS)
    cost_model: Path | None = reads(
        None,
        "evenshard's cost model of the previous round; its errors widen the intervals of the new model",
        WhichRound.PREVIOUS,
    )
    method: str = knob(
        DREAMSHARD,
        "learned sharder to fit the cost network for",
        parameter="method",
        choices=tuple(LEARNED),
        section="train_policy",
    )


@dataclass(frozen=True)
class TrainCostOutputs:
    """The cost network that trains the policy, and the cost model for evenshard's search."""

    cost_net: Path | None = writes(
        None,
        "folder to write the cost network to (default: not fitted)",
        "--out",
        NETWORK_FOLDER,
        path=f"{OF_ROUND}/cost_net",
        artifact=MODEL,
    )
    cost_model: Path | None = writes(
        None,
        "folder to write evenshard's cost model to (default: not fitted)",
        "--model-out",
        NETWORK_FOLDER,
        path=f"{OF_ROUND}/cost_model",
        artifact=MODEL,
    )


TRAIN_COST = Stage(
    "train_cost",
    "Fit the cost network and evenshard's cost model to measured costs.",
    TrainCostConfig,
    TrainCostInputs,
    TrainCostOutputs,
    about="The cost network trains the policy of train_policy.method; evenshard's search uses the cost model.",
    usage="Give the cost datasets of all rounds so far; --cost-net continues from the previous round's network. For "
    "imported costs, --model-out MODEL/cost_model alone is enough for `evenshard place --model MODEL`, without tasks "
    "and settings.",
    metrics="prediction errors of both models",
    tags=("training",),
    takes_lineage=True,
    needs_params=False,
    tracked=lambda inputs, outputs: inputs.tasks is not None,  # other runs are not part of a loop
    curve="loss_per_update",
)


@dataclass(frozen=True)
class TrainPolicyConfig:
    """Section ``train_policy`` of params.yaml."""

    method: str = knob(
        DREAMSHARD, "learned sharder; train_cost fits its cost network", flag="--method", choices=tuple(LEARNED)
    )
    num_updates: int = knob(10, "gradient steps per round", range=COUNT)
    num_episodes: int = knob(10, "episodes per gradient step, all of one task (dreamshard only)", range=COUNT)
    learning_rate: float = knob(
        5e-4,
        "Adam's learning rate in round 1; dreamshard decays it linearly over the rounds, autoshard within each round",
        range=POSITIVE,
    )
    entropy_weight: float = knob(1e-3, "weight of the entropy bonus")
    settings: Mapping[str, Any] = knob(
        {}, "more settings of the method, such as {num_slots: 16} for autoshard; see its dataclass"
    )
    seed: int = knob(0, "seed of initial weights, tasks and actions")


@dataclass(frozen=True)
class TrainPolicyInputs:
    """The cost network to train against, and the policy of the previous round (None in round 1)."""

    tables: Path = reads(REQUIRED, POOL)
    tasks: Path = reads(REQUIRED, TASKS)
    cost_net: Path = reads(REQUIRED, "cost network of this round")
    round: int = _round()
    num_rounds: int = knob(1, NUM_ROUNDS, flag=None, section="loop", parameter="num_rounds")
    policy: Path | None = reads(None, "policy of the previous round, to continue from", WhichRound.PREVIOUS)


@dataclass(frozen=True)
class TrainPolicyOutputs:
    """The trained policy."""

    policy: Path = writes(
        REQUIRED, "folder to write the policy to", "--out", NETWORK_FOLDER, path=f"{OF_ROUND}/policy", artifact=MODEL
    )


TRAIN_POLICY = Stage(
    "train_policy",
    "Train the placement policy against the cost network.",
    TrainPolicyConfig,
    TrainPolicyInputs,
    TrainPolicyOutputs,
    about="Nothing is measured.",
    usage="--policy continues from the previous round's policy.",
    metrics="predicted cost, or reward, of sampled placements before and after training",
    tags=("training", "reinforcement-learning"),
    curve="predicted_ms_per_update",
    learned_from="cost_net",
)


@dataclass(frozen=True)
class EvaluateConfig:
    """Section ``evaluate`` of params.yaml."""

    num_rollouts: int = knob(
        256,
        "placements that dreamshard samples and compares by predicted cost, in addition to the most probable one; the "
        "published method uses 0",
        range=COUNT_OR_NONE,
    )
    scores_per_table: int = knob(
        6_000, "budget of evenshard's search: number of device scores per table of the task", range=COUNT_OR_NONE
    )
    seed: int = knob(0, "seed of the random sharder and of evenshard's search")


@dataclass(frozen=True)
class EvaluateInputs:
    """The networks of the last round, and the costs of all rounds for the plot of cost per round."""

    tables: Path = reads(REQUIRED, POOL)
    tasks: Path = reads(REQUIRED, TASKS)
    costs: tuple[Path, ...] = reads(REQUIRED, "cost datasets of all rounds", WhichRound.SO_FAR, role="training")
    cost_net: Path = reads(REQUIRED, "cost network of the last round")
    policy: Path = reads(REQUIRED, "policy of the last round")
    cost_model: Path | None = reads(None, "evenshard's cost model of the last round; required to compare evenshard")
    journal: Path | None = writes(None, JOURNAL, "--journal")


@dataclass(frozen=True)
class EvaluateOutputs:
    """The report, and copies of it in other formats."""

    report: Path = writes(
        REQUIRED,
        "folder to write the report to",
        "--out",
        REPORT,
        path=REPORTS,
        artifact=ARTIFACT,
        roles=(("evaluation_costs.parquet", "evaluation"),),
        tables=("evaluation.csv",),
    )
    model: Path | None = writes(
        None,
        "also copy the networks into one folder, for `evenshard place --model`",
        "--model-out",
        MODEL_FOLDER,
        artifact=MODEL,
        uploaded=False,
    )
    page: Path | None = writes(
        None, "also write the table and plots as one page (.html)", "--page", artifact=HTML, uploaded=False
    )
    summary: Path | None = writes(
        None, "also write the table as Markdown", "--summary", artifact=MARKDOWN, uploaded=False
    )


EVALUATE = Stage(
    "evaluate",
    "Compare all sharders on the held-out tasks and write a report.",
    EvaluateConfig,
    EvaluateInputs,
    EvaluateOutputs,
    about="Writes metrics.json, evaluation.csv, plots and their data, and prints the comparison table.",
    metrics="mean cost of each sharder, and the prediction accuracy of the networks",
    tags=("evaluation", "measurement", "gpu"),
    measures=True,
    takes_lineage=True,
    concludes=True,
)

STAGES = (GENERATE_TABLES, BENCHMARK, TRAIN_COST, TRAIN_POLICY, EVALUATE)  # all stages, in the order of the loop
# All sections of params.yaml that stages use.
LOOP_SECTIONS = tuple(dict.fromkeys(name for stage in STAGES for name in stage.sections))
