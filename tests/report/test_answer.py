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
    Baseline,
    DifferenceInterval,
    Nearness,
    PlacementAnswer,
)
from evenshard.planner.baselines import FULL_SPACE
from evenshard.planner.rules import Rules
from evenshard.report.answer import EIGHTHS, FULL, print_answer, shown_devices
from evenshard.report.page.page import page
from evenshard.report.step_facts import advice, link_text, machine_text
from evenshard.report.table_facts import costliest, offload_text, placed_parts
from evenshard.tables.assumptions import Assumption
from support.answer_builders import GB, answer
from support.builders import cost, table


def printed(
    one: PlacementAnswer,
    monkeypatch: pytest.MonkeyPatch,
    width: int = 80,
    encoding: str = "utf-8",
    missing: str = "",
    verbose: bool = False,
) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    print_answer(one, file, missing, verbose)
    file.seek(0)
    return file.read()


def row(text: str, device: int) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [str(device)])


def recommendation(text: str) -> list[str]:
    """The first lines: step time, bound and baselines."""
    return text.split("\n\n")[0].splitlines()


def provenance(text: str) -> str:
    """The last lines, as one: setting, evidence, advice and warnings."""
    return " ".join(text.split("\n\n")[-1].split())


def test_the_numbers_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(answer(caps=(GB, 2 * GB)), monkeypatch, width=120)
    first = "4.00 ms of embedding work per step, predicted (90 %: 3.60 to 4.40 ms)."
    assert recommendation(text)[:2] == [first, "At most 25 % above the model's lower bound, 3.20 ms."]
    # 2**20 rows of 64 dims of 4 bytes are 0.25 GB; communication takes a quarter of a device's time.
    assert row(text, 0)[:11] == ["0", "1", "0.25", "/", "1", "25", "%", "1.00", "1.00", "2.00", "4.00"]
    assert row(text, 1)[:11] == ["1", "2", "0.50", "/", "2", "25", "%", "0.50", "0.50", "1.00", "2.00"]


def test_the_slowest_device_is_marked_and_its_bar_is_twice_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(answer(), monkeypatch, width=120)
    assert "* slowest" in text
    assert row(text, 0)[-1] == "*"
    assert len(row(text, 0)[-2]) == 40
    assert len(row(text, 1)[-1]) == 20


