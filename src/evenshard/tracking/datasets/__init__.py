"""The team's cost datasets in data/, one folder for each hardware and collection; DVC and git keep their versions.

::

    data/hardware=simulated-h200/collection=reference/costs.parquet   what was measured; further runs: costs_2.parquet
                                                      tables.parquet  the tables its rows name
                                                      tasks.json      the tasks, where there are some
                                                      dataset.json    what it is: origin, counts, noise, drift
"""

from evenshard.tracking.datasets.add import AddedDataset, AddRequest, add
from evenshard.tracking.datasets.partition import Partition

__all__ = ["AddRequest", "AddedDataset", "Partition", "add"]
