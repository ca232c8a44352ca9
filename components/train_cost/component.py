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
    """Fit the cost network and the cost model to the costs of `evenshard benchmark`.

    The policy of train_policy.method is trained against the cost network; evenshard searches with the model.

    Args:
        tables: the pool, as generate-tables writes it: a folder with ``tables.parquet``.
        costs: cost datasets of rounds 1 to this one: a folder with ``round_001.parquet`` and so on.
        cost_net: folder of the network to write (default: none is fitted).
        cost_model: folder of evenshard's cost model to write (default: none is fitted).
        metrics: errors of both.
        config: section ``train_cost`` of params.yaml.
        round_number: round of the loop.
        num_rounds: rounds of the loop; the learning rate falls over them.
        tasks: train and test tasks, as generate-tables writes them; only the cost network needs them.
        previous_cost_net: cost network of the previous round, which this one goes on from.
        previous_cost_model: evenshard's cost model of the previous round, whose errors widen the new one's intervals.
        method: learned sharder whose cost network is fitted.
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
