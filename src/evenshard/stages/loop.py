"""The loop: what each of its stages is set by, reads, writes, and tells MLflow.

Commands (``cli/stages.py``), components (``components/``), dvc.yaml and the pipelines come from here. The code of a
stage is the module of its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from evenshard.sharders.learned import DREAMSHARD, LEARNED
from evenshard.stages.stage import (
    ARTIFACT,
    DATASET,
    HTML,
    MARKDOWN,
    MODEL,
    Flag,
    LoopSetting,
    Reads,
    Stage,
    WhichRound,
    Writes,
)
from evenshard.utils.outputs import MODEL_FOLDER, NETWORK_FOLDER, REPORT, REPORTS

WORK, OF_ROUND = "work", "work/round_{round}"
Pool = Annotated[Path, Reads("the pool, as generate-tables writes it")]
Tasks = Annotated[Path, Reads("train and test tasks, as generate-tables writes them")]
RoundNumber = Annotated[int, Flag("round of the loop (default: 1)", least=1, parameter="round_number")]
NumRounds = Annotated[int, LoopSetting("rounds of the loop; the learning rate falls over them")]

JournalFile = Annotated[
    Path | None,
    Writes(
        "file that gets every measurement at once; with the same journal, measuring goes on where it stopped "
        "(default: one beside --out, removed at the end)",
        "--journal",
    ),
]


@dataclass(frozen=True)
class LoopConfig:
    """Section ``loop`` of params.yaml.

    Attributes:
        num_rounds: rounds that dvc.yaml unrolls (``make dvc.yaml`` writes it again).
    """

    num_rounds: int


@dataclass(frozen=True)
class GenerateTablesConfig:
    """Section ``generate_tables`` of params.yaml.

    Attributes:
        source: ``dlrm_2021`` (seeded generator), a catalogue name, a table file (.yaml, .json, .csv, .parquet) or a
            DLRM batch file (.pt, .pt.gz), here or on S3 (s3://bucket/tables.parquet).
        num_tables: tables to generate (dlrm_2021 only).
        embedding_dims: dims drawn from, where the source publishes none (dlrm_2021 and DLRM batch files).
        catalog_embedding_dim: dim of a catalogue's tables in place of its own (Criteo Kaggle and Avazu publish none, 16
            is assumed); null keeps it. Sets of several dims refuse it.
        max_rows: generated tables are capped here; null leaves them as large as published.
        max_table_gb: generated tables whose weights take more get fewer rows; null for no limit.
        weight_bits: 16 or 32 (dlrm_2021 and DLRM batch files).
        hot_rows_together: share of generated tables whose hot rows lie side by side, as with indices in the order of
            frequency; in the others they are scattered, as with hashed indices. null: all are scattered, and tables
            have no ``row_shares``.
        columns: columns of a table file that are called otherwise, each with evenshard's (``{hash_size: num_rows}``).
        num_train_tasks, num_test_tasks, tables_per_task, num_devices, memory_cap_gb, batch_size: see ``TaskSampling``.
        seed: seed of tables and tasks.
    """

    source: Annotated[str, Flag("overrides generate_tables.source of the settings", kind=str)]
    num_train_tasks: int
    num_test_tasks: int
    tables_per_task: int
    num_devices: int
    memory_cap_gb: float
    batch_size: int
    num_tables: int = 856
    embedding_dims: tuple[int, ...] = (4, 8, 16, 32, 64, 128)
    catalog_embedding_dim: int | None = None
    max_rows: int | None = None
    max_table_gb: float | None = None
    weight_bits: int = 32
    hot_rows_together: float | None = None
    columns: Mapping[str, str] | None = None
    seed: Annotated[int, Flag("overrides generate_tables.seed")] = 0


@dataclass(frozen=True)
class GenerateTablesInputs:
    """Nothing but the settings, unless ``source`` names a file."""


@dataclass(frozen=True)
class GenerateTablesOutputs:
    """The pool, and train and test tasks from disjoint halves of it."""

    tables: Annotated[
        Path,
        Writes(
            "table pool to write (.parquet, .json, .csv, .yaml)",
            "--tables-out",
            path=f"{WORK}/tables.parquet",
            artifact=DATASET,
        ),
    ]
    tasks: Annotated[Path, Writes("tasks to write (.json)", "--tasks-out", path=f"{WORK}/tasks.json", artifact=DATASET)]


GENERATE_TABLES = Stage(
    "generate_tables",
    "Write a table pool and placement tasks.",
    GenerateTablesConfig,
    GenerateTablesInputs,
    GenerateTablesOutputs,
    about="Tables come from the seeded DLRM 2021 generator, a public catalogue, your own table file or a recorded DLRM "
    "batch (generate_tables.source); train and test tasks share no table.",
    metrics="number of tables, their mean pooling factor and their size",
    tags=("data",),
)


@dataclass(frozen=True)
class BenchmarkConfig:
    """Section ``benchmark`` of params.yaml.

    Attributes:
        placements_per_round: placements of train tasks to measure in each round.
        shards_per_round: random shards of 1 to 64 tables to measure alone. A simulated device is calibrated with them,
            and the cost model learns from them; DreamShard's cost network learns from whole placements.
        searched_share: part of the placements that a search with the previous round's cost model proposes instead of
            the policy. A search finds what the model is wrong about (docs/decisions/0016).
        sharded_per_round: random placements of train tasks to measure in which tables are cut and replicated. Their
            exchanges are real: one process for each device, under torchrun.
        sharding_types: what these draw from, in TorchRec's words; empty for all of them.
        ranks_per_node: devices that such placements take for one node; 0 for those that torchrun started on a host.
        seed: seed of tasks, placements and shards.
    """

    placements_per_round: Annotated[int, Flag("overrides benchmark.placements_per_round", "--placements", least=0)]
    shards_per_round: Annotated[
        int, Flag("overrides benchmark.shards_per_round: random shards of 1-64 tables", "--shards", least=0)
    ] = 0
    searched_share: float = 0.2
    sharded_per_round: Annotated[
        int,
        Flag(
            "overrides benchmark.sharded_per_round: random placements of cut and replicated tables, under torchrun",
            "--sharded",
            least=0,
        ),
    ] = 0
    sharding_types: tuple[str, ...] = ()
    ranks_per_node: Annotated[
        int,
        Flag(
            "overrides benchmark.ranks_per_node (default: those that torchrun started on a host)",
            "--devices-per-node",
            least=0,
        ),
    ] = 0
    seed: int = 0


@dataclass(frozen=True)
class BenchmarkInputs:
    """Networks of the previous round: none in round 1, which places at random."""

    tables: Pool
    tasks: Tasks
    round: RoundNumber = 1
    cost_net: Annotated[Path | None, Reads("cost network of the previous round", WhichRound.PREVIOUS)] = None
    policy: Annotated[Path | None, Reads("policy of the previous round", WhichRound.PREVIOUS)] = None
    cost_model: Annotated[Path | None, Reads("evenshard's cost model of the previous round", WhichRound.PREVIOUS)] = (
        None
    )
    journal: JournalFile = None
    budget_minutes: Annotated[
        float | None,
        Flag(
            "begin no measurement after M minutes; 0 only turns the journal into costs",
            kind=float,
            least=0,
            metavar="M",
        ),
    ] = None
    part: Annotated[
        int,
        Flag(
            "measure only part I of N; `evenshard merge-costs` merges them",
            least=1,
            metavar="I",
            parameter="part",
        ),
    ] = 1
    num_parts: Annotated[
        int,
        Flag(
            "parts that several machines measure side by side, each with all controls",
            least=1,
            metavar="N",
            parameter="num_parts",
        ),
    ] = 1


@dataclass(frozen=True)
class BenchmarkOutputs:
    """The costs of the round; or, with ``plan``, nothing but what is to be measured."""

    costs: Annotated[
        Path,
        Writes(
            "cost dataset to write (.parquet)",
            "--out",
            path=f"{OF_ROUND}/costs.parquet",
            artifact=DATASET,
            roles=(("", "benchmark"),),
        ),
    ]
    plan: Annotated[
        Path | None,
        Writes(
            "measure nothing: write what is to be measured, for `python -m evenshard.measure` on a box that has torch "
            "and FBGEMM alone",
            "--plan-out",
        ),
    ] = None


BENCHMARK = Stage(
    "benchmark",
    "Time placements of the train tasks, and random shards.",
    BenchmarkConfig,
    BenchmarkInputs,
    BenchmarkOutputs,
    about="Round 1 places at random; then the previous round's policy proposes, and a search with its cost model "
    "proposes its share (benchmark.searched_share).",
    usage="Under `torchrun --nproc-per-node N -m evenshard benchmark` N devices measure at once and really exchange.",
    metrics="number of placements, their mean cost, the noise, and the share of time in kernels",
    tags=("measurement", "gpu"),
    measures=True,
    takes_lineage=True,
    curve="measured_ms_per_placement",
    tracked=lambda inputs, outputs: outputs.plan is None and inputs.budget_minutes != 0,  # else nothing is measured
)


@dataclass(frozen=True)
class TrainCostConfig:
    """Section ``train_cost`` of params.yaml.

    Attributes:
        num_updates: gradient steps per round, of the learned sharder's cost network.
        minibatch_size: measured placements per step.
        learning_rate: Adam's in round 1; it falls linearly over the rounds.
        convex_updates: gradient steps of evenshard's cost model, which is fitted from scratch in each round.
        seed: seed of initial weights, minibatches and held-out parts.
    """

    num_updates: int = 300
    minibatch_size: int = 64
    learning_rate: float = 5e-4
    convex_updates: int = 1000
    seed: int = 0


@dataclass(frozen=True)
class TrainCostInputs:
    """The costs of all rounds so far, and the previous round's networks, which there are none of in round 1."""

    tables: Pool
    costs: Annotated[
        tuple[Path, ...], Reads("cost datasets of rounds 1 to this one", WhichRound.SO_FAR, role="training")
    ]
    tasks: Annotated[
        Path | None,
        Reads("train and test tasks, as generate-tables writes them; only the cost network needs them"),
    ] = None
    round: RoundNumber = 1
    num_rounds: NumRounds = 1
    cost_net: Annotated[
        Path | None, Reads("cost network of the previous round, which this one goes on from", WhichRound.PREVIOUS)
    ] = None
    cost_model: Annotated[
        Path | None,
        Reads(
            "evenshard's cost model of the previous round, whose errors widen the new one's intervals",
            WhichRound.PREVIOUS,
        ),
    ] = None
    method: Annotated[
        str,
        Flag(
            "learned sharder whose cost network is fitted (default: train_policy.method of the settings)",
            kind=str,
            parameter="method",
            choices=tuple(LEARNED),
            section="train_policy",
        ),
    ] = DREAMSHARD