def test_narrow_bars_differ_by_eighths_of_a_character_and_bars_that_would_look_the_same_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    near = answer(totals_ms=(4.0, 3.8))
    text = printed(near, monkeypatch, width=80)
    wide, narrow = row(text, 0)[-2], row(text, 1)[-1]
    assert set(wide) == {FULL} and narrow == FULL * (len(wide) - 1) + EIGHTHS[round(8 * (1 - 0.05 * len(wide)))]
    for bars in (printed(near, monkeypatch, 80, "ascii"), printed(answer(totals_ms=(4.0, 3.999)), monkeypatch, 80)):
        assert row(bars, 0)[-3:] == ["4.00", "0.00", "*"] and "#" not in bars and FULL not in bars


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("measured", [False, True])
def test_lines_fit_and_carry_no_colours(monkeypatch: pytest.MonkeyPatch, width: int, measured: bool) -> None:
    one = answer(
        tables=[table(f"a table with a long name {number}", 2**20, 64) for number in range(3)],
        warnings=("a warning that is much longer than a line of the terminal, " * 3,),
        measured=cost(4.0, 123.4) if measured else None,
        caps=(1234 * GB, 999 * GB),
    )
    text = printed(one, monkeypatch, width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "\x1b" not in text
    assert "…" not in text


def test_small_devices_count_in_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(answer(tables=[table(n, 2**10, 64) for n in "abc"], caps=(2**20, 2**21)), monkeypatch)
    assert "memory, MB" in text
    assert row(text, 1)[2:5] == ["0.50", "/", "2"]


def test_the_recommendation_comes_first_and_an_optimum_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(answer(lower_bound_ms=4.0, notes=("16 devices.",), warnings=("7 tables",)), monkeypatch, width=120)
    assert recommendation(text)[1] == "Optimal under the model: the lower bound is 4.00 ms."
    assert (
        text.index("\ndevice ") < text.index("2 x simulated:h100") < text.index("16 devices.") < text.index("Warning: ")
    )


def test_measured_times_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    baselines = (Baseline("size_greedy", 4.1, 6.0), Baseline("dim_greedy", 9.0, 5.5))
    text = printed(answer(measured=cost(5.0, 2.5), comparison=baselines), monkeypatch, width=120)
    assert recommendation(text) == [
        "5.00 ms of embedding work per step, simulated (4.00 predicted, 90 %: 3.60 to 4.40 ms).",
        "At most 25 % above the model's lower bound, 3.20 ms.",
        "Best of 2 baselines (greedy by dim): 5.50 ms, 10 % slower.",
    ]
    assert "5.00" in row(text, 0)


UNNAMED = "Without a training pipeline, only weights and optimizer state are counted."


def test_the_setting_of_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    def setting(**more: Any) -> str:
        return provenance(printed(answer(**more), monkeypatch, 120))

    asked = {"reserved_bytes": GB // 2, "optimizer": "adam", "training_pipeline": "prefetch"}
    assert setting(asked=asked, link="nvlink_h200").startswith(
        "2 x simulated:h100, nvlink_h200, batch 64, prefetch, adam, model "
    )
    assert setting(asked={"hardware": "cuda"}, link="nccl").startswith("2 x cuda, nccl, batch 64, sgd, model ")
    half = {"communication": Communication("fp16", "bf16")}
    assert setting(asked=half).startswith(
        "2 x simulated:h100, batch 64, fp16 forward and bf16 backward communication, sgd"
    )


def reserved(monkeypatch: pytest.MonkeyPatch, **asked: Any) -> str:
    text = printed(answer(asked=asked), monkeypatch, 300, verbose=True)
    return next(line for line in text.splitlines() if line.startswith("reserved")).removeprefix("reserved").strip()


def test_what_is_reserved_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    uncounted = "for CUDA context, NCCL, fragmentation and the dense model (--dense-gb counts it)"
    assert reserved(monkeypatch, reserved_bytes=GB // 2) == f"512 MB of each device reserved {uncounted}. {UNNAMED}"
    assert reserved(monkeypatch) == f"No memory reserved {uncounted}. {UNNAMED}"
    asked = {"training_pipeline": "sparse_dist", "reserved_share": 0.15, "dense_bytes": 5}
    assert reserved(monkeypatch, **asked) == (
        "15 % of each device reserved, as in TorchRec's planner, for CUDA context, NCCL and fragmentation."
    )
    asked = {"training_pipeline": "sparse_dist", "reserved_share": 0.25, "reserved_bytes": GB // 4}
    assert reserved(monkeypatch, **asked) == f"25 % and 256 MB of each device reserved {uncounted}."


def test_the_rest_is_printed_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assumed = (Assumption("a", "weight_bits", "32, the default"),)
    baselines = (Baseline(FULL_SPACE, 5.0, setting="no pooling factors"),)
    one = answer(asked={**EVERY_TYPE, "assumptions": assumed}, comparison=baselines, link="nccl")
    brief, whole = (printed(one, monkeypatch, 200, verbose=verbose) for verbose in (False, True))
    assert "More with -v, or summary(verbose=True): bound, reserved, link, baseline, assumed.\n" in brief
    added = [line.split()[0] for line in whole.splitlines() if line and line not in brief.splitlines()]
    assert added == ["bound", "reserved", "link", "baseline", "assumed"] and "More with" not in whole


# Of each of the tables below: 64 rows of 4,096 columns.
MIB = 2**20


def offloaded(**asked: Any) -> PlacementAnswer:
    """Table a in device memory, b behind a cache of a fourth, c behind one of half, d in host memory; two hosts."""
    tables = [table(name, 64, 4096) for name in "abcd"]
    kept = (Storage(), Storage("fused_uvm_caching", 0.25), Storage("fused_uvm_caching", 0.5), Storage("fused_uvm"))
    parts = tuple(
        TablePart(name, Span(0, 64), Span(0, 4096), (device,), storage)
        for name, device, storage in zip("abcd", (0, 1, 0, 1), kept, strict=True)
    )
    machine = Nodes(2, 1, inter="ib_400g", host_bytes=(10 * MIB, 4 * MIB))
    known = {"machine": machine, "training_pipeline": "sparse_dist", "reserved_share": 0.15, **asked}
    return answer(tables=tables, parts=parts, caps=(10 * MIB, 10 * MIB), asked={**EVERY_TYPE, **known})


def test_the_fullest_device_component_by_component(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs of 64 samples of 4,096 columns are 1 MB a table, and again to send; 32 samples of four tables, 2 MB."""
    text = " ".join(printed(offloaded(), monkeypatch).split())
    assert (
        "memory device 0, the fullest: weights 1.00 + caches 0.50 + inputs 0.01 + outputs 4.00 + own samples 2.01 = "
        "7.52 of 8.50 MB; 1.50 MB reserved kernel"
    ) in text
    in_gb = printed(answer((0, 0, 0), asked={"training_pipeline": "none"}), monkeypatch)
    assert "memory    device 0, the fullest: weights 0.75 = 0.75 of 1.00 GB" in in_gb
    one = [table("a", 64, 2048)]
    idle = printed(answer((0,), tables=one, asked={"training_pipeline": "none"}, caps=(2**23, 2**20)), monkeypatch, 100)
    assert "fullest: own samples 0.25 = 0.25 of 1.00 MB, 0.75 when gradients are ordered\n" in idle
    assert "memory    " not in printed(answer(), monkeypatch)


def test_where_tables_are_kept_is_said_where_some_are_not_in_device_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(offloaded(), monkeypatch, 200)
    lines = [line for line in text.splitlines() if line.startswith(("kernel", "hosts", "offload"))]
    assert lines == [
        "kernel    fused: 1 table, 1.00 MB in device memory",
        "kernel    fused_uvm_caching: 2 tables, 2.00 MB in host memory, caches of 769 KB in device memory (load "
        "factors 0.25 to 0.5): b, c",
        "kernel    fused_uvm: 1 table, 1.00 MB in host memory: d",
        "hosts     host memory: 2.00 MB of 4.00 MB used on host 1, the fullest of 2 (50 %); 3.00 MB in all",
        f"offload   {offload_text(offloaded())}",
    ]
    assert "kernel" not in printed(answer(), monkeypatch) and "hosts" not in printed(answer(), monkeypatch)


WHOLE, CUTTING = Baseline("lookup_greedy", 6.0), Baseline(FULL_SPACE, 4.1)
EVERY_TYPE: dict[str, Any] = {"sharding_types": ()}


def test_the_placement_in_use_is_among_the_first_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    near = Nearness("old.json", None, 1, ("a",), (), (), 5.0, 0, 4.0, 1, DifferenceInterval(1.0, 0.5, 2.0))
    lines = recommendation(printed(answer(nearness=near), monkeypatch, 200))
    assert lines[2] == "The placement in use: 5.00 ms, 25 % slower (90 %: 12 % to 50 %)."
    moved = replace(near, stay_bytes=9, stay_ms=4.0, stay_saves=DifferenceInterval(0.0, 0.0, 0.0))
    lines = recommendation(printed(answer(nearness=moved), monkeypatch, 200))
    assert lines[2] == "The fewest moves from the placement in use: 4.00 ms, as fast."
    known_before = replace(near, stay_saves=None)
    assert "in use" not in printed(answer(nearness=known_before), monkeypatch, 200)


@pytest.mark.parametrize(
    ("baseline_ms", "words"), [(5.0, "25 % slower"), (4.0, "as fast"), (4.001, "as fast"), (3.0, "25 % faster")]
)
def test_the_best_baseline_in_words(monkeypatch: pytest.MonkeyPatch, baseline_ms: float, words: str) -> None:
    baselines = (
        Baseline("lookup_greedy", 50.0),
        Baseline("dim_greedy", baseline_ms),
        Baseline("random", 1.0, note="tables a, b share a device"),
        Baseline("size_greedy", None, note="no room"),
    )
    assert f"Best of 2 baselines (greedy by dim): {baseline_ms:.2f} ms, {words}." in printed(
        answer(comparison=baselines), monkeypatch
    )


def test_many_devices_are_cut_down_to_the_slowest_and_the_fullest(monkeypatch: pytest.MonkeyPatch) -> None:
    num_devices = 40
    tables = [table(f"t{number}", 2**10 * (number + 1), 64) for number in range(num_devices)]
    totals = [10.0 + (7 * number) % num_devices for number in range(num_devices)]
    one = answer(range(num_devices), totals, tables, alone_ms=(1.0,) * 40, adds_ms=(0.5,) * 40)
    slowest, fullest = shown_devices(one)
    assert [totals[device] for device in slowest] == [49, 48, 47, 46, 45, 44, 43, 42]
    assert fullest == [device for device in range(39, -1, -1) if device not in slowest][:4]
    text = printed(one, monkeypatch)
    assert all(row(text, device) for device in (*slowest, *fullest))
    assert "The other 28" in text
    assert len(text.splitlines()) < 30


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


def test_a_line_for_each_way_says_which_tables_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(nodes(), monkeypatch, 120)
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


def test_machine_and_links(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(nodes(), monkeypatch, 200, verbose=True)
    assert provenance(text).startswith("2 nodes x 2 simulated:h100, nvlink_h100 + infiniband_ndr, batch 64, sgd")
    assert "\nlink      nvlink_h100 in a node, infiniband_ndr between nodes (modelled)\n" in text
    pods = replace(nodes().request, machine=Nodes(4, 1, 2, "nvlink_h100", "infiniband_ndr"))
    one = answer((0, 1, 2), (4, 3, 2, 1), asked={"machine": pods.machine})
    assert link_text(one) == "link nvlink_h100 within 2 nodes, infiniband_ndr between them (modelled)"
    kinds = (DeviceGroup("simulated:h100", 2), DeviceGroup("simulated:h200", 2))
    assert machine_text(replace(pods, machine=Nodes(4, 4, groups=kinds))) == ("2 x simulated:h100 + 2 x simulated:h200")


def test_assumed_lookups_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """All times depend on them: printed once, with the remedy; in Python, the page and the card too."""
    assumed = tuple(Assumption(f"t{number}", "pooling_factor", "1, the default") for number in range(2000))
    unknown = answer(asked={"assumptions": assumed})
    text = printed(unknown, monkeypatch, 500, verbose=True)
    said = "The lookups per sample of 2,000 tables (t0, t1, t2 and 1,997 more) are assumed: 1, the default. Times"
    assert text.count(said) == 1
    assert "Give pooling_factors={'t0': 37.5} (--pooling-factors t0=37.5), or traffic." in text
    assert "pooling_factor of" not in text, "it is not said again below"
    assert all(said.split(":")[0] in shown for shown in (repr(unknown), unknown._repr_html_(), page(unknown)))
    assert "lookups per sample" not in printed(answer(), monkeypatch, 500)


def test_names_steer_no_terminal_and_mean_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["[bold]x[64:128]", "new\nline\x1b[31m", ":smile:"]
    assumed = tuple(Assumption(name, "weight_bits", "32") for name in names)
    one = answer(tables=[table(n, 9, 64) for n in names], asked={"assumptions": assumed})
    text = printed(one, monkeypatch, 120, verbose=True)
    assert "[bold]x[64:128], new�line�[31m, :smile:" in text


# Advice ---------------------------------------------------------------------------------------------------------------

DECISIVE = {"alone_ms": (3.9, 1.0, 1.0), "totals_ms": (4.0, 2.0)}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "Other sharding types may help (omit --sharding-types)"),
        (EVERY_TYPE, "The search found no faster sharding of it"),
        ({"rules": Rules(together=(("a", "b"),))}, "cannot be sharded"),
    ],
)
def test_a_table_that_decides_the_step(asked: dict[str, object], words: str) -> None:
    (line,) = advice(answer(asked=asked, **DECISIVE))
    assert line.startswith("Table a limits the step: it alone takes at least 3.90 ms on its device")
    assert words in line


def test_no_table_decides_where_all_devices_are_as_slow_or_none_is_costly() -> None:
    assert advice(answer(alone_ms=(3.9, 1.0, 1.0), totals_ms=(4.0, 3.9))) == []
    assert advice(answer(alone_ms=(3.7, 1.0, 1.0))) == []


def test_a_placement_at_the_bound_leaves_nothing_to_gain() -> None:
    (line,) = advice(answer(lower_bound_ms=3.96))
    assert line.startswith("Under the model, other placements gain at most 1.0 %. For a faster step, use more")
    (line,) = advice(answer(lower_bound_ms=4.0))
    assert line.startswith("For a faster step, use more devices")


def test_reserved_memory_makes_it_tighter() -> None:
    # 0.75 GB of tables in twice 0.4 GB.
    assert "Tables take 94 % of the memory" in advice(answer(asked={"reserved_bytes": int(0.6 * GB)}))[0]
    assert advice(answer()) == []


def test_the_costliest_tables_come_first() -> None:
    parts = placed_parts(answer(adds_ms=(3.0, 0.5, 1.0)))
    assert [one.part.table for one in costliest(parts, 2)] == ["a", "c"]
    assert [one.share for one in parts] == [0.75, 0.25, 0.5]
    cut = placed_parts(answer((0, 1, 1, 1), cuts={"a": (16,)}, adds_ms=(1.0, 2.0, 0.5, 1.5)))
    assert [(one.part.table, one.adds_ms) for one in costliest(cut, 2)] == [("a", 2.0), ("c", 1.5)]


def test_tight_memory_and_idle_devices_are_told() -> None:
    lines = advice(answer((0, 0, 0), caps=(GB * 3 // 4, GB // 64)))
    assert len(lines) == 2
    assert "98 % of the memory" in lines[0]
    assert lines[1] == "Device 1 has no table."


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.6567, "2.66"), (0.19812, "0.198"), (12.345, "12.3"), (1234.5, "1,234"), (0.0, "0.00"), (-0.05, "-0.05")],
)
def test_three_digits(value: float, text: str) -> None:
    assert ms_text(value) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 bytes"), (2048, "2.00 KB"), (5 * 2**20, "5.00 MB"), (1500 * GB, "1,500 GB")]
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert size_text(num_bytes) == text


def test_a_narrow_terminal_wraps_numbers_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (30, 60):
        text = printed(answer(), monkeypatch, width)
        assert "\u2026" not in text
        assert row(text, 0)[:9] == ["0", "1", "0.25", "/", "1", "1.00", "1.00", "2.00", "4.00"]
