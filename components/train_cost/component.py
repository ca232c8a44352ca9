# Written by `make generate` from src/evenshard/loop/loop.py; do not edit by hand.
"""Stage ``train_cost`` of the loop on Kubeflow Pipelines."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.component import image


@dsl.component(base_image=image(), install_kfp_package=False)
def train_cost(
    tables: dsl.Input[dsl.Dataset],
    costs: dsl.Input[dsl.Dataset],
    cost_net: dsl.Output[dsl.Model],
    cost_model: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    config: dict[str, Any],
    round_number: int,
    num_rounds: int,
    tasks: dsl.Input[dsl.Dataset] = None,
    previous_cost_net: dsl.Input[dsl.Model] = None,
    previous_cost_model: dsl.Input[dsl.Model] = None,
    method: str = "dreamshard",
) -> None:
    """Fit the cost network and evenshard's cost model to measured costs.

    The cost network trains the policy of train_policy.method; evenshard's search uses the cost model.

    Args:
        tables: table pool written by generate-tables: a folder with ``tables.parquet``.
        costs: cost datasets of all rounds so far: a folder with ``round_001.parquet`` and so on.
        cost_net: folder to write the cost network to (default: not fitted).
        cost_model: folder to write evenshard's cost model to (default: not fitted).
        metrics: prediction errors of both models.
        config: section ``train_cost`` of params.yaml.
        round_number: round of the loop, from 1.
        num_rounds: number of rounds; the learning rate decays over them.
        tasks: train and test tasks written by generate-tables; only the cost network needs them.
        previous_cost_net: cost network of the previous round, to continue from.
        previous_cost_model: evenshard's cost model of the previous round; its errors widen the intervals of the new
            model.
        method: learned sharder to fit the cost network for.
    """
    from evenshard.kubeflow.pod import run_in_pod

    run_in_pod(
        "train_cost",
        tables=tables,
        costs=costs,
        cost_net=cost_net,
        cost_model=cost_model,
        metrics=metrics,
        config=config,
        round_number=round_number,
        num_rounds=num_rounds,
        tasks=tasks,
        previous_cost_net=previous_cost_net,
        previous_cost_model=previous_cost_model,
        method=method,
    )
