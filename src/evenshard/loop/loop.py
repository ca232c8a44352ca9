"""The loop: settings, inputs, outputs and metrics of each of its stages.

Commands (``cli/stages.py``), components (``components/``), dvc.yaml and the pipelines are made from it. The code of a
stage is the module of its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenshard.base.knobs import COUNT, COUNT_OR_NONE, NOT_NEGATIVE, POSITIVE, REQUIRED, SHARE, knob
from evenshard.base.outputs import MODEL_FOLDER, NETWORK_FOLDER, REPORT, REPORTS
from evenshard.loop.stage import ARTIFACT, DATASET, HTML, MARKDOWN, MODEL, Stage, WhichRound, reads, writes
from evenshard.sharders.learned import DREAMSHARD, LEARNED

WORK, OF_ROUND = "work", "work/round_{round}"
POOL = "the pool, as generate-tables writes it"
TASKS = "train and test tasks, as generate-tables writes them"
NUM_ROUNDS = "rounds of the loop; the learning rate falls over them"
JOURNAL = (
    "file that gets every measurement at once; with the same journal, measuring goes on where it stopped (default: one "
    "beside --out, removed at the end)"
)


def _round() -> Any:
    return knob(1, "round of the loop", range=COUNT, parameter="round_number")


@dataclass(frozen=True)
class LoopConfig:
    """Section ``loop`` of params.yaml."""

    num_rounds: int = knob(REQUIRED, "rounds that dvc.yaml unrolls (`make generate` writes it again)", range=COUNT)


@dataclass(frozen=True)
class GenerateTablesConfig:
    """Section ``generate_tables`` of params.yaml."""

    source: str = knob(
        REQUIRED,
        "dlrm_2021 (seeded generator), a catalogue name, a table file (.yaml, .json, .csv, .parquet) or a DLRM batch "
        "file (.pt, .pt.gz), here or on S3",
        flag="--source",
    )
    num_train_tasks: int = knob(REQUIRED, "tasks that the networks learn from", range=COUNT)
    num_test_tasks: int = knob(REQUIRED, "tasks held out, made only of tables that no train task holds", range=COUNT)
    tables_per_task: int = knob(REQUIRED, "tables in each task, drawn without replacement", range=COUNT)
    num_devices: int = knob(REQUIRED, "devices of each task")
    memory_cap_gb: float = knob(REQUIRED, "GB of weights per device")
    batch_size: int = knob(REQUIRED, "global batch, samples")
    num_tables: int = knob(856, "tables to generate (dlrm_2021 only)", range=COUNT)
    embedding_dims: tuple[int, ...] = knob(
        (4, 8, 16, 32, 64, 128), "dims drawn from, where the source publishes none (dlrm_2021 and DLRM batch files)"
    )
    catalog_embedding_dim: int | None = knob(
        None,
        "dim of a catalogue's tables in place of its own (Criteo Kaggle and Avazu publish none, 16 is assumed); null "
        "keeps it. Sets of several dims refuse it",
    )
    max_rows: int | None = knob(None, "cap on the rows of generated tables; null leaves them as large as published")
    max_table_gb: float | None = knob(None, "larger generated tables get fewer rows; null for no limit")
    weight_bits: int = knob(32, "16 or 32 (dlrm_2021 and DLRM batch files)")
    hot_rows_together: float | None = knob(
        None,
        "share of generated tables whose hot rows lie side by side, as with indices in the order of frequency; in the "
        "others they are scattered, as with hashed indices. null: all are scattered, and tables have no row_shares",
    )
    columns: Mapping[str, str] | None = knob(
        None, "columns of a table file with another name, each with evenshard's ({hash_size: num_rows})"
    )
    seed: int = knob(0, "seed of tables and tasks", flag="--seed")


@dataclass(frozen=True)
class GenerateTablesInputs:
    """The file in ``source``, if it names one."""


@dataclass(frozen=True)
class GenerateTablesOutputs:
    """The pool, and train and test tasks from disjoint halves of it."""

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
    metrics="number of tables, their mean pooling factor and their size",
    tags=("data",),
)


@dataclass(frozen=True)
class BenchmarkConfig:
    """Section ``benchmark`` of params.yaml."""

    placements_per_round: int = knob(
        REQUIRED, "placements of train tasks to measure in each round", flag="--placements", range=COUNT_OR_NONE
    )
    shards_per_round: int = knob(
        0,
        "random shards of 1 to 64 tables to measure alone. A simulated device is calibrated with them, and the cost "
        "model learns from them; DreamShard's cost network learns from whole placements",
        flag="--shards",
        range=COUNT_OR_NONE,
    )
    searched_share: float = knob(
        0.2,
        "part of the placements that a search with the previous round's cost model proposes instead of the policy. A "
        "search finds the errors of the model (docs/decisions/0016)",
        range=SHARE,
    )
    sharded_per_round: int = knob(
        0,
        "random placements of train tasks to measure in which tables are cut and replicated. Their exchanges are real: "
        "one process for each device, under torchrun",
        flag="--sharded",
        range=COUNT_OR_NONE,
    )
    sharding_types: tuple[str, ...] = knob((), "what these draw from, in TorchRec's words; empty for all of them")
    ranks_per_node: int = knob(
        0,
        "devices that such placements take for one node; 0 for those that torchrun started on a host",
        flag="--devices-per-node",
        range=COUNT_OR_NONE,
    )
    seed: int = knob(0, "seed of tasks, placements and shards")


@dataclass(frozen=True)
class BenchmarkInputs:
    """Networks of the previous round; None in round 1, which draws random placements."""

    tables: Path = reads(REQUIRED, POOL)
    tasks: Path = reads(REQUIRED, TASKS)
    round: int = _round()
    cost_net: Path | None = reads(None, "cost network of the previous round", WhichRound.PREVIOUS)
    policy: Path | None = reads(None, "policy of the previous round", WhichRound.PREVIOUS)
    cost_model: Path | None = reads(None, "evenshard's cost model of the previous round", WhichRound.PREVIOUS)
    journal: Path | None = writes(None, JOURNAL, "--journal")
    budget_minutes: float | None = knob(
        None,
        "begin no measurement after M minutes; 0 only turns the journal into costs",
        range=NOT_NEGATIVE,
        metavar="M",
    )
    part: int = knob(
        1, "measure only part I of N; `evenshard merge-costs` merges them", range=COUNT, metavar="I", parameter="part"
    )
    num_parts: int = knob(
        1,
        "parts that several machines measure side by side, each with all controls",
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
        "measure nothing: write what is to be measured, for `python -m evenshard.measure` on a box that has torch and "
        "FBGEMM alone",
        "--plan-out",
    )


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
    tracked=lambda inputs, outputs: outputs.plan is None and inputs.budget_minutes != 0,  # other runs measure nothing
)


@dataclass(frozen=True)
class TrainCostConfig:
    """Section ``train_cost`` of params.yaml."""

    num_updates: int = knob(300, "gradient steps per round, of the learned sharder's cost network", range=COUNT)
    minibatch_size: int = knob(64, "measured placements per step", range=COUNT)
    learning_rate: float = knob(5e-4, "Adam's in round 1; it falls linearly over the rounds", range=POSITIVE)
    convex_updates: int = knob(
        1000, "gradient steps of evenshard's cost model, which is fitted from scratch in each round", range=COUNT
    )
    seed: int = knob(0, "seed of initial weights, minibatches and held-out parts")


@dataclass(frozen=True)
class TrainCostInputs:
    """The costs of all rounds so far, and the previous round's networks; None in round 1."""

    tables: Path = reads(REQUIRED, POOL)
    costs: tuple[Path, ...] = reads(
        REQUIRED, "cost datasets of rounds 1 to this one", WhichRound.SO_FAR, role="training"
    )
    tasks: Path | None = reads(None, f"{TASKS}; only the cost network needs them")
    round: int = _round()
    num_rounds: int = knob(1, NUM_ROUNDS, flag=None, section="loop", parameter="num_rounds")
    cost_net: Path | None = reads(
        None, "cost network of the previous round, which this one goes on from", WhichRound.PREVIOUS
    )
    cost_model: Path | None = reads(
        None,
        "evenshard's cost model of the previous round, whose errors widen the new one's intervals",
        WhichRound.PREVIOUS,
    )
    method: str = knob(
        DREAMSHARD,
        "learned sharder whose cost network is fitted",
        parameter="method",
        choices=tuple(LEARNED),
        section="train_policy",
    )


