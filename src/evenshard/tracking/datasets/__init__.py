"""The team's cost datasets: in data/, by hardware and collection, with versions by DVC and git.

::

    data/hardware=simulated-h200/collection=reference/costs.parquet   what was measured; further runs: costs_2.parquet
                                                      tables.parquet  the tables its rows name
                                                      tasks.json      the tasks, where there are some
                                                      dataset.json    what it is: origin, counts, noise, drift

``data.dvc`` in git names the content of all of data/; DVC's remotes hold it.
"""

from evenshard.tracking.datasets.partition import Partition
from evenshard.tracking.datasets.publish import Published, PublishRequest, publish
from evenshard.tracking.datasets.pull import Known, known, pull

__all__ = ["Known", "Partition", "PublishRequest", "Published", "known", "publish", "pull"]
