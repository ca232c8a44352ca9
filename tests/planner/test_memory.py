"""The memory of an answer: its components add up to what is legal, and the brim is a warning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evenshard.base.errors import InfeasibleTask
from evenshard.placement.memory import part_memory
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span, Storage, TablePart
from evenshard.placement.placement import check_sharding
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.memory import DEVICE_COMPONENTS, DeviceMemory, NodeMemory, warn_of_full_memory
from support.answer_builders import answer
from support.builders import table

MIB = 2**20
CACHED, MANAGED = Storage("fused_uvm_caching", 0.25), Storage("fused_uvm")
EVERYTHING: dict[str, Any] = {
    "sharding_types": (),
    "training_pipeline": "prefetch",
    "optimizer": "adam",
    "dense_bytes": 3 * MIB,
    "reserved_share": 0.25,
    "reserved_bytes": MIB,
}


def of(kept: tuple[Storage, ...], cap: int = 100 * MIB, host: int = 100 * MIB, **asked: Any) -> PlacementAnswer:
    """Tables a, b, ... of 1 MiB, in turn on the two devices of two hosts; a replica is not among them."""
    tables = [table("abcdef"[number], 4096, 64) for number in range(len(kept))]
    parts = tuple(
        TablePart(one.name, Span(0, 4096), Span(0, 64), (number % 2,), storage)
        for number, (one, storage) in enumerate(zip(tables, kept, strict=True))
    )
    machine = Nodes(2, 1, inter="ib_400g", host_bytes=(host, host))
    return answer(tables=tables, parts=parts, caps=(cap, cap), asked={**EVERYTHING, "machine": machine, **asked})


def test_every_component_is_told_once() -> None:
    told = [name for names in DEVICE_COMPONENTS.values() for name in names]
    fields = set(DeviceMemory.__dataclass_fields__) - {"device", "reserved", "cap", "peak", "moment"}
    assert sorted(told) == sorted(fields)
    one = DeviceMemory(0, *range(1, 13), reserved=100, cap=300)
    assert one.counted_bytes == sum(range(1, 13)) and one.limit_bytes == 200


def test_a_table_in_device_memory_and_one_behind_a_cache() -> None:
    one = of((Storage(), CACHED))
    first, second = one.memory
    assert (first.weights, first.optimizer_state, first.cache_rows, first.cache_state) == (MIB, 2 * MIB, 0, 0)
    assert (second.weights, second.optimizer_state, second.cache_rows) == (0, 0, MIB // 4)
    assert second.cache_state == 4096 * 4 + 1024 * 16 and second.prefetch > 0 == first.prefetch
    # 64 samples of 64 numbers, and the same to send; of both tables, those of 32 samples.
    assert first.outputs == first.sent == 4 * 64 * 64 == first.received
    assert first.dense_model == 3 * MIB and first.reserved == 26 * MIB and first.cap == 100 * MIB
    assert one.host_memory == (NodeMemory(0, room=100 * MIB), NodeMemory(1, MIB, 2 * MIB, 100 * MIB))


def test_a_replica_is_counted_on_every_device() -> None:
    part = TablePart("a", Span(0, 4096), Span(0, 64), (0, 1))
    tables = [table("a", 4096, 64)]
    one = answer(tables=tables, parts=(part,), asked=EVERYTHING)
    size = part_memory(part, tables[0], num_devices=2, batch_size=64, optimizer="adam", pipeline="prefetch")
    assert [(each.weights, each.dense_gradient) for each in one.memory] == [(MIB, 2 * MIB)] * 2
    assert one.used_bytes == (size.device_bytes,) * 2


@pytest.mark.parametrize("kept", [(Storage(),) * 3, (CACHED, Storage(), MANAGED)])
def test_legal_is_what_fits_into_what_the_reserve_leaves(kept: tuple[Storage, ...]) -> None:
    """A byte less than what the fullest device holds is too little, by the task and by the components."""
    one = of(kept)
    used = max(one.used_bytes)
    assert one.memory[0].counted_bytes - one.used_bytes[0] == one.request.sample_memory.total + 3 * MIB
    for missing in (0, 1):
        cap = used + one.request.sample_memory.total + 3 * MIB + MIB - missing
        tight = of(kept, cap, reserved_share=0.0)
        assert (max(tight.used_bytes) <= tight.request.rooms_bytes[0]) == (not missing)
        assert (max(each.counted_bytes - each.limit_bytes for each in tight.memory) <= 0) == (not missing)
        if missing:
            with pytest.raises(InfeasibleTask, match=r"device \d needs"):
                check_sharding(tight.task, tight.parts)
        else:
            check_sharding(tight.task, tight.parts)


def test_the_peak_may_be_at_another_moment() -> None:
    """Three gradients of all tables are ordered for the one output that an idle device does not have."""
    one = of((Storage(),), optimizer="sgd", dense_bytes=0)
    busy, idle = one.memory
    assert idle.moment == "gradients are ordered" and idle.received == 4 * 32 * 64
    assert idle.peak == idle.own_inputs + 3 * idle.received == idle.counted_bytes + 2 * idle.received == idle.most_bytes
    assert busy.moment == "outputs are sent" and busy.peak == busy.counted_bytes
    assert of((Storage(),), optimizer="sgd", dense_bytes=MIB).memory[1].peak == idle.peak + MIB
    rows = tuple(TablePart("a", Span(2048 * at, 2048 * (at + 1)), Span(0, 64), (at,)) for at in range(2))
    asked = {**EVERYTHING, "dense_bytes": 0}
    summed = answer(tables=[table("a", 4096, 64)], parts=rows, asked=asked).memory[0]
    assert summed.sent == 0 and summed.moment != "gradients are ordered"
    assert of((Storage(),), training_pipeline="", dense_bytes=0).memory[0].moment == ""


def test_hosts_are_legal_up_to_their_room() -> None:
    for room, legal in ((3 * MIB, True), (3 * MIB - 1, False)):
        one = of((Storage(), MANAGED), host=room)
        assert (one.host_memory[1].full <= 1) == legal
        if legal:
            check_sharding(one.task, one.parts)
        else:
            with pytest.raises(InfeasibleTask, match="host 1 needs"):
                check_sharding(one.task, one.parts)


@pytest.mark.parametrize(
    ("weights", "reserved", "brimful"), [(95, 100, False), (96, 100, True), (170, 0, False), (171, 0, True)]
)
def test_the_brim_is_lower_where_nothing_is_reserved(weights: int, reserved: int, brimful: bool) -> None:
    assert DeviceMemory(0, weights, reserved=reserved, cap=200).is_almost_full == brimful
    assert DeviceMemory(0, weights=50, peak=weights, reserved=reserved, cap=200).is_almost_full == brimful


def test_brimful_devices_and_hosts_are_named() -> None:
    full = DeviceMemory(0, 97, reserved=100, cap=200)
    assert tuple(warn_of_full_memory([full, replace(full, device=1, weights=5)], [])) == (
        "Device 0 is filled to 97 % of its memory minus the reserve. A batch with more lookups than usual may not "
        "fit: use more memory or more devices.",
    )
    (line,) = warn_of_full_memory([DeviceMemory(0, 90, cap=100), DeviceMemory(1, 99, cap=100)], [])
    assert line.startswith("Device 1 is filled to 99 % (2 are almost full), and no memory is reserved:")
    assert tuple(warn_of_full_memory([], [NodeMemory(0, 90, 6, 100), NodeMemory(1, 95, 0, 100)])) == (
        "Host 0 is filled to 96 % of the memory available to tables. Raise host_memory_gb.",
    )
    (line,) = warn_of_full_memory([], [NodeMemory(0, ssd=96, ssd_room=100), NodeMemory(1, ssd=99, ssd_room=100)])
    assert line.startswith("SSD of host 1 is filled to 99 % (2 are almost full) of the space available to tables.")
    assert of((Storage(), MANAGED)).memory_warnings == ()