@dataclass(frozen=True)
class TrainCostOutputs:
    """The cost network, against which the policy is trained; the cost model that evenshard searches with."""

    cost_net: Annotated[
        Path | None,
        Writes(
            "folder of the network to write (default: none is fitted)",
            "--out",
            NETWORK_FOLDER,
            path=f"{OF_ROUND}/cost_net",
            artifact=MODEL,
        ),
    ] = None
    cost_model: Annotated[
        Path | None,
        Writes(
            "folder of evenshard's cost model to write (default: none is fitted)",
            "--model-out",
            NETWORK_FOLDER,
            path=f"{OF_ROUND}/cost_model",
            artifact=MODEL,
        ),
    ] = None


TRAIN_COST = Stage(
    "train_cost",
    "Fit the cost network and the cost model to the costs of `evenshard benchmark`.",
    TrainCostConfig,
    TrainCostInputs,
    TrainCostOutputs,
    about="The policy of train_policy.method is trained against the cost network; evenshard searches with the model.",
    usage="Give the cost datasets of all rounds so far; --cost-net goes on from the previous round's network. Of costs "
    "that were measured elsewhere, --model-out MODEL/cost_model is all that `evenshard place --model MODEL` takes, and "
    "neither tasks nor settings are needed.",
    metrics="errors of both",
    tags=("training",),
    takes_lineage=True,
    needs_params=False,
    tracked=lambda inputs, outputs: inputs.tasks is not None,  # else it is no stage of a loop
    curve="loss_per_update",
)


