"""Pipeline ``train``: the training loop."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.cluster import Cluster

from .addresses import read_address
from .loop import Sections, add_exit_handler, add_loop_tasks, check_rounds, with_sections


def train_pipeline(params: dict[str, Any], cluster: Cluster, source_at: str = "", given_hash: str = "") -> Any:
    """Return the pipeline ``train``.

    Args:
        params: sections of params.yaml, the defaults of the pipeline's parameters.
        source_at: address of the user's own tables, the default of the parameter ``source``; "" generates tables. See
            ``evenshard.kubeflow.component``.
        given_hash: hash of that file, the default of the parameter ``data_hash``. Without it, every run reads the file
            again.

    Raises:
        BadConfig: if a section is invalid, or names a file that pods do not have.
    """
    num_rounds = check_rounds(params, cluster)

    @dsl.pipeline(name="evenshard-train", description=f"Train cost model and placement policy in {num_rounds} rounds.")
    @with_sections(params)
    def train(sections: Sections, data_hash: str = given_hash, source: str = source_at) -> None:
        with dsl.ExitHandler(add_exit_handler(cluster), name="loop"):
            own = read_address("source", source, source_at)
            add_loop_tasks(params, sections, num_rounds, cluster, own, data_hash, bool(source_at) and not given_hash)

    return train
