# Written by `make generate` from src/evenshard/loop/loop.py; do not edit by hand.
"""Stage ``train_policy`` of the loop on Kubeflow Pipelines."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.component import image


@dsl.component(base_image=image(), install_kfp_package=False)
def train_policy(
    tables: dsl.Input[dsl.Dataset],
    tasks: dsl.Input[dsl.Dataset],
    cost_net: dsl.Input[dsl.Model],
    policy: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    config: dict[str, Any],
    round_number: int,
    num_rounds: int,
    previous_policy: dsl.Input[dsl.Model] = None,
) -> None:
    """Train the placement policy against the cost network.

    Nothing is measured.

    Args:
        tables: table pool written by generate-tables: a folder with ``tables.parquet``.
        tasks: train and test tasks written by generate-tables.
        cost_net: cost network of this round.
        policy: folder to write the policy to.
        metrics: predicted cost, or reward, of sampled placements before and after training.
        config: section ``train_policy`` of params.yaml.
        round_number: round of the loop, from 1.
        num_rounds: number of rounds; the learning rate decays over them.
        previous_policy: policy of the previous round, to continue from.
    """
    from evenshard.kubeflow.pod import run_in_pod

    run_in_pod(
        "train_policy",
        tables=tables,
        tasks=tasks,
        cost_net=cost_net,
        policy=policy,
        metrics=metrics,
        config=config,
        round_number=round_number,
        num_rounds=num_rounds,
        previous_policy=previous_policy,
    )