@dataclass(frozen=True)
class TrainPolicyConfig:
    """Section ``train_policy`` of params.yaml.

    Attributes:
        method: the learned sharder: dreamshard or autoshard. Its cost network is what train_cost fits.
        num_updates: gradient steps per round.
        num_episodes: episodes per step, all of one task; of dreamshard.
        learning_rate: Adam's in round 1; dreamshard's falls linearly over the rounds, autoshard's within each.
        entropy_weight: weight of the entropy bonus.
        settings: further settings of the method, such as ``{num_slots: 16}`` of autoshard; see its dataclass.
        seed: seed of initial weights, tasks and actions.
    """

    method: Annotated[
        str, Flag("overrides train_policy.method: the learned sharder", "--method", kind=str, choices=tuple(LEARNED))
    ] = DREAMSHARD
    num_updates: int = 10
    num_episodes: int = 10
    learning_rate: float = 5e-4
    entropy_weight: float = 1e-3
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True)
class TrainPolicyInputs:
    """The cost network to train against, and the previous round's policy, which there is none of in round 1."""

    tables: Pool
    tasks: Tasks
    cost_net: Annotated[Path, Reads("cost network of this round")]
    round: RoundNumber = 1
    num_rounds: NumRounds = 1
    policy: Annotated[
        Path | None, Reads("policy of the previous round, which this one goes on from", WhichRound.PREVIOUS)
    ] = None