@dataclass(frozen=True)
class TrainCostOutputs:
    """The cost network for the training of the policy, and the cost model for evenshard's search."""

    cost_net: Path | None = writes(
        None,
        "folder of the network to write (default: none is fitted)",
        "--out",
        NETWORK_FOLDER,
        path=f"{OF_ROUND}/cost_net",
        artifact=MODEL,
    )
    cost_model: Path | None = writes(
        None,
        "folder of evenshard's cost model to write (default: none is fitted)",
        "--model-out",
        NETWORK_FOLDER,
        path=f"{OF_ROUND}/cost_model",
        artifact=MODEL,
    )


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
    tracked=lambda inputs, outputs: inputs.tasks is not None,  # other runs are not part of a loop
    curve="loss_per_update",
)


@dataclass(frozen=True)
class TrainPolicyConfig:
    """Section ``train_policy`` of params.yaml."""

    method: str = knob(
        DREAMSHARD, "the learned sharder, whose cost network train_cost fits", flag="--method", choices=tuple(LEARNED)
    )
    num_updates: int = knob(10, "gradient steps per round", range=COUNT)
    num_episodes: int = knob(10, "episodes per step, all of one task; of dreamshard", range=COUNT)
    learning_rate: float = knob(
        5e-4, "Adam's in round 1; dreamshard's falls linearly over the rounds, autoshard's within each", range=POSITIVE
    )
    entropy_weight: float = knob(1e-3, "weight of the entropy bonus")
    settings: Mapping[str, Any] = knob(
        {}, "further settings of the method, such as {num_slots: 16} of autoshard; see its dataclass"
    )
    seed: int = knob(0, "seed of initial weights, tasks and actions")


