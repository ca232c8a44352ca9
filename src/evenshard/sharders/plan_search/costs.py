"""What a placement of parts costs, predicted: compute by cost networks, exchanges by the links of the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from evenshard.measure.collectives import Links, Volumes, exchange_ms, exchange_times, part_volume, volumes_of
from evenshard.measure.kernel_calls import EVERY_DEVICE, HeldPart, held_parts
from evenshard.measure.offload import HostLink, part_offload_times
from evenshard.measure.simulated.cluster import dense_ms
from evenshard.placement.parts import TablePart, lookup_share
from evenshard.placement.plan import parts_by_table
from evenshard.placement.sharding import sharding_type
from evenshard.placement.task import ShardingTask
from evenshard.sharders.convex_search.cost_model import CostModel, log_spread_N
from evenshard.sharders.convex_search.prediction import PredictedDevice
from evenshard.sharders.plan_search.networks import AloneTimes, CallNetwork, Looked
from evenshard.tables.table import Table


@dataclass(frozen=True)
class DeviceKind:
    """Devices that are alike.

    Attributes:
        model: their cost model.
        bytes_per_ns: that their memory moves, for dense gradients.
        alone_ms: times of tables alone, where a device model knows them; see ``CallNetwork``.
        host: what a device reaches outside of its memory, and how fast.
    """

    model: CostModel
    bytes_per_ns: float
    alone_ms: AloneTimes | None = None
    host: HostLink = field(default_factory=HostLink)


@dataclass(frozen=True)
class PredictedParts:
    """What is predicted of a placement of parts.

    Attributes:
        parts: the placement.
        devices: predicted times, by device id.
        predicted_ms: predicted time of the slowest device.
        low_ms, high_ms: the 90 % interval of that by the cost models alone.
    """

    parts: tuple[TablePart, ...]
    devices: tuple[PredictedDevice, ...]
    predicted_ms: float
    low_ms: float
    high_ms: float


class PartCosts:
    """Predicts any placement of the parts of a task's tables.

    Args:
        task: tables and machine.
        kinds: kinds of its devices.
        kind_of_D: [D] the kind of each device.
        links: of its tiers.
    """

    def __init__(self, task: ShardingTask, kinds: Sequence[DeviceKind], kind_of_D: Sequence[int], links: Links) -> None:
        self.task, self.links = task, links
        self.kinds, self.kind_of_D = tuple(kinds), np.asarray(kind_of_D)
        self.networks = tuple(CallNetwork(kind.model, kind.alone_ms) for kind in kinds)

    def of_task(self, task: ShardingTask) -> PartCosts:
        """The costs of the same tables on the same machine under other rules."""
        found = copy(self)
        found.task = task
        return found

    def predict(self, parts: Sequence[TablePart]) -> PredictedParts:
        """Times of every device, and how sure the slowest one's is.

        Raises:
            BadConfig: if the parts are not those of the task's tables.
        """
        by_table = parts_by_table(self.task, parts)
        exchanges = exchange_times(self.task, volumes_of(self.task, by_table), self.links)
        compute_DM2 = self._member_ms(by_table) + self._offload_D12(by_table)
        mean_D2 = compute_DM2.mean(dim=1).numpy()
        devices = tuple(
            PredictedDevice(float(fwd), float(out), float(back), float(bwd), float(inputs))
            for (fwd, bwd), out, back, inputs in zip(
                mean_D2, exchanges.forward, exchanges.backward, exchanges.input_dist, strict=True
            )
        )
        exchanged_D1 = torch.from_numpy(exchanges.input_dist + exchanges.forward + exchanges.backward)[:, None]
        members_MN = (compute_DM2.sum(dim=2) + exchanged_D1).amax(dim=0)[:, None]
        spread_N = log_spread_N(members_MN)
        half = max(float(kind.model.calibration.half_width_N(spread_N)) for kind in self.kinds)
        predicted_ms = max(device.predicted_total_ms for device in devices)
        return PredictedParts(
            tuple(parts), devices, predicted_ms, predicted_ms * float(np.exp(-half)), predicted_ms * float(np.exp(half))
        )

    def part_ms(self, parts: Sequence[TablePart]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Of each part: what it takes alone on its device, and what the device would save without it, ms.

        Exchanges count as if all devices had as much to exchange.
        """
        by_table = parts_by_table(self.task, parts)
        slopes_4, replica_ms = self.exchange_slopes
        devices, held = self.task.num_devices, list(held_parts(self.task, by_table))
        flat = [table_and_batch for one in held for table_and_batch in one.looked_up]
        firsts = np.cumsum([0, *(len(one.looked_up) for one in held)])[:-1]
        device_of_P = np.array([one.device for one in held])
        spread_P = device_of_P == EVERY_DEVICE
        calls_D = self._calls(held)
        alone, adds = np.zeros(len(held)), np.zeros(len(held))
        one_call = np.ones(len(held), dtype=np.int64)
        held_together = Counter((one.call, one.device) for one in held)
        last_P = np.array([held_together[one.call, one.device] == 1 for one in held])  # its call goes with it
        for kind, network in enumerate(self.networks):
            columns_PH = np.add.reduceat(network.columns(flat), firsts, axis=0)
            sums_DH = np.zeros((devices, columns_PH.shape[1]), dtype=np.float32) + columns_PH[spread_P].sum(axis=0)
            np.add.at(sums_DH, device_of_P[~spread_P], columns_PH[~spread_P])
            full_D = network.compute_ms(sums_DH, calls_D)
            home_P = np.where(spread_P, full_D.argmax(), device_of_P)
            rest_P = network.compute_ms(sums_DH[home_P] - columns_PH, calls_D[home_P] - last_P)
            own = self.kind_of_D[home_P] == kind
            alone[own] = network.compute_ms(columns_PH, one_call)[own]
            adds[own] = (full_D[home_P] - rest_P)[own]
        number_of = {table.name: table for table in self.task.tables}
        ordered = [part for of_table in by_table.values() for part in of_table]
        for number, part in enumerate(ordered):
            table = number_of[part.table]
            if len(part.devices) > 1:
                kind_ms = self.kinds[0].bytes_per_ns
                more = table.num_rows * table.embedding_dim * replica_ms
                more += dense_ms(table.num_rows * table.embedding_dim, kind_ms, self.task.optimizer)
            else:
                way = sharding_type(by_table[part.table], table, self.task.machine)
                share = lookup_share(table, part.rows)
                one = part_volume(table, way, part.columns.size, share, self.task.num_devices)
                more = float(slopes_4 @ np.array([one.sent, one.summed, one.summed_in_node, one.input_bytes]))
                if not part.storage.is_on_device:
                    more += self.offload_K(part, table)[self.kind_of_D[part.device]]
            alone[number] += more
            adds[number] += more
        position = {part: number for number, part in enumerate(ordered)}
        order = [position[part] for part in parts]
        return tuple(alone[order].tolist()), tuple(adds[order].tolist())

    def offload_K(self, part: TablePart, table: Table) -> tuple[float, ...]:
        """How much longer a part takes as it is kept, on each kind of device; nothing where that is device memory."""
        if part.storage.is_on_device:
            return ()
        times = (part_offload_times(self.task, part, table, kind.host) for kind in self.kinds)
        return tuple(one.forward_ms + one.backward_ms for one in times)

    def _offload_D12(self, by_table: Mapping[str, Sequence[TablePart]]) -> torch.Tensor:
        """[D, 1, 2] what devices take longer for parts that are not in their memory, forward and backward."""
        found = torch.zeros(self.task.num_devices, 1, 2)
        for table in self.task.tables:
            for part in by_table[table.name]:
                if not part.storage.is_on_device:
                    host = self.kinds[self.kind_of_D[part.device]].host
                    times = part_offload_times(self.task, part, table, host)
                    found[part.device, 0] += torch.tensor([times.forward_ms, times.backward_ms])
        return found

    @cached_property
    def exchange_slopes(self) -> tuple[np.ndarray, float]:
        """[4] time of exchanges for each of the volumes, if all devices have as much; and of a weight of a replica."""
        slopes = []
        for number in range(4):
            volumes = Volumes.empty(self.task.num_devices)
            (volumes.sent, volumes.summed, volumes.summed_in_node, volumes.input_bytes)[number][:] = 1.0
            slopes.append(float(exchange_ms(self.task, volumes, self.links)[0]))
        volumes = Volumes.empty(self.task.num_devices)
        volumes.replicated_values = 1.0
        return np.array(slopes), float(exchange_ms(self.task, volumes, self.links)[0])

    def _member_ms(self, by_table: Mapping[str, Sequence[TablePart]]) -> torch.Tensor:
        """[D, M, 2] compute times, forward and backward, by each member of the ensembles."""
        devices, held = self.task.num_devices, list(held_parts(self.task, by_table))
        flat: list[Looked] = []
        device_of: list[int] = []
        for one in held:
            for device in range(devices) if one.device == EVERY_DEVICE else (one.device,):
                flat += one.looked_up
                device_of += [device] * len(one.looked_up)
        calls_D, values = self._calls(held), self.replicated_values(by_table)
        members = max(kind.model.net.sizes.num_members for kind in self.kinds)
        total = torch.zeros(devices, members, 2)
        for number, (kind, network) in enumerate(zip(self.kinds, self.networks, strict=True)):
            own_D = torch.from_numpy(self.kind_of_D == number)
            times = network.member_ms(flat, device_of, calls_D)
            times[..., 1] += dense_ms(values, kind.bytes_per_ns, self.task.optimizer)
            total[own_D] = times[own_D].expand(-1, members, 2)
        return total

    def _calls(self, held: Sequence[HeldPart]) -> np.ndarray:
        """[D] kernel calls of each device."""
        found = {(one.call, one.device) for one in held}
        calls_D = np.zeros(self.task.num_devices, dtype=np.int64)
        for _, device in found:
            calls_D[slice(None) if device == EVERY_DEVICE else device] += 1
        return calls_D

    @staticmethod
    def replicated_values(by_table: Mapping[str, Sequence[TablePart]]) -> float:
        """Weights of all replicated tables."""
        return float(
            sum(
                part.rows.size * part.columns.size
                for parts in by_table.values()
                for part in parts
                if len(part.devices) > 1
            )
        )
