"""Requests: what they refuse, and the task they become."""

from __future__ import annotations

from typing import Any

import pytest

from evenshard.base.errors import BadConfig
from evenshard.base.units import BYTES_PER_GB
from evenshard.placement.memory import STATE_NUMBERS, state_bytes
from evenshard.placement.nodes import Nodes
from evenshard.placement.sharding import SHARDING_TYPES
from evenshard.placement.task import part_bytes
from evenshard.planner.request import PlacementRequest, caps_of, list_unit_warnings
from evenshard.planner.rules import Rules
from evenshard.price.link import LINKS, bandwidth_name, link
from evenshard.tables.table import Table
from support.builders import parts_of, table
from support.request_builders import ROOM, devices_asked, request


def test_optimizer_state_is_fp32_whatever_the_weights_precision_and_row_wise_in_each_part() -> None:
    one = table("a", rows=100, dim=16, bits=16)
    assert {name: state_bytes(one, name) for name in STATE_NUMBERS} == {
        "sgd": 0,
        "rowwise_adagrad": 100 * 4,
        "adagrad": 100 * 16 * 4,
        "lars_sgd": 100 * 16 * 4,
        "partial_rowwise_adam": 100 * 16 * 4 + 100 * 4,
        "partial_rowwise_lamb": 100 * 16 * 4 + 100 * 4,
        "adam": 2 * 100 * 16 * 4,
        "lamb": 2 * 100 * 16 * 4,
    }
    with pytest.raises(BadConfig, match=r"'lion'.*rowwise_adagrad"):
        state_bytes(one, "lion")
    asked = request(16, optimizer="rowwise_adagrad")
    task = asked.task()
    assert asked.task().table_bytes == (1000 * 16 * 4 + 1000 * 4,)
    halves = (part for part in parts_of(asked.tables, {"a": (8,)}))
    assert [part_bytes(task, task.tables[0], part) for part in halves] == [1000 * 8 * 4 + 1000 * 4] * 2


