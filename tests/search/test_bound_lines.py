"""Lines below exchanges: whatever devices hold, no step exchanges for less."""

from __future__ import annotations

import numpy as np
import pytest

from evenshard.placement.nodes import Nodes
from evenshard.placement.sharding import Communication
from evenshard.placement.task import ShardingTask
from evenshard.price.collectives import VOLUMES, Links, Volumes, exchange_times
from evenshard.price.link import LINKS
from evenshard.price.step import exchanges_ms_3
from evenshard.price.step_time import LARGEST_SUM
from evenshard.search.bound_lines import SENT, ExchangeLine, exchange_lines
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table

NODES = (Nodes.one_node(8), Nodes(8, 4, inter="infiniband_ndr"), Nodes(8, 2, inter="infiniband_ndr"))
NVLINK = "nvlink_b200"


def task_on(machine: Nodes, *data_types: str) -> ShardingTask:
    table, room = Table("t", 10, 4, 1.0), (2**30,) * machine.num_devices
    return ShardingTask((table,), machine, room, 65_536, communication=Communication.of(data_types))


def links_of(machine: Nodes, intra: str = NVLINK) -> Links:
    return Links(LINKS[intra], LINKS["infiniband_ndr"] if machine.num_domains > 1 else None)


def lines_of(machine: Nodes, pipeline: str, name: str) -> list[ExchangeLine]:
    return exchange_lines(task_on(machine), links_of(machine), pipeline)[VOLUMES.index(name)]


def drawn_volumes(rng: np.random.Generator, count: int) -> FloatArray:
    """[count] of all sizes; some devices, or whole halves, may have none."""
    volumes = 10 ** rng.uniform(0, 3.5) * rng.dirichlet(np.full(count, rng.choice([0.1, 1.0, 100.0]))) * count
    return np.where(rng.random(count) < rng.choice([0.0, 0.5]), 0.0, volumes)


@pytest.mark.parametrize("machine", NODES)
@pytest.mark.parametrize(
    ("pipeline", "name"), [("sparse_dist", "sent"), ("base", "input_bytes"), ("base", "summed"), (LARGEST_SUM, "sent")]
)
def test_no_device_waits_and_exchanges_for_less(machine: Nodes, pipeline: str, name: str) -> None:
    """What is common, and what a device's own volume takes; the largest sum knows no wait for the forward exchange."""
    task, links, rng = task_on(machine), links_of(machine), np.random.default_rng(0)
    lines = lines_of(machine, pipeline, name)
    for _ in range(120):
        volumes = Volumes.empty(8)
        setattr(volumes, name, held_D := drawn_volumes(rng, 8))
        if name == "summed":  # a sum is over all devices
            volumes.summed[:] = held_D.mean()
        found = exchange_times(task, volumes, links)
        out_D = found.forward if pipeline == LARGEST_SUM else np.full(8, found.forward.max())
        took_D = out_D + found.backward + (0.0 if pipeline == "sparse_dist" else found.input_dist)
        mean = getattr(volumes, name).mean()
        line = next(one for one in lines if one.least <= mean <= one.most)
        common = line.at_0 + line.slope * mean
        assert (took_D >= (common + line.alone_slope * getattr(volumes, name)) * (1 - 1e-9)).all()
        assert took_D.mean() >= (common + line.own_slope * mean) * (1 - 1e-9)


@pytest.mark.parametrize("machine", [*NODES[1:], Nodes(8, 4, 2), Nodes(8, 2, 2, inter="infiniband_ndr")])
@pytest.mark.parametrize(
    ("pipeline", "intra"),
    [("sparse_dist", NVLINK), (LARGEST_SUM, NVLINK), ("sparse_dist", "ethernet_25g"), ("sparse_dist", "pcie4_host")],
)
def test_beside_sums_of_a_node_no_device_waits_and_exchanges_for_less(
    machine: Nodes, pipeline: str, intra: str
) -> None:
    """Tables that are sent are elsewhere than rows of a node, or beside them; the slower tier may be the one inside."""
    task, links, rng = task_on(machine), links_of(machine, intra), np.random.default_rng(0)
    lines_X = exchange_lines(task, links, pipeline, beside_nodes=machine.nodes_per_domain > 1)
    for _ in range(120):
        volumes = Volumes.empty(8)
        volumes.sent[:] = drawn_volumes(rng, 8)
        of_nodes = 10 ** rng.uniform(0, 3.5) * (rng.random(machine.num_nodes) < 0.6)
        volumes.summed_in_node[:] = np.repeat(of_nodes, machine.devices_per_node)
        found = exchange_times(task, volumes, links)
        took_D = found.backward + (found.forward if pipeline == LARGEST_SUM else found.forward.max())
        least_D = np.zeros(8)
        for lines, name in zip(lines_X, VOLUMES, strict=False):
            held_D = getattr(volumes, name)
            line = next(one for one in lines if one.least <= held_D.mean() <= one.most)
            least_D += line.at_0 * held_D.any() + line.slope * held_D.mean() + line.alone_slope * held_D
        assert (took_D >= least_D * (1 - 1e-9)).all()


@pytest.mark.parametrize("machine", NODES)
def test_of_even_volumes_a_line_says_all(machine: Nodes) -> None:
    """On one node the curve itself; between nodes the backward exchange by its floor."""
    for volume in (10.0, 300.0, 5_000.0):
        line = next(one for one in lines_of(machine, "sparse_dist", SENT) if one.least <= volume <= one.most)
        even = Volumes.empty(8)
        even.sent[:] = volume
        took_ms = exchanges_ms_3(task_on(machine), even, links_of(machine))[1:].sum()
        least = 0.85 if machine.num_domains > 1 or line.least == 0 else 1 - 1e-9
        assert least * took_ms <= line.at_0 + line.slope * volume <= took_ms * (1 + 1e-9)


def test_what_a_device_saves_backward_is_common_only_where_the_forward_exchange_makes_up_for_it() -> None:
    """Between two nodes with a forward exchange of half the bytes, it does not."""
    machine = NODES[1]
    alike, half = (
        exchange_lines(task_on(machine, *one), links_of(machine), "sparse_dist")[VOLUMES.index(SENT)][0]
        for one in ((), ("fp16", "fp32"))
    )
    assert alike.own_slope == 0 < half.own_slope < alike.slope
    of_sums = lines_of(machine, LARGEST_SUM, SENT)[0]
    assert of_sums.slope == 0 < of_sums.own_slope


def test_a_turned_line_says_no_more_of_its_range() -> None:
    line = ExchangeLine(1.0, 0.5, 0.0, 0.0, least=10.0, most=20.0)
    assert line.tilt_toward(15.0) is line
    for volume in (2.0, 40.0):
        turned = line.tilt_toward(volume)
        says = [one.at_0 + one.slope * volume for one in (line, turned)]
        assert says[1] > says[0]
        for inside in (10.0, 15.0, 20.0):
            assert turned.at_0 + turned.slope * inside <= line.at_0 + line.slope * inside + 1e-12
