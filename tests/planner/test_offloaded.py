"""What parts outside of device memory take, which caches serve them badly, and what is assumed of caches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span, Storage, TablePart
from evenshard.planner.answer import PlacementAnswer
from evenshard.price.gpu_profile import gpu_profile
from evenshard.price.offload import host_link, part_offload_ms
from evenshard.report.table_facts import assumed_groups, offload_text, slow_cache_text, slow_caches
from evenshard.tables.locality import ASSUMED, BOUND, COUNTED, miss_ratio
from evenshard.tables.table import LOAD_FACTORS, Table
from support.answer_builders import answer
from support.builders import table

ROWS = 2**20
# 1.28 million lookups of a batch.
BUSY = replace(table("busy", ROWS, 64), pooling_factor=20_000.0)
CACHED, MANAGED = Storage("fused_uvm_caching", 0.1), Storage("fused_uvm")
HOST = Nodes(2, 2, host_bytes=(2**40,), host_gb_s=100.0)
# Miss ratios of a table whose rows are all looked up alike.
KNOWN = tuple(round(1 - load_factor, 6) for load_factor in LOAD_FACTORS)


def kept(*pairs: tuple[Table, Storage], totals_ms: tuple[float, ...] = (10.0, 5.0), **asked: Any) -> PlacementAnswer:
    """Whole tables, each on device 0."""
    parts = tuple(
        TablePart(one.name, Span(0, one.num_rows), Span(0, one.embedding_dim), (0,), storage) for one, storage in pairs
    )
    asked = {"machine": HOST, "training_pipeline": "sparse_dist", **asked}
    return answer(tables=[one for one, _ in pairs], parts=parts, totals_ms=totals_ms, asked=asked)


def test_times_are_those_that_the_search_counts() -> None:
    one = kept((BUSY, CACHED), (table("a", ROWS, 64), Storage()), (table("b", ROWS, 64), MANAGED))
    assert [each.number for each in one.offloaded] == [0, 2]
    first, second = one.offloaded
    link = host_link(HOST, gpu_profile("h200"))
    times_ms = part_offload_ms(one.task, one.parts[0], BUSY, link)
    assert first.offload_ms == sum(times_ms) > second.offload_ms > 0
    assert first.miss_ratio == miss_ratio(BUSY, 64, 0.1) and second.miss_ratio is None
    slower = kept((BUSY, MANAGED), machine=replace(HOST, host_gb_s=10.0)).offloaded[0].offload_ms
    assert slower > 2 * kept((BUSY, MANAGED)).offloaded[0].offload_ms
    assert answer().offloaded == ()


def test_a_cache_that_misses_much_and_takes_long_is_named() -> None:
    counted = replace(BUSY, miss_ratios=KNOWN)
    one = kept((counted, CACHED), totals_ms=(50.0, 5.0))
    (bad,) = slow_caches(one)
    taken = f"{bad.offload_ms:.1f}"
    assert slow_cache_text(one, bad) == (
        f"busy misses 90 % of the distinct rows of a batch at load factor 0.1 (counted in traffic). This takes "
        f"{taken} of the 50.0 ms of device 0. Give the table a larger cache or more device memory."
    )
    assert offload_text(one) == f"access to host memory and SSDs takes {taken} of the 50.0 ms of device 0"


def test_others_are_not() -> None:
    counted, seldom = (replace(BUSY, miss_ratios=ratios) for ratios in (KNOWN, (0.1,) * 14 + (0.0,)))
    slow = kept((counted, CACHED), totals_ms=(1e4, 5.0))
    for one, why in (
        (kept((seldom, CACHED)), "it misses little"),
        (slow, "it takes little"),
        (kept((BUSY, MANAGED)), "it has no cache"),
    ):
        assert one.offloaded[0].offload_ms > 0 and slow_caches(one) == [], why
    assert kept((BUSY, CACHED), hardware="cpu").offloaded[0].offload_ms > 0, "hardware without a profile has a link"


def test_the_worst_part_of_a_table_stands_for_it_and_the_worst_table_is_first() -> None:
    busier = replace(BUSY, name="busier", pooling_factor=30_000.0, miss_ratios=KNOWN)
    columns = (Span(0, 16), Span(16, 64))
    cut = tuple(TablePart("busy", Span(0, ROWS), span, (at,), CACHED) for at, span in enumerate(columns))
    whole = TablePart("busier", Span(0, ROWS), Span(0, 64), (0,), CACHED)
    tables = [replace(BUSY, miss_ratios=KNOWN), busier]
    asked = {"machine": HOST, "sharding_types": ()}
    one = answer(tables=tables, parts=(*cut, whole), totals_ms=(10.0, 5.0), asked=asked)
    assert [(bad.part.table, bad.part.device) for bad in slow_caches(one)] == [("busier", 0), ("busy", 1)]


def test_what_is_assumed_of_caches() -> None:
    bounded = replace(table("bounded", ROWS, 64), reuse_bins=BUSY.reuse_bins or (1.0, *(0.0,) * 16))
    unknown = replace(table("unknown", ROWS, 64), reuse_bins=None)
    counted = replace(table("counted", ROWS, 64), miss_ratios=KNOWN)
    one = kept((bounded, CACHED), (unknown, CACHED), (counted, CACHED), (table("managed", ROWS, 64), MANAGED))
    assert [each.source for each in one.offloaded] == [BOUND, ASSUMED, COUNTED, ""]
    found = {each.table: each.text for each in one.assumptions}
    assert list(found) == ["bounded", "unknown"] and {each.column for each in one.assumptions} == {"miss_ratios"}
    assert found["bounded"].startswith(BOUND) and found["unknown"].startswith(ASSUMED)
    assert [group.tables for group in assumed_groups(one)] == [("bounded",), ("unknown",)]
