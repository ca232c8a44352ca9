"""Stage 3 on Kubeflow Pipelines."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.image import image


@dsl.component(base_image=image(), install_kfp_package=False)
def train_cost(
    tables: dsl.Input[dsl.Dataset],
    tasks: dsl.Input[dsl.Dataset],
    costs: dsl.Input[dsl.Dataset],
    cost_net: dsl.Output[dsl.Model],
    cost_model: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    config: dict[str, Any],
    round_number: int,
    num_rounds: int,
    previous_cost_net: dsl.Input[dsl.Model] = None,
    previous_cost_model: dsl.Input[dsl.Model] = None,
) -> None:
    """Fits what predicts the cost of a placement to all costs so far.

    Args:
        tables: pool, as generate_tables writes it.
        tasks: tasks, as generate_tables writes them.
        costs: folder of the cost datasets of all rounds so far, as merge_costs writes it.
        cost_net: folder of DreamShard's cost network, against which its policy is trained.
        cost_model: folder of evenshard's cost model, with which evenshard searches.
        metrics: errors of both.
        config: section ``train_cost`` of params.yaml.
        round_number: of the loop, from 1.
        num_rounds: of the loop; the learning rate falls over them.
        previous_cost_net: of the previous round, which this one goes on from.
        previous_cost_model: of the previous round: its errors about its own choices widen the new one's intervals.
    """
    from pathlib import Path

    from evenshard.kubeflow import pod as in_pod
    from evenshard.stages import train_cost as stage
    from evenshard.utils.params import section

    settings = section({"train_cost": config}, "train_cost", stage.TrainCostConfig)
    inputs = stage.TrainCostInputs(
        in_pod.tables_in(tables),
        Path(tasks.path),
        in_pod.round_costs(Path(costs.path)),
        round_number,
        num_rounds,
        in_pod.path_of(previous_cost_net),
        in_pod.path_of(previous_cost_model),
    )
    outputs = stage.TrainCostOutputs(Path(cost_net.path), Path(cost_model.path))
    with in_pod.stage_run(f"train_cost_{round_number}", settings) as run:
        run.tables(inputs.tables)
        run.costs(inputs.costs, "training")
        outcome = stage.run(settings, inputs, outputs, in_pod.lineage(settings))
        run.series("loss_per_update", outcome.curve)
        in_pod.record(run, metrics, outcome.metrics, outputs.cost_model)
