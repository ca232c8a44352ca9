"""TorchRec's planner as a sharder: it gets the true values of the tables, and evenshard's rule of memory holds."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.base.errors import BadConfig, InfeasibleTask, MissingPackage
from evenshard.base.units import BYTES_PER_GB
from evenshard.placement.nodes import Nodes
from evenshard.placement.placement import check_placement
from evenshard.price.collectives import Links
from evenshard.price.gpu_profile import gpu_profile
from evenshard.price.link import LINKS
from evenshard.torchrec.baseline.sharder import TorchRecSharder
from evenshard.torchrec.baseline.topology import Bandwidths, PlannerSetting, bandwidths_of, machine_bandwidths
from support.builders import capped, sized, some_tables, split_by, table, task
from support.constraint_builders import is_legal, limited, only

SHARDER = TorchRecSharder()


# Memory --------------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8), devices=st.integers(1, 4), cap=st.integers(1, 24))
def test_a_placement_fits_the_memory_or_is_refused(sizes: list[int], devices: int, cap: int) -> None:
    of_task = task(sized(*sizes), devices=devices, cap=4 * cap)
    try:
        placement = SHARDER.place(of_task)
    except InfeasibleTask:
        assert sum(sizes) > cap * devices - max(sizes) * (devices - 1) or max(sizes) > cap  # never with room to spare
    else:
        check_placement(of_task, placement)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_the_last_byte_of_memory_is_used_whatever_torchrec_counts_besides_the_weights(bits: int) -> None:
    tables = [table(f"t{number}", rows=6, dim=4, bits=bits) for number in range(3)]
    placement = SHARDER.place(task(tables, devices=3, cap=6 * 4 * bits // 8, batch_size=65536))
    assert sorted(placement.device_of_table) == [0, 1, 2]


def test_a_full_device_is_passed_over_however_idle_it_is() -> None:
    """The largest table is hardly read, but leaves room for nothing else."""
    idle = table("idle", rows=1000, pooling=0.01)
    busy = [table(f"busy{number}", rows=100, pooling=20.0) for number in range(3)]
    of_task = task([*busy, idle], cap=idle.size_bytes)
    assert split_by(SHARDER.place(of_task)) == {(0, 1, 2), (3,)}
    assert split_by(SHARDER.place(capped(of_task, 2 * idle.size_bytes))) != {(0, 1, 2), (3,)}


def test_what_cannot_be_placed_is_infeasible_with_numbers(capfd: pytest.CaptureFixture[str]) -> None:
    tables = [table(f"s{number}", rows=3 * BYTES_PER_GB // 16) for number in range(3)]
    with pytest.raises(InfeasibleTask, match=r"TorchRec's planner found no plan: .* 9\.00 GB .* 10\.00 GB .*Raise"):
        SHARDER.place(task(tables, cap=5 * BYTES_PER_GB))
    with pytest.raises(InfeasibleTask, match="more than a whole device"):
        SHARDER.place(task(tables, cap=BYTES_PER_GB))
    assert capfd.readouterr().out == ""  # no report of the planner; stderr is the loggers', which other tests turn up


# What TorchRec is given ---------------------------------------------------------------------------------------------


def test_true_pooling_factors_count() -> None:
    """Four tables alike but for one that is looked up ten times as often: it stands alone."""
    busy, others = table("busy", pooling=100.0), [table(f"o{number}", pooling=10.0) for number in range(3)]
    for tables, alone in (([busy, *others], 0), ([*others, busy], 3)):
        assert (alone,) in split_by(TorchRecSharder(sort_by="perf").place(task(tables)))
    alike = [replace(one, pooling_factor=10.0) for one in (busy, *others)]
    assert [len(shard) for shard in SHARDER.place(task(alike)).shards()] == [2, 2]


def test_fractions_of_a_lookup_count() -> None:
    tables = [table(f"t{number}", pooling=pooling) for number, pooling in enumerate((0.9, 0.1, 0.9, 0.1))]
    assert split_by(TorchRecSharder(sort_by="perf").place(task(tables))) in ({(0, 1), (2, 3)}, {(0, 3), (1, 2)})


def test_the_width_of_the_weights_counts() -> None:
    """A table of 32 bits takes more time than one of 16, with the same number of weights."""
    narrow = [table(f"n{number}", dim=128, bits=16) for number in range(2)]
    tables = [*narrow, table("wide", dim=128, bits=32)]
    assert split_by(SHARDER.place(task(tables))) == {(0, 1), (2,)}


def test_bandwidths_decide_between_a_wide_and_a_busy_table() -> None:
    """Over a slow link the wide table is the costly one and stands alone; with slow memory a busy one does."""
    wide = table("wide", rows=1000, dim=128, pooling=1.0)
    busy = [table(f"busy{number}", rows=200 - number, dim=4, pooling=20.0) for number in range(2)]
    of_task = task([wide, *busy], batch_size=4096)
    assert split_by(TorchRecSharder(lambda _: Bandwidths(1000.0, 1.0, 1.0)).place(of_task)) == {(0,), (1, 2)}
    assert split_by(TorchRecSharder(lambda _: Bandwidths(1.0, 1000.0, 1000.0)).place(of_task)) == {(0, 2), (1,)}


def test_the_planner_gets_bytes_per_millisecond_and_the_batch_of_one_device() -> None:
    of_task = task(some_tables(3), devices=4, batch_size=1000)
    planner = TorchRecSharder(lambda _: Bandwidths(3888.0, 450.0, 300.0)).planner(of_task)
    topology = planner.topology_of(PlannerSetting())
    assert topology.hbm_mem_bw == pytest.approx(3888e6)
    assert (topology.intra_host_bw, topology.inter_host_bw) == (450e6, 300e6)
    assert planner.batch_per_device == 250
    assert SHARDER.planner(replace(of_task, batch_size=1001)).batch_per_device == 251


def test_what_is_left_out_is_torchrecs_own() -> None:
    from torchrec.distributed.planner.constants import CROSS_NODE_BANDWIDTH, HBM_MEM_BW, INTRA_NODE_BANDWIDTH

    told = TorchRecSharder(lambda _: Bandwidths(1.0, 2.0, 3.0)).planner(task(some_tables(3)))
    keeps_its_own = told.topology_of(PlannerSetting(told=False))
    topology = SHARDER.planner(task(some_tables(3))).topology_of(PlannerSetting())
    assert keeps_its_own.hbm_mem_bw == topology.hbm_mem_bw != told.topology_of(PlannerSetting()).hbm_mem_bw
    assert topology.hbm_mem_bw == HBM_MEM_BW == pytest.approx(963e6, rel=1e-3)
    assert topology.intra_host_bw == INTRA_NODE_BANDWIDTH == pytest.approx(644e6, rel=1e-3)
    assert topology.inter_host_bw == CROSS_NODE_BANDWIDTH == pytest.approx(13.4e6, rel=2e-3)


def test_bandwidths_of_hardware() -> None:
    """A link counts with what its long exchanges reach: the straight line through all sizes is an eighth below."""
    machine = Nodes.one_node(8)
    h200 = bandwidths_of("simulated:h200", "auto", machine)
    reached = gpu_profile("h200").hbm_efficiency
    assert 0.5 < reached < 1
    link = LINKS["nvlink_h200"]
    long = link.even_gb_s(8)
    assert h200 == Bandwidths(pytest.approx(4800 * reached), long, long) and long > 1.1 * link.bandwidth_gb_s
    assert h200 == machine_bandwidths("simulated:h200", machine, Links(link))
    slow = bandwidths_of("simulated:a100_80gb", "ethernet_25g", machine)
    assert (slow.intra_node_gb_s, slow.inter_node_gb_s) == (3.125, 3.125)
    assert bandwidths_of("cpu", "ethernet_25g", machine) == Bandwidths()
    with pytest.raises(BadConfig):
        bandwidths_of("simulated:none_such", "auto", machine)


# Its plan ------------------------------------------------------------------------------------------------------------


def test_the_largest_or_the_slowest_goes_first() -> None:
    """Works of 1, 1 and 2, the last the smallest: by storage 1 2 | 1, by time 2 | 1 1."""
    tables = [table(f"t{number}", rows, 16, 10.0 * work) for number, (rows, work) in enumerate(((9999, 1), (8888, 1)))]
    tables.append(table("slow", 5000, 16, 20.0))
    by_storage, by_time = SHARDER.place(task(tables)), TorchRecSharder(sort_by="perf").place(task(tables))
    assert split_by(by_storage) == {(0, 2), (1,)}
    assert split_by(by_time) == {(0, 1), (2,)}


def test_the_order_of_tables_does_not_matter() -> None:
    tables = some_tables(20)
    shards = [
        {frozenset(order[position].name for position in shard) for shard in SHARDER.place(task(order, 4)).shards()}
        for order in (tables, tables[::-1])
    ]
    assert shards[0] == shards[1] and len(shards[0]) == 4


def test_the_same_task_gets_the_same_placement() -> None:
    of_task = task(some_tables(20), devices=4)
    assert SHARDER.place(of_task) == TorchRecSharder().place(of_task)


def test_one_device_holds_everything_under_any_name() -> None:
    tables = [table("a.b"), table("a b"), table("embedding_bags"), table("never", pooling=0.0)]
    assert SHARDER.place(task(tables, devices=1)).device_of_table == (0, 0, 0, 0)


def test_names_are_those_of_the_reports() -> None:
    assert [SHARDER.name, TorchRecSharder(sort_by="perf").name] == ["torchrec_planner", "torchrec_planner_perf"]


def test_without_torchrec_the_remedy_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchrec.distributed.planner", None)
    with pytest.raises(MissingPackage, match="&& pip install --no-deps 'torchrec==1"):
        TorchRecSharder()


def test_each_devices_cap_and_optimizer_state_are_kept_and_no_other_constraint_is_known() -> None:
    tables = tuple(table(f"t{n}", 6, 4) for n in range(4))
    tight = limited(task(tables, 2), room_bytes=(2 * 96, 3 * (96 + 24)), optimizer="rowwise_adagrad")
    assert sorted(SHARDER.place(tight).device_of_table) == [0, 1, 1, 1]
    pinned = limited(task(tables, 2), allowed=(only(0),) * 4)
    assert not is_legal(pinned, SHARDER.place(pinned))