@dataclass(frozen=True)
class TrainPolicyOutputs:
    """The policy."""

    policy: Annotated[
        Path,
        Writes("folder of the policy to write", "--out", NETWORK_FOLDER, path=f"{OF_ROUND}/policy", artifact=MODEL),
    ]


TRAIN_POLICY = Stage(
    "train_policy",
    "Train the placement policy against the cost network.",
    TrainPolicyConfig,
    TrainPolicyInputs,
    TrainPolicyOutputs,
    about="Nothing is measured.",
    usage="--policy goes on from the previous round's policy.",
    metrics="predicted cost, or reward, of sampled placements, before and after",
    tags=("training", "reinforcement-learning"),
    curve="predicted_ms_per_update",
    learned_from="cost_net",
)


@dataclass(frozen=True)
class EvaluateConfig:
    """Section ``evaluate`` of params.yaml.

    Attributes:
        num_rollouts: sampled placements that dreamshard compares by predicted cost, beside the most probable one; 0 is
            the published inference.
        scores_per_table: evenshard's search ends when it has scored so many devices for each table of the task.
        seed: seed of the random sharder and of evenshard's search.
    """

    num_rollouts: int = 256
    scores_per_table: int = 6_000
    seed: int = 0


@dataclass(frozen=True)
class EvaluateInputs:
    """The networks of the last round, and the costs of all rounds, for the picture of cost per round."""

    tables: Pool
    tasks: Tasks
    costs: Annotated[tuple[Path, ...], Reads("cost datasets of all rounds", WhichRound.SO_FAR, role="training")]
    cost_net: Annotated[Path, Reads("cost network of the last round")]
    policy: Annotated[Path, Reads("policy of the last round")]
    cost_model: Annotated[Path | None, Reads("evenshard's cost model of the last round; evenshard then takes part")] = (
        None
    )
    journal: JournalFile = None


@dataclass(frozen=True)
class EvaluateOutputs:
    """The report; what else there is holds nothing new, but is of use elsewhere."""

    report: Annotated[
        Path,
        Writes(
            "report folder to write into",
            "--out",
            REPORT,
            path=REPORTS,
            artifact=ARTIFACT,
            roles=(("evaluation_costs.parquet", "evaluation"),),
            tables=("evaluation.csv",),
        ),
    ]
    model: Annotated[
        Path | None,
        Writes(
            "also put the networks into one folder, as `evenshard place --model` takes it",
            "--model-out",
            MODEL_FOLDER,
            artifact=MODEL,
            uploaded=False,
        ),
    ] = None
    page: Annotated[
        Path | None,
        Writes("also write table and pictures as one page (.html)", "--page", artifact=HTML, uploaded=False),
    ] = None
    summary: Annotated[
        Path | None, Writes("also write the table as Markdown", "--summary", artifact=MARKDOWN, uploaded=False)
    ] = None


EVALUATE = Stage(
    "evaluate",
    "Compare all sharders on the held-out tasks and report.",
    EvaluateConfig,
    EvaluateInputs,
    EvaluateOutputs,
    about="Writes metrics.json, evaluation.csv, pictures and their data, and prints the table.",
    metrics="mean cost of each sharder, and how well the networks predict",
    tags=("evaluation", "measurement", "gpu"),
    measures=True,
    takes_lineage=True,
    concludes=True,
)

# Stages in the order of the loop.
STAGES = (GENERATE_TABLES, BENCHMARK, TRAIN_COST, TRAIN_POLICY, EVALUATE)
# The sections of params.yaml that stages take.
LOOP_SECTIONS = tuple(dict.fromkeys(name for stage in STAGES for name in stage.sections))
