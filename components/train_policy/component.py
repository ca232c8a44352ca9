"""Stage 4 on Kubeflow Pipelines."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.image import image


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
    """Trains the placement policy against the cost network; nothing is timed.

    Args:
        tables: pool, as generate_tables writes it.
        tasks: tasks, as generate_tables writes them.
        cost_net: DreamShard's cost network of this round.
        policy: folder of the policy.
        metrics: predicted cost of sampled placements, before and after.
        config: section ``train_policy`` of params.yaml.
        round_number: of the loop, from 1.
        num_rounds: of the loop; the learning rate falls over them.
        previous_policy: of the previous round, which this one goes on from.
    """
    from pathlib import Path

    from evenshard.kubeflow import pod as in_pod
    from evenshard.stages import train_policy as stage
    from evenshard.utils.params import section

    settings = section({"train_policy": config}, "train_policy", stage.TrainPolicyConfig)
    own, before = Path(cost_net.path), in_pod.path_of(previous_policy)
    inputs = stage.TrainPolicyInputs(in_pod.tables_in(tables), Path(tasks.path), own, round_number, num_rounds, before)
    outputs = stage.TrainPolicyOutputs(Path(policy.path))
    with in_pod.stage_run(f"train_policy_{round_number}", settings) as run:
        run.tables(inputs.tables)
        run.learned_from(own)
        outcome = stage.run(settings, inputs, outputs)
        run.series("predicted_ms_per_update", outcome.curve)
        in_pod.record(run, metrics, outcome.metrics, outputs.policy)
