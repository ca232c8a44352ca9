"""Memory from far too small to enough: an answer or a refusal, never another exception."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import evenshard
from evenshard.base.errors import BadInput, InfeasibleTask
from evenshard.base.units import bytes_to_gb
from evenshard.planner.answer import PlacementAnswer
from evenshard.tables.table import Table

# Nodes, and devices of each.
SHAPES = ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (3, 2))
HARDWARE = ("h100", "rtx_2080_ti", "a100_80gb", "cpu")


@st.composite
def scarce_requests(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of ``place`` whose devices, hosts and SSDs together have 1 to 150 % of the weights."""
    dims = st.sampled_from((4, 16, 32, 64, 128, 256))
    rows, lookups = st.integers(1, 10**7), st.sampled_from((0.1, 1.0, 30.0))
    tables = [
        Table(f"t{at}", draw(rows), draw(dims), draw(lookups), pooling=draw(st.sampled_from(("sum", "sum", "mean"))))
        for at in range(draw(st.integers(1, 10)))
    ]
    nodes, per_node = draw(st.sampled_from(SHAPES))
    needed_gb = bytes_to_gb(sum(table.size_bytes for table in tables))
    share, tiers = draw(st.floats(0.01, 1.5)), draw(st.sampled_from(("device", "device", "host", "ssd")))
    reserved = draw(st.sampled_from((0.0, 0.0, 0.5, 1.0)))
    cap_gb = share * needed_gb / (nodes * per_node)
    arguments: dict[str, Any] = {
        "tables": tables,
        "num_devices": nodes * per_node,
        "hardware": draw(st.sampled_from(HARDWARE)),
        "memory_cap_gb": cap_gb,
        "reserved_gb": reserved * cap_gb,
        "batch_size": draw(st.sampled_from((256, 65_536))),
        "optimizer": draw(st.sampled_from(("sgd", "rowwise_adagrad", "adam"))),
    }
    if nodes > 1:
        arguments |= {"devices_per_node": per_node, "inter": "infiniband_ndr"}
    if tiers != "device":
        arguments["host_memory_gb"] = draw(st.floats(0.01, 1.5)) * needed_gb / nodes
    if tiers == "ssd":
        arguments["ssd_gb"] = draw(st.floats(0.01, 1.5)) * needed_gb / nodes
    if draw(st.booleans()):
        types = st.sampled_from(("table_wise", "column_wise", "row_wise", "table_row_wise", "data_parallel"))
        arguments["sharding_types"] = tuple(sorted(draw(st.sets(types, min_size=1))))
    return arguments


def check(arguments: dict[str, Any]) -> None:
    """Place, and check the answer; ``place`` itself checks that it is legal."""
    try:
        found = evenshard.place(**arguments)
    except (BadInput, InfeasibleTask) as error:
        assert "\n" not in str(error) and str(error).endswith(".")
    else:
        assert isinstance(found, PlacementAnswer)


@settings(max_examples=12, derandomize=True, suppress_health_check=list(HealthCheck))
@given(arguments=scarce_requests())
def test_scarce_memory_is_answered_or_refused(arguments: dict[str, Any]) -> None:
    check(arguments)


@pytest.mark.parametrize("cap_gb", [1.0, 0.001])
def test_devices_without_memory_for_tables_of_several_dims(cap_gb: float) -> None:
    """All memory is reserved, or taken by inputs and outputs."""
    tables = [Table("a", 1000, 16, 2.0), Table("b", 1000, 128, 2.0)]
    with pytest.raises(InfeasibleTask, match=r"is missing\."):
        evenshard.place(tables, num_devices=2, hardware="h100", memory_cap_gb=cap_gb, reserved_gb=cap_gb)
