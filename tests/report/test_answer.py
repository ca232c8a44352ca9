"""What the terminal shows of an answer: the right numbers, lines that fit, and names that do no harm."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest

from evenshard.base.units import ms_text, size_text
from evenshard.placement.nodes import DeviceGroup, Nodes
from evenshard.placement.parts import Span, Storage, TablePart
from evenshard.placement.sharding import Communication
from evenshard.planner.answer import (
    BY_MODEL,
    BY_RATING,
    DEFAULT_PLAN,
    Baseline,
    DifferenceInterval,
    Nearness,
    PlacementAnswer,
)
from evenshard.planner.baselines import FULL_SPACE, TORCHREC
from evenshard.planner.rules import Rules
from evenshard.price.evidence import DeviceError
from evenshard.report.answer import EIGHTHS, FULL, brief_text, make_displayable, print_answer, shown_devices
from evenshard.report.page.page import page
from evenshard.report.step_facts import advice, link_text, machine_text, warning_texts
from evenshard.report.table_facts import costliest, offload_text, placed_parts
from evenshard.sharders.catalog import label_of
from evenshard.tables.assumptions import Assumption
from support.answer_builders import GB, answer
from support.builders import cost, table

MIB = 2**20
EVERY_TYPE: dict[str, Any] = {"sharding_types": ()}
WHOLE = Baseline("lookup_greedy", 6.0)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def printed(
    one: PlacementAnswer, width: int = 200, encoding: str = "utf-8", missing: str = "", verbose: bool = False
) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        print_answer(one, file, missing, verbose)
    file.seek(0)
    return file.read()


def row(text: str, device: int) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [str(device)])


def recommendation(one: PlacementAnswer) -> list[str]:
    """The first lines: step time, bound and baselines."""
    return printed(one).split("\n\n")[0].splitlines()


def test_the_numbers_of_a_device() -> None:
    """2**20 rows of 64 dims of 4 bytes are 0.25 GB; communication takes a quarter of a device's time."""
    one = answer(caps=(GB, 2 * GB))
    first = "4.00 ms of embedding work per step, predicted (90 %: 3.60 to 4.40 ms)."
    assert recommendation(one)[:2] == [first, "At most 25 % above the model's lower bound, 3.20 ms."]
    text = printed(one, 120)
    assert row(text, 0)[:11] == ["0", "1", "0.25", "/", "1", "25", "%", "1.00", "1.00", "2.00", "4.00"]
    assert row(text, 1)[:11] == ["1", "2", "0.50", "/", "2", "25", "%", "0.50", "0.50", "1.00", "2.00"]
    assert row(printed(answer(asked={"reserved_bytes": GB // 2})), 0)[2:7] == ["0.25", "/", "0.5", "50", "%"]
    small = printed(answer(tables=[table(n, 2**10, 64) for n in "abc"], caps=(2**20, 2**21)))
    assert "memory, MB" in small and row(small, 1)[2:5] == ["0.50", "/", "2"]
    assert "*" not in printed(answer((0, 0, 0), (4.0,))), "a single device has nothing to compare"


def test_bars_are_as_long_as_the_times() -> None:
    text = printed(answer(), 120)
    assert "* slowest" in text and row(text, 0)[-1] == "*"
    assert (len(row(text, 0)[-2]), len(row(text, 1)[-1])) == (40, 20)
    assert "#" * 40 in printed(answer(), 120, "ascii")
    near = answer(totals_ms=(4.0, 3.8))  # narrow bars differ by eighths of a character
    wide, narrow = row(printed(near, 80), 0)[-2], row(printed(near, 80), 1)[-1]
    assert set(wide) == {FULL} and narrow == FULL * (len(wide) - 1) + EIGHTHS[round(8 * (1 - 0.05 * len(wide)))]
    for bars in (printed(near, 80, "ascii"), printed(answer(totals_ms=(4.0, 3.999)), 80)):  # would look the same
        assert row(bars, 0)[-3:] == ["4.00", "0.00", "*"] and "#" not in bars and FULL not in bars


def test_lines_fit_and_carry_no_colours() -> None:
    one = answer(
        tables=[table(f"a table with a long name {number}", 2**20, 64) for number in range(3)],
        warnings=("a warning that is much longer than a line of the terminal, " * 3,),
        measured=cost(4.0, 123.4),
        caps=(1234 * GB, 999 * GB),
    )
    for width in (80, 120):
        text = printed(one, width)
        assert max(len(line) for line in text.splitlines()) <= width
        assert "\x1b" not in text and "…" not in text
    narrow = printed(answer(), 30)
    assert row(narrow, 0)[:9] == ["0", "1", "0.25", "/", "1", "1.00", "1.00", "2.00", "4.00"] and "…" not in narrow


def test_measured_times_lead_and_only_real_hardware_measures() -> None:
    one = answer(measured=cost(5.0, 2.5), comparison=(Baseline("size_greedy", 4.1, 6.0), Baseline("x", 9.0, 5.5)))
    assert recommendation(one) == [
        "5.00 ms of embedding work per step, simulated (4.00 predicted, 90 %: 3.60 to 4.40 ms).",
        "At most 25 % above the model's lower bound, 3.20 ms.",
        "Best of 2 baselines (x): 5.50 ms, 10 % slower.",
    ]
    real = answer(measured=cost(5.0, 2.5), asked={"hardware": "cpu"})
    assert recommendation(real)[0].startswith("5.00 ms of embedding work per step, measured (4.00 predicted")
    assert recommendation(answer(lower_bound_ms=4.0))[1] == "Optimal under the model: the lower bound is 4.00 ms."


@pytest.mark.parametrize(
    ("baseline_ms", "words"), [(5.0, "25 % slower"), (4.0, "as fast"), (4.001, "as fast"), (3.0, "25 % faster")]
)
def test_the_best_baseline_in_words(baseline_ms: float, words: str) -> None:
    baselines = (
        Baseline("lookup_greedy", 50.0),
        Baseline("dim_greedy", baseline_ms),
        Baseline("random", 1.0, note="tables a, b share a device"),
        Baseline("size_greedy", None, note="no room"),
    )
    assert f"Best of 2 baselines (greedy by dim): {baseline_ms:.2f} ms, {words}." in printed(
        answer(comparison=baselines)
    )


def test_with_what_an_answer_is_compared() -> None:
    saves = DifferenceInterval(1.0, -0.1, 2.0)
    default = Baseline(FULL_SPACE, 5.0, setting="no pooling factors", chosen=DEFAULT_PLAN, saves=saves)
    best = Baseline(FULL_SPACE, 4.1, setting="min_partition 32, no replicas; of 10 plans", chosen=BY_MODEL)
    rated = replace(best, chosen=BY_RATING)  # the same plan
    one = answer(comparison=(WHOLE, default, rated, best), asked=EVERY_TYPE)
    said = "TorchRec's default plan: 5.00 ms, 25 % slower (90 %: 2.5 % faster to 50 % slower)."
    assert recommendation(one)[2] == said
    name, text = f"{label_of(FULL_SPACE)}, best by this model", printed(one, verbose=True)
    assert f"baseline  {name}: 4.10 ms, min_partition 32, no replicas; of 10 plans\n" in text
    assert f"Best of 4 baselines ({name}): 4.10 ms, 2.5 % slower." in text
    # Whole tables are beside cut ones.
    assert (
        "greedy by lookups, whole tables: 6.00 ms.\n" in printed(answer(comparison=(WHOLE,), asked=EVERY_TYPE)).lower()
    )
    whole = answer(comparison=(WHOLE, Baseline(TORCHREC[0], 9.0)), asked=EVERY_TYPE)
    assert "TorchRec's planner with all sharding types was not compared: add --report." in printed(whole)
    missing = printed(answer(comparison=(WHOLE,)), missing="it is not there.")
    assert "TorchRec's planner was not compared: it is not there." in missing
    # The placement in use.
    near = Nearness("old.json", None, 1, ("a",), (), (), 5.0, 0, 4.0, 1, DifferenceInterval(1.0, 0.5, 2.0))
    assert (
        recommendation(answer(nearness=near))[2] == "The placement in use: 5.00 ms, 25 % slower (90 %: 12 % to 50 %)."
    )
    moved = replace(near, stay_bytes=9, stay_ms=4.0, stay_saves=DifferenceInterval(0.0, 0.0, 0.0))
    assert recommendation(answer(nearness=moved))[2].startswith(
        "The fewest moves from the placement in use: 4.00 ms, as"
    )


def test_the_setting_of_the_times() -> None:
    def setting(**more: Any) -> str:
        return " ".join(printed(answer(**more)).split("\n\n")[-1].split())

    asked = {"reserved_bytes": GB // 2, "optimizer": "adam", "training_pipeline": "prefetch"}
    first = "2 x simulated:h100, nvlink_h200, batch 64, prefetch, adam, model "
    assert setting(asked=asked, link="nvlink_h200").startswith(first)
    half = {"communication": Communication("fp16", "bf16"), "hardware": "cuda"}
    said = "2 x cuda, nccl, batch 64, fp16 forward and bf16 backward communication, sgd, model "
    assert setting(asked=half, link="nccl").startswith(said)


def test_the_rest_is_printed_when_asked_for() -> None:
    assumed = tuple(Assumption(f"t{number}", "weight_bits", "32, the default") for number in range(2000))
    baselines = (Baseline(FULL_SPACE, 5.0, setting="no pooling factors"),)
    asked = {"training_pipeline": "sparse_dist", "reserved_share": 0.25, "reserved_bytes": GB // 4}
    one = answer(asked={**EVERY_TYPE, **asked, "assumptions": assumed}, comparison=baselines, link="nccl")
    brief, whole = (printed(one, verbose=verbose) for verbose in (False, True))
    assert "More with -v, or summary(verbose=True): bound, reserved, link, baseline, assumed.\n" in brief
    added = [line for line in whole.splitlines() if line and line not in brief.splitlines()]
    assert [line.split()[0] for line in added] == ["bound", "reserved", "link", "baseline", "assumed"]
    assert "25 % and 256 MB of each device reserved for CUDA context, NCCL, fragmentation and the dense" in added[1]
    assert "weight_bits of 2,000 tables: 32, the default (t0, t1, t2 and 1,997 more)" in added[-1]


def offloaded(**asked: Any) -> PlacementAnswer:
    """Table a in device memory, b behind a cache of a fourth, c behind one of half, d in host memory; two hosts.

    Of each 64 rows of 4,096 columns.
    """
    tables = [table(name, 64, 4096) for name in "abcd"]
    kept = (Storage(), Storage("fused_uvm_caching", 0.25), Storage("fused_uvm_caching", 0.5), Storage("fused_uvm"))
    parts = tuple(
        TablePart(name, Span(0, 64), Span(0, 4096), (device,), storage)
        for name, device, storage in zip("abcd", (0, 1, 0, 1), kept, strict=True)
    )
    machine = Nodes(2, 1, inter="ib_400g", host_bytes=(10 * MIB, 4 * MIB))
    known = {"machine": machine, "training_pipeline": "sparse_dist", "reserved_share": 0.15, **asked}
    return answer(tables=tables, parts=parts, caps=(10 * MIB, 10 * MIB), asked={**EVERY_TYPE, **known})


def test_memory_component_by_component_and_where_tables_are_kept() -> None:
    """Outputs of 64 samples of 4,096 columns are 1 MB a table, and again to send; 32 samples of four tables, 2 MB."""
    lines = [line for line in printed(offloaded()).splitlines() if line.startswith(("mem", "kernel", "hosts", "off"))]
    assert lines == [
        "memory    device 0, the fullest: weights 1.00 + caches 0.50 + inputs 0.01 + outputs 4.00 + own samples 2.01 = "
        "7.52 of 8.50 MB; 1.50 MB reserved",
        "kernel    fused: 1 table, 1.00 MB in device memory",
        "kernel    fused_uvm_caching: 2 tables, 2.00 MB in host memory, caches of 769 KB in device memory (load "
        "factors 0.25 to 0.5): b, c",
        "kernel    fused_uvm: 1 table, 1.00 MB in host memory: d",
        "hosts     host memory: 2.00 MB of 4.00 MB used on host 1, the fullest of 2 (50 %); 3.00 MB in all",
        f"offload   {offload_text(offloaded())}",
    ]
    usual = printed(answer())
    assert not any(word in usual for word in ("memory    ", "kernel", "hosts"))
    one = [table("a", 64, 2048)]
    idle = printed(answer((0,), tables=one, asked={"training_pipeline": "none"}, caps=(2**23, 2**20)))
    assert "fullest: own samples 0.25 = 0.25 of 1.00 MB, 0.75 when gradients are ordered\n" in idle
    full = printed(offloaded(reserved_share=0.21))
    assert "Warning: Device 0 is filled to 95 % of its memory minus the reserve. A batch with more lookups" in full


def test_many_devices_are_cut_down_to_the_slowest_and_the_fullest() -> None:
    num_devices = 40
    tables = [table(f"t{number}", 2**10 * (number + 1), 64) for number in range(num_devices)]
    totals = [10.0 + (7 * number) % num_devices for number in range(num_devices)]
    one = answer(range(num_devices), totals, tables, alone_ms=(1.0,) * 40, adds_ms=(0.5,) * 40)
    slowest, fullest = shown_devices(one)
    assert [totals[device] for device in slowest] == [49, 48, 47, 46, 45, 44, 43, 42]
    assert fullest == [device for device in range(39, -1, -1) if device not in slowest][:4]
    text = printed(one, 80)
    assert all(row(text, device) for device in (*slowest, *fullest)) and "The other 28" in text


def nodes() -> PlacementAnswer:
    """Tables of every type on two nodes of two devices."""
    rows = [Span(2**18 * part, 2**18 * (part + 1)) for part in range(4)]
    halves, all_rows, columns = (Span(0, 2**19), Span(2**19, 2**20)), Span(0, 2**20), (Span(0, 32), Span(32, 64))
    parts = (
        TablePart("a", all_rows, Span(0, 64), (3,)),
        TablePart("b", all_rows, Span(0, 64), (0, 1, 2, 3)),
        *(TablePart("c", span, Span(0, 64), (device,)) for device, span in enumerate(rows)),
        *(TablePart("d", half, Span(0, 64), (2 + part,)) for part, half in enumerate(halves)),
        *(TablePart("e", half, columns[n], (2 * n + part,)) for n in range(2) for part, half in enumerate(halves)),
        TablePart("f", all_rows, columns[0], (0,)),
        TablePart("f", all_rows, columns[1], (3,)),
        *(TablePart("g", half, Span(0, 64), (part,)) for part, half in enumerate(halves)),
    )
    tables = [table(name, 2**20, 64) for name in "abcdefg"]
    machine = Nodes(4, 2, intra="nvlink_h100", inter="infiniband_ndr")
    return answer(totals_ms=(4, 3, 2, 1), tables=tables, parts=parts, asked={**EVERY_TYPE, "machine": machine})


def test_a_line_for_each_way_says_which_tables_and_where() -> None:
    text = printed(nodes(), 120)
    lines = [line.removeprefix("sharded   ") for line in text.splitlines() if line.startswith("sharded")]
    assert lines == [
        "table_wise: 1 table, each on one device",
        "column_wise: 1 table: f 0:32 on 0, 32:64 on 3",
        "row_wise: 1 table, rows over all 4 devices: c",
        "table_row_wise: 2 tables, rows over the 2 devices of a node: d on node 1, g on node 0",
        "grid_shard: 1 table: e 0:32 by rows on node 0, 32:64 by rows on node 1",
        "data_parallel: 1 table, 256 MB of weights and optimizer state on every device: b",
    ]
    assert [row(text, device)[1] for device in (0, 1, 3)] == ["5", "4", "6"]
    assert "2 nodes x 2 simulated:h100, nvlink_h100 + infiniband_ndr, batch 64" in text
    assert link_text(nodes()) == "link nvlink_h100 in a node, infiniband_ndr between nodes (modelled)"
    pods = answer((0, 1, 2), (4, 3, 2, 1), asked={"machine": Nodes(4, 1, 2, "nvlink_h100", "infiniband_ndr")})
    assert link_text(pods) == "link nvlink_h100 within 2 nodes, infiniband_ndr between them (modelled)"
    kinds = (DeviceGroup("simulated:h100", 2), DeviceGroup("simulated:h200", 2))
    mixed = replace(pods.request, machine=Nodes(4, 4, groups=kinds))
    assert machine_text(mixed) == "2 x simulated:h100 + 2 x simulated:h200"


def test_assumed_lookups_are_a_warning() -> None:
    """All times depend on them: printed once, with the remedy; in Python, the page and the card too."""
    assumed = tuple(Assumption(f"t{number}", "pooling_factor", "1, the default") for number in range(2000))
    unknown = answer(asked={"assumptions": assumed})
    text = printed(unknown, 500, verbose=True)
    said = "The lookups per sample of 2,000 tables (t0, t1, t2 and 1,997 more) are assumed: 1, the default. Times"
    assert text.count(said) == 1 and "pooling_factor of" not in text
    assert "Give pooling_factors={'t0': 37.5} (--pooling-factors t0=37.5), or traffic." in text
    assert all(said.split(":")[0] in shown for shown in (repr(unknown), unknown._repr_html_(), page(unknown)))


ROWS = "1 table has more rows than the 300,000 the model was trained on (largest: a, 1,048,576)"
OUTSIDE = f"The request is outside the training range of the model, so its predicted times are guesses: {ROWS}."


def test_a_request_outside_the_training_range_is_said_first_and_once() -> None:
    one = make_displayable(answer(warnings=(ROWS,)))
    text = " ".join(one.summary().split())
    first = "4.00 ms of embedding work per step, predicted outside the training range (90 %: 3.60 to 4.40 ms)."
    assert text.startswith(first) and text.count(f"Warning: {OUTSIDE}") == 1
    assert page(one).count(OUTSIDE) == 1 and "training range of" not in page(answer())
    assert "outside" not in answer(measured=cost(5.0, 2.5)).summary()
    assert "predicted outside" in brief_text(one) and OUTSIDE.rstrip(".") in repr(one) == brief_text(one)
    (both,) = warning_texts(answer(warnings=(ROWS, "8 devices are more than the 4 the model was trained on")))
    assert both == f"{OUTSIDE.rstrip('.')}; 8 devices are more than the 4 the model was trained on."


def test_the_error_of_the_device_is_said_once() -> None:
    one = answer(device_error=DeviceError(12.0, 40))
    said = "Device model h100: 90 % of kernel times within a factor of 1.13 (40 held-out measurements)"
    assert printed(one).count(said) == page(one).count(said) == 1


def test_names_steer_no_terminal_and_mean_no_markup() -> None:
    names = ["[bold]x[64:128]", "new\nline\x1b[31m", ":smile:"]
    assumed = tuple(Assumption(name, "weight_bits", "32") for name in names)
    one = answer(tables=[table(n, 9, 64) for n in names], asked={"assumptions": assumed}, notes=("priced\x1b.",))
    text = printed(one, verbose=True)
    assert "[bold]x[64:128], new�line�[31m, :smile:" in text and "priced\ufffd.\n" in text


# Advice ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "Other sharding types may help (omit --sharding-types)"),
        (EVERY_TYPE, "The search found no faster sharding of it"),
        ({"rules": Rules(together=(("a", "b"),))}, "cannot be sharded"),
    ],
)
def test_a_table_that_decides_the_step(asked: dict[str, object], words: str) -> None:
    (line,) = advice(answer(asked=asked, alone_ms=(3.9, 1.0, 1.0), totals_ms=(4.0, 2.0)))
    assert line.startswith("Table a limits the step: it alone takes at least 3.90 ms on its device")
    assert words in line


def test_what_else_is_advised() -> None:
    assert advice(answer()) == []
    assert advice(answer(alone_ms=(3.9, 1.0, 1.0), totals_ms=(4.0, 3.9))) == [], "all devices are as slow"
    assert advice(answer(alone_ms=(3.7, 1.0, 1.0))) == [], "no table is costly enough"
    (line,) = advice(answer(lower_bound_ms=3.96))
    assert line.startswith("Under the model, other placements gain at most 1.0 %. For a faster step, use more")
    (line,) = advice(answer(lower_bound_ms=4.0))
    assert line.startswith("For a faster step, use more devices")
    # 0.75 GB of tables in twice 0.4 GB.
    assert "Tables take 94 % of the memory" in advice(answer(asked={"reserved_bytes": int(0.6 * GB)}))[0]
    tight, idle = advice(answer((0, 0, 0), caps=(GB * 3 // 4, GB // 64)))
    assert "98 % of the memory" in tight and idle == "Device 1 has no table."


def test_the_costliest_tables_come_first() -> None:
    parts = placed_parts(answer(adds_ms=(3.0, 0.5, 1.0)))
    assert [one.part.table for one in costliest(parts, 2)] == ["a", "c"]
    assert [one.share for one in parts] == [0.75, 0.25, 0.5]
    cut = placed_parts(answer((0, 1, 1, 1), cuts={"a": (16,)}, adds_ms=(1.0, 2.0, 0.5, 1.5)))
    assert [(one.part.table, one.adds_ms) for one in costliest(cut, 2)] == [("a", 2.0), ("c", 1.5)]


def test_three_digits() -> None:
    times = {2.6567: "2.66", 0.19812: "0.198", 12.345: "12.3", 1234.5: "1,234", 0.0: "0.00", -0.05: "-0.05"}
    assert {value: ms_text(value) for value in times} == times
    sizes = {0: "0 bytes", 2048: "2.00 KB", 5 * 2**20: "5.00 MB", 1500 * GB: "1,500 GB"}
    assert {size: size_text(size) for size in sizes} == sizes
