"""The tasks of a loop on Kubeflow Pipelines: rounds unrolled when a pipeline is compiled, as in dvc.yaml.

Round k's benchmark reads round k-1's networks. It is measured in parts, side by side, which are merged; or in one pod.
"""

from pathlib import Path
from typing import Any, NamedTuple

from kfp import dsl

from evenshard.kubeflow.cluster import MEASURING, Cluster
from evenshard.kubeflow.pod_spec import placed
from evenshard.stages.benchmark import BenchmarkConfig
from evenshard.stages.evaluate import EvaluateConfig
from evenshard.stages.generate_tables import GenerateTablesConfig
from evenshard.stages.loop import LoopConfig
from evenshard.stages.train_cost import TrainCostConfig
from evenshard.stages.train_policy import TrainPolicyConfig
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import shown
from evenshard.utils.params import require, section
from evenshard_components.benchmark.component import benchmark
from evenshard_components.evaluate.component import evaluate
from evenshard_components.generate_tables.component import generate_tables
from evenshard_components.merge_costs.component import merge_costs
from evenshard_components.record_outcome.component import record_outcome
from evenshard_components.train_cost.component import train_cost
from evenshard_components.train_policy.component import train_policy
from evenshard_pipelines.dvc_rounds import measured_with


class Sections(NamedTuple):
    """Sections of params.yaml as parameters of a pipeline: what a run may change. The rounds are not."""

    generate_tables: Any
    measure: Any
    benchmark: Any
    train_cost: Any
    train_policy: Any
    evaluate: Any


def section_of(params: dict[str, Any], name: str) -> dict[str, Any]:
    """A section of params.yaml as the default of a pipeline's parameter; empty where it says nothing."""
    return dict(params.get(name) or {})


def learn(
    sections: Sections,
    num_rounds: int,
    cluster: Cluster,
    source: dict[str, Any],
    data_hash: Any = "",
    source_may_change: bool = False,
) -> None:
    """Adds the tasks of a loop to the pipeline that is being made.

    Args:
        sections: the settings.
        source: the inputs of generate_tables that name the user's own tables.
        data_hash: of the file behind it.
        source_may_change: nobody knows what is in that file today: an earlier result will not do.
    """
    made = generate_tables(config=sections.generate_tables, data_hash=data_hash, **source)
    placed(made, "generate_tables", cluster)
    if source_may_change:
        made.set_caching_options(False)
    pool = {name: made.outputs[name] for name in ("tables", "tasks")}
    costs, networks = None, dict[str, Any]()
    for k in range(1, num_rounds + 1):
        measuring = {"config": sections.benchmark, "measure": sections.measure, "round_number": k}
        costs = _measured(pool, measuring, networks, costs, cluster)
        at_round = {"round_number": k, "num_rounds": num_rounds}
        fitted = train_cost(
            **pool,
            costs=costs,
            config=sections.train_cost,
            **at_round,
            **_previous(networks, "cost_net", "cost_model"),
        )
        placed(fitted, "train_cost", cluster).set_display_name(f"train_cost_{k}")
        trained = train_policy(
            **pool,
            cost_net=fitted.outputs["cost_net"],
            config=sections.train_policy,
            **at_round,
            **_previous(networks, "policy"),
        )
        placed(trained, "train_policy", cluster).set_display_name(f"train_policy_{k}")
        networks = {name: fitted.outputs[name] for name in ("cost_net", "cost_model")}
        networks["policy"] = trained.outputs["policy"]
    judged = evaluate(
        **pool,
        costs=costs,
        **networks,
        config=sections.evaluate,
        measure=sections.measure,
        num_gpus=cluster.stages["evaluate"].gpus,
    )
    placed(judged, "evaluate", cluster)


def outcome_recorded(cluster: Cluster) -> Any:
    """The exit handler of a pipeline."""
    return placed(record_outcome(run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER), "record_outcome", cluster)


def checked_rounds(params: dict[str, Any], cluster: Cluster) -> int:
    """The number of rounds of settings that can run in pods: what is wrong shows here, not hours later.

    Raises:
        BadConfig: if a section makes no sense, or names a file that pods do not have.
    """
    files = [name for name in measured_with(params) if not Path(name).is_absolute()]
    if files:
        raise BadConfig(
            f"params section measure names the file {shown(files[0])}, which pods do not have. Put it into the image "
            f"or a mounted volume, and name it by its absolute path there."
        )
    round_of = section(params, "benchmark", BenchmarkConfig)
    for name, kind in (
        ("evaluate", EvaluateConfig),
        ("train_cost", TrainCostConfig),
        ("train_policy", TrainPolicyConfig),
    ):
        section(params, name, kind)
    jobs = round_of.placements_per_round + round_of.shards_per_round
    require(
        cluster.num_parts <= max(jobs, 1),
        f"num_parts is {cluster.num_parts}, but a round measures {jobs} placements and shards. Make it at most {jobs}.",
    )
    num_devices = section(params, "generate_tables", GenerateTablesConfig).num_devices
    for name in MEASURING:
        gpus = cluster.stages[name].gpus
        require(
            gpus in (0, 1, num_devices),
            f"{name} gets {gpus} GPUs, but generate_tables.num_devices is {num_devices}. Make it {num_devices}, which "
            f"measure at once, or 1, which plays all devices in turn.",
        )
    num_rounds = section(params, "loop", LoopConfig).num_rounds
    require(num_rounds >= 1, f"loop.num_rounds is {num_rounds}. Make it at least 1.")
    return num_rounds


def _measured(
    pool: dict[str, Any], measuring: dict[str, Any], networks: dict[str, Any], earlier: Any, cluster: Cluster
) -> Any:
    """One round of measuring: ``num_parts`` pods side by side, and one that merges what they found; or a single pod."""
    k = measuring["round_number"]
    inputs = {**pool, **measuring, **networks, "num_gpus": cluster.stages["benchmark"].gpus}
    before = {} if earlier is None else {"earlier": earlier}
    if cluster.num_parts == 1:
        measured = placed(benchmark(**inputs, **before), "benchmark", cluster)
        return measured.set_display_name(f"benchmark_{k}").outputs["costs"]
    with dsl.ParallelFor(items=[*range(1, cluster.num_parts + 1)], name=f"parts_{k}") as part:
        measured = benchmark(**inputs, part=part, num_parts=cluster.num_parts)
        placed(measured, "benchmark", cluster).set_display_name(f"benchmark_{k}")
    merged = merge_costs(parts=dsl.Collected(measured.outputs["costs"]), round_number=k, **before)
    placed(merged, "merge_costs", cluster).set_display_name(f"merge_costs_{k}")
    return merged.outputs["costs"]


def _previous(networks: dict[str, Any], *names: str) -> dict[str, Any]:
    """Networks of the round before as inputs of a training stage; none before round 1."""
    return {f"previous_{name}": networks[name] for name in names if name in networks}