@dataclass(frozen=True)
class TrainPolicyInputs:
    """The cost network to train against, and the previous round's policy; None in round 1."""

    tables: Path = reads(REQUIRED, POOL)
    tasks: Path = reads(REQUIRED, TASKS)
    cost_net: Path = reads(REQUIRED, "cost network of this round")
    round: int = _round()
    num_rounds: int = knob(1, NUM_ROUNDS, flag=None, section="loop", parameter="num_rounds")
    policy: Path | None = reads(None, "policy of the previous round, which this one goes on from", WhichRound.PREVIOUS)


@dataclass(frozen=True)
class TrainPolicyOutputs:
    """The policy."""

    policy: Path = writes(
        REQUIRED, "folder of the policy to write", "--out", NETWORK_FOLDER, path=f"{OF_ROUND}/policy", artifact=MODEL
    )


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
    """Section ``evaluate`` of params.yaml."""

    num_rollouts: int = knob(
        256,
        "sampled placements that dreamshard compares by predicted cost, beside the most probable one; 0 is the "
        "published inference",
        range=COUNT_OR_NONE,
    )
    scores_per_table: int = knob(
        6_000,
        "evenshard's search ends when it has scored so many devices for each table of the task",
        range=COUNT_OR_NONE,
    )
    seed: int = knob(0, "seed of the random sharder and of evenshard's search")


@dataclass(frozen=True)
class EvaluateInputs:
    """The networks of the last round, and the costs of all rounds, for the picture of cost per round."""

    tables: Path = reads(REQUIRED, POOL)
    tasks: Path = reads(REQUIRED, TASKS)
    costs: tuple[Path, ...] = reads(REQUIRED, "cost datasets of all rounds", WhichRound.SO_FAR, role="training")
    cost_net: Path = reads(REQUIRED, "cost network of the last round")
    policy: Path = reads(REQUIRED, "policy of the last round")
    cost_model: Path | None = reads(None, "evenshard's cost model of the last round; evenshard then takes part")
    journal: Path | None = writes(None, JOURNAL, "--journal")


@dataclass(frozen=True)
class EvaluateOutputs:
    """The report; the other outputs are copies of it for other readers."""

    report: Path = writes(
        REQUIRED,
        "report folder to write into",
        "--out",
        REPORT,
        path=REPORTS,
        artifact=ARTIFACT,
        roles=(("evaluation_costs.parquet", "evaluation"),),
        tables=("evaluation.csv",),
    )
    model: Path | None = writes(
        None,
        "also put the networks into one folder, as `evenshard place --model` takes it",
        "--model-out",
        MODEL_FOLDER,
        artifact=MODEL,
        uploaded=False,
    )
    page: Path | None = writes(
        None, "also write table and pictures as one page (.html)", "--page", artifact=HTML, uploaded=False
    )
    summary: Path | None = writes(
        None, "also write the table as Markdown", "--summary", artifact=MARKDOWN, uploaded=False
    )


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

# All stages, in the order of the loop.
STAGES = (GENERATE_TABLES, BENCHMARK, TRAIN_COST, TRAIN_POLICY, EVALUATE)
# All sections of params.yaml that stages use.
LOOP_SECTIONS = tuple(dict.fromkeys(name for stage in STAGES for name in stage.sections))
