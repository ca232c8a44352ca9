"""TorchRec's planner as a sharder of whole tables over the devices of one node.

With one way to shard each table, its proposers have nothing to propose; its greedy partitioner decides: the tables in
descending order of storage, each on the device with the least estimated time so far among those with room. The time of
a shard is the sum of its tables' (forward, backward, both all-to-alls).
"""

from __future__ import annotations

from typing import Literal

from evenshard.placement.feasibility import no_placement_found, require_room
from evenshard.placement.machine import Machine
from evenshard.placement.placement import Placement
from evenshard.placement.plan import check_parts_memory
from evenshard.placement.sharding import TABLE_WISE
from evenshard.placement.task import ShardingTask, TableLimits
from evenshard.sharders.torchrec_planner import Bandwidths, require_torchrec
from evenshard.sharders.torchrec_space import PlannerSetting, TorchRecPlanner
from evenshard.utils.errors import InfeasibleTask


class TorchRecSharder:
    """TorchRec's planner, table-wise. Fast and deterministic; a GPU is not needed.

    ``sort_by`` is TorchRec's setting of the same name: which tables go first, those that need the most storage (its
    default) or those that take the most time.
    """

    def __init__(self, bandwidths: Bandwidths | None = None, sort_by: Literal["storage", "perf"] = "storage") -> None:
        """Loads TorchRec.

        Raises:
            MissingPackage: if TorchRec is not installed.
        """
        require_torchrec()
        self._bandwidths = bandwidths or Bandwidths()
        self._sort_by = sort_by
        self.name = "torchrec_planner" if sort_by == "storage" else "torchrec_planner_perf"

    def place(self, task: ShardingTask) -> Placement:
        """TorchRec's plan.

        Raises:
            InfeasibleTask: if TorchRec finds none.
        """
        require_room(task)
        try:
            parts = self.planner(task).plan(PlannerSetting(sort_by=self._sort_by)).parts
        except InfeasibleTask:
            raise no_placement_found(task, "TorchRec's planner found no plan") from None
        placement = Placement(tuple(part.device for part in parts), task.num_devices)
        check_parts_memory(task, placement.parts(task.tables))
        return placement

    def planner(self, task: ShardingTask) -> TorchRecPlanner:
        """TorchRec's planner for a task."""
        sharding = ShardingTask(
            tables=task.tables,
            machine=Machine.one_node(task.num_devices),
            room_bytes=tuple(task.room_bytes),
            batch_size=task.batch_size,
            limits=(TableLimits(types=frozenset({TABLE_WISE})),) * len(task.tables),
        )
        size_bytes = dict(zip(task.tables, task.table_bytes, strict=True))
        return TorchRecPlanner(sharding, self._bandwidths, size_of=size_bytes.__getitem__)