def test_reserved_memory_leaves_less_room() -> None:
    task = request(8, reserved_bytes=ROOM // 4).task()
    assert task.room_bytes == (ROOM * 3 // 4,) * 2
    assert (task.machine, task.limits[0].types) == (Nodes(2, 2), frozenset(SHARDING_TYPES))
    task = request(8, caps=(ROOM, ROOM // 8), reserved_bytes=ROOM // 4).task()
    assert task.room_bytes == (ROOM * 3 // 4, 0)


def test_rules_by_name_become_limits_and_groups_by_position() -> None:
    rules = Rules({"b": (1,)}, {"c": (0,)}, (2,), (("a", "c"),), (("b", "d"),))
    asked = request(8, 16, 8, 8, caps=(ROOM,) * 4, rules=rules, sharding_types=("table_wise", "row_wise"))
    any_but_2, task = frozenset({0, 1, 3}), asked.task()
    devices = (any_but_2, frozenset({1}), frozenset({1, 3}), any_but_2)
    assert tuple(limits.devices for limits in task.limits) == devices
    assert {limits.types for limits in task.limits} == {frozenset({"table_wise", "row_wise"})}
    assert (task.together, task.apart) == (((0, 2),), ((1, 3),))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tables": ()}, "no tables"),
        ({"tables": (table("a"), table("a"))}, "several tables are called 'a'"),
        ({"tables": (table("a", rows=0),)}, "'a': num_rows is 0"),
        ({"caps_bytes": (8,) * 4097}, "num_devices is 4097"),
        ({"batch_size": 2**31}, "batch_size is 2147483648, not"),
        ({"reserved_bytes": -1}, "below 0"),
        ({"rules": Rules({"x": (0,)})}, "names table 'x', which is not among the tables"),
        ({"rules": Rules({"a": (2,)})}, "rule for table 'a' names device 2, but device ids are 0 to 1"),
        ({"rules": Rules(together=(("a",),))}, "groups the tables a. Name at least two tables"),
        ({"rules": Rules(apart=(("a", "b", "a"),))}, "groups the tables a, b, a. Name at least two tables, each once"),
        (
            {"sharding_types": ("table_wise", "by_hand")},
            "sharding_types contains 'by_hand'. Choose from table_wise, col",
        ),
        ({"machine": Nodes(4, 4)}, "the machine has 4 devices, but the request has 2"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(more: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message) as caught:
        request(8, 8, **more)
    assert "\n" not in str(caught.value)


def test_caps_are_one_for_all_or_one_for_each() -> None:
    assert caps_of(2, 3) == (2 * BYTES_PER_GB,) * 3
    assert caps_of([1, 0.5], 2) == (BYTES_PER_GB, BYTES_PER_GB // 2)
    assert caps_of([2], 2) == (2 * BYTES_PER_GB,) * 2
    with pytest.raises(BadConfig, match="2 numbers for 3 devices"):
        caps_of([1, 2], 3)
    for wrong in (0.0, -1.0, float("inf"), float("nan"), 1e10, 1e300):
        with pytest.raises(BadConfig, match="memory_cap_gb is"):
            caps_of(wrong, 2)
    with pytest.raises(BadConfig, match="num_devices is 0"):
        caps_of(1, 0)


# Values in another unit than the one in which they are read -----------------------------------------------------------

TABLE = Table("a", 1000, 16, 4.0)


def warned(**machine: Any) -> tuple[str, ...]:
    """Warnings of a request for this machine, as ``devices_asked`` takes it."""
    found = devices_asked(**{"hardware": "h100", "nodes": 2, "devices_per_node": 8, "inter": "ib_400g", **machine})
    asked = PlacementRequest((TABLE,), found.caps_bytes, 1024, machine=found.machine, hardware=found.hardware)
    return list_unit_warnings(asked)


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (
            {"inter": "25000gb_s"},
            "inter (inter_host_bw of a Topology) is 25,000 GB/s, more than 5 times the largest known value (76.6)",
        ),
        ({"inter": "400gb_s"}, "if given in Gbit/s, it is 50 GB/s"),
        ({"inter": "0.000025gb_s"}, "in GB/s where TorchRec's Topology counts bytes per ms, it is 25 GB/s"),
        ({"intra": "450000gb_s"}, "it is 450 GB/s"),
        ({"intra": "0.0009gb_s"}, "less than a hundredth of the smallest known value (2.071)"),
        (
            {"memory_cap_gb": 80 * 1024},
            "(hbm_cap of a Topology) is 81,920 GB, more than 2 times the largest known value (79); if given in MB, it",
        ),
        ({"memory_cap_gb": 0.08}, "if given in TB, it is 81.92 GB"),
        ({"host_memory_gb": 1024 * 1024}, "host_memory_gb is 1.04858e+06 GB"),
        ({"host_memory_gb": 512, "host_bandwidth_gb_s": 400_000}, "host_bandwidth_gb_s is 400,000 GB/s"),
        ({"host_memory_gb": 512, "ssd_gb": 1000, "ssd_bandwidth_gb_s": 7_000}, "ssd_bandwidth_gb_s is 7,000 GB/s"),
    ],
)
def test_another_unit_is_warned_of(machine: dict[str, Any], words: str) -> None:
    (warning,) = warned(**machine)
    assert words in warning


def test_what_comes_with_evenshard_is_not_warned_of() -> None:
    own = {"intra": "450gb_s", "memory_cap_gb": 64, "host_memory_gb": 900, "host_bandwidth_gb_s": 400}
    for hardware in ("h100", "b200", "a100", "mi300x"):
        assert warned(hardware=hardware) == warned(hardware=hardware, inter="50gb_s", **own) == ()
    for name in (one for one in LINKS if LINKS[one].tier == "inter"):
        assert link(bandwidth_name(link(name).bandwidth_gb_s)).bandwidth_gb_s == link(name).bandwidth_gb_s
        assert warned(inter=name) == warned(inter=f"{link(name).bandwidth_gb_s:g}gb_s") == ()
