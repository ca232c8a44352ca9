"""``evenshard merge-costs`` on Kubeflow Pipelines."""

from typing import List  # noqa: UP035 -- Kubeflow does not support list[...] of artifacts

from kfp import dsl

from evenshard.kubeflow.component import image


@dsl.component(base_image=image(), install_kfp_package=False)
def merge_costs(
    parts: dsl.Input[List[dsl.Dataset]],  # noqa: UP006
    costs: dsl.Output[dsl.Dataset],
    metrics: dsl.Output[dsl.Metrics],
    round_number: int,
    earlier: dsl.Input[dsl.Dataset] = None,
) -> None:
    """Merge the parts of a round into one cost dataset, and add the datasets of earlier rounds.

    Args:
        parts: folders of the parts, written by benchmark.
        costs: folder with one cost dataset per round so far: ``round_001.parquet`` and so on.
        metrics: number of placements and of parts.
        round_number: round of the loop, from 1.
        earlier: folder with the cost datasets of earlier rounds.
    """
    from pathlib import Path

    from evenshard.kubeflow.pod import add_round, carry_backlog, log_metrics, path_of, round_path
    from evenshard.loop.import_costs import merge_parts

    folders = [Path(part.path) for part in parts]
    of_round = [round_path(folder, round_number) for folder in folders]
    with carry_backlog(folders, [Path(costs.path)]):
        target = add_round(Path(costs.path), round_number, path_of(earlier))
        log_metrics(metrics, merge_parts(of_round, target))
